"""Finds in a run's spans what its ledger lacks: what hid the data work, and how long each blocking call took.

Only time within measured steps counts. All results are mean milliseconds per measured step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.analysis.intervals import Stretch, clip, difference, intersection, total, union
from harness.study.store import STAGES, RunData

if TYPE_CHECKING:
    import pyarrow as pa


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
    steps = _measured(run.steps)
    if not steps or run.spans is None:
        return {}
    rows = _rows(run.spans)
    stages = union((r["start_ns"], r["end_ns"]) for r in rows if r["name"] in STAGES and _is_host(r["role"]))
    device = [r for r in rows if r["role"] == "device"]
    inside = intersection(stages, steps)
    if device:
        covers = device
    else:
        covers = [r for r in rows if r["role"] == "main" and r["name"] not in STAGES and r["name"] != "fetch"]
        waits = union((r["start_ns"], r["end_ns"]) for r in rows if r["role"] == "main" and r["name"] == "fetch")
        inside = difference(inside, waits)
    found: dict[str, float] = {}
    for name in dict.fromkeys(r["name"] for r in covers):
        meanwhile = union((r["start_ns"], r["end_ns"]) for r in covers if r["name"] == name)
        if shared := total(intersection(inside, meanwhile)):
            found[name] = shared / 1e6 / _count(run.steps)
    if not device:
        rest = difference(inside, union((r["start_ns"], r["end_ns"]) for r in covers))
        if total(rest):
            found["other"] = total(rest) / 1e6 / _count(run.steps)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def sync_audit(run: RunData) -> list[SyncCall]:
    """Every place in the step that blocked on the device, in the order of the step."""
    steps = _measured(run.steps)
    if not steps or run.spans is None:
        return []
    rows = _rows(run.spans)
    calls = sorted((r for r in rows if r["role"] == "sync"), key=lambda r: r["start_ns"])
    if not calls:
        return []
    kernels = [r for r in rows if r["role"] == "device"]
    busy = union((r["start_ns"], r["end_ns"]) for r in kernels)
    by_name = {
        name: union((r["start_ns"], r["end_ns"]) for r in kernels if r["name"] == name)
        for name in dict.fromkeys(r["name"] for r in kernels)
    }
    ends = [call["start_ns"] for call in calls[1:]] + [steps[-1][1]]
    count = _count(run.steps)
    found: dict[str, list[Any]] = {}
    for call, until in zip(calls, ends, strict=True):
        inside = clip(steps, call["start_ns"], max(call["end_ns"], call["start_ns"] + 1))
        # What follows a call counts in the step that it falls into, be it the first measured one.
        after = clip(steps, call["end_ns"], until)
        if inside or after:
            found.setdefault(call["name"], []).append((total(inside), bool(inside), after))
    return [
        SyncCall(
            site=site,
            calls_per_step=sum(inside for _, inside, _ in group) / count,
            blocked_ms=None if site.endswith("unannounced") else sum(blocked for blocked, *_ in group) / 1e6 / count,
            hid_ms=sum(_shared(after, busy) for *_, after in group) / 1e6 / count,
            hid_behind={
                name: shared / 1e6 / count
                for name, stretches in by_name.items()
                if (shared := sum(_shared(after, stretches) for *_, after in group))
            },
            starved_ms=sum(total(after) - _shared(after, busy) for *_, after in group) / 1e6 / count,
        )
        for site, group in found.items()
    ]


def _shared(few: list[Stretch], many: list[Stretch]) -> int:
    """How much of ``few`` stretches lies in ``many``; by bisection, as there is a pair for every blocking call."""
    return sum(total(clip(many, start, end)) for start, end in few)


def _measured(table: pa.Table | None) -> list[Stretch]:
    """The time of the measured steps."""
    if table is None:
        return []
    names = ("start_ns", "wall_ns", "warmup")
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return union((start, start + wall) for start, wall, warmup in rows if not warmup)


def _count(table: pa.Table | None) -> int:
    assert table is not None
    return sum(not warmup for warmup in table.column("warmup").to_pylist())


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.select(["role", "name", "start_ns", "end_ns"]).to_pylist()
    return rows


def _is_host(role: str) -> bool:
    return role == "main" or role.startswith("loader")


def mean_hidden_behind(runs: Sequence[RunData]) -> dict[str, float]:
    """Mean of :func:`hidden_behind` over runs, largest first."""
    found = [hidden_behind(run) for run in runs]
    names = dict.fromkeys(name for one in found for name in one)
    means = {name: sum(one.get(name, 0.0) for one in found) / len(found) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))
