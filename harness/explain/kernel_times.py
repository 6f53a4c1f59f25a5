"""Takes how long the device works for each phase from the kernels of the arm's profiled window.

A kernel belongs to the phase in which the host launched it, whenever it ran. Both have one correlation id.

    host      |--- launch: forward ---|--- launch: backward ---|
    kernels          |k| |k|   |k|    |k|      |k|    |k|                 forward: 3 k, backward: 3 k

The same kernels are taken to run in the measured steps, for as long. torch.profiler slows the host, which only widens
the gaps between kernels. A gap before a kernel that lay queued is the device's own and counts as work, as it does
between events. Nothing is scaled, so batches of other shapes show as a difference between the profiled steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from harness.explain.intervals import total, union
from harness.explain.probes.operators import LaunchedWork, launched_work, read_events
from harness.explain.probes.torch_profile import Window, whole_profiles
from harness.explain.spans import RunSpans, spans_of
from harness.study.run_data import RunData


class KernelTime(NamedTuple):
    """Nanoseconds that the device was at kernels and copies of one piece of work, over the profiled pieces."""

    least_ns: int
    usual_ns: int
    most_ns: int


def kernel_times_of(run: RunData) -> Mapping[str, KernelTime]:
    """Return the kernel time of the work of ``run`` by its name; nothing without a whole profiled window of its arm."""
    window = run.window
    if window is None:
        return {}
    return window.once("kernel times", lambda: _kernel_times(window))


def _kernel_times(run: RunData) -> Mapping[str, KernelTime]:
    facts = run.probes.torch_profiler
    if facts is None or not facts.windows or not run.has_spans:
        return {}
    profiles, windows, gaps = whole_profiles(run.profiles()[0], facts.windows)
    if gaps or not windows:
        return {}
    return _by_name(spans_of(run), windows, launched_work(read_events(profiles)))


def _by_name(spans: RunSpans, windows: list[Window], work: LaunchedWork) -> dict[str, KernelTime]:
    """Sum up ``work`` by the launches of the windows' steps.

    A name that has a piece without any kernel is left out: its kernels may be lost.
    """
    inside = np.zeros(len(spans.launches), dtype=np.bool_)
    for since, until, _, _ in windows:
        inside |= (spans.launches.starts >= since) & (spans.launches.ends <= until)
    pieces = spans.launches.where(inside)
    pieces = pieces.where(np.argsort(pieces.starts, kind="stable"))
    owner = np.searchsorted(pieces.starts, work.launched, side="right") - 1
    owner[(owner >= 0) & (work.launched >= pieces.ends[np.maximum(owner, 0)])] = -1
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(len(pieces) + 1))
    found: dict[str, list[int]] = {}
    for piece, code in enumerate(pieces.names.tolist()):
        own = order[edges[piece] : edges[piece + 1]]
        found.setdefault(spans.names[code], []).append(total(union(work.starts[own], work.ends[own])))
    return {
        name: KernelTime(min(worked), round(sum(worked) / len(worked)), max(worked))
        for name, worked in found.items()
        if min(worked) > 0
    }
