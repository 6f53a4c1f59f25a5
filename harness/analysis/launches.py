"""Finds the work of a device that waited for its launches: phases that the device ends as the host ends launching them.

CUDA events (and the emulated device) tell when a phase began and ended on the device, as one bracket around all of its
kernels. A device that is behind its host works through the bracket, and ends it when it is done. A device whose kernels
are shorter than their launches is idle within it, which the bracket does not show:

    host         |launch|launch|launch|launch|               |launch|launch|launch|launch|
    device              |k|    |k|    |k|    |k|                    |==== k ====|==== k ====|==== k ====|==== k ====|
    bracket      |-----------------------------|             |------------------------------------------------------|
                 |<----- not known ---->|<tail>|             it works to the end: known
                      launch-bound

So a bracket that ends with its launches is *launch-bound*. Before the last launch the device may have been busy or idle
(``open``). After it, everything was queued, and the device worked (``tail``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.intervals import Int, Stretches, clip, touches, union
from harness.analysis.spans import RunSpans, spans_of
from harness.study.run_data import RunData

# A device that waits for launches is done one kernel after the last of them. Such a kernel is shorter than its launch
# (5 to 50 us), and device times are mapped to the host's clock within tens of microseconds.
TAIL_NS = 100_000
TAIL_SHARE = 0.02  # of the bracket, where that is more: the last of at least fifty kernels
# Of a step. What brackets leave open is no more than this: then they are taken as busy, and off by no more.
NEGLIGIBLE = 0.01
DEVICE_WORK = "device work"  # of a run, worked out once


@dataclass(frozen=True)
class DeviceWork:
    """The device's work in the order of its queue, one piece for each phase that the host launched; all (pieces,)."""

    names: NDArray[np.int32]  # index into RunSpans.names
    starts: Int
    ends: Int
    launch_starts: Int
    launch_ends: Int
    launch_bound: NDArray[np.bool_]

    @property
    def known_from(self) -> Int:
        """From when the device surely worked until the end of the piece."""
        return np.where(self.launch_bound, np.clip(self.launch_ends, self.starts, self.ends), self.starts)

    @property
    def open(self) -> Stretches:
        """When the device may have worked or waited for a launch."""
        bound = np.flatnonzero(self.launch_bound)
        starts = self.starts[bound]
        return union(starts, np.clip(self.launch_ends[bound], starts, self.ends[bound]))


def device_work(spans: RunSpans, attached: bool = False) -> DeviceWork:
    """The work of a run's device. A piece whose launching blocked on the device did not wait for launches.

    ``attached``: of a program that nobody here wrote. It may do anything before its first launch of a piece, so one
    that the device came to while it was being launched is open, however it ended.
    """
    pieces = min(len(spans.kernels), len(spans.launches))
    kernels, launches = spans.kernels.where(slice(pieces)), spans.launches.where(slice(pieces))
    waits = union(spans.blocking.starts, spans.blocking.ends)
    blocked = touches(launches.starts, launches.ends, waits) & (launches.ends > launches.starts)
    return DeviceWork(
        names=kernels.names,
        starts=kernels.starts,
        ends=kernels.ends,
        launch_starts=launches.starts,
        launch_ends=launches.ends,
        launch_bound=(
            np.minimum(launches.ends, kernels.ends) - kernels.starts > TAIL_NS
            if attached
            else waited_for_launches(kernels.starts, kernels.ends, launches.ends) & ~blocked
        ),
    )


def device_work_of(run: RunData) -> DeviceWork:
    """See :func:`device_work`; of all that ``run`` recorded."""
    attached = run.record.facts.attached is not None
    return run.once(DEVICE_WORK, lambda: device_work(spans_of(run), attached))


def waited_for_launches(starts: Int, ends: Int, launch_ends: Int) -> NDArray[np.bool_]:
    """Whether work on the device from ``starts`` to ``ends`` ended as its launches did; all (pieces,)."""
    ended_with = ends - launch_ends <= np.maximum(TAIL_NS, TAIL_SHARE * (ends - starts))
    found: NDArray[np.bool_] = ended_with & (np.minimum(launch_ends, ends) - starts > TAIL_NS)
    return found


def open_per_step(steps: Stretches, work: DeviceWork) -> Int:
    """Nanoseconds of each step in which the device may have worked or waited for a launch, (steps,)."""
    inside = clip(steps.starts, steps.ends, work.open)
    return np.bincount(inside.owner, inside.ends - inside.starts, minlength=len(steps.starts)).astype(np.int64)


def launch_bound_shares(steps: Stretches, work: DeviceWork, names: Sequence[str]) -> dict[str, float]:
    """Of the ``steps`` that launched some work: the share in which it was launch-bound, by its name; not those of 0.

    ``steps`` are in order, and need not touch one another.
    """
    row = np.searchsorted(steps.starts, work.launch_starts, side="right") - 1
    inside = (row >= 0) & (work.launch_starts < steps.ends[np.maximum(row, 0)])
    found = {}
    for code in np.unique(work.names[inside & work.launch_bound]).tolist():
        own = inside & (work.names == code)
        bound = np.unique(row[own & work.launch_bound]).size
        found[names[code]] = bound / np.unique(row[own]).size
    return dict(sorted(found.items(), key=lambda item: -item[1]))
