r"""Determines whether data work is hidden or exposed, by what ran beside it (:func:`hidden_behind`) and by adding work.

Fits the step time when one kind of work is done k times more: a slowdown injection (scenario key ``dose``).

    step ms                                   per block, least squares through the points of k = 0, 1, 2, 4:
      |                    o  exposed (1)     slope = ms of step time for 1 ms more of that work
      |              o     .
      |        o  .     .     contended or    x = measured work per step on the critical path: all time of the stage,
      |     o. .              partial         divided by the workers that do it side by side
      |  o------o-----------o hidden (0)      y = step time; both are totals of the run over its steps
      +--0--1--2-----4------------- work ms

A curve that starts flat and turns up has used its slack. Removing work saves at most the time waited for it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from harness.explain import policy
from harness.explain.bounds import DEVICE_WORK, DeviceWork, device_work_of
from harness.explain.derived import stage_spans
from harness.explain.ledger import DERIVED, Blocks, RunLedger, derived_steps, measure
from harness.explain.replay.recording import record
from harness.explain.spans import (
    BUILT,
    FETCH,
    UNANNOUNCED,
    Int,
    RunSpans,
    Spans,
    Stretches,
    bounds,
    clip,
    covered,
    difference,
    in_parts,
    intersection,
    once_per_run,
    spans_of,
    union,
)
from harness.explain.statistics import Estimate, from_block_values, student_t
from harness.explain.waits import per_row
from harness.study.run_data import RunData
from trainer.errors import InputError


@dataclass(frozen=True)
class SyncCall:
    """Calls of one run from one place (``site``) on which the host waited for the device; ms per measured step."""

    site: str
    calls_per_step: float  # calls without a time are counted in the one step that torch audited
    blocked_ms: float | None  # unknown: None
    hid_ms: float  # host work until the next blocking call, while the device was certainly busy
    hid_behind: dict[str, float]  # kernels that ran during this work, ms
    idle_ms: float  # host work until the next blocking call, while the device was idle


@once_per_run("hidden behind")
def hidden_behind(run: RunData) -> dict[str, float]:
    """Return data work (ms per measured step) that cost no time, by the kernel or host phase that ran at the same time.

    Values are scaled down so that they sum to at most the ledger's hidden time. Empty without measured steps."""
    measured = _measured(run)
    if measured is None:
        return {}
    steps, count = measured
    spans = spans_of(run)

    def hidden_in(part: Stretches) -> dict[str, int]:
        return _hidden_in(part, _near(spans, part), on_device=len(spans.kernels) > 0)

    totals_ns: dict[str, int] = {}
    for hidden_ns in in_parts(steps, hidden_in):
        for name, value in hidden_ns.items():
            totals_ns[name] = totals_ns.get(name, 0) + value
    ran_ms = {
        name: value / 1e6 / count for name, value in sorted(totals_ns.items(), key=lambda item: -item[1]) if value
    }
    ledger = measure(run)
    hidden_ms = sum(ledger.hidden_ms.values()) if ledger is not None else 0.0
    share = min(1.0, hidden_ms / sum(ran_ms.values())) if ran_ms else 1.0
    return {name: value * share for name, value in ran_ms.items() if share}


def _hidden_in(steps: Stretches, spans: RunSpans, *, on_device: bool) -> dict[str, int]:
    """Return the ns of data work of all workers within ``steps``, by the name of what ran at the same time.

    ``on_device``: True for kernels. False for the host's phases without fetches, and "other" for time in no phase."""
    stages = stage_spans(spans)
    fetches = spans.of(spans.phases, FETCH)
    if on_device:
        covers = spans.kernels
    else:
        covers = spans.phases.where(spans.phases.names != spans.code(FETCH))
        steps = difference(steps, union(fetches.starts, fetches.ends))

    def during(meanwhile: Stretches) -> int:
        return int(covered(stages.starts, stages.ends, meanwhile).sum())

    hidden_ns = {name: during(intersection(meanwhile, steps)) for name, meanwhile in _by_name(spans, covers)}
    other_ns = during(steps) - during(intersection(union(covers.starts, covers.ends), steps))
    return hidden_ns if on_device else {**hidden_ns, "other": other_ns}


