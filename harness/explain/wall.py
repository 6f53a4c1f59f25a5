"""Gives every millisecond of a program's wall clock a name: parts of the mean step, and parts of the whole program.

The parts of a step sum to the time per step by the clock, with evaluations (one more step plus the evaluation) and rare
long steps. Time that was recorded without a phase is placed by rules:

    waits for a core      see :func:`_left`: two rules, and the interval includes both
    garbage collections   outside of all phases first, then in forward, backward and optimizer; a line of own code has
                          the collections that it triggered
    compilation           in forward, then backward, then outside of all phases
    sampled lines         outside of all phases, or in backward for a gradient hook; sampled lines explain long steps
                          before the rest becomes "rare long steps"
    rare long steps       their time above a typical step, by phase, as far as no other part explains it

The record has the main thread's time on a core and ready without one by step, and the CPU time by phase. Two rules
place the waits for a core in phases, none of which gives up more than its time off a core:

    by running     a phase waited for a core in proportion to its time on a core (likely)
    off a core     any moment that a phase spent off a core may have been such a wait

Without an asynchronous device, the rest of the time off a core in forward, backward and optimizer is a wait for other
ranks, or for a thread that holds the interpreter's lock (as long as that thread ran).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain import policy
from harness.explain.causes import (
    CODE,
    COMPILATION,
    COMPILED,
    EVALUATION,
    GC,
    GROWING,
    HOOKS,
    LOADER_MODULE,
    LOCK,
    MAKER,
    PADDING,
    REST,
    SlowCause,
    asks_loader,
    is_own_code,
    library_loops,
    slow_causes,
)
from harness.explain.ledger import RunLedger
from harness.explain.spans import NOT_MEASURED, bounds, column, spans_of
from harness.explain.statistics import Estimate, holding, reach_of_mean, widening
from harness.study.contract import PHASES, STAGES
from harness.study.records import RunFacts
from harness.study.run_data import RunData

if TYPE_CHECKING:
    import pyarrow as pa


Float = NDArray[np.float64]
PartKind = Literal["data", "phase", "code", "gc", "compile", "evaluation", "core", "long", "ranks", "lock"]
PLACES: tuple[PartKind, ...] = ("code", "lock", "evaluation")  # parts that are named by a place
WAITING = "waiting for a core"
COLLECTIONS = "garbage collection"
RANKS = "waiting for ranks"
SAMPLER, RESTART, IN_LOOP = "sampler", "loader restart", "tokenize in the loop"  # parts of data that are not stages
MODEL_PACKAGE, BACKWARD = "torch.nn", "torch._tensor.Tensor.backward"  # calls that are work of the model
ROUNDING = 1e-9  # share of a step; a smaller part is a rounding error
COMPUTE = ("forward", "backward", "optimizer")

# Parts of a program: names in RunFacts.program_ms, in order of time.
START_UP, MEASURED_STEPS, EVALUATING_STEPS, PROFILED_STEPS, OTHER_STEPS, AFTER_STEPS = (
    "start-up", "measured steps", "steps with an evaluation", "profiled steps", "warm-up steps", "end",
)  # fmt: skip
PROGRAM_PARTS = (START_UP, OTHER_STEPS, PROFILED_STEPS, MEASURED_STEPS, EVALUATING_STEPS, AFTER_STEPS)


@dataclass(frozen=True)
class StepPart:
    """One part of the step of an attached program; all parts of a step sum to it."""

    name: str  # stage of the data, phase, place in the code; rare long steps: phase of their excess
    ms: Estimate  # mean per step, with its interval over blocks
    share: float  # of the step
    kind: PartKind = "phase"
    code: str = ""  # line of the program at the place
    function: str = ""  # function that has the line
    called: str = ""  # library function that the line called; for a stage of the data: its maker and the maker's place
    late: bool = False  # the time was spent just before the place
    rare: bool = False  # most of the time was in a few long steps


@dataclass(frozen=True)
class ProgramPart:
    """One part of a program's wall clock, such as its start-up."""

    name: str  # one of :data:`PROGRAM_PARTS`
    ms: float
    share: float  # of the whole program, 0 to 1


