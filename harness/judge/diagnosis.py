"""Diagnose where the wall clock of an attached program goes. :data:`RULES` maps parts of a step to kinds and remedies.

The first diagnosis is the most expensive part, from :data:`DIAGNOSED_SHARE_MIN` of a step on; else the program is bound
by its model, or the cause is unknown. All others are findings, the most expensive first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.explain.causes import (
    CODE,
    GRADIENTS,
    GROWING,
    HOLDER,
    PADDING,
    REST,
    SETTING,
    SYNCHRONIZATION,
    THREAD_LOCK,
    SlowCause,
    busy_cores,
    is_own_code,
    is_wait,
    reads_cheap_rows,
)
from harness.explain.policy import MOSTLY_CPU_SHARE
from harness.explain.ranks import GroupGain
from harness.explain.spans import BUILT
from harness.explain.statistics import Estimate, holding
from harness.explain.unusual_steps import WHOLE_STEP
from harness.explain.wall import BACKWARD, COMPUTE, IN_LOOP, RESTART, SAMPLER, PartKind, StepPart, Wall
from harness.judge import policy
from harness.judge.report_types import ArmAdvice, ArmReport, Diagnosis, DiagnosisKind, DiagnosisRemedy
from harness.study.contract import STAGES

SAVES = ("save", "checkpoint")  # parts of function names that write a model: torch.save, save_file, save_checkpoint
SHAPES = ("size mismatch", "stride mismatch", "rank mismatch")  # words in Dynamo's reasons that refer to a shape
# torch modules whose calls are the model's work, also in a line outside of all phases (for example a loss).
MODEL_LIBRARIES = {"nn", "functional"}
MODULE_CALLS = {f"torch.nn.modules.module.Module.{name}" for name in ("__call__", "_wrapped_call_impl", "_call_impl")}
MADE = ("read", "tokenize", "pack", "fetch")  # parts in which a batch is built, not handed over
HANDOVER = "transfer"  # stage in which a loader worker's batch is received
MODEL = (*COMPUTE, "h2d", "sync")  # phases that no change of the input side shortens


Remedy = Callable[[StepPart, ArmReport, ArmAdvice | None], DiagnosisRemedy]


class Rule(NamedTuple):
    """Rule for one kind of cause: which parts of a step it includes, and how to remedy them.

    ``remedy``: function that takes the largest part, the arm and its advice, and returns the remedy."""

    kind: DiagnosisKind
    includes: Callable[[StepPart], bool]
    remedy: Remedy
    at_most: Callable[[ArmReport], bool]  # True if the saving may be smaller than the cost of the parts


def saves(part: StepPart) -> bool:
    """Return True if the part is a line that writes a checkpoint, judged by the names of functions and by its code."""
    call = f"{part.function} {part.called} {part.code.partition('#')[0]}"
    return part.kind == "code" and any(name in call for name in SAVES)


def evaluates(part: StepPart) -> bool:
    """True for an evaluation. True, too, for a line of code that calls torch modules, with most time in few long steps.

    Calls that belong to the training's forward pass are no such parts."""
    return part.kind == "evaluation" or (part.kind == CODE and part.rare and part.called in MODULE_CALLS)


def computes(part: StepPart) -> bool:
    """Return True if the part is a line that calls the model or its backward pass, so it is part of the training."""
    if evaluates(part):
        return False
    package, _, member = part.called.partition(".")
    is_library = package == "torch" and member.partition(".")[0] in MODEL_LIBRARIES
    return part.kind == "code" and (is_library or part.called == BACKWARD)