@once_per_run("blocking calls")
def sync_audit(run: RunData) -> list[SyncCall]:
    """Return every place in the step that blocked on the device, in the order of the step; empty if none did."""
    measured = _measured(run)
    if measured is None:
        return []
    steps, count = measured
    spans = spans_of(run)
    calls = spans.blocking.where(np.argsort(spans.blocking.starts, kind="stable"))
    if not len(calls):
        return []
    ends = np.maximum(calls.ends, calls.starts + 1)
    # Time between a call and the next one counts in the step that it falls into, also if the call was before that step.
    following = np.append(calls.starts[1:], steps.ends[-1])
    reached = np.maximum(ends, following)
    sites = len(spans.names)
    counted, shown = (np.zeros(len(calls), dtype=np.bool_) for _ in range(2))
    certain, uncertain = _surely_busy(spans, device_work_of(run))

    def times_in(part: Stretches) -> tuple[Int, dict[str, Int]]:
        """Return ns by call site, (4, sites), and {kernel: ns by call site after calls while it ran, (sites,)}.

        The four: blocked; after the call; of that, device certainly busy; of that, device possibly busy."""
        chosen = np.flatnonzero((reached > part.starts[0]) & (calls.starts < part.ends[-1]))
        names = calls.names[chosen].astype(np.int64)
        inside = clip(calls.starts[chosen], ends[chosen], part)
        after = clip(calls.ends[chosen], following[chosen], part)
        counted[chosen[inside.owner]] = True
        shown[chosen[after.owner]] = True
        kernels = _near(certain, part).kernels

        def after_and(during: Stretches) -> Int:
            return per_row(names[after.owner], covered(after.starts, after.ends, during), sites)

        blocked = per_row(names[inside.owner], inside.ends - inside.starts, sites)
        after_ns = per_row(names[after.owner], after.ends - after.starts, sites)
        busy = after_and(union(kernels.starts, kernels.ends))
        possible = after_and(_within(uncertain, part))
        return np.stack([blocked, after_ns, busy, possible]), {
            name: after_and(stretches) for name, stretches in _by_name(spans, kernels)
        }

    total_times = np.zeros((4, sites), dtype=np.int64)
    behind: dict[str, Int] = {}
    for times, by_kernel in in_parts(steps, times_in):
        total_times += times
        for name, time in by_kernel.items():
            behind[name] = behind.get(name, 0) + time
    blocked, total_after, busy, total_possible = total_times
    behind = {name: behind[name] for code in _codes(spans.kernels) if (name := spans.names[code]) in behind}
    # A call without a time is known from one step, perhaps a warm-up step. The other steps have the call too.
    untimed = np.array([spans.names[code].endswith(UNANNOUNCED) for code in calls.names], dtype=np.bool_)
    shown |= counted | untimed
    sync_calls = []
    for code in dict.fromkeys(calls.names[shown].tolist()):
        site, at_site = spans.names[code], calls.names == code
        sync_calls.append(
            SyncCall(
                site=site,
                calls_per_step=float((at_site & untimed).sum()) or int(counted[at_site].sum()) / count,
                blocked_ms=None if site.endswith(UNANNOUNCED) else int(blocked[code]) / 1e6 / count,
                hid_ms=int(busy[code]) / 1e6 / count,
                hid_behind={name: ns / 1e6 / count for name, by_site in behind.items() if (ns := int(by_site[code]))},
                idle_ms=int(total_after[code] - busy[code] - total_possible[code]) / 1e6 / count,
            )
        )
    return sync_calls


def _near(spans: RunSpans, steps: Stretches) -> RunSpans:
    return spans.between(int(steps.starts[0]), int(steps.ends[-1]))


