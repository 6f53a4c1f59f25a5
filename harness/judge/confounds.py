"""Find every undeclared difference between two arms; ``harness.show.text.doubts`` writes the sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from harness.explain.ledger import COUNTED, Blocks, alternated, per_step_of
from harness.judge import policy
from harness.judge.losses import Losses
from harness.machine.packages import OWN_PACKAGE
from harness.scenario.overrides import HAND_OVER, flatten, lookup
from harness.study.records import COMMAND, RunRecord
from trainer.json_types import Json, JsonObject

ConfoundKind = Literal[
    "diverged", "losses", "repeated data", "lead", "mixed data", "mixed code", "configuration", "fact", "environment",
    "useful tokens", "other batches", "other steps", "host load", "sessions", "unfinished", "block counts",
    "compared blocks", "SM clock", "throttled", "other processes",
]  # fmt: skip

CODE = "code"  # declared by arms that run two states of the code
OWN_STATE = {"git_commit", OWN_PACKAGE}  # entries that then differ by declaration

# Settings that decide how many tokens a step has, directly or through the documents that it reads: those of BATCHES
# without those of SAME_BATCHES. A new data key is one of them.
BATCHES = ("data", "evaluation", "optimizer.accumulation", "model.objective", "launch", "resume", "seed")
SAME_BATCHES = (
    *HAND_OVER, "data.workers", "data.access", "data.tokenize", "data.tokenize_threads", "data.tokenize_processes",
    "data.extra_reads", "data.extra_tokenizations", "data.inject", "data.replay",
)  # fmt: skip
# Configuration that may explain a difference between two arms, for every fact of a run. A declared key that starts with
# one of these roots explains a difference. No key explains an empty tuple. MEASURED: the value differs in every run, so
# a difference means nothing.
MEASURED = None
_OF_PROFILE = ("compute.device", "compute.precision", "compute.threads", "compute.work", "launch")
REASONS: Mapping[str, tuple[str, ...] | None] = {
    "profile": _OF_PROFILE,
    "profile_reason": _OF_PROFILE,
    "peak_flops_per_s": _OF_PROFILE,
    "dtype": _OF_PROFILE,
    "peak_source": _OF_PROFILE,
    "peak_measured": _OF_PROFILE,
    "price_per_hour_usd": _OF_PROFILE,
    "parameters": ("model", "data.tokenizer"),
    "flops_per_token": ("model", "data.tokenizer", "data.sequence_length", "compute.flops_convention"),
    "flops_convention": ("compute.flops_convention", "model"),
    "attention": ("model", "compute.device"),
    "measured_compilations": MEASURED,
    "device": ("compute.device",),
    "asynchronous": ("compute.device",),
    "emulated": ("compute.device",),
    "emulation": ("compute", "model", "optimizer", "data.batch_size", "data.sequence_length", "data.tokenizer"),
    "device_count": ("compute.device", "launch"),
    "ranks": ("launch",),
    "nodes": ("launch",),
    "parallel": ("launch",),
    "threads": ("compute.threads", "launch"),
    "workers": ("data.workers", COMMAND),
    "cores": ("launch",),
    "torch": (),
    "iterable": ("data.source", COMMAND),
    "tokenizer_fingerprint": ("data.tokenizer", "data.corpus", "data.source"),  # a trained tokenizer follows its corpus
    "corpus_fingerprint": ("data.corpus", "data.source"),
    "tokenizer_engine": ("data.tokenizer", "data.source"),
    "tokenizer_proof": MEASURED,
    "stored_bytes": ("data",),
    "text_bytes": ("data",),
    "questions_fingerprint": ("evaluation",),
    "model_fingerprint": ("model.factory", "model.config", "model.pretrained", "model.vocab_size"),
    "program_fingerprint": (COMMAND,),
    "vocab_size": ("model", "data.tokenizer", "data.source"),
    "attached": (COMMAND,),
    "step_ends": (COMMAND,),
    "clock_error_ns": MEASURED,
    "checkpoint_writing_ns": MEASURED,
    "parameters_digest": MEASURED,
    "running_share": MEASURED,
    "repeated_rows": MEASURED,
    "epoch_steps": MEASURED,
    "skipped_steps": MEASURED,
    "unseen_share": MEASURED,
    "unseen_place": MEASURED,
    "causes": MEASURED,
    "waiting_share": MEASURED,
    "tokenizing_share": MEASURED,
    "iterating_share": MEASURED,
    "restarting_share": MEASURED,
    "sampling_share": MEASURED,
    "persistent_workers": (COMMAND,),
    "copies": MEASURED,
    "empty_workers": MEASURED,
    "epoch_ends": MEASURED,
    "evaluating_steps": MEASURED,
    "evaluating_share": MEASURED,
    "program_ms": MEASURED,
    "thinned_steps": MEASURED,
    "marked_steps": MEASURED,
}
# Facts that are fingerprints of user code, by the configuration key that selects it. Code states differ in them.
OF_USER_CODE = {
    "corpus_fingerprint": "data.source",
    "tokenizer_fingerprint": "data.source",
    "model_fingerprint": "model.factory",
}
# Facts that are equal in all blocks of an arm unless its data or code was edited during the study.
IN_ALL_BLOCKS: Mapping[str, ConfoundKind] = {
    "corpus_fingerprint": "mixed data",
    "tokenizer_fingerprint": "mixed data",
    "program_fingerprint": "mixed code",
    "model_fingerprint": "mixed code",
}


@dataclass(frozen=True)
class Confound:
    """One difference between two arms that they did not declare. ``values`` (baseline, candidate) depend on ``kind``:

    - "useful tokens": trained share of all token positions. "repeated data": share of rows trained again.
    - "throttled": share of samples in which the GPU was slowed for the reason ``key``.
    - "lead": share of a step by which steps were faster, as batches were ready ahead of time.
    - "host load": cores. "SM clock": MHz. "losses": losses.
    - "block counts": finished blocks. "other steps": measured steps of a block.
    - "other batches": tokens per step (``key``: "tokens" or "trained_tokens"). "compared blocks": (compared, planned)
    blocks.
    """

    kind: ConfoundKind
    names: tuple[str, str] = ("", "")  # baseline, candidate
    key: str = ""  # dotted configuration key, fact, entry of the environment, or reason for throttling
    values: tuple[Any, Any] = (None, None)
    blocks: tuple[int, ...] = ()  # "unfinished" (of the arm ``key``) and "sessions": affected blocks
    device: int | None = None  # CUDA device number
    ratio: float = 1.0  # "other steps": speed ratio of the first steps that both measured
    explained: bool = False  # "losses": True if different numbers of tokens per step explain the difference


def confounds(
    baseline: Blocks,
    candidate: Blocks,
    records: Mapping[str, Sequence[RunRecord]],
    names: tuple[str, str],
    blocks: int,
    losses: Losses | None = None,
    repeated: tuple[float, float] | None = None,
) -> tuple[Confound, ...]:
    """Return each difference between two arms that the arms did not declare, once.

    First come two kinds that count even if declared: losses that diverged or differ, and rows that only one arm trains
    repeatedly. ``repeated``: (baseline, candidate) shares of such rows; None: no difference.
    ``records``: all runs of each arm, even failed ones. ``blocks``: number of planned blocks.
    """
    differences = [
        *_losses(losses, names),
        *([] if repeated is None else [Confound("repeated data", names, values=repeated)]),
        *_mixed(baseline, candidate, names),
        *_configuration(baseline, candidate),
        *_facts(baseline, candidate),
        *_environment(baseline, candidate),
        *_useful(baseline, candidate, names),
        *_other_batches(baseline, candidate, names),
        *_other_steps(baseline, candidate, names),
        *_load(baseline, candidate, names),
        *_sessions(baseline, candidate),
        *_blocks(baseline, candidate, records, names, blocks),
    ]
    # Values may be lists, which have no hash.
    return tuple({repr(confound): confound for confound in differences}.values())


def used_lead(shares: tuple[float, float], effect: float, names: tuple[str, str]) -> tuple[Confound, ...]:
    """Return a confound if an arm's use of batches that were ready ahead of time may explain the arms' difference.

    ``shares``: by which share of a step this made (baseline, candidate) faster. ``effect``: the difference, a fraction,
    with any sign."""
    return (Confound("lead", names, values=shares),) if max(shares) > 0 and max(shares) >= abs(effect) else ()


def _losses(losses: Losses | None, names: tuple[str, str]) -> list[Confound]:
    if losses is None:
        return []
    differences = [Confound("diverged", key=arm) for arm in losses.diverged]
    if losses.differ:
        values = losses.baseline, losses.candidate
        differences.append(Confound("losses", names, values=values, explained=not losses.unlike))
    return differences


def _mixed(baseline: Blocks, candidate: Blocks, names: tuple[str, str]) -> list[Confound]:
    """Return a confound for each arm whose blocks read different data or ran different code."""
    differences = []
    for name, blocks in zip(names, (baseline, candidate), strict=True):
        for key, kind in IN_ALL_BLOCKS.items():
            facts = {getattr(run.record.facts, key) for run in blocks.values()}
            if len(facts - {None}) > 1:
                differences.append(Confound(kind, (name, ""), key))
    return differences


def _pairs(baseline: Blocks, candidate: Blocks) -> Iterable[tuple[RunRecord, RunRecord]]:
    for block in sorted(set(baseline) & set(candidate)):
        yield baseline[block].record, candidate[block].record


def _declared(*records: RunRecord) -> set[str]:
    return {key for record in records for key in flatten(record.declared)}


def _covered(key: str, declared: Iterable[str]) -> bool:
    """True if ``declared`` has the dotted ``key``, a section around it, or a key inside it (a section)."""
    return any(key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.") for name in declared)


def _decides_batches(key: str) -> bool:
    return _covered(key, BATCHES) and not _covered(key, SAME_BATCHES)


def _absent_section(key: str, first: JsonObject, second: JsonObject) -> str | None:
    """Return the section around ``key`` that is None in one configuration; None if there is no such section.

    An arm that declares one key of this section thereby also gets the section's other keys."""
    parents = [key[:i] for i, letter in enumerate(key) if letter == "."]
    return next(
        (parent for parent in parents if any(parent in side and side[parent] is None for side in (first, second))), None
    )