def loading_remedy(part: StepPart, arm: ArmReport, advice: ArmAdvice | None) -> DiagnosisRemedy:
    """Return the remedy for waits for data. ``part``: the part of these waits that takes longest.

    ``advice``: predicted effects of settings; None if unknown."""
    if part.name == RESTART:
        persistent = arm.unseen is not None and arm.unseen.persistent_workers
        return "fewer restarts" if persistent else "persistent workers"
    if part.name == SAMPLER:
        return "faster sampler"
    if part.name == IN_LOOP:
        return "tokenize before"
    if arm.idle_workers and arm.gave_no_items:
        return "more shards"
    is_made = part.name in MADE
    if is_made and arm.workers and arm.loading.slow_worker is not None:
        return "even workers"
    if part.name in ("read", "fetch") and arm.loading.long_reads is not None:
        return "load ahead"
    on_core = arm.loading.on_core.get("read" if part.name == "fetch" else part.name)
    waits = on_core is not None and on_core < MOSTLY_CPU_SHARE
    if is_made and reads_cheap_rows(arm.causes) and not waits:
        return "whole batches"
    if advice is not None and any(option.worth and option.measured is None for option in advice.options):
        return "advice"
    if not is_made:
        return "fewer objects"
    if advice is not None and any(option.bar == "serial" for option in advice.options):
        return "more workers"
    if part.name == "tokenize":
        return "tokenize before"
    return _of_making(arm, waits=waits)


def _of_making(arm: ArmReport, *, waits: bool) -> DiagnosisRemedy:
    """Return the remedy for batches that are slow to build. ``waits``: True if mostly storage is slow."""
    if not arm.workers and (waits or arm.free_cores != 0):  # Unknown cores may be free.
        return "use one worker" if arm.iterable else "use workers"
    return "faster storage" if waits else "less work"


def remedy_figures(remedy: DiagnosisRemedy, arm: ArmReport) -> Mapping[str, float]:
    """Return the figures that the text of ``remedy`` uses, by name; empty for most remedies."""
    slow, reads = arm.loading.slow_worker, arm.loading.long_reads
    if remedy == "even workers" and slow is not None:
        return {"worker": float(slow.number), "ms": slow.ms, "others_ms": slow.others_ms}
    if remedy == "load ahead" and reads is not None:
        return {"batches": reads.batches, "ms": reads.ms}
    return {}


def _fewer(_part: StepPart, arm: ArmReport, _advice: ArmAdvice | None) -> DiagnosisRemedy:
    if busy_cores(arm.causes) - arm.workers >= policy.BUSY_CORES_MIN:
        return "fewer processes"
    return "fewer threads" if arm.spare_threads else "free cores"


def _by_setting(name: str, remedy: DiagnosisRemedy, otherwise: DiagnosisRemedy) -> Remedy:
    """Return a function that chooses a remedy for an arm. The function returns ``remedy`` if the program's setting
    ``name`` is among the arm's causes of slow steps, else ``otherwise``."""

    def chosen(_part: StepPart, arm: ArmReport, _advice: ArmAdvice | None) -> DiagnosisRemedy:
        return remedy if any(cause.kind == SETTING and cause.place == name for cause in arm.causes) else otherwise

    return chosen


def _recompiling(part: StepPart, _arm: ArmReport, _advice: ArmAdvice | None) -> DiagnosisRemedy:
    has_shapes = not part.code or any(word in part.code for word in SHAPES)
    return "fewer shapes" if has_shapes else "values in tensors"


def _own_code(part: StepPart, _arm: ArmReport, _advice: ArmAdvice | None) -> DiagnosisRemedy:
    if part.called == THREAD_LOCK:
        return "shorter lock"
    return "other thread" if is_wait(part.called) else "less often"


def _unsampled(part: StepPart, arm: ArmReport, _advice: ArmAdvice | None) -> DiagnosisRemedy:
    return "sample alone" if (part.kind, part.name) == ("phase", REST) and not arm.sampled else "profile"


def _always(remedy: DiagnosisRemedy) -> Remedy:
    return lambda _part, _arm, _advice: remedy


def _has_workers(arm: ArmReport) -> bool:
    """Return True if loader workers build batches in the background: shorter steps may wait for them."""
    return bool(arm.workers)


