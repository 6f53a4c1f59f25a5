"""Finds steps that are unlike the mean: rare long steps, two kinds of steps, outliers, and costs that ended.

Of a long training, whose tables have a part of the steps only, also spans of minutes and the steps that took longest.

Long      compared with the typical step of the whole arm, as a block may consist mostly of long steps
two kinds logarithms of all steps, split in two with the least scatter within (Otsu 1979), if each has a fair share of
          the steps and hardly any lies in the middle half of their distance (of a single kind, a quarter does).
          Most runs must show both; or runs of one kind each must be nearly equal, as few runs are alike by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain import policy
from harness.explain.spans import column
from harness.study.contract import PHASES
from harness.study.run_data import LongStep, Minute, RunData

Array = NDArray[np.float64]
Places = NDArray[np.int8]
NO_PHASE = -1


@dataclass(frozen=True)
class LongSteps:
    """Steps above :data:`LONG_STEP_FACTOR` typical ones among ``of`` measured steps of all runs."""

    steps: int
    of: int
    mean_ms: float  # mean of the long steps
    others_ms: float  # mean of the others
    phase: str  # phase with most of the time above a typical step; "" if none has over half of it
    range_ms: tuple[float, float] = (0.0, 0.0)  # shortest and longest of the long steps


@dataclass(frozen=True)
class LeftOut:
    """Unmeasured steps between the measured steps of a run, without the first step of each repetition."""

    step_ms: Array = field(default_factory=lambda: np.zeros(0))
    longest: Places = field(default_factory=lambda: np.zeros(0, dtype=np.int8))  # see :func:`longest_phases`


def longest_phases(
    phases: Sequence[str], phase_ns: Callable[[str], Array], counted: NDArray[np.bool_] | None = None
) -> Places:
    """Return for each step the index of the phase that is furthest above its median; NO_PHASE if none was measured.

    ``phase_ns``: function that returns a phase's time in each step. ``counted``: steps to return (None: all); the
    medians are then those of the other steps."""
    excess = np.array([_above_typical(phase_ns(name), counted) for name in phases])
    furthest = np.where(np.isneginf(excess).all(axis=0), NO_PHASE, excess.argmax(axis=0)).astype(np.int8)
    return furthest if counted is None else furthest[counted]


def _above_typical(phase_ns: Array, counted: NDArray[np.bool_] | None) -> Array:
    typical = phase_ns if counted is None or counted.all() else phase_ns[~counted]
    values = typical[~np.isnan(typical)]
    return np.nan_to_num(phase_ns - np.median(values), nan=-np.inf) if len(values) else np.full(len(phase_ns), -np.inf)


def without_long(wall_ns: Array) -> Array:
    """Return step times with long ones replaced by the median; unchanged if over LONG_STEPS_SHARE_MAX are long."""
    long = wall_ns > policy.LONG_STEP_FACTOR * np.median(wall_ns)
    return np.where(long, np.median(wall_ns), wall_ns) if long.mean() <= policy.LONG_STEPS_SHARE_MAX else wall_ns


def long_steps(step_ms: Array, longest: Places, phases: Sequence[str], typical_ms: float) -> LongSteps | None:
    """Return a summary of the steps longer than :data:`LONG_STEP_FACTOR` x ``typical_ms``; None if no or all steps are.

    ``longest``: for each step, the index (in ``phases``) of the phase that is furthest above its median
    (:func:`longest_phases`)."""
    long = step_ms > policy.LONG_STEP_FACTOR * typical_ms
    if not long.any() or long.all():
        return None
    excess = step_ms[long] - typical_ms
    has_phase = longest[long] != NO_PHASE
    by_phase = np.bincount(longest[long][has_phase], weights=excess[has_phase], minlength=len(phases))
    most = int(by_phase.argmax())
    return LongSteps(
        steps=int(long.sum()),
        of=len(step_ms),
        mean_ms=float(step_ms[long].mean()),
        others_ms=float(step_ms[~long].mean()),
        phase=phases[most] if by_phase[most] > excess.sum() / 2 else "",
        range_ms=(float(step_ms[long].min()), float(step_ms[long].max())),
    )


@dataclass(frozen=True)
class StepKinds:
    """Two kinds of steps, fast and slow, and the longest, among ``of`` measured steps; see :func:`step_kinds`."""

    of: int
    slow_share: float
    fast_ms: float  # means
    slow_ms: float
    like_mean: float  # share of the steps that are near the mean of all
    runs: int
    slow_runs: int | None = None  # runs with mostly slow steps, if most runs have a single kind; else None
    longest_share: float = 0.0  # share of steps above ``LONG_STEP_FACTOR`` typical slow ones
    longest_ms: float = 0.0

    @property
    def above_share(self) -> float:
        """Share of all steps that are not fast."""
        return self.slow_share + self.longest_share


def step_kinds(runs: Sequence[Array]) -> StepKinds | None:
    """Return the two kinds of steps in ``runs`` (ms); None if they are of one kind, or it is not clear."""
    count = sum(map(len, runs))
    if count < policy.KINDS_STEPS_MIN:
        return None
    steps = np.concatenate(runs)
    if steps.min() <= 0:
        return None
    runs = _drawn(runs, count)
    logs = np.log(np.concatenate(runs))
    first = _split(np.sort(logs))
    fast, slow = _centres(logs, sum(first) / 2) or first
    middle = (fast + slow) / 2
    share = float((logs > middle).mean())
    between = (logs > fast + (slow - fast) / 4) & (logs < slow - (slow - fast) / 4)
    rare = not policy.KIND_SHARE_MIN <= share <= 1 - policy.KIND_SHARE_MIN
    if rare or slow - fast < np.log(policy.KINDS_RATIO_MIN) or between.mean() > policy.KINDS_BETWEEN_MAX:
        return None
    shares = np.array([(np.log(run) > middle).mean() for run in runs if len(run)])
    is_mixed = (shares >= policy.KIND_SHARE_MIN) & (shares <= 1 - policy.KIND_SHARE_MIN)
    slow_runs = None
    if is_mixed.mean() < 0.5:
        if not _alike([np.median(np.log(run)) for run in runs if len(run)], middle, slow - fast):
            return None
        slow_runs = int((shares > 0.5).sum())
    like_mean = float((np.abs(steps / steps.mean() - 1) <= policy.NEAR_MEAN_SHARE).mean())
    is_above = np.log(steps) > middle
    longest = steps > policy.LONG_STEP_FACTOR * np.median(steps[is_above])
    is_slow = is_above & ~longest
    means = float(steps[~is_above].mean()), float(steps[is_slow].mean())
    longest_ms = float(steps[longest].mean()) if longest.any() else 0.0
    return StepKinds(
        count, float(is_slow.mean()), *means, like_mean, len(shares), slow_runs, float(longest.mean()), longest_ms
    )


def _drawn(runs: Sequence[Array], of: int) -> Sequence[Array]:
    """Return ``runs``; if they have more than :data:`KINDS_STEPS_DRAWN` steps in all, about as many random ones.

    ``of``: number of steps of all runs. The result still has one array per run. Steps are random, because every n-th
    step might be of one kind."""
    if of <= policy.KINDS_STEPS_DRAWN:
        return runs
    generator = np.random.default_rng(0)
    return [run[generator.integers(0, len(run), len(run) * policy.KINDS_STEPS_DRAWN // of)] for run in runs if len(run)]


def _split(ordered: Array) -> tuple[float, float]:
    """Return (lower median, upper median) of the two groups of sorted values with the least scatter within groups.

    Each group has at least the share :data:`KIND_SHARE_MIN` of the values."""
    n = len(ordered)
    sums = np.cumsum(ordered)
    below = np.arange(1, n)
    below = below[(below >= policy.KIND_SHARE_MIN * n) & (n - below >= policy.KIND_SHARE_MIN * n)]
    distance = (sums[-1] - sums[below - 1]) / (n - below) - sums[below - 1] / below
    place = int(below[np.argmax(below * (n - below) * distance**2)])
    return float(np.median(ordered[:place])), float(np.median(ordered[place:]))


def _centres(logs: Array, middle: float) -> tuple[float, float] | None:
    """Return the medians of the values below and above ``middle``; None if one side is empty."""
    low, high = logs[logs <= middle], logs[logs > middle]
    return (float(np.median(low)), float(np.median(high))) if len(low) and len(high) else None


def _alike(typical: Sequence[np.floating], middle: float, way: float) -> bool:
    """Return True if both kinds, fast and slow, have :data:`KIND_RUNS_MIN` or more runs that are nearly equal.

    ``typical``: median log step time of each run. ``middle``, ``way``: midpoint and distance of both kinds, in log step
    time. Runs of one kind may differ by :data:`KIND_RUNS_SPREAD` x ``way``."""
    kinds = [[median for median in typical if (median > middle) == above] for above in (False, True)]
    return all(
        len(kind) >= policy.KIND_RUNS_MIN and max(kind) - min(kind) <= policy.KIND_RUNS_SPREAD * way for kind in kinds
    )


Mark = Literal["", "outlier", "evaluation", "checkpoint"]  # "checkpoint": an outlier of a program that often saves


@dataclass(frozen=True)
class StepTimes:
    """Times of one run's measured and evaluating steps, in execution order, for a plot."""

    arm: str
    block: int
    steps: int  # number of measured steps; the fields below include a part of them
    outliers: int
    median_ms: float
    start_s: tuple[float, ...]  # seconds since the first such step of the study
    wall_ms: tuple[float, ...]
    step: tuple[int, ...]
    repetition: tuple[int, ...]
    mark: tuple[Mark, ...]  # how a step differs, "" if it does not