def _configuration(baseline: Blocks, candidate: Blocks) -> list[Confound]:
    differences = []
    for base, compared in _pairs(baseline, candidate):
        first, second, declared = flatten(base.config), flatten(compared.config), _declared(base, compared)
        for key in sorted(set(first) | set(second)):
            if first.get(key) == second.get(key) or _covered(key, declared) or _covered(COMMAND, declared):
                continue
            if CODE in declared and not (key in first and key in second):
                continue  # One of the two code states does not have this key.
            section = _absent_section(key, first, second)
            if section is None or not _covered(section, declared):
                differences.append(Confound("configuration", key=key, values=(first.get(key), second.get(key))))
    return differences


def _facts(baseline: Blocks, candidate: Blocks) -> list[Confound]:
    differences = []
    for base, compared in _pairs(baseline, candidate):
        declared = _declared(base, compared)
        first, second = base.facts.to_json(), compared.facts.to_json()
        for key in sorted(set(first) & set(second)):
            base_fact, other_fact = first[key], second[key]
            if (roots := REASONS.get(key, ())) is MEASURED:
                continue
            explained = any(name == root or name.startswith(f"{root}.") for name in declared for root in roots)
            if CODE in declared and key in OF_USER_CODE:
                explained |= all(lookup(side.config, OF_USER_CODE[key]) is not None for side in (base, compared))
            if base_fact != other_fact and not explained:
                differences.append(Confound("fact", key=key, values=(base_fact, other_fact)))
    return differences