NO_SYNC = _by_setting(SYNCHRONIZATION, "no sync", "other ranks")
NO_GRADIENTS = _by_setting(GRADIENTS, "no gradients", "evaluate less often")
RULES = (
    Rule("input-bound", lambda part: part.kind == "data", loading_remedy, lambda _: True),
    Rule("checkpoint-bound", saves, _always("save less often"), _has_workers),
    Rule(
        "own code",
        lambda part: part.kind == "code" and not (saves(part) or computes(part) or evaluates(part)),
        _own_code,
        _has_workers,
    ),
    Rule("garbage collection", lambda part: part.kind == "gc", _always("freeze"), _has_workers),
    Rule("evaluation-bound", evaluates, NO_GRADIENTS, _has_workers),
    Rule("recompiling", lambda part: part.kind == "compile", _recompiling, _has_workers),
    Rule("cores too few", lambda part: part.kind == "core", _fewer, lambda _: True),
    Rule("synchronization-bound", lambda part: part.kind == "ranks", NO_SYNC, lambda _: True),
    Rule("interpreter lock", lambda part: part.kind == "lock", _always("other process"), _has_workers),
    Rule(
        "unknown",
        lambda part: part.kind == "long" or (part.kind == "phase" and part.name == REST),
        _unsampled,
        lambda _: True,
    ),
)


def padding_remedy(cause: SlowCause) -> DiagnosisRemedy:
    """Return "pad less" if columns that contain only padding make up most of the padding, else "batch alike"."""
    figures = cause.figures
    return "pad less" if figures["column_share"] >= policy.COLUMNS_SHARE * figures["share"] else "batch alike"


class Noted(NamedTuple):
    """Rule for a cause that affects the whole program and is no part of a step; see :data:`NOTED`."""

    kind: DiagnosisKind
    remedy: Callable[[SlowCause], DiagnosisRemedy]
    place: str  # default place of the cost, if neither a line nor a phase is known
    at_least: bool  # True if its cost is a lower bound


NOTED = {
    # Steps after the measured ones grow further.
    GROWING: Noted("growing", lambda _: "find the growth", "own code", at_least=True),
    PADDING: Noted("padding", padding_remedy, "forward and backward", at_least=False),
}  # keyed by kind of cause


@dataclass(frozen=True)
class _KindCost:
    """Parts of a step that have one kind of cause, the largest first, with their sum in ms per step."""

    rule: Rule
    parts: Sequence[StepPart]
    ms: Estimate
    of_all_ranks: bool = False  # True if ``ms`` includes waits for other ranks with the same kind of cause


def diagnose(
    arm: ArmReport, advice: ArmAdvice | None = None, group: GroupGain | None = None, exchange_ms: float = 0.0
) -> tuple[Diagnosis, ...]:
    """Return the diagnoses of ``arm``: first the one that describes it best, then all others by falling cost.

    Empty unless the arm is a program run by ``harness exec``, with measured steps. ``advice``: predicted effects of
    settings. ``group``: what all ranks of the program would gain without data work, if known. ``exchange_ms``: ms per
    step for which all ranks are blocked outside of their fetches.
    """
    wall = arm.wall
    if wall is None or wall.on_cores_ms <= 0:
        return ()
    noted = _noted(wall, arm)
    growing = {part.name for entry in noted if entry.kind == GROWING for part in _lines_of(entry, wall)}
    costs = [cost for rule in RULES if (cost := _cost(rule, wall, arm, but=growing)) is not None]
    costs = costs if group is None else _of_all_ranks(costs, wall, group)
    findings = [_diagnosis(cost, wall, arm, advice) for cost in costs] + noted
    findings = [_with_exchange(finding, exchange_ms) for finding in findings]
    findings = [found for found in findings if found.share >= _least_share(found) and _above_noise(found, arm)]
    # If other processes cause waits for a core, the waits are no property of the program.
    findings = sorted(
        (finding for finding in findings if arm.crowded or finding.kind != "cores too few"),
        key=lambda finding: -finding.ms.median,
    )
    named = [finding for finding in findings if finding.kind != "unknown"]
    if named and named[0].share >= policy.DIAGNOSED_SHARE_MIN:
        first = named[0]
    elif sum(wall.share(part) for part in _model(wall)) >= policy.COMPUTE_SHARE_MIN:
        first = _compute_bound(wall, arm)
    else:
        first = next((finding for finding in findings if finding.kind == "unknown"), _no_part(wall, arm))
    return first, *(finding for finding in findings if finding is not first)


def _model(wall: Wall) -> list[StepPart]:
    """Return the parts of a step that are the model's work, largest first."""
    return [part for part in wall.parts if (part.kind == "phase" and part.name in MODEL) or computes(part)]