def step_times(
    runs: Sequence[RunData], saving: Collection[str] = (), most: int = policy.STEP_POINTS_MAX
) -> tuple[StepTimes, ...]:
    """Return the step times of each finished run, for a plot: one entry per run, without runs of controls. Steps are
    thinned to about ``most`` in all runs together; up to :data:`STEP_OUTLIERS_MAX` outliers of a run, the slowest, are
    kept. ``saving``: arms that save checkpoints, whose outliers outside of all phases are marked "checkpoint"."""
    plain = [run for run in runs if run.record.control is None and run.record.status == "done"]
    share = max(20, most // max(1, len(plain)))
    thinned = [run_times for run in plain if (run_times := _of(run, run.record.arm in saving, share)) is not None]
    first = min((times.start_s[0] for times in thinned), default=0.0)
    return tuple(replace(times, start_s=tuple(second - first for second in times.start_s)) for times in thinned)


def _of(run: RunData, saving: bool, most: int) -> StepTimes | None:
    table = run.step_columns(["step", "turn", "warmup", "start_ns", "wall_ns", *(f"{name}_ns" for name in PHASES)])
    if table is None or not len(table):
        return None
    wall, start = column(table, "wall_ns"), column(table, "start_ns")
    timed = (wall > 0) & ~np.isnan(start)
    measured = np.not_equal(column(table, "warmup"), 1) & timed
    if not measured.any():
        return None
    milliseconds = wall / 1e6
    low, high = np.quantile(milliseconds[measured], [0.25, 0.75])
    far: NDArray[np.bool_] = measured & (milliseconds > high + policy.OUTLIER_QUARTILES * (high - low))
    outlier = _slowest(far, milliseconds)
    evaluating = _evaluating(measured, timed, run.record.facts.evaluating_steps or 0)
    marks = np.where(evaluating, "evaluation", np.where(outlier, "outlier", "")).astype(object)
    if saving:
        longest = longest_phases(PHASES, lambda name: column(table, f"{name}_ns"), outlier)
        marks[np.flatnonzero(outlier)[longest == len(PHASES) - 1]] = "checkpoint"  # The last phase is "other".
    shown = _kept(measured | evaluating, outlier, most)
    seconds = (start[shown] + float(run.record.realtime_minus_monotonic_ns)) / 1e9
    return StepTimes(
        run.record.arm,
        run.record.block,
        int(measured.sum()),
        int(far.sum()),
        float(np.median(milliseconds[measured])),
        tuple(seconds.tolist()),
        tuple(milliseconds[shown].tolist()),
        tuple(column(table, "step")[shown].astype(np.int64).tolist()),
        tuple(np.nan_to_num(column(table, "turn")[shown]).astype(np.int64).tolist()),
        tuple(marks[shown].tolist()),
    )


def _evaluating(measured: NDArray[np.bool_], known: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Return a mask: True for ``count`` unmeasured steps, which are assumed to include an evaluation. Chosen are the
    first unmeasured steps after the first measured one and, if those are too few, the last ones before it.
    ``measured``, ``known``: masks of measured steps and of steps with a known time."""
    unmeasured, first = np.flatnonzero(known & ~measured), np.flatnonzero(measured)[0]
    after = unmeasured[unmeasured > first][:count]
    before = unmeasured[unmeasured < first]
    evaluating = np.zeros_like(measured)
    evaluating[after] = evaluating[before[max(0, len(before) - (count - len(after))) :]] = True
    return evaluating


def _slowest(far: NDArray[np.bool_], milliseconds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return True for the slowest of the outliers ``far``, at most :data:`STEP_OUTLIERS_MAX`."""
    if far.sum() <= policy.STEP_OUTLIERS_MAX:
        return far
    chosen = np.zeros_like(far)
    chosen[np.argsort(np.where(far, milliseconds, 0.0))[-policy.STEP_OUTLIERS_MAX :]] = True
    return chosen


def _kept(drawn: NDArray[np.bool_], outlier: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """Return the row numbers of all outliers and of evenly spread other steps, about ``most`` in all."""
    ordinary = np.flatnonzero(drawn & ~outlier)
    room = max(1, most - int(outlier.sum()))
    if len(ordinary) > room:
        ordinary = ordinary[np.linspace(0, len(ordinary) - 1, room).astype(np.int64)]
    return np.sort(np.concatenate([np.flatnonzero(outlier), ordinary]))


WHOLE_STEP = "wall"  # stands for the whole step among the phases
BASE_PERCENTILE = 10  # percentile of the steps that gives a step's base time


@dataclass(frozen=True)
class EndedCost:
    """A cost that some steps had and later ones no longer have; steps count from 1 in the program."""

    first: int  # first step with it
    last: int  # last step with it
    measured: int  # last measured step
    from_start: bool  # the first measured step had it
    ms: float  # mean over all measured steps of the time above a step's base time


def ended_costs(runs: Sequence[RunData]) -> Mapping[str, EndedCost]:
    """Return the ended costs by phase or :data:`WHOLE_STEP`. ``runs``: consecutive parts of one program."""
    names = [WHOLE_STEP, *PHASES]
    tables = [run.step_columns(["step", "warmup", *(f"{name}_ns" for name in names)]) for run in runs]
    recorded = [table for table in tables if table is not None]
    if not recorded:
        return {}
    warmup, numbers = (np.concatenate([column(table, name) for table in recorded]) for name in ("warmup", "step"))
    measured = np.flatnonzero(warmup != 1)
    numbers, places = np.unique(numbers[measured], return_index=True)
    costs = {}
    for name in names:
        values = np.nan_to_num(np.concatenate([column(table, f"{name}_ns") for table in recorded])[measured][places])
        if (costly := costly_until(values)) is not None:
            first, last, final = (int(numbers[place]) + 1 for place in (*costly, -1))
            ms = float(_excess(values).mean()) / 1e6
            costs[name] = EndedCost(first, last, final, from_start=costly[0] == 0, ms=ms)
    return costs


def costly_until(values: Array) -> tuple[int, int] | None:
    """Return the (first, last) position in ``values``, a phase's time by step, of steps with a cost that has ended.

    None if there is no such cost, or if too few steps follow to exclude that it comes again."""
    excess = _excess(values) if len(values) else values
    if not excess.any():
        return None
    change = int(np.argmax(np.cumsum(excess - excess.mean()))) + 1
    before, after = excess[:change], excess[change:]
    if len(after) < policy.ENDED_STEPS_SHARE_MIN * len(values) or after.mean() > policy.ENDED_SHARE_MAX * before.mean():
        return None
    costly = np.flatnonzero(before > before.mean() / 2)
    gap = int(np.diff(costly, prepend=-1).max())
    return (int(costly[0]), int(costly[-1])) if len(after) >= policy.ENDED_GAPS_MIN * gap else None


def _excess(values: Array) -> Array:
    excess: Array = np.maximum(0.0, values - np.percentile(values, BASE_PERCENTILE))
    return excess


class Span(NamedTuple):
    """Summary of consecutive minutes of a training; :func:`spans` makes it."""

    start_utc_s: float  # seconds since 1970-01-01 UTC
    steps: int
    mean_ms: float
    p50_ms: float  # median of the minutes' medians
    p99_ms: float  # median of the minutes' 99th percentiles
    max_ms: float
    parts_ms: dict[str, float]  # mean of a step by phase
    waiting_ms: float  # mean of a step: runnable without a core
    tokens_per_s: float | None
    memory_bytes: int | None  # last reading; readings become rarer, so a minute may have none


class Excess(NamedTuple):
    """A long step, and the part that explains most of its length: the part furthest above its mean in that minute."""

    step: LongStep
    usual_ms: float  # median step of its minute
    part: str  # phase, or one of COLLECTING, WAITING, OTHER
    part_ms: float  # beyond the minute's mean of this part


COLLECTING, WAITING, OTHER = "garbage collection", "waiting for a core", "other"


def spans(minutes: Sequence[Minute]) -> list[Span]:
    """Return ``minutes`` summarized in consecutive groups of about equal size, at most SPANS_MAX groups."""
    count = min(len(minutes), policy.SPANS_MAX)
    edges = [round(len(minutes) * number / count) for number in range(count + 1)] if count else [0]
    return [_span(minutes[begin:end]) for begin, end in pairwise(edges)]


def _span(minutes: Sequence[Minute]) -> Span:
    steps = sum(minute.steps for minute in minutes)
    names = dict.fromkeys(name for minute in minutes for name in minute.parts_ms)
    wall_s = sum(minute.wall_s for minute in minutes)
    tokens = sum(minute.tokens for minute in minutes)
    return Span(
        minutes[0].start_utc_s,
        steps,
        wall_s * 1e3 / steps,
        float(np.median([minute.p50_ms for minute in minutes])),
        float(np.median([minute.p99_ms for minute in minutes])),
        max(minute.max_ms for minute in minutes),
        {name: sum(minute.parts_ms.get(name, 0.0) * minute.steps for minute in minutes) / steps for name in names},
        sum(minute.waiting_ms * minute.steps for minute in minutes) / steps,
        tokens / wall_s if tokens else None,
        next((minute.memory_bytes for minute in reversed(minutes) if minute.memory_bytes is not None), None),
    )


def longest_steps(minutes: Sequence[Minute], count: int) -> list[Excess]:
    """Return the ``count`` recorded long steps furthest above the median step of their minute, the furthest first."""
    excesses = [_longer_part(minute, step) for minute in minutes for step in minute.long_steps]
    return sorted(excesses, key=lambda excess: excess.step.ms - excess.usual_ms, reverse=True)[:count]


def _longer_part(minute: Minute, step: LongStep) -> Excess:
    beyond = {name: ms - minute.parts_ms.get(name, 0.0) for name, ms in step.parts_ms.items()}
    usual_other_ms = minute.mean_ms - sum(minute.parts_ms.values())
    beyond[OTHER] = step.ms - sum(step.parts_ms.values()) - usual_other_ms
    part = max(beyond, key=lambda name: beyond[name])
    # Both of these lie within phases, or between them.
    for name, ms in (
        (COLLECTING, step.collecting_ms - minute.collecting_ms),
        (WAITING, step.waiting_ms - minute.waiting_ms),
    ):
        if ms > beyond[part] / 2:
            return Excess(step, minute.p50_ms, name, ms)
    return Excess(step, minute.p50_ms, part, beyond[part])