@dataclass(frozen=True)
class Wall:
    """Where the time of a program run by ``harness exec`` goes: parts of its mean step, and parts of the whole program.

    :func:`wall` makes it."""

    steps: int  # measured steps and steps with an evaluation
    step_ms: Estimate  # time per step by the clock, its mean as ``median``; the parts sum to it
    parts: tuple[StepPart, ...]  # largest first
    program: tuple[ProgramPart, ...] = ()  # parts of the whole program, in order of time; empty: not recorded
    thinned_steps: int = 0  # further measured steps, which are in no table

    @property
    def worked_ms(self) -> float:
        """Milliseconds per step by the clock, without waits for other ranks."""
        return self.step_ms.median - self.total("ranks")

    @property
    def on_cores_ms(self) -> float:
        """Milliseconds per step by the clock, without waits for a core. Costs and savings are shares of this time."""
        return self.step_ms.median - self.total("core")

    def share(self, part: StepPart) -> float:
        """Return the part's share of :attr:`on_cores_ms`. Waits for a core are a share of the whole step."""
        whole_ms = self.step_ms.median if part.kind == "core" else self.on_cores_ms
        return part.ms.median / whole_ms if whole_ms > 0 else 0.0

    def total(self, kind: PartKind) -> float:
        """Return the milliseconds per step of all parts of this kind."""
        return sum(part.ms.median for part in self.parts if part.kind == kind)


class _Key(NamedTuple):
    kind: PartKind
    name: str


_Parts = dict[_Key, float]
_OTHER, _FETCH = _Key("phase", REST), _Key("data", "fetch")


@dataclass(frozen=True)
class _Block:
    """Milliseconds per step of one block: by phase by the clock, by phase on a core, and all waits for a core."""

    wall: Mapping[str, float]
    on_core: Mapping[str, float]
    waited: float


class _Placed(NamedTuple):
    """Milliseconds per step by phase, without waits for a core, which are a phase of their own.

    ``blocked``: time within each phase, after these waits are taken out, in which the main thread used no core."""

    phases: Mapping[str, float]
    blocked: Mapping[str, float]


def wall(runs: Sequence[RunData], ledgers: Mapping[int, RunLedger], typical_ms: float) -> Wall | None:
    """Return the parts of the wall clock of an arm, if it is a program run by ``harness exec``; else None. None, too,
    if no run has times of phases. ``ledgers``: by block. ``typical_ms``: median step time over all blocks."""
    pairs = [(run, ledgers[run.record.block]) for run in runs if run.record.block in ledgers]
    pairs = [(run, ledger) for run, ledger in pairs if run.record.facts.attached is not None and ledger.phase_ms]
    if not pairs:
        return None
    likely, others = [], []
    weights = []
    places: dict[_Key, SlowCause] = {}
    long_ms = 0.0  # sum over steps of the excess of rare long steps outside of all phases
    facts = [run.record.facts for run, _ in pairs]
    evaluated = _most_evaluated(facts)
    loops = library_loops(facts)
    sampled = sorted(slow_causes(facts, loops), key=lambda cause: cause.spent_ms)
    # A line may call several functions. The one with most of the line's time is named.
    places |= {_Key(kind, cause.place): cause for cause in sampled for kind in PLACES if cause.kind == kind}
    for run, ledger in pairs:
        causes = slow_causes([run.record.facts], loops)
        places |= {_Key("compile", cause.place): cause for cause in causes if cause.kind == COMPILED}
        places |= {_Key("data", cause.phase): cause for cause in causes if cause.kind == MAKER}
        fetch_ms = policy.STAGE_LINE_SHARE_MIN * ledger.phase_ms.get("fetch", 0.0)
        places.update((_FETCH, cause) for cause in causes if _makes_batches(cause) and cause.step_ms >= fetch_ms)
        excess = _long_excess(run, typical_ms)
        long_ms += excess.get(REST, 0.0) * len(ledger.step_ms)
        placed = _without_waits(run, ledger)
        clock_ms, steps = _by_the_clock(run, ledger)
        by_rule = [_named(placement, run, ledger, causes, excess) for placement in placed]
        for parts in by_rule:
            evaluation, core, training_ms = _Key("evaluation", EVALUATION), _Key("core", WAITING), sum(parts.values())
            for key in parts if training_ms > clock_ms else ():  # shorter steps with an evaluation
                parts[key] *= clock_ms / training_ms
            parts[evaluation] = max(0.0, clock_ms - training_ms)
            # An evaluation waits for a core as much as its training steps do (likely), or not at all.
            waits = parts.get(core, 0.0) / training_ms if parts is by_rule[0] and training_ms else 0.0
            _move(parts, [evaluation], core, parts[evaluation] * waits)
            spent_ms = sum(cause.spent_ms for cause in causes if cause.kind == EVALUATION and cause.place == evaluated)
            _move(parts, [evaluation], _Key("evaluation", evaluated), spent_ms / steps * (1 - waits))
        likely.append(by_rule[0])
        others.append(by_rule[-1])
        weights.append(float(steps))
    result = _summed(likely, others, weights, places, pairs[0][0].record.facts.program_ms)
    rare = _rare_lines(sampled, long_ms)
    return replace(
        result,
        parts=tuple(replace(part, rare=part.kind == CODE and part.name in rare) for part in result.parts),
        thinned_steps=facts[0].thinned_steps or 0,
    )