def _noted(wall: Wall, arm: ArmReport) -> list[Diagnosis]:
    """Return the diagnoses of growing steps and of padding: costs spread over phases, without a part of their own."""
    findings = []
    for cause in arm.causes:
        if cause.kind not in NOTED or cause.cost_ms is None:
            continue
        noted = NOTED[cause.kind]
        ms = Estimate(cause.cost_ms, cause.low_ms, cause.high_ms, arm.blocks)
        share = ms.median / wall.on_cores_ms
        kind: PartKind = "code" if cause.place else "phase"
        called = cause.called if cause.kind == PADDING else ""
        part = StepPart(cause.place or cause.phase or noted.place, ms, share, kind, called=called)
        line = next((code_part for code_part in wall.parts if code_part.kind == CODE), None)
        share_of_part = 1.0
        if cause.kind == GROWING and part.name == noted.place and line is not None and line.ms.median >= ms.median / 2:
            part = line  # The line takes most of the growth outside of all phases.
            share_of_part = min(1.0, line.ms.median / ms.median)
        saving = _speedup(ms, wall.on_cores_ms)
        saving = replace(saving, ci_high=None) if noted.at_least else saving
        remedy = noted.remedy(cause)
        at_most = _has_workers(arm)
        findings.append(Diagnosis(noted.kind, part.name, ms, share, saving, at_most, remedy, part, share_of_part))
    return findings


def _lines_of(growing: Diagnosis, wall: Wall) -> list[StepPart]:
    """Return the lines whose time is mostly the growth that ``growing`` diagnoses; empty if growth is under half."""
    lines = [part for part in wall.parts if part.kind == CODE]
    if growing.part not in lines:  # The growth is within a phase; otherwise any line outside of all phases may grow.
        lines = [part for part in lines if part.name == growing.name]
    return lines if growing.ms.median >= sum(part.ms.median for part in lines) / 2 else []


def _above_noise(one: Diagnosis, arm: ArmReport) -> bool:
    """True if the cost counts as more than noise: its interval is above 0 or unknown, or its share is large. Large:
    :data:`NOISY_SHARE_MIN` or more, because costs in few blocks have wide intervals. Also True for a line that the
    samples of all blocks together show: a single block has few samples."""
    lines = (cause for cause in arm.causes if cause.place == one.part.name and is_own_code(cause))
    is_sampled = any(line.looks and line.least_share >= policy.FINDING_SHARE_MIN for line in lines)
    return one.ms.ci_low is None or one.ms.ci_low > 0 or one.share >= policy.NOISY_SHARE_MIN or is_sampled


def _cost(rule: Rule, wall: Wall, arm: ArmReport, but: Collection[str] = ()) -> _KindCost | None:
    """Return the parts of a step that belong to ``rule``, and their sum in ms per step; None if no part does.

    ``but``: places of lines of code to leave out, because another diagnosis covers them."""
    parts = [part for part in wall.parts if rule.includes(part) and not (part.kind == CODE and part.name in but)]
    if not parts:
        return None
    ms = _sum([part.ms for part in parts])
    idle = arm.totals.starved_ms
    if rule.kind == "input-bound" and arm.unseen is not None and arm.unseen.device and idle:
        idle_ms = sum(idle.get(stage, 0.0) for stage in STAGES)  # The device worked during the rest of the waits.
        ms = Estimate(min(idle_ms, ms.median), None, None, ms.n) if idle_ms < ms.median else ms
    return _KindCost(rule, parts, ms)


def _of_all_ranks(costs: Sequence[_KindCost], wall: Wall, group: GroupGain) -> list[_KindCost]:
    """Return ``costs`` with the waits for other ranks that any rank's data work causes moved to the cost of data.

    ``group``: estimated gain of the program if no rank had data work."""
    by_kind = {cost.rule.kind: cost for cost in costs}
    data, waits = by_kind.get("input-bound"), by_kind.get("synchronization-bound")
    if data is None:
        return list(costs)
    saved = _saved(group.without_data, wall.step_ms.median)
    moved_ms = min(max(0.0, saved.median - data.ms.median), wall.total("ranks"))
    # If other ranks work as long, the program gains less than this rank's data work.
    together = Estimate(min(saved.median, data.ms.median + moved_ms), None, None, saved.n)
    by_kind["input-bound"] = replace(data, ms=holding(together, [saved]), of_all_ranks=True)
    if waits is not None and moved_ms:
        rest = Estimate(waits.ms.median - moved_ms, None, None, saved.n)
        by_kind["synchronization-bound"] = replace(waits, ms=rest)
    return list(by_kind.values())