def _environment(baseline: Blocks, candidate: Blocks) -> list[Confound]:
    differences = []
    for base, compared in _pairs(baseline, candidate):
        declared = OWN_STATE if CODE in _declared(base, compared) else set()
        for key in sorted((set(base.environment) | set(compared.environment)) - declared):
            base_value, other_value = base.environment.get(key), compared.environment.get(key)
            if not alike_environment(key, base_value, other_value):
                differences.append(Confound("environment", key=key, values=(base_value, other_value)))
    return differences


def alike_environment(key: str, one: Json, other: Json) -> bool:
    """True if two values of the entry ``key`` agree. Memory sizes may differ slightly by boot."""
    if key == "memory_bytes" and isinstance(one, int | float) and isinstance(other, int | float) and other:
        return abs(one / other - 1) < policy.MEMORY_SIZE_WITHIN
    return one == other


def _useful(baseline: Blocks, candidate: Blocks, names: tuple[str, str]) -> list[Confound]:
    base_share, other_share = useful_fraction(baseline), useful_fraction(candidate)
    if (
        base_share is None
        or other_share is None
        or abs(other_share - base_share) <= policy.USEFUL_TOKENS_WITHIN * max(base_share, other_share)
    ):
        return []
    return [Confound("useful tokens", names, values=(base_share, other_share))]