def _rare_lines(causes: Sequence[SlowCause], long_ms: float) -> set[str]:
    """Return the places of lines of code that certainly spent at least half of their time in rare long steps.

    ``long_ms``: time outside of all phases by which rare long steps exceed typical steps, summed over all steps."""
    spent_ms: dict[str, float] = {}
    for cause in causes:
        if is_own_code(cause):
            spent_ms[cause.place] = spent_ms.get(cause.place, 0.0) + cause.spent_ms
    whole_ms = sum(spent_ms.values())
    return {place for place, ms in spent_ms.items() if long_ms - (whole_ms - ms) >= ms / 2}


def _most_evaluated(facts: Sequence[RunFacts]) -> str:
    """Return the line of code with most of the evaluations' time.

    :data:`EVALUATION` if no line has the share :data:`EVALUATED_SHARE_MIN` of this time."""
    causes = [cause for cause in slow_causes(facts) if cause.kind == EVALUATION]
    most = max(causes, key=lambda cause: cause.spent_ms, default=None)
    least_ms = policy.EVALUATED_SHARE_MIN * sum(cause.spent_ms for cause in causes)
    return most.place if most is not None and most.spent_ms >= least_ms else EVALUATION


def _summed(
    likely: Sequence[_Parts],
    others: Sequence[_Parts],
    weights: Sequence[float],
    places: Mapping[_Key, SlowCause],
    program_ms: Mapping[str, float] | None,
) -> Wall:
    step_ms = _mean([sum(parts.values()) for parts in likely], weights)
    means = {key: _mean([parts.get(key, 0.0) for parts in likely], weights) for key in _keys(likely)}
    code = sorted((key for key in means if key.kind == CODE), key=lambda key: -means[key].median)
    unnamed = {
        key
        for rank, key in enumerate(code)
        if rank >= policy.NAMED_LINES_MAX or means[key].median < policy.NAMED_LINE_SHARE_MIN * step_ms.median
    }
    collecting = {key for key in means if key.kind == "gc" and _belongs_to_line(key, means, places, unnamed)}
    likely, others = ([_merged(parts, unnamed, collecting) for parts in side] for side in (likely, others))
    step_parts = []
    for key in _keys(likely):
        ms, other_ms = (_mean([parts.get(key, 0.0) for parts in side], weights) for side in (likely, others))
        ms = holding(ms, [other_ms]) if ms.ci_low is not None else ms
        ms = ms if ms.ci_low is None else replace(ms, ci_low=max(0.0, ms.ci_low))
        if ms.median > ROUNDING * step_ms.median:
            part = StepPart(key.name, ms, ms.median / step_ms.median, key.kind)
            place = places.get(key)
            if place is not None and key.kind == "data":
                part = replace(part, called=maker_text(place), code=place.code)
            elif place is not None:
                part = replace(part, code=place.code, function=place.function, called=place.called, late=place.late)
            step_parts.append(part)
    stages = [stage for stage in step_parts if stage.kind == "data" and stage.name not in (RESTART, IN_LOOP)]
    if stages and _FETCH in places:
        longest, line = max(stages, key=lambda stage: stage.ms.median), places[_FETCH]
        step_parts[step_parts.index(longest)] = replace(longest, called=maker_text(line), code=line.code)
    parts_ms = dict(program_ms or {})
    total_ms = sum(parts_ms.values()) or 1.0
    program = tuple(
        ProgramPart(name, parts_ms[name], parts_ms[name] / total_ms) for name in PROGRAM_PARTS if name in parts_ms
    )
    return Wall(
        steps=round(sum(weights)),
        step_ms=step_ms,
        parts=tuple(sorted(step_parts, key=lambda part: -part.ms.median)),
        program=program,
    )


