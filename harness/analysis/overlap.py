"""Finds in a run's spans what hid the data work, and how long each blocking call took.

Only time within measured steps counts. All results are mean milliseconds per measured step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.intervals import Int, Pieces, Stretches, clip, covered, difference, intersection, total, union
from harness.analysis.ledger import derived_steps, measure
from harness.analysis.spans import FETCH, RunSpans, Spans, spans_of
from harness.analysis.step_columns import bounds
from harness.study.run_data import RunData

STRETCHES_AT_ONCE = 100_000  # bounds the memory of one sweep


@dataclass(frozen=True)
class SyncCall:
    """All calls from one place that kept the host waiting for the device (None: how long is not known)."""

    site: str
    calls_per_step: float
    blocked_ms: float | None
    hid_ms: float  # host work between it and the next blocking call that ran while the device was busy
    hid_behind: dict[str, float]  # the kernels it ran behind, ms
    idle_ms: float  # host work in between while the device, drained by this call, had nothing to do


def hidden_behind(run: RunData) -> dict[str, float]:
    """Sum up hidden data work by what ran meanwhile: kernels, or without a device the main thread's phases.

    Work during which neither ran (a worker ahead of a host that computes nothing) is called ``other``. Work that ran
    behind something and cost the step all the same is not hidden: all parts shrink alike, down to the ledger's figure.
    """
    return run.once("hidden behind", lambda: _hidden_behind(run))


def _hidden_behind(run: RunData) -> dict[str, float]:
    measured = _measured(run)
    if measured is None:
        return {}
    steps, count = measured
    found: dict[str, int] = {}
    for first in range(0, len(steps.starts), STRETCHES_AT_ONCE):
        part = Stretches(*(column[first : first + STRETCHES_AT_ONCE] for column in steps))
        near = spans_of(run).between(int(part.starts[0]), int(part.ends[-1]))
        for name, value in _hidden_in(part, near, on_device=len(spans_of(run).kernels) > 0).items():
            found[name] = found.get(name, 0) + value
    ran_ms = {name: value / 1e6 / count for name, value in sorted(found.items(), key=lambda item: -item[1]) if value}
    ledger = measure(run)
    hidden_ms = sum(ledger.hidden_ms.values()) if ledger is not None else 0.0
    share = min(1.0, hidden_ms / sum(ran_ms.values())) if ran_ms else 1.0
    return {name: value * share for name, value in ran_ms.items() if share}


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
    inside = clip(calls.starts, np.maximum(calls.ends, calls.starts + 1), steps)
    # What follows a call, until the next one, counts in the step that it falls into, be it the first measured one.
    after = clip(calls.ends, np.append(calls.starts[1:], steps.ends[-1]), steps)
    blocked = _per_call(inside, inside.ends - inside.starts, len(calls))
    busy = _per_call(
        after, covered(after.starts, after.ends, union(spans.kernels.starts, spans.kernels.ends)), len(calls)
    )
    whole = _per_call(after, after.ends - after.starts, len(calls))
    behind = {
        name: _per_call(after, covered(after.starts, after.ends, stretches), len(calls))
        for name, stretches in _by_name(spans, spans.kernels)
    }
    counted = np.zeros(len(calls), dtype=np.bool_)
    counted[inside.owner] = True
    shown = counted | (whole > 0)
    found = []
    for code in dict.fromkeys(calls.names[shown].tolist()):
        own = (calls.names == code) & shown
        site = spans.names[code]
        found.append(
            SyncCall(
                site=site,
                calls_per_step=int(counted[own].sum()) / count,
                blocked_ms=None if site.endswith("unannounced") else int(blocked[own].sum()) / 1e6 / count,
                hid_ms=int(busy[own].sum()) / 1e6 / count,
                hid_behind={
                    name: shared / 1e6 / count for name, one in behind.items() if (shared := int(one[own].sum()))
                },
                idle_ms=int((whole - busy)[own].sum()) / 1e6 / count,
            )
        )
    return found


def _per_call(pieces: Pieces, values: Int, calls: int) -> Int:
    """Sums of ``values``, one a piece, by the call that the piece belongs to, (calls,)."""
    return np.bincount(pieces.owner, weights=values, minlength=calls).astype(np.int64)


def _by_name(spans: RunSpans, some: Spans) -> Iterator[tuple[str, Stretches]]:
    """When each of the names that ``some`` have was going on, in the order in which they came first."""
    codes, first = np.unique(some.names, return_index=True)
    for code in codes[np.argsort(first)].tolist():
        own = some.names == code
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