def _with_exchange(finding: Diagnosis, exchange_ms: float) -> Diagnosis:
    """Return ``finding``; if it is a wait for other ranks, and mostly their exchange, with remedy "less exchange".

    ``exchange_ms``: ms per step for which all ranks are blocked outside of their fetches."""
    is_exchange = 0 < exchange_ms >= policy.EXCHANGE_SHARE_MIN * finding.ms.median
    return replace(finding, remedy="less exchange") if finding.remedy == "other ranks" and is_exchange else finding


def _least_share(one: Diagnosis) -> float:
    """Return the smallest share of a step (0 to 1) from which on ``one`` is reported.

    This share is larger for time of unknown cause, and for waits that are mostly the hand-over of batches."""
    if one.kind == "unknown":
        return policy.DIAGNOSED_SHARE_MIN
    is_handover = one.part.kind == "data" and one.part.name == HANDOVER
    others = one.share * (1 - one.share_of_part)  # share of other data work
    return policy.HANDOVER_SHARE_MIN if is_handover and others < policy.FINDING_SHARE_MIN else policy.FINDING_SHARE_MIN


def _sum(values: Sequence[Estimate]) -> Estimate:
    """Return the sum of estimates; ends add up too, as parts may vary together. No interval if one lacks it."""
    lows, highs = ([getattr(estimate, end) for estimate in values] for end in ("ci_low", "ci_high"))
    total = sum(estimate.median for estimate in values)
    if None in lows or None in highs:
        return Estimate(total, None, None, values[0].n)
    return Estimate(total, sum(lows), sum(highs), values[0].n)


def _diagnosis(cost: _KindCost, wall: Wall, arm: ArmReport, advice: ArmAdvice | None) -> Diagnosis:
    rule = cost.rule
    # the place of an evaluation, not its kind
    largest = next((part for part in cost.parts if part.kind != part.name), cost.parts[0])
    # A device or other ranks may work at the same time as the host.
    may_hide = arm.unseen is not None and (arm.unseen.device or arm.unseen.ranks > 1)
    # A line that waits for another thread would wait longer without the lines before it.
    saved, at_most = cost.ms, may_hide or rule.at_most(arm) or any(is_wait(part.called) for part in cost.parts)
    whole_ms = wall.step_ms.median if rule.kind == "cores too few" else wall.on_cores_ms
    share = whole_ms / wall.step_ms.median
    ideal = arm.explained.ideal_predicted if arm.explained.within_tolerance else None
    if rule.kind == "input-bound" and ideal is not None and largest.name in (*STAGES, "fetch"):
        # Replay predicts the loader; tokenizing in the loop itself is added.
        saved = _saved(ideal, share * (arm.totals.mean_step_ms or wall.step_ms.median))
        saved, at_most = _sum([saved, *(part.ms for part in cost.parts if part.name == IN_LOOP)]), False
    remedy = rule.remedy(largest, arm, advice)
    if arm.workers and rule.kind != "input-bound":  # No step can be shorter than the workers take for its batch.
        pace_ms = sum(arm.totals.work_ms.get(stage, 0.0) for stage in BUILT) / (arm.workers - arm.idle_workers or 1)
        most_ms = share * max(0.0, wall.step_ms.median - pace_ms)
        if saved.median > most_ms:
            saved = Estimate(most_ms, None, None, saved.n)
            remedy = "loading first" if most_ms < policy.FINDING_SHARE_MIN * whole_ms else remedy
    several = arm.unseen is not None and arm.unseen.ranks > 1
    if several and rule.kind not in ("cores too few", "synchronization-bound") and not cost.of_all_ranks:
        # An upper bound: waits for other ranks may have the same kind of cause.
        high_ms = saved.median if saved.ci_high is None else saved.ci_high
        saved = replace(saved, median=saved.median + wall.total("ranks"), ci_high=high_ms + wall.total("ranks"))
    saving = _speedup(saved, whole_ms)
    if rule.kind == "cores too few" and several:
        # A lower bound: a rank also waits for threads and ranks that have no core.
        least = saving.median if saving.ci_low is None else saving.ci_low
        saving, at_most = Estimate(least, least, None, saving.n), False
    at_most = at_most and not cost.of_all_ranks
    ended = arm.ended.get(_phase_of(largest))
    if ended is not None and ended.ms < policy.ENDED_COST_MIN * cost.ms.median:  # Most of the cost continues.
        ended = None
    return Diagnosis(
        kind=rule.kind,
        name=largest.name,
        ms=cost.ms,
        share=cost.ms.median / whole_ms,
        saving=saving if ended is None else None,
        at_most=at_most,
        remedy=remedy,
        part=largest,
        ended=ended,
        share_of_part=largest.ms.median / max(sum(part.ms.median for part in cost.parts), 1e-12),
        figures=remedy_figures(remedy, arm),
        holder=_holder(arm) if remedy == "shorter lock" else None,
    )