def without_waits(causes: Sequence[SlowCause], wall: Wall, phase_ms: Mapping[str, float]) -> tuple[SlowCause, ...]:
    """Return ``causes`` with shorter times, as in ``wall``: without the main thread's waits for a core.

    ``phase_ms``: ms per step of each phase by the clock, which includes these waits."""
    part_ms = {_Key(part.kind, part.name): part.ms.median for part in wall.parts}
    clock_ms = {_Key("phase", name): ms for name, ms in phase_ms.items()}
    for cause in causes:
        if (key := _part_of(cause)) is not None and key.kind != "phase":
            clock_ms[key] = clock_ms.get(key, 0.0) + cause.step_ms
    step_scale = wall.on_cores_ms / wall.step_ms.median if wall.step_ms.median else 1.0
    wall_scale = wall.on_cores_ms / (sum(phase_ms.values()) or wall.step_ms.median or 1.0)
    result = []
    for cause in causes:
        key = _part_of(cause)
        if cause.spent_ms and (key is not None or cause.kind == GC):
            scale = min(1.0, part_ms[key] / clock_ms[key]) if key in part_ms and clock_ms.get(key) else step_scale
            cause = replace(cause, spent_ms=cause.spent_ms * scale, wall_ms=cause.wall_ms * wall_scale)
        elif cause.kind == PADDING:
            ends = [None if ms is None else ms * step_scale for ms in (cause.ms, cause.low_ms, cause.high_ms)]
            cause = replace(cause, ms=ends[0], low_ms=ends[1], high_ms=ends[2])
        elif cause.kind == GROWING and cause.phase and not cause.place:
            # Growth was measured with waits included. A phase with less than half of the growth only waited longer.
            grew = phase_ms.get(cause.phase, 0.0) * step_scale >= (cause.ms or 0.0) / 2
            cause = replace(cause, phase=cause.phase if grew else "")
        result.append(cause)
    return tuple(result)


def _part_of(one: SlowCause) -> _Key | None:
    """Return the key of the step part with the time of ``one``, a line of code; None for another kind of cause."""
    if one.kind != CODE:
        return None
    return _Key("code", one.place) if is_own_code(one) else _Key("phase", one.phase)


def _makes_batches(one: SlowCause) -> bool:
    return one.kind == CODE and one.phase == "fetch" and not one.called.startswith(LOADER_MODULE)


def maker_text(place: SlowCause) -> str:
    """Return a cause's function (of a comprehension, the one around) and place: ``Rows.__getitem__, train.py:31``."""
    function = re.sub(r"\.<locals>\.<\w+>$", "", place.function)
    return f"{function}, {place.place}" if place.place else function


def _keys(blocks: Sequence[_Parts]) -> list[_Key]:
    return list(dict.fromkeys(key for parts in blocks for key in parts))


def _belongs_to_line(
    key: _Key, means: Mapping[_Key, Estimate], places: Mapping[_Key, SlowCause], unnamed: set[_Key]
) -> bool:
    """Return True if garbage collections ``key`` count as time of the line that triggered them.

    True if this line is a part of its own, does not call the model, and takes at least as long as its collections."""
    line = _Key("code", key.name)
    if line not in means or line in unnamed:
        return False
    called = places[line].called
    is_model = called == BACKWARD or ".".join(called.split(".")[:2]) == MODEL_PACKAGE
    return not is_model and means[line].median >= means[key].median


def _merged(parts: _Parts, unnamed: set[_Key], collecting: set[_Key]) -> _Parts:
    """Return ``parts`` (ms per step) with those in ``unnamed`` added to "other". Garbage collections in ``collecting``
    are added to the line that triggered them. All other collections become one part."""
    merged: _Parts = {_OTHER: 0.0}
    for key, ms in parts.items():
        target = _OTHER if key in unnamed else key
        if key.kind == "gc":
            target = _Key("code", key.name) if key in collecting else _Key("gc", COLLECTIONS)
        merged[target] = merged.get(target, 0.0) + ms
    return merged


