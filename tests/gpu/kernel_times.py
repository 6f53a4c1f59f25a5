"""Two witnesses of what the device did in each phase: the ledger's span of it, and torch.profiler's kernels.

A kernel belongs to the phase of the main thread in which the host launched it (launch and kernel have one correlation
id), whenever it ran. The ledger's times on the device have no part in that, so what it got wrong shows in the phase:

    host      |- forward -|- backward -| ...                              launches, by phase
    kernels           |== k ==|= k =|=== k ===||== k ==|====== k ======|  by the phase of their launch
    ledger           |------- forward ---------|------- backward -------|
                     ^^ start_ns             ^^ end_ns: gaps at the edges; kernels_ns against span_ns: gaps within
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.study.traces.kineto import DEVICE_WORK, RUNTIME_CALLS

if TYPE_CHECKING:
    import pyarrow as pa

# What the ledger calls the device's work: in which phase of the loop the host launches it, in the order of a step.
PHASE_OF = {"h2d": "h2d", "forward": "forward", "backward": "backward", "norm": "optimizer", "optimizer": "optimizer"}
LIMIT = 0.02
# Two events and the microsecond or two between one kernel and the next are no kernel's time: more than 2 % of a phase
# that is a few copies, nothing beside one of 5 ms or more.
SLACK_NS = 100_000
# The clocks agree within 50 us (timeline_check.alignment), an event and the kernel beside it within a few; the rest is
# for a host that was late with a launch. What is looked for, a wrong boundary or anchor, is off by many milliseconds.
EDGE_NS = 1_000_000

Range = tuple[int, int]


@dataclass(frozen=True)
class Agreement:
    """One kind of the device's work: medians over its spans, for one step may be disturbed (the profiler's start)."""

    name: str
    spans: int
    with_kernels: int  # how many of the spans have any
    span_ns: float
    kernels_ns: float  # during which some kernel ran
    short_ns: float  # span less kernels, of the same step
    start_ns: float = 0.0  # the first kernel's start less the span's
    end_ns: float = 0.0  # the last kernel's end less the span's

    def problems(self) -> Iterator[str]:
        """A line for each thing that does not agree."""
        if self.with_kernels < self.spans:
            yield f"{self.name}: no kernels in {self.spans - self.with_kernels} of {self.spans} spans"
        if abs(self.short_ns) > max(LIMIT * self.span_ns, SLACK_NS):
            yield f"{self.name}: {self.kernels_ns / 1e3:.1f} us of kernels in a span of {self.span_ns / 1e3:.1f} us"
        for edge, off_ns in (("begin", self.start_ns), ("end", self.end_ns)):
            if abs(off_ns) > EDGE_NS:
                yield f"{self.name}: its kernels {edge} {off_ns / 1e3:+.1f} us from where its span does"


def compare(spans: pa.Table, operators: pa.Table, steps: Iterable[Range]) -> list[Agreement]:
    """One entry for each name of PHASE_OF. ``spans``: the run's; ``operators``: one file, as ``kineto`` reads it.

    ``steps``: [start_ns, end_ns) of the profiled steps on the host. AssertionError where a step lacks a span.
    """
    rows = spans.to_pylist()
    phases = [row for row in rows if row["role"] == "main" and row["name"] in PHASE_OF.values()]
    works = [row for row in rows if row["role"] == "device" and row["name"] in PHASE_OF]
    queued = [row for row in rows if row["role"] == "launch" and row["name"] in PHASE_OF]
    assert [row["name"] for row in queued] == [row["name"] for row in works], (
        "not each launch has its work, in the same order"
    )
    kernels = list(launched(operators))
    found: dict[str, list[tuple[Range, list[Range]]]] = {name: [] for name in PHASE_OF}
    for since, until in steps:
        hosts = [row for row in phases if since <= row["start_ns"] < until]
        ours = [work for work, launch in zip(works, queued, strict=True) if since <= launch["start_ns"] < until]
        names = [row["name"] for row in ours]
        assert set(names) == set(PHASE_OF), f"a step has {names} on the device"
        assert [PHASE_OF[name] for name in names] == [row["name"] for row in hosts], f"{names} in other phases"
        for host, work in zip(hosts, ours, strict=True):
            inside = [at for call_ns, at in kernels if host["start_ns"] <= call_ns < host["end_ns"]]
            found[work["name"]].append(((work["start_ns"], work["end_ns"]), inside))
    return [_agreement(name, pairs) for name, pairs in found.items()]


def launched(operators: pa.Table) -> Iterator[tuple[int, Range]]:
    """When the host launched each kernel or copy, and when that ran; those launched before the profile are left out."""
    rows = operators.select(["category", "correlation", "start_ns", "duration_ns"]).to_pylist()
    calls: dict[int, int] = {}
    for row in rows:
        if row["category"] in RUNTIME_CALLS and row["correlation"]:
            calls[row["correlation"]] = min(row["start_ns"], calls.get(row["correlation"], row["start_ns"]))
    for row in rows:
        if row["category"] in DEVICE_WORK and row["correlation"] in calls:
            yield calls[row["correlation"]], (row["start_ns"], row["start_ns"] + row["duration_ns"])


def covered_ns(ranges: Iterable[Range]) -> int:
    """How long at least one of ``ranges`` lasted: kernels of several streams may overlap."""
    total, reached = 0, None
    for start, end in sorted(ranges):
        start = start if reached is None else max(start, reached)
        total += max(0, end - start)
        reached = max(start, end)
    return total


def _agreement(name: str, pairs: Sequence[tuple[Range, Sequence[Range]]]) -> Agreement:
    ran = [(span, kernels) for span, kernels in pairs if kernels]
    lasted = [end - start for (start, end), _ in pairs]
    covered = [covered_ns(kernels) for _, kernels in pairs]
    edges = {}
    if ran:
        edges["start_ns"] = statistics.median(min(at[0] for at in kernels) - span[0] for span, kernels in ran)
        edges["end_ns"] = statistics.median(max(at[1] for at in kernels) - span[1] for span, kernels in ran)
    short = statistics.median(span - kernels for span, kernels in zip(lasted, covered, strict=True))
    middle = statistics.median(lasted), statistics.median(covered), short
    return Agreement(name, len(pairs), len(ran), *middle, **edges)


def stray_arrows(events: Sequence[Mapping[str, Any]]) -> tuple[int, list[Mapping[str, Any]]]:
    """Of a timeline in Chrome's format: how many arrows lead from launches, and the ends of those that end elsewhere.

    Each is to end where a kernel or copy begins on that row.
    """
    kernels = {(event["pid"], event["tid"], event["ts"]) for event in events if event.get("cat") in DEVICE_WORK}
    ends = [event for event in events if event["ph"] == "f" and event["name"] == "launch"]
    return len(ends), [end for end in ends if (end["pid"], end["tid"], end["ts"]) not in kernels]