def _holder(arm: ArmReport) -> SlowCause | None:
    """Return the place where another thread mostly was while the recorded thread waited for a lock; None if unknown."""
    holders = [cause for cause in arm.causes if cause.kind == HOLDER]
    return max(holders, key=lambda cause: cause.spent_ms, default=None)


def _phase_of(part: StepPart) -> str:
    """Return the phase that takes longer in the steps in which ``part`` occurs; "" if there is no such phase.

    :data:`WHOLE_STEP` for parts that may occur in any phase."""
    match part.kind:
        case "data":
            return "other" if part.name == IN_LOOP else "fetch"
        case "code":
            return REST
        case "gc" | "compile":
            return WHOLE_STEP
        case "long":
            return part.name
        case _:
            return ""


def _saved(ratio: Estimate, step_ms: float) -> Estimate:
    """Return the milliseconds that a step of ``step_ms`` saves if it becomes ``ratio`` times as fast."""
    ends = [None if bound is None else step_ms * (1 - 1 / bound) for bound in (ratio.ci_low, ratio.ci_high)]
    return Estimate(step_ms * (1 - 1 / ratio.median), ends[0], ends[1], ratio.n)


def _speedup(saved: Estimate, whole_ms: float) -> Estimate:
    """Return the speed-up of a step of ``whole_ms`` without ``saved`` ms; both without waits for a core."""

    def times(ms: float | None) -> float | None:
        return None if ms is None else 1 / (1 - min(ms / whole_ms, LARGEST_SAVING))

    return Estimate(times(saved.median) or 1.0, times(saved.ci_low), times(saved.ci_high), saved.n)


LARGEST_SAVING = 0.999  # share of a step, because intervals may include the whole step


def _compute_bound(wall: Wall, arm: ArmReport) -> Diagnosis:
    """Return the diagnosis "compute-bound", with the largest speed-up that removing data work could bring."""
    parts = _model(wall)
    ms = _sum([part.ms for part in parts])
    data = _cost(RULES[0], wall, arm)
    saving = _speedup(Estimate(0.0, None, None, ms.n) if data is None else data.ms, wall.on_cores_ms)
    lines = [cause for cause in arm.causes if cause.kind == CODE and cause.phase in COMPUTE]
    line = max(lines, key=lambda cause: cause.spent_ms, default=None)
    part = parts[0]
    if line is not None and line.least_share >= policy.COMPUTE_SHARE_MIN:
        line_ms = Estimate(line.step_ms, None, None, ms.n)
        part = StepPart(line.place, line_ms, line.spent_share, "code", line.code, line.function, line.called, line.late)
    return Diagnosis(
        "compute-bound", parts[0].name, ms, ms.median / wall.on_cores_ms, saving, at_most=True, remedy="model",
        part=part, share_of_part=part.ms.median / ms.median,
    )  # fmt: skip


def _no_part(wall: Wall, arm: ArmReport) -> Diagnosis:
    largest = wall.parts[0]
    remedy = _unsampled(largest, arm, None)
    return Diagnosis(
        "unknown", largest.name, largest.ms, wall.share(largest), saving=None, at_most=True, remedy=remedy, part=largest
    )
