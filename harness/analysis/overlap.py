"""Finds in a run's spans what its ledger lacks: what hid the data work, and how long each blocking call took.

Only time within measured steps counts. All results are mean milliseconds per measured step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.derived import bounds
from harness.analysis.exposure import per_row
from harness.analysis.intervals import Int, Stretches, clip, covered, difference, intersection, total, union
from harness.analysis.ledger import derived_steps
from harness.analysis.spans import FETCH, RunSpans, Spans, spans_of
from harness.study.run_data import RunData

STEPS_AT_ONCE = 10_000  # bounds the memory of one sweep


@dataclass(frozen=True)
class SyncCall:
    """All calls from one place that kept the host waiting for the device (None: how long is not known)."""

    site: str
    calls_per_step: float
    blocked_ms: float | None
    hid_ms: float  # host work between it and the next blocking call that ran while the device was busy
    hid_behind: dict[str, float]  # the kernels it ran behind, ms
    starved_ms: float  # host work in between while the device, drained by this call, had nothing to do


def hidden_behind(run: RunData) -> dict[str, float]:
    """Data work that was not waited for, by what ran meanwhile: kernels, or the main thread's phases without a device.

    What ran behind nothing of that (a worker ahead of a host that computes nothing) is called ``other``.
    """
    return run.once("hidden behind", lambda: _hidden_behind(run))


def _hidden_behind(run: RunData) -> dict[str, float]:
    measured = _measured(run)
    if measured is None:
        return {}
    steps, count = measured
    found: dict[str, int] = {}
    for part, near in _in_parts(steps, spans_of(run)):
        for name, value in _hidden_in(part, near, on_device=len(spans_of(run).kernels) > 0).items():
            found[name] = found.get(name, 0) + value
    return {name: value / 1e6 / count for name, value in sorted(found.items(), key=lambda item: -item[1]) if value}


def _hidden_in(steps: Stretches, spans: RunSpans, *, on_device: bool) -> dict[str, int]:
    """Nanoseconds within ``steps`` by what hid the data work."""
    inside = intersection(union(spans.stages.starts, spans.stages.ends), steps)
    fetches = spans.of(spans.phases, FETCH)
    if on_device:
        covers = spans.kernels
    else:
        covers = spans.phases.where(spans.phases.names != spans.code(FETCH))
        inside = difference(inside, union(fetches.starts, fetches.ends))
    found = {name: int(covered(*inside, meanwhile).sum()) for name, meanwhile in _by_name(spans, covers)}
    rest = total(inside) - int(covered(*inside, union(covers.starts, covers.ends)).sum())
    return found if on_device else {**found, "other": rest}


def sync_audit(run: RunData) -> list[SyncCall]:
    """Every place in the step that blocked on the device, in the order of the step."""
    return run.once("blocking calls", lambda: _sync_audit(run))


def _sync_audit(run: RunData) -> list[SyncCall]:
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
    blocked, whole, busy = (np.zeros(sites, dtype=np.int64) for _ in range(3))
    behind: dict[str, Int] = {}
    for part, near in _in_parts(steps, spans):
        some = np.flatnonzero((reached > part.starts[0]) & (calls.starts < part.ends[-1]))
        names = calls.names[some].astype(np.int64)
        inside = clip(calls.starts[some], ends[some], part)
        after = clip(calls.ends[some], following[some], part)
        counted[some[inside.owner]] = True
        shown[some[after.owner]] = True
        blocked += per_row(names[inside.owner], inside.ends - inside.starts, sites)
        whole += per_row(names[after.owner], after.ends - after.starts, sites)
        kernels = union(near.kernels.starts, near.kernels.ends)
        busy += per_row(names[after.owner], covered(after.starts, after.ends, kernels), sites)
        for name, stretches in _by_name(near, near.kernels):
            shared = per_row(names[after.owner], covered(after.starts, after.ends, stretches), sites)
            behind[name] = behind.get(name, 0) + shared
    shown |= counted
    found = []
    for code in dict.fromkeys(calls.names[shown].tolist()):
        site = spans.names[code]
        found.append(
            SyncCall(
                site=site,
                calls_per_step=int(counted[calls.names == code].sum()) / count,
                blocked_ms=None if site.endswith("unannounced") else int(blocked[code]) / 1e6 / count,
                hid_ms=int(busy[code]) / 1e6 / count,
                hid_behind={name: time / 1e6 / count for name, one in behind.items() if (time := int(one[code]))},
                starved_ms=int(whole[code] - busy[code]) / 1e6 / count,
            )
        )
    return found


def _in_parts(steps: Stretches, spans: RunSpans) -> Iterator[tuple[Stretches, RunSpans]]:
    """Some steps at a time, with the spans that overlap them."""
    for first in range(0, len(steps.starts), STEPS_AT_ONCE):
        part = Stretches(*(column[first : first + STEPS_AT_ONCE] for column in steps))
        yield part, spans.between(int(part.starts[0]), int(part.ends[-1]))


def _by_name(spans: RunSpans, some: Spans) -> Iterator[tuple[str, Stretches]]:
    """When each of the names that ``some`` have was going on, in the order in which they came first."""
    present = np.flatnonzero(np.bincount(some.names)) if len(some) else some.names
    place = {int(code): np.flatnonzero(some.names == code) for code in present}
    for code, own in sorted(place.items(), key=lambda item: int(item[1][0])):
        yield spans.names[code], union(some.starts[own], some.ends[own])


def _measured(run: RunData) -> tuple[Stretches, int] | None:
    """When measured steps ran, and how many they are; None where there is none or no span was recorded."""
    steps = derived_steps(run).table  # in memory already
    if steps is None or not run.has_spans:
        return None
    import pyarrow.compute as pc

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