def _mean(values: Sequence[float], weights: Sequence[float]) -> Estimate:
    """Return the mean by ``weights``, so that parts sum to the step. The interval weights all blocks equally."""
    centre = float(np.average(values, weights=weights))
    if len(values) < policy.MIN_BLOCKS:
        return Estimate(centre, None, None, len(values))
    reach = reach_of_mean(values) * widening(np.asarray(values, dtype=np.float64))
    return Estimate(centre, max(0.0, centre - reach), centre + reach, len(values))


def _by_the_clock(run: RunData, ledger: RunLedger) -> tuple[float, int]:
    """Return (mean ms per step, number of steps) over all measured steps and all steps with an evaluation together."""
    measured = len(ledger.step_ms)
    share, evaluating = run.record.facts.evaluating_share or 0.0, run.record.facts.evaluating_steps or 0
    step_ms = sum(ledger.phase_ms.values())
    if not evaluating or share >= 1:
        return step_ms, measured
    return step_ms * measured / (1 - share) / (measured + evaluating), measured + evaluating


def _named(
    placed: _Placed, run: RunData, ledger: RunLedger, causes: Sequence[SlowCause], excess: Mapping[str, float]
) -> _Parts:
    """Return {part of a step: ms per step}. ``placed``: times of the phases without waits for a core.

    ``excess``: ms per step, averaged over all steps, by which rare long steps exceed typical ones, by phase."""
    facts = run.record.facts
    step_ms = sum(ledger.phase_ms.values())
    parts: _Parts = {_Key("core" if name == WAITING else "phase", name): ms for name, ms in placed.phases.items()}
    parts.setdefault(_OTHER, 0.0)
    before = dict(parts)
    _move_blocked(parts, placed.blocked, facts, causes)
    sources = [_Key("phase", name) for name in (REST, *COMPUTE, *PHASES) if name != "fetch"]
    tokenizing = (facts.tokenizing_share or 0.0) * step_ms
    _move(parts, [_OTHER], _Key("data", IN_LOOP), tokenizing)
    iterating = (facts.iterating_share or 0.0) * step_ms
    _move(parts, [_OTHER], _Key("data", RESTART), iterating * _share_without_waits(REST, placed, ledger))
    # Work on the main thread waits for a core in the same proportion as the step does.
    running = 1 - placed.phases.get(WAITING, 0.0) / step_ms if step_ms else 1.0
    compiling = [_Key("phase", name) for name in ("forward", "backward", REST, "optimizer")]
    for cause in causes:
        if cause.kind == COMPILED and cause.of:
            ms = (cause.longer_ms or 0.0) * cause.steps / cause.of
            _move(parts, compiling, _Key("compile", cause.place or COMPILATION), ms * running)
    for collection in (cause for cause in causes if cause.kind == GC):
        _move(parts, sources, _Key("gc", collection.place or COLLECTIONS), collection.step_ms * running)
    for cause in sorted((line for line in causes if is_own_code(line)), key=lambda line: -line.spent_ms):
        source = "backward" if cause.phase == HOOKS else REST
        ms = cause.step_ms * _share_without_waits(source, placed, ledger)
        _move(parts, [_Key("phase", source)], _Key("code", cause.place), ms)
    for name, ms in excess.items():
        key = _Key("phase", name)
        _move(parts, [key], _Key("long", name), ms - (before.get(key, 0.0) - parts.get(key, 0.0)))
    _split_fetch(parts, run, ledger, step_ms)
    asked_ms = sum(line.step_ms for line in causes if asks_loader(line)) - iterating
    _move(parts, [_OTHER], _FETCH, max(0.0, asked_ms) * _share_without_waits(REST, placed, ledger))
    return parts


def _share_without_waits(phase: str, placed: _Placed, ledger: RunLedger) -> float:
    """Return the share (0 to 1) of a phase's time by the clock that is not a wait for a core."""
    whole_ms = ledger.phase_ms.get(phase, 0.0)
    return placed.phases.get(phase, 0.0) / whole_ms if whole_ms else 1.0


