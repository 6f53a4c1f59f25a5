"""Finds what hid the data work of a run and how long each blocking call took, in mean ms per measured step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from harness.explain.bounds import DEVICE_WORK, DeviceWork, device_work_of
from harness.explain.derived import stage_spans
from harness.explain.ledger import DERIVED, derived_steps, measure
from harness.explain.policy import KEPT_SPANS_MAX
from harness.explain.replay.recording import record
from harness.explain.spans import (
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
from harness.explain.waits import per_row
from harness.study.run_data import RunData
from trainer.errors import InputError


@dataclass(frozen=True)
class SyncCall:
    """All calls from one place that kept the host waiting for the device (None: how long is not known)."""

    site: str
    calls_per_step: float  # of calls that nobody timed: in the one step in which torch told of them
    blocked_ms: float | None
    hid_ms: float  # host work between it and the next blocking call that ran while the device was busy for sure
    hid_behind: dict[str, float]  # the kernels it ran behind, ms
    idle_ms: float  # host work in between while the device, drained by this call, had nothing to do


@once_per_run("hidden behind")
def hidden_behind(run: RunData) -> dict[str, float]:
    """Sum up hidden data work by kernel, or without a device by phase of the main thread; ``other``: neither ran.

    Work that ran behind something and cost the step is not hidden: all parts shrink alike, to the ledger's figure.
    """
    measured = _measured(run)
    if measured is None:
        return {}
    steps, count = measured
    spans = spans_of(run)

    def hidden_in(part: Stretches) -> dict[str, int]:
        return _hidden_in(part, _near(spans, part), on_device=len(spans.kernels) > 0)

    found: dict[str, int] = {}
    for some in in_parts(steps, hidden_in):
        for name, value in some.items():
            found[name] = found.get(name, 0) + value
    ran_ms = {name: value / 1e6 / count for name, value in sorted(found.items(), key=lambda item: -item[1]) if value}
    ledger = measure(run)
    hidden_ms = sum(ledger.hidden_ms.values()) if ledger is not None else 0.0
    share = min(1.0, hidden_ms / sum(ran_ms.values())) if ran_ms else 1.0
    return {name: value * share for name, value in ran_ms.items() if share}


def _hidden_in(steps: Stretches, spans: RunSpans, *, on_device: bool) -> dict[str, int]:
    """Nanoseconds within ``steps`` by what hid the data work; of workers side by side each counts."""
    own = stage_spans(spans)
    fetches = spans.of(spans.phases, FETCH)
    if on_device:
        covers = spans.kernels
    else:
        covers = spans.phases.where(spans.phases.names != spans.code(FETCH))
        steps = difference(steps, union(fetches.starts, fetches.ends))

    def during(meanwhile: Stretches) -> int:
        return int(covered(own.starts, own.ends, meanwhile).sum())

    found = {name: during(intersection(meanwhile, steps)) for name, meanwhile in _by_name(spans, covers)}
    rest = during(steps) - during(intersection(union(covers.starts, covers.ends), steps))
    return found if on_device else {**found, "other": rest}


@once_per_run("blocking calls")
def sync_audit(run: RunData) -> list[SyncCall]:
    """Every place in the step that blocked on the device, in the order of the step."""
    measured = _measured(run)
    if measured is None:
        return []
    steps, count = measured
    spans = spans_of(run)
    calls = spans.blocking.where(np.argsort(spans.blocking.starts, kind="stable"))
    if not len(calls):
        return []
    ends = np.maximum(calls.ends, calls.starts + 1)
    # What follows a call, until the next one, counts in the step that it falls into, be it the first measured one.
    following = np.append(calls.starts[1:], steps.ends[-1])
    reached = np.maximum(ends, following)
    sites = len(spans.names)
    counted, shown = (np.zeros(len(calls), dtype=np.bool_) for _ in range(2))
    surely, unsure = _surely_busy(spans, device_work_of(run))

    def times_in(part: Stretches) -> tuple[Int, dict[str, Int]]:
        """Return, by site: time blocked, time after it, of that surely and perhaps busy; and by kernel."""
        some = np.flatnonzero((reached > part.starts[0]) & (calls.starts < part.ends[-1]))
        names = calls.names[some].astype(np.int64)
        inside = clip(calls.starts[some], ends[some], part)
        after = clip(calls.ends[some], following[some], part)
        counted[some[inside.owner]] = True
        shown[some[after.owner]] = True
        kernels = _near(surely, part).kernels

        def after_and(during: Stretches) -> Int:
            return per_row(names[after.owner], covered(after.starts, after.ends, during), sites)

        blocked = per_row(names[inside.owner], inside.ends - inside.starts, sites)
        whole = per_row(names[after.owner], after.ends - after.starts, sites)
        busy = after_and(union(kernels.starts, kernels.ends))
        perhaps = after_and(_within(unsure, part))
        return np.stack([blocked, whole, busy, perhaps]), {
            name: after_and(stretches) for name, stretches in _by_name(spans, kernels)
        }

    total_times = np.zeros((4, sites), dtype=np.int64)
    behind: dict[str, Int] = {}
    for times, by_kernel in in_parts(steps, times_in):
        total_times += times
        for name, time in by_kernel.items():
            behind[name] = behind.get(name, 0) + time
    blocked, whole, busy, perhaps = total_times
    behind = {name: behind[name] for code in _codes(spans.kernels) if (name := spans.names[code]) in behind}
    # A call that nobody timed is known from one step, be it a warm-up step: the others have it too.
    untimed = np.array([spans.names[code].endswith(UNANNOUNCED) for code in calls.names], dtype=np.bool_)
    shown |= counted | untimed
    found = []
    for code in dict.fromkeys(calls.names[shown].tolist()):
        site, own = spans.names[code], calls.names == code
        found.append(
            SyncCall(
                site=site,
                calls_per_step=float((own & untimed).sum()) or int(counted[own].sum()) / count,
                blocked_ms=None if site.endswith(UNANNOUNCED) else int(blocked[code]) / 1e6 / count,
                hid_ms=int(busy[code]) / 1e6 / count,
                hid_behind={
                    name: one / 1e6 / count for name, found_by in behind.items() if (one := int(found_by[code]))
                },
                idle_ms=int(whole[code] - busy[code] - perhaps[code]) / 1e6 / count,
            )
        )
    return found


def _near(spans: RunSpans, steps: Stretches) -> RunSpans:
    return spans.between(int(steps.starts[0]), int(steps.ends[-1]))


def _surely_busy(spans: RunSpans, work: DeviceWork) -> tuple[RunSpans, Stretches]:
    """The spans with each kernel from when it surely worked, and when the device may besides have worked or waited."""
    if not work.still_launching.any():
        return spans, Stretches(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    starts = spans.kernels.starts.copy()
    starts[: len(work.starts)] = work.known_from
    unsure = difference(work.open, union(starts, spans.kernels.ends))
    return replace(spans, kernels=replace(spans.kernels, starts=starts)), unsure


def _within(stretches: Stretches, steps: Stretches) -> Stretches:
    """Those of ``stretches`` (in order, apart) that overlap the time of ``steps``."""
    low = np.searchsorted(stretches.ends, steps.starts[0], side="right")
    high = np.searchsorted(stretches.starts, steps.ends[-1], side="left")
    return Stretches(stretches.starts[low:high], stretches.ends[low:high])


def _by_name(spans: RunSpans, some: Spans) -> Iterator[tuple[str, Stretches]]:
    """When each of the names that ``some`` have was going on, in the order in which they came first."""
    for code in _codes(some):
        own = some.names == code
        yield spans.names[code], union(some.starts[own], some.ends[own])


def _codes(some: Spans) -> list[int]:
    """The names that ``some`` have, in the order in which they came first."""
    present = np.flatnonzero(np.bincount(some.names)) if len(some) else some.names
    return sorted(map(int, present), key=lambda code: int(np.argmax(some.names == code)))


def _measured(run: RunData) -> tuple[Stretches, int] | None:
    """When measured steps ran, and how many they are; None where there is none or no span was recorded."""
    steps = derived_steps(run).table  # in memory already
    if steps is None or not run.has_spans:
        return None
    import pyarrow.compute as pc

    steps = steps.select(["warmup", "start_ns", "wall_ns"])  # what bounds() reads: a filter copies what it is given
    measured = steps.filter(pc.invert(pc.fill_null(steps.column("warmup"), False)))
    if not len(measured):
        return None
    return bounds(measured), len(measured)


def mean_hidden_behind(runs: Sequence[RunData]) -> dict[str, float]:
    """Mean of :func:`hidden_behind` over runs, largest first."""
    found = [hidden_behind(run) for run in runs]
    names = dict.fromkeys(name for one in found for name in one)
    means = {name: sum(one.get(name, 0.0) for one in found) / len(found) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def work_out(run: RunData) -> None:
    """Compute and keep all that needs the spans of ``run``, so that :func:`release` may free them."""
    measure(run)
    if run.record.status != "done":
        return
    hidden_behind(run)
    sync_audit(run)
    with suppress(InputError):
        record(run)


def release(run: RunData) -> None:
    """Free the large intermediate results of a long run. They are computed again when they are needed again."""
    if run.knows("spans") and spans_of(run).rows > KEPT_SPANS_MAX:
        run.forget("spans")
        run.forget(DERIVED)
        run.forget(DEVICE_WORK)