def useful_fraction(blocks: Blocks) -> float | None:
    """Return trained tokens / token positions over all measured steps, 0 to 1; None if either was not counted."""
    trained, tokens = [run.trained_tokens for run in blocks.values()], [run.tokens for run in blocks.values()]
    if None in trained or None in tokens or not sum(filter(None, tokens)):
        return None
    return sum(filter(None, trained)) / sum(filter(None, tokens))


def _other_batches(baseline: Blocks, candidate: Blocks, names: tuple[str, str]) -> list[Confound]:
    """Return a confound if tokens per step differ although no setting that decides the batches does.

    Tokens per step may differ, for example, if an arm with more workers begins to measure at a later batch."""
    for base, compared in _pairs(baseline, candidate):
        first, second, declared = flatten(base.config), flatten(compared.config), _declared(base, compared)
        differing = {key for key in (*first, *second) if first.get(key) != second.get(key)}
        if declared & {CODE, COMMAND} or any(map(_decides_batches, differing)):
            return []
    for name in COUNTED:
        per_step = per_step_of(baseline, name), per_step_of(candidate, name)
        if per_step[0] is not None and per_step[1] is not None:
            differs = abs(per_step[1] - per_step[0]) > policy.SAME_TOKENS_WITHIN * per_step[0]
            return [Confound("other batches", names, name, per_step)] if differs else []
    return []


def _other_steps(baseline: Blocks, candidate: Blocks, names: tuple[str, str]) -> list[Confound]:
    """Return a confound if one arm measured clearly more steps per block and the runs did not alternate."""
    logs: list[float] = []
    lengths: tuple[int, int] | None = None
    for block in sorted(set(baseline) & set(candidate)):
        base, compared = baseline[block], candidate[block]
        counts = len(base.step_ms), len(compared.step_ms)
        if alternated(base, compared) or max(counts) - min(counts) <= policy.BLOCK_STEPS_WITHIN * max(counts):
            continue
        lengths = lengths or counts
        logs.append(math.log(base.step_ms[: min(counts)].sum() / compared.step_ms[: min(counts)].sum()))
    if lengths is None:
        return []
    return [Confound("other steps", names, values=lengths, ratio=math.exp(float(np.median(logs))))]


def _load(baseline: Blocks, candidate: Blocks, names: tuple[str, str]) -> list[Confound]:
    medians = []
    for blocks in (baseline, candidate):
        core_counts = [run.other_cpu_cores for run in blocks.values() if run.other_cpu_cores is not None]
        if not core_counts:
            return []
        medians.append(float(np.median(core_counts)))
    if max(medians) <= policy.OTHER_CORES_MAX:  # also if both are equal, because the load takes cores and adds noise
        return []
    return [Confound("host load", names, values=(medians[0], medians[1]))]


def _sessions(baseline: Blocks, candidate: Blocks) -> list[Confound]:
    split_blocks = tuple(
        base.block
        for base, compared in _pairs(baseline, candidate)
        if "slices" in (base.interleave, compared.interleave)
        and (base.interleave, base.session) != (compared.interleave, compared.session)
    )
    return [Confound("sessions", blocks=split_blocks)] if split_blocks else []


def _blocks(
    baseline: Blocks, candidate: Blocks, records: Mapping[str, Sequence[RunRecord]], names: tuple[str, str], blocks: int
) -> list[Confound]:
    differences = []
    for name, finished in zip(names, (baseline, candidate), strict=True):
        missing = sorted({record.block for record in records.get(name, ()) if record.block not in finished})
        if missing:
            differences.append(Confound("unfinished", key=name, blocks=tuple(missing)))
    if len(baseline) != len(candidate):
        differences.append(Confound("block counts", names, values=(len(baseline), len(candidate))))
    shared = len(set(baseline) & set(candidate))
    if shared < blocks:
        differences.append(Confound("compared blocks", values=(shared, blocks)))
    return differences