def _move_blocked(parts: _Parts, blocked: Mapping[str, float], facts: RunFacts, causes: Sequence[SlowCause]) -> None:
    """Move time off a core in ``parts`` to waits for other ranks (if there are any), or for threads that hold a lock.

    ``blocked``: this time in ms per step, by phase. Nothing moves if the program uses an asynchronous device."""
    if facts.asynchronous:
        return
    if (facts.ranks or 1) > 1:
        for name in COMPUTE:
            _move(parts, [_Key("phase", name)], _Key("ranks", RANKS), blocked.get(name, 0.0))
        return
    holders = sorted((cause for cause in causes if cause.kind == LOCK), key=lambda cause: -cause.spent_ms)
    blocked_ms = {name: blocked.get(name, 0.0) for name in (*COMPUTE, REST)}
    for holder in holders:
        ms = holder.step_ms
        for name in blocked_ms:
            moved_ms = min(ms, blocked_ms[name])
            _move(parts, [_Key("phase", name)], _Key("lock", holder.place), moved_ms)
            blocked_ms[name] -= moved_ms
            ms -= moved_ms


def _move(parts: _Parts, sources: Sequence[_Key], target: _Key, ms: float) -> None:
    """Move up to ``ms`` from ``sources``, in this order, to ``target``. ``parts`` changes in place."""
    for key in dict.fromkeys(sources):
        moved_ms = min(max(ms, 0.0), parts.get(key, 0.0))
        if moved_ms > 0:
            parts[key] -= moved_ms
            parts[target] = parts.get(target, 0.0) + moved_ms
            ms -= moved_ms


def _split_fetch(parts: _Parts, run: RunData, ledger: RunLedger, step_ms: float) -> None:
    """Split "fetch" in ``parts`` into the stages that the step waited for, sampler, and loader restarts."""
    facts, fetch_ms = run.record.facts, parts.pop(_Key("phase", "fetch"), 0.0)
    if not fetch_ms:
        return
    whole_ms = ledger.phase_ms.get("fetch", fetch_ms)
    # Without a replay that matches the run, a stage has what it did while the step waited.
    stage_ms = ledger.exposed_ms or ledger.during_wait_ms
    scale = fetch_ms / max(whole_ms, sum(stage_ms.values()))  # the rest was a wait for a core
    parts[_FETCH] = fetch_ms
    restarting = (facts.restarting_share or 0.0) * step_ms * scale if facts.workers else 0.0
    _move(parts, [_FETCH], _Key("data", RESTART), restarting)
    exposed = {stage: stage_ms.get(stage, 0.0) * scale for stage in STAGES}
    if sum(exposed.values()) > 0:
        remaining_ms = parts[_FETCH]
        share = min(1.0, remaining_ms / sum(exposed.values()))
        for stage, ms in exposed.items():
            _move(parts, [_FETCH], _Key("data", stage), ms * share)
    sampling = [_Key("data", "read"), _FETCH]  # The stage "read" has the sampler's time.
    _move(parts, sampling, _Key("data", SAMPLER), (facts.sampling_share or 0.0) * step_ms * scale)
    if parts[_FETCH] < ROUNDING * step_ms:
        del parts[_FETCH]


def _long_excess(run: RunData, typical_ms: float) -> dict[str, float]:
    """Return by how many ms per step rare long steps exceed typical ones, by phase except "fetch".

    Averaged over all measured steps; empty if no step is long, or if long steps are not rare."""
    names = [f"{phase}_ns" for phase in PHASES if phase != "fetch"]
    steps = run.step_columns(["wall_ns", "warmup", *names])
    if steps is None:
        return {}
    measured = np.not_equal(column(steps, "warmup"), 1) & (column(steps, "wall_ns") > 0)
    long = measured & (column(steps, "wall_ns") / 1e6 > policy.LONG_STEP_FACTOR * typical_ms)
    if not long.any() or long.sum() > policy.LONG_STEPS_SHARE_MAX * measured.sum():
        return {}
    excess_ms = {}
    for phase in PHASES:
        if phase != "fetch":
            values = np.nan_to_num(column(steps, f"{phase}_ns"))
            excess_ns = np.maximum(0.0, values[long] - np.median(values[measured & ~long]))
            excess_ms[phase] = float(excess_ns.sum()) / 1e6 / int(measured.sum())
    return excess_ms


