"""Compute where each arm's step and cores go (tokenization, sync, compute, Python), and judge common claims about them.

Shares of the step's time on the main thread:

    tokenization   fetch while this batch was tokenized, inline or by a worker that the step waits for
    sync           reading values from the device
    compute        h2d, forward, backward, optimizer; on an asynchronous device their launches
    Python         the rest of the loop: between the phases, and logging
    other data     the rest of the fetch: reading, packing, hand-over

Cores: CPU time per second of measured steps, from the spans of the same phases and stages; sampled for processes that
tokenize for the main thread. With several ranks all are those of rank 0, except ``all_cores``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from harness.explain.ledger import RunLedger
from harness.explain.statistics import Estimate, from_amounts, from_block_values, from_blocks
from harness.judge.probes.machine_load import host_load
from harness.scenario.claims import CLAIMS, SHARES, ClaimKind, ClaimName, Figure
from harness.scenario.overrides import HAND_OVER, differing, lookup, lookup_number
from harness.study.contract import SAMPLER
from harness.study.run_data import RunData
from trainer.json_types import JsonObject

COMPUTE = ("h2d", "forward", "backward", "optimizer")
PARTS = ("tokenization", "sync", "compute", "Python", "other data")
STRATEGY = "data.tokenize"
STRATEGIES = (STRATEGY, f"{STRATEGY}_processes", f"{STRATEGY}_threads")
# Configuration keys changed by "all fixes together" and by fixes that are meant to lower CPU use.
FIXES = (
    *STRATEGIES, *HAND_OVER, "data.path", "data.access", "data.workers", "compute.sync", "log_every", "optimizer.fused",
)  # fmt: skip
Outcome = Literal["holds", "does not hold", "not measurable"]


@dataclass(frozen=True)
class RunUse:
    """Shares of the step (0 to 1) and cores in use, by part of :data:`PARTS`, of one run; :func:`use_of` makes it.

    ``cores`` is empty without CPU times. ``all_cores``: of all processes of the run; None if they were not sampled, are
    on several machines, or live too short for the sampler (``data.tokenize: processes``)."""

    shares: Mapping[str, float]
    cores: Mapping[str, float]
    all_cores: float | None
    idle_share: float | None  # of the device
    step_ms: float
    tokenizing_ms: float | None  # per 1000 tokens, in any process
    tokens_per_s: float | None
    trained_tokens_per_s: float | None = None  # without padding
    ranks: int = 1
    chunk_ms: float | None = None  # data work for one batch, in any process
    stored_per_text: float | None = None  # bytes of pretokenized data per byte of its source text
    device_use: float | None = None  # share of the step; also None if running phase launches leave it open


@dataclass(frozen=True)
class ArmUse:
    """Shares of the step and use of cores of an arm: medians over its runs (see :class:`RunUse`)."""

    arm: str
    shares: Mapping[str, Estimate]
    cores: Mapping[str, float]
    all_cores: float | None
    idle_share: float | None
    step_ms: Estimate | None
    tokenizing_ms: Estimate | None
    tokens_per_s: Estimate | None
    ranks: int = 1


@dataclass(frozen=True)
class JudgedClaim:
    """A claim about ``arm`` (compared with ``baseline``), its figure and outcome; :func:`judge` makes it."""

    claim: ClaimName | None  # name of a common claim; None if the scenario gives the bounds
    arm: str
    baseline: str | None
    figure: Estimate | None
    outcome: Outcome  # outcome by the interval, widened by ``noise_floor``
    kind: ClaimKind
    values: tuple[float, float] | None = None  # "cpu use": the cores of baseline and arm
    processes: int | None = None  # "processes", "pool": number of processes
    cores: int | None = None
    noise_floor: float | None = None  # fraction: distance of an arm's ratio to its A/A control from 1
    differs: tuple[str, ...] = ()  # configuration keys that differ besides those of the claim
    untested: str | None = None  # the tokenizing strategy, if equal although the claim compares two
    without: tuple[str, ...] = ()  # arms without a finished run that has the figure


def use_of(run: RunData, ledger: RunLedger) -> RunUse:
    """Return shares of the step (0 to 1), cores in use and tokens per second of ``run``, whose ledger is ``ledger``."""
    step = ledger.mean_step_ms
    phase = ledger.phase_ms
    spent = {
        "sync": phase.get("sync", 0.0),
        "compute": sum(phase.get(name, 0.0) for name in COMPUTE),
        "Python": phase.get("other", 0.0) + phase.get("log", 0.0),
    }
    if ledger.during_wait_ms:  # Otherwise the cause of the fetch waits is unknown, which is not a share of 0.
        fetch = phase.get("fetch", 0.0)
        tokenizing = min(fetch, ledger.during_wait_ms.get("tokenize", 0.0))
        spent |= {"tokenization": tokenizing, "other data": fetch - tokenizing}
    config = ledger.record.config
    cores, sampled = _cores(run, ledger, config)
    tokens = ledger.tokens
    steps = len(ledger.step_ms)
    work = ledger.work_ms.get("tokenize")
    wall_s = float(ledger.step_ms.sum()) / 1e3
    idle_ms = ledger.device_starved_ms
    use = None if idle_ms is None or ledger.device_busy_ms is None else 1 - idle_ms / step
    facts = ledger.record.facts
    ranks = facts.ranks or 1
    return RunUse(
        {name: value / step for name, value in spent.items()},
        cores,
        sampled,
        None if idle_ms is None else idle_ms / step,
        step,
        None if not work or not tokens else work * steps / (tokens / ranks) * 1e3,  # ``work`` is of rank 0 alone.
        None if tokens is None else tokens / wall_s,
        None if ledger.trained_tokens is None else ledger.trained_tokens / wall_s,
        ranks,
        sum(ledger.work_ms.values()) if ledger.work_ms else None,
        facts.stored_bytes / facts.text_bytes if facts.stored_bytes and facts.text_bytes else None,
        use,
    )


def _cores(run: RunData, ledger: RunLedger, config: JsonObject) -> tuple[dict[str, float], float | None]:
    """Return ({part of :data:`PARTS`: cores of rank 0 in use}, cores in use by all processes of the run). Both values
    are means over measured steps. The dict is empty without recorded spans. The second value is None if processes were
    not sampled, are on several machines, or live too short for the sampler (``data.tokenize: processes``)."""
    spans, steps = run.spans, run.steps
    loads = host_load({ledger.record.arm: [run]})
    roles = {} if not loads else {role.role: role.cores for role in loads[0].roles if role.role != "sampler"}
    short_lived = lookup(config, "data.tokenize", "batched") == "processes"
    multi_node = (ledger.record.facts.nodes or 1) > 1
    all_roles = sum(roles.values()) if roles and not short_lived and not multi_node else None
    if spans is None or steps is None:
        return {}, all_roles
    import pyarrow.compute as pc

    measured = steps.filter(pc.invert(pc.fill_null(steps.column("warmup"), False)))
    if not len(measured):
        return {}, all_roles
    begin = measured.column("start_ns").to_numpy()
    end = begin + measured.column("wall_ns").to_numpy()
    starts = spans.column("start_ns").to_numpy()
    position = begin.searchsorted(starts, side="right") - 1
    is_inside = (position >= 0) & (starts < end[position.clip(0)])
    names, cpu = spans.column("name").to_pylist(), spans.column("cpu_ns").to_pylist()
    role_column = spans.column("role").to_pylist()
    spent: dict[tuple[bool, str], float] = {}
    for number in is_inside.nonzero()[0]:
        if cpu[number] is not None:
            key = role_column[number] in ("main", SAMPLER), names[number]
            spent[key] = spent.get(key, 0.0) + cpu[number]
    wall_ns = float((end - begin).sum())
    inline = sum(spent.get((True, name), 0.0) for name in ("read", "tokenize", "pack"))
    helpers = roles.get("loaders", 0.0) if not lookup_number(config, "data.workers", 0) else 0.0
    tokenizing = sum(spent.get((main, "tokenize"), 0.0) for main in (True, False))
    fetch = max(0.0, spent.get((True, "fetch"), 0.0) - inline)
    loading = sum(spent.get((main, name), 0.0) for main in (True, False) for name in ("read", "pack"))
    other_ns = float(measured.column("other_ns").to_numpy().sum())
    return {
        "tokenization": tokenizing / wall_ns + helpers,
        "sync": spent.get((True, "sync"), 0.0) / wall_ns,
        "compute": sum(spent.get((True, name), 0.0) for name in COMPUTE) / wall_ns,
        "Python": (spent.get((True, "log"), 0.0) + other_ns) / wall_ns,
        "other data": (fetch + loading) / wall_ns,
    }, all_roles


def arm_use(arm: str, uses: Sequence[RunUse]) -> ArmUse:
    """Return the use of an arm: medians over ``uses``, one per run (not empty); for ``ranks`` the maximum.

    A figure that no run measured is None; a part that no run measured is absent from ``shares`` or ``cores``."""

    def middle(value: Callable[[RunUse], float | None]) -> Estimate | None:
        return from_amounts([figure for use in uses if (figure := value(use)) is not None])

    def known(value: Callable[[RunUse], float | None]) -> float | None:
        estimate = middle(value)
        return None if estimate is None else estimate.median

    shares = {part: _share([amount for use in uses if (amount := use.shares.get(part)) is not None]) for part in PARTS}
    cores = {part: known(lambda use, part=part: use.cores.get(part)) for part in PARTS}  # type: ignore[misc]
    return ArmUse(
        arm,
        {part: share for part, share in shares.items() if share is not None},
        {part: cores_used for part, cores_used in cores.items() if cores_used is not None},
        known(lambda use: use.all_cores),
        known(lambda use: use.idle_share),
        middle(lambda use: use.step_ms),
        middle(lambda use: use.tokenizing_ms),
        middle(lambda use: use.tokens_per_s),
        max((use.ranks for use in uses), default=1),
    )


def _share(values: Sequence[float]) -> Estimate | None:
    """Return the median share with its interval, cut to 0 to 1; None without values."""
    estimate = from_block_values(values)
    if estimate is None or estimate.ci_low is None or estimate.ci_high is None:
        return estimate
    return replace(estimate, ci_low=max(0.0, estimate.ci_low), ci_high=min(1.0, estimate.ci_high))


def own_kind(claim: JsonObject) -> ClaimKind | None:
    """Return the kind of a scenario's claim that gives a figure and its own bounds (keys ``figure``, ``from``, ``to``).

    None if the figure is unknown, or if the bounds or the arms are malformed."""
    figure, low, high, arms = (claim.get(key) for key in ("figure", "from", "to", "arms"))
    if figure not in get_args(Figure) or not isinstance(arms, list) or not arms:
        return None
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low > high:
        return None
    return ClaimKind(str(claim.get("text") or ""), cast("Figure", figure), low, high, len(arms) > 1)


def judge(
    claim: ClaimName | ClaimKind,
    arm: str,
    baseline: str | None,
    uses: Mapping[str, Mapping[int, RunUse]],
    config: JsonObject,
    cores: int | None,
    baseline_config: JsonObject | None = None,
    controls: Sequence[tuple[str, str]] = (),
) -> JudgedClaim:
    """Return the outcome of one claim, from the runs of its arms, paired by block. ``baseline``: None for a claim about
    one arm. ``uses``: of every arm, by arm and block. ``config``: of ``arm``. ``cores``: number that the runs could
    use. ``controls``: (arm, its A/A control), for both arms where they exist."""
    kind = claim if isinstance(claim, ClaimKind) else CLAIMS[claim]
    common = None if isinstance(claim, ClaimKind) else claim
    arm_uses = uses.get(arm, {})
    baseline_uses = uses.get(baseline, {}) if baseline is not None else {}
    values = floor = None
    if kind.ratio:
        pairs = _paired(kind, baseline_uses, arm_uses)
        figure = from_blocks([math.log(candidate / base) for base, candidate in pairs])
        floor = _noise_floor(
            [_paired(kind, uses.get(control_arm, {}), uses.get(repeat_arm, {})) for control_arm, repeat_arm in controls]
        )
        if pairs and kind.of == "cpu use":
            medians = [from_block_values(list(side)) for side in zip(*pairs, strict=True)]
            values = tuple(estimate.median for estimate in medians if estimate is not None)
    else:
        figures = [amount for _, use in sorted(arm_uses.items()) if (amount := _figure(kind, use)) is not None]
        figure = _share(figures) if kind.of in SHARES else from_amounts(figures)
    parallel = claim in ("processes", "pool")
    compares_tokenizing = common is not None and kind.of == "tokenizing speed" and baseline_config is not None
    untested = _same_strategy(config, baseline_config or {}) if compares_tokenizing else None
    differing_keys = _other_keys(config, baseline_config or {}, STRATEGIES if compares_tokenizing else FIXES)
    return JudgedClaim(
        common,
        arm,
        baseline,
        figure,
        "not measurable" if untested is not None else _outcome(figure, kind, floor or 0.0),
        kind,
        values if values is not None and len(values) == 2 else None,
        int(lookup_number(config, "data.tokenize_processes", 2)) if parallel else None,
        cores if parallel else None,
        floor,
        differing_keys if baseline_config and common is not None else (),
        untested,
        tuple(
            name
            for name in (arm, baseline)
            if name is not None and all(_figure(kind, use) is None for use in uses.get(name, {}).values())
        ),
    )


def _paired(kind: ClaimKind, theirs: Mapping[int, RunUse], ours: Mapping[int, RunUse]) -> list[tuple[float, float]]:
    pairs = [(_figure(kind, theirs[block]), _figure(kind, ours[block])) for block in sorted(set(ours) & set(theirs))]
    return [(base, candidate) for base, candidate in pairs if base and candidate]


def _noise_floor(controls: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    """Return how far from 1 the intervals of arm / A/A control reach, the widest of ``controls``.

    None if no control has an interval."""
    ratios = [from_blocks([math.log(candidate / base) for base, candidate in pairs]) for pairs in controls]
    return max((reach for ratio in ratios if ratio is not None and (reach := ratio.distance) is not None), default=None)


def _same_strategy(config: JsonObject, baseline: JsonObject) -> str | None:
    """Return ``data.tokenize`` if it is set and equal in both arms, so that no claim about it was tested; else None."""
    strategy, base_strategy = (lookup(side, STRATEGY) for side in (config, baseline))
    return str(strategy) if strategy is not None and strategy == base_strategy else None


def _other_keys(config: JsonObject, baseline: JsonObject, claimed: Sequence[str]) -> tuple[str, ...]:
    """Return the keys in which the arms differ, except those that the claim is about."""
    return tuple(sorted(set(differing(config, baseline)).difference(claimed)))


def _figure(kind: ClaimKind, use: RunUse) -> float | None:
    match kind.of:
        case "tokenizing speed":
            return None if use.tokenizing_ms is None else 1 / use.tokenizing_ms
        case "sync share":
            return use.shares.get("sync")
        case "tokenization share":
            return use.shares.get("tokenization")
        case "cpu use":
            return use.all_cores
        case "training speed":
            return use.tokens_per_s if use.trained_tokens_per_s is None else use.trained_tokens_per_s
        case "chunk ms":
            return use.chunk_ms
        case "step ms":
            return use.step_ms
        case "tokens/s":
            return use.tokens_per_s
        case "device use":
            return use.device_use
        case "stored bytes per byte of text":
            return use.stored_per_text


def _outcome(figure: Estimate | None, kind: ClaimKind, floor: float) -> Outcome:
    """Return the outcome of a claim, from the interval of ``figure``, widened by the noise ``floor``. "holds" within
    the range of ``kind``, "does not hold" outside, "not measurable" across an end or without an interval."""
    if figure is None or figure.ci_low is None or figure.ci_high is None:
        return "not measurable"
    low, high = figure.ci_low / (1 + floor), figure.ci_high * (1 + floor)
    if high < kind.low or low > kind.high:
        return "does not hold"
    return "holds" if kind.low <= low and high <= kind.high else "not measurable"