def _surely_busy(spans: RunSpans, work: DeviceWork) -> tuple[RunSpans, Stretches]:
    """Return ``spans`` with kernels cut to when they certainly worked, and other times when they may have worked."""
    if not work.still_launching.any():
        return spans, Stretches(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    starts = spans.kernels.starts.copy()
    starts[: len(work.starts)] = work.known_from
    uncertain = difference(work.open, union(starts, spans.kernels.ends))
    return replace(spans, kernels=replace(spans.kernels, starts=starts)), uncertain


def _within(stretches: Stretches, steps: Stretches) -> Stretches:
    """Return the stretches (sorted, disjoint) that overlap the time from the first to the last of ``steps``."""
    low = np.searchsorted(stretches.ends, steps.starts[0], side="right")
    high = np.searchsorted(stretches.starts, steps.ends[-1], side="left")
    return Stretches(stretches.starts[low:high], stretches.ends[low:high])


def _by_name(spans: RunSpans, some: Spans) -> Iterator[tuple[str, Stretches]]:
    """Yield each name in ``some`` with the time during which its spans ran, in order of first appearance."""
    for code in _codes(some):
        chosen = some.names == code
        yield spans.names[code], union(some.starts[chosen], some.ends[chosen])


def _codes(some: Spans) -> list[int]:
    """Return the name codes in ``some`` (indices into RunSpans.names), in order of first appearance."""
    present = np.flatnonzero(np.bincount(some.names)) if len(some) else some.names
    return sorted(map(int, present), key=lambda code: int(np.argmax(some.names == code)))


def _measured(run: RunData) -> tuple[Stretches, int] | None:
    """Return the times of the measured steps and their number; None without measured steps or without spans."""
    steps = derived_steps(run).table  # already in memory
    if steps is None or not run.has_spans:
        return None
    import pyarrow.compute as pc

    steps = steps.select(["warmup", "start_ns", "wall_ns"])  # only what bounds() reads: a filter copies its input
    measured = steps.filter(pc.invert(pc.fill_null(steps.column("warmup"), False)))
    if not len(measured):
        return None
    return bounds(measured), len(measured)


def mean_hidden_behind(runs: Sequence[RunData]) -> dict[str, float]:
    """Return :func:`hidden_behind` as means over runs, largest first."""
    by_run = [hidden_behind(run) for run in runs]
    names = dict.fromkeys(name for by_name in by_run for name in by_name)
    means = {name: sum(by_name.get(name, 0.0) for by_name in by_run) / len(by_run) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def work_out(run: RunData) -> None:
    """Compute and cache all results that need the spans of ``run``, so that :func:`release` may free the spans."""
    measure(run)
    if run.record.status != "done":
        return
    hidden_behind(run)
    sync_audit(run)
    with suppress(InputError):
        record(run)


def release(run: RunData) -> None:
    """Free the spans and derived columns of a long run. They are computed again on demand."""
    if run.knows("spans") and spans_of(run).rows > policy.KEPT_SPANS_MAX:
        run.forget("spans")
        run.forget(DERIVED)
        run.forget(DEVICE_WORK)


What = Literal["tokenize", "read", "device", "data"]
UnfittedKind = Literal["no run of the arm", "no dosed run", "no shared block", "work not measured", "no work added"]


@dataclass(frozen=True)
class Unfitted:
    """Reason why no curve of step time over added work can be fitted. Each other field is set for one ``kind`` only."""

    kind: UnfittedKind
    ks: tuple[int, ...] = ()  # "no shared block": doses without a common block
    least_ms: float = 0.0  # "no work added": work per step without a dose
    most_ms: float = 0.0  # "no work added": work per step with the largest dose


@dataclass(frozen=True)
class Curve:
    """One block of a slowdown injection: its runs by dose, with work and step time of each in ms."""

    ks: tuple[int, ...]  # doses: how many times more of the work each run does; 0 is the arm itself
    runs: tuple[RunLedger, ...]
    work: tuple[float, ...]
    step: tuple[float, ...]

    def slope(self, values: Sequence[float], since: int = 0, until: int | None = None) -> float:
        """Return the least-squares slope of ``values`` (one per dose) per ms of work, over the points [since:until]."""
        x, y = np.asarray(self.work[since:until]), np.asarray(values[since:until])
        x = x - x.mean()
        return float(x @ (y - y.mean()) / (x @ x))

    @property
    def absorbed(self) -> float:
        """Slack in ms: added work of the largest dose that did not lengthen the step; at least 0."""
        last = self.slope(self.step, since=len(self.ks) - 2)
        return max(0.0, (self.work[-1] - self.work[0]) - (self.step[-1] - self.step[0]) / max(1.0, last))

    @property
    def waited(self) -> list[float]:
        """Wait for data in ms per step, all stages together, for each dose."""
        return [run.waited_ms or 0.0 for run in self.runs]


def curves_of(by_k: Mapping[int, Blocks], what: What, workers: int) -> list[Curve] | Unfitted:
    """Return a curve for each block that has a run of every dose, or the reason why there is none. ``by_k``: runs by
    dose (0: the arm itself), then block. ``workers``: number by which the work is divided, because workers do it side
    by side."""
    if not by_k[0]:
        return Unfitted("no run of the arm")
    if len(by_k) == 1:
        return Unfitted("no dosed run")
    blocks = sorted(set.intersection(*(set(runs) for runs in by_k.values())))
    if not blocks:
        return Unfitted("no shared block", tuple(by_k))
    work = _work(what, [by_k[k][block] for k in by_k for block in blocks])
    if work is None:
        return Unfitted("work not measured")
    curves = []
    for block in blocks:
        runs = tuple(by_k[k][block] for k in by_k)
        costs = tuple(work(run) / workers for run in runs)
        curves.append(Curve(tuple(by_k), runs, costs, tuple(run.mean_step_ms for run in runs)))
    least, most = (float(np.mean([curve.work[i] for curve in curves])) for i in (0, -1))
    if most - least <= policy.DOSE_ADDED_MIN * least or any(curve.work[-1] <= curve.work[0] for curve in curves):
        return Unfitted("no work added", least_ms=least, most_ms=most)
    return curves


def _work(what: What, runs: Sequence[RunLedger]) -> Callable[[RunLedger], float] | None:
    """Return a function that gives the ms of ``what`` per step of a run; None if not measured in all ``runs``.

    "data": read, tokenize and pack. "device": its busy time; if unknown, the forward phase of a synchronous device."""
    if what == "device":
        if all(run.device_busy_ms is not None for run in runs):
            return lambda run: run.device_busy_ms or 0.0
        if any("forward" not in run.phase_ms or run.record.facts.asynchronous for run in runs):
            return None  # On an asynchronous device the phase only covers the launches.
        return lambda run: run.phase_ms["forward"]
    stages = BUILT if what == "data" else (what,)
    if any(stage not in run.work_ms for run in runs for stage in stages):
        return None
    return lambda run: sum(run.work_ms[stage] for stage in stages)


def segment(curves: Sequence[Curve], first: int) -> Estimate | None:
    """Return the slope (ms of step time per ms of work) from dose number ``first`` to the next one, over blocks.

    None if in any block the larger dose has no more work."""
    if any(curve.work[first + 1] <= curve.work[first] for curve in curves):
        return None
    return from_block_values([curve.slope(curve.step, first, first + 2) for curve in curves])


DoseKind = Literal["hidden", "exposed", "partial", "contended", "kink", "undecided"]
_CONTROL = re.compile(r"dose-(tokenize|read|device|data)-([1-9][0-9]*)")


@dataclass(frozen=True)
class DosePoint:
    """Means over blocks, ms per step, of runs that do the work ``k`` more times (1 + k in all). None: not measured."""

    k: int
    work_ms: float  # on the critical path
    step_ms: float
    waited_ms: float | None  # all exposed stages together
    contended_ms: float | None


@dataclass(frozen=True)
class Dose:
    """Effect on the step time of adding work of kind ``what`` to ``arm``; :func:`dose` makes it."""

    arm: str
    what: What
    kind: DoseKind
    unfitted: Unfitted | None = None  # why there is no slope
    points: tuple[DosePoint, ...] = ()
    slope: Estimate | None = None  # ms of step time per ms of work, over all doses
    local_slope: Estimate | None = None  # slope up to the first dose: what the arm would feel first
    last_slope: Estimate | None = None  # slope up to the largest dose
    waited_slope: Estimate | None = None  # ms of waiting for data per ms of work; None for the device
    slack_ms: Estimate | None = None  # "kink": work that can be added before it costs anything
    blocks_needed: int | None = None  # "undecided": total number of blocks that would probably decide
    unfinished: tuple[int, ...] = ()  # doses k without a finished run; not used
    workers: int = 1  # workers side by side; work figures are the work of all workers divided by this number


def parse_control(control: str | None) -> tuple[What, int] | None:
    """Return (kind of work, k) of a control named ``dose-KIND-K``, such as ("tokenize", 2); None for any other name."""
    match = _CONTROL.fullmatch(control or "")
    return (cast("What", match[1]), int(match[2])) if match else None


def dose(arm_blocks: Blocks, doses: Mapping[int, Blocks], what: What, workers: int) -> Dose:
    """Return how the step time changes if work of kind ``what`` is done more often. ``doses[k]``: runs that do the work
    k more times (1 + k in all), by block. Only blocks with a run of every dose count. ``workers``: number of workers
    that do the work side by side."""
    by_k = {0: arm_blocks} | {k: doses[k] for k in sorted(doses) if doses[k]}
    name = next((run.record.of or run.record.arm for blocks in by_k.values() for run in blocks.values()), "an arm")
    parallel = 1 if what == "device" else max(1, workers)
    curves = curves_of(by_k, what, parallel)
    if isinstance(curves, Unfitted):
        return Dose(name, what, "undecided", curves, workers=parallel)
    result = _judge(name, what, curves, tuple(k for k in sorted(doses) if not doses[k]))
    return replace(result, workers=parallel)


def _judge(name: str, what: What, curves: Sequence[Curve], unfinished: tuple[int, ...]) -> Dose:
    points = _points(curves)
    slope = from_block_values([curve.slope(curve.step) for curve in curves])
    assert slope is not None
    waited = None if what == "device" else from_block_values([curve.slope(curve.waited) for curve in curves])
    kind = _kind(what, curves, slope, waited)
    return Dose(
        arm=name,
        what=what,
        kind=kind,
        points=points,
        slope=slope,
        local_slope=segment(curves, 0),
        last_slope=segment(curves, len(points) - 2),
        waited_slope=waited,
        slack_ms=from_block_values([curve.absorbed for curve in curves]) if kind == "kink" else None,
        blocks_needed=_blocks_needed(slope) if kind == "undecided" else None,
        unfinished=unfinished,
    )


def _kind(what: What, curves: Sequence[Curve], slope: Estimate, waited: Estimate | None) -> DoseKind:
    low, high = slope.ci_low, slope.ci_high
    if low is None or high is None:
        return "undecided"
    if _bends(what, curves):
        return "kink"
    if high < policy.HIDDEN_SLOPE_MAX:
        return "hidden"
    # The step waits for all time that the loader causes. A step that gets longer without waiting lost its cores.
    unwaited = waited is not None and waited.median < slope.median / 2
    if low > policy.EXPOSED_SLOPE_MIN and unwaited:
        return "contended"
    if low > policy.EXPOSED_SLOPE_MIN:
        return "kink" if what != "device" and _fits_today(curves) else "exposed"
    if low >= policy.PARTIAL_SLOPE_MARGIN and high <= 1 - policy.PARTIAL_SLOPE_MARGIN:
        return "contended" if unwaited else "partial"
    return "undecided"


def _bends(what: What, curves: Sequence[Curve]) -> bool:
    """Return True if the curve gets steeper towards the largest dose because the step waits. Steeper: the interval of
    (last slope - first slope) is above KINK_BEND_MIN. Because it waits: the wait for data grows at least half as fast
    as the step time; this is not required for "device"."""
    last = len(curves[0].ks) - 2
    first_slope, last_slope = segment(curves, 0), segment(curves, last)
    if last < 1 or first_slope is None or last_slope is None:
        return False
    bend = from_block_values([c.slope(c.step, last) - c.slope(c.step, 0, 2) for c in curves])
    if bend is None or bend.ci_low is None or bend.ci_low <= policy.KINK_BEND_MIN:
        return False
    waits = float(np.median([curve.slope(curve.waited, last) for curve in curves]))
    return what == "device" or waits >= last_slope.median / 2


def _fits_today(curves: Sequence[Curve]) -> bool:
    """Return True if the step without added work hardly waits for data. Waits for the transfer stage do not count."""
    waited = [curve.waited[0] - curve.runs[0].exposed_ms.get("transfer", 0.0) for curve in curves]
    return float(np.mean(waited)) < policy.HIDDEN_SLOPE_MAX * float(np.mean([curve.work[0] for curve in curves]))


def _points(curves: Sequence[Curve]) -> tuple[DosePoint, ...]:
    def mean(values: Sequence[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return float(np.mean(measured)) if measured else None

    return tuple(
        DosePoint(
            k,
            float(np.mean([curve.work[i] for curve in curves])),
            float(np.mean([curve.step[i] for curve in curves])),
            mean([curve.runs[i].waited_ms for curve in curves]),
            mean([curve.runs[i].contended_ms for curve in curves]),
        )
        for i, k in enumerate(curves[0].ks)
    )


def _blocks_needed(slope: Estimate) -> int | None:
    """Return the total number of blocks after which ``slope`` would probably decide the :data:`DoseKind`.

    None without an interval, or above DOSE_BLOCKS_MAX."""
    if slope.ci_low is None or slope.ci_high is None:
        return None
    # Half-width that meets the conditions of some kind, if the median stays where it is.
    likely = min(1.0, max(0.0, slope.median))
    wanted = max(
        policy.HIDDEN_SLOPE_MAX - likely,
        min(likely - policy.PARTIAL_SLOPE_MARGIN, 1 - policy.PARTIAL_SLOPE_MARGIN - likely),
        likely - policy.EXPOSED_SLOPE_MIN,
    )
    scatter = (slope.ci_high - slope.ci_low) / 2 * math.sqrt(slope.n) / student_t(0.975, slope.n - 1)
    candidates = range(slope.n + 1, policy.DOSE_BLOCKS_MAX + 1)
    place = bisect_left(candidates, True, key=lambda n: student_t(0.975, n - 1) * scatter / math.sqrt(n) < wanted)
    return candidates[place] if place < len(candidates) else None