def _without_waits(run: RunData, ledger: RunLedger) -> list[_Placed]:
    """Return the phases' times with waits for a core as a phase of their own: one result for each of two rules. The
    first rule divides waits by time on a core, the second by time off a core. One result, with unchanged phases, if
    waits are unknown."""
    block = _block(run, ledger)
    if block is None:
        return [_Placed({name: ms for name, ms in ledger.phase_ms.items() if ms > 0}, {})]
    return [
        _left(block, lambda times, name: times.on_core[name]),
        _left(block, lambda times, name: times.wall[name] - times.on_core[name]),
    ]


def _left(block: _Block, weight: Callable[[_Block, str], float]) -> _Placed:
    """Return each phase without its share (by ``weight``) of the waits for a core, and the sum of the waits."""
    room = {name: max(0.0, block.wall[name] - block.on_core[name]) for name in block.wall}
    waits = dict.fromkeys(block.wall, 0.0)
    remaining = min(block.waited, sum(room.values()))
    for _ in block.wall:  # A phase that has no more time off a core leaves its share to the others.
        weights = {name: max(weight(block, name), 1e-9) for name in block.wall if room[name] - waits[name] > 1e-9}
        if remaining <= 1e-9 or not weights:
            break
        total, before = sum(weights.values()), remaining
        for name, phase_weight in weights.items():
            more = min(before * phase_weight / total, room[name] - waits[name])
            waits[name] += more
            remaining -= more
    phases = {name: block.wall[name] - waits[name] for name in block.wall}
    blocked = {name: ms - block.on_core[name] for name, ms in phases.items()}
    return _Placed(phases | {WAITING: sum(waits.values())}, blocked)


def _block(run: RunData, ledger: RunLedger) -> _Block | None:
    share, steps = run.record.facts.waiting_share, run.step_columns(["start_ns", "wall_ns", "warmup"])
    if share is None or steps is None or not run.has_spans or not ledger.phase_ms:
        return None
    on_core = _on_core_ms(run, steps)
    if on_core is None:
        return None
    wall = {name: ms for name, ms in ledger.phase_ms.items() if ms > 0}
    core_ms = {name: min(on_core.get(name, 0.0), ms) for name, ms in wall.items()}
    waited, step_ms = share * ledger.mean_step_ms, sum(wall.values())
    if REST in wall:
        timed = [name for name in wall if name != REST]
        in_phases, running = sum(core_ms[name] for name in timed), run.record.facts.running_share
        if running is None:  # Older records: assume that the time outside of phases ran as much as the phases did.
            ran = wall[REST] * in_phases / (sum(wall[name] for name in timed) or 1.0)
        else:
            ran = running * step_ms - in_phases
        # A thread that waits for a core does not run meanwhile.
        core_ms[REST] = max(0.0, min(ran, wall[REST], step_ms - waited - in_phases))
    return _Block(wall, core_ms, waited)


def _on_core_ms(run: RunData, steps: pa.Table) -> dict[str, float] | None:
    """Return the CPU time of each phase in ms per measured step; None if it was not recorded."""
    spans = spans_of(run)
    phases = spans.phases
    if not len(phases) or (phases.cpu_ns == NOT_MEASURED).any():
        return None
    starts, ends = bounds(steps)
    measured = (steps.column("warmup").fill_null(False).to_numpy() == 0) & (ends > starts)
    place = np.searchsorted(starts, phases.starts, side="right") - 1
    inside = (place >= 0) & (phases.starts < ends[np.maximum(place, 0)]) & measured[np.maximum(place, 0)]
    own_ns = _without_inner(phases.starts, phases.ends, phases.cpu_ns.astype(np.float64))
    count = int(measured.sum())
    return {
        spans.names[code]: float(own_ns[inside & (phases.names == code)].sum()) / 1e6 / count
        for code in np.unique(phases.names[inside])
    }


def _without_inner(starts: NDArray[np.int64], ends: NDArray[np.int64], cpu_ns: Float) -> Float:
    """Return the CPU time (ns) of each span without that of the spans directly inside it."""
    own_ns = cpu_ns.copy()
    order = np.lexsort((-ends, starts))
    around: list[int] = []
    for place in order:
        while around and ends[around[-1]] <= starts[place]:
            around.pop()
        if around:
            own_ns[around[-1]] -= cpu_ns[place]
        around.append(place)
    return np.maximum(own_ns, 0.0)
