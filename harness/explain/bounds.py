"""Determines what limits a step beside an asynchronous device.

data      the largest part of the step is what data work costs it, or loader workers work nearly all the time
host      ... is device idle time while the host did other work than data
launch    ... lies in launch-bound phases (``launches``)
device or launch
          none of these is noticeable, but the device's time in other phases is open: it worked or waited for launches
device    nor that, and fetching could last noticeably longer for next to nothing, or the room is unknown
balanced  nor that, and there is no such room

The room is how much longer fetches could last before the step is later. A blocking call of the host and an idle
stretch of the device take up a delay:

    host    |fetch|++R++|launch|launch|== blocked: R shorter ==|launch|fetch|++R++|
    device  ======== the tail =========|===== work =====|idle|========= the tail ====

Delays add up from fetch to fetch where nothing takes them up. So the recorded order is walked with longer fetches, once
for every length that is tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.launches import per_step
from harness.explain.policy import (
    FULL_QUEUE_NS,
    HELD_BLOCKED_SHARE,
    HELD_IDLE_NS_MAX,
    HELD_STEPS_MIN,
    LIMIT_SHARE_MIN,
    LOADERS_BUSY_SHARE,
    ROOM_FELT_SHARE,
    ROOM_QUEUED_MAX,
    ROOM_STEPS_MAX,
    ROOM_TRIES,
)
from harness.explain.spans import RunSpans, Stretches, clip, union
from harness.explain.waits import BatchWaits, behind

Bound = Literal["data", "host", "launch", "device or launch", "device", "balanced"]


@dataclass(frozen=True)
class BoundShares:
    """Shares of a step, from 0 to 1."""

    data: float  # what data work costs it
    host: float  # device idle while the host did not work on data, outside of launch-bound phases
    launch: float  # within launch-bound phases; an upper bound of the idle time in them unless that is known
    room: float  # what fetching could last longer for next to nothing, see ``bounds``; NaN: not known
    open: float = 0.0  # within other phases that the device was at while the host was still launching them
    loader: float = 0.0  # of the time of loader workers, that in which they worked; 0 without workers

    @property
    def bound(self) -> Bound:
        """The name of the largest known share, where it is noticeable; see the head of this file."""
        if self.loader > LOADERS_BUSY_SHARE and self.data > LIMIT_SHARE_MIN:
            return "data"
        shares: dict[Bound, float] = {"data": self.data, "host": self.host, "launch": self.launch}
        largest = max(shares, key=lambda name: shares[name])
        if shares[largest] > LIMIT_SHARE_MIN:
            return largest
        if self.open > LIMIT_SHARE_MIN:
            return "device or launch"
        return "device" if math.isnan(self.room) or self.room > LIMIT_SHARE_MIN else "balanced"


def agreed(blocks: Mapping[Bound, int]) -> Bound | None:
    """What limits all ``blocks``, which are counted by that; None where they differ, and of none."""
    return next(iter(blocks)) if len(blocks) == 1 else None


def mean_shares(found: list[BoundShares]) -> BoundShares | None:
    """The mean of each figure; None of none."""
    if not found:
        return None
    rows = [(one.data, one.host, one.launch, one.room, one.open, one.loader) for one in found]
    return BoundShares(*(sum(values) / len(found) for values in zip(*rows, strict=True)))


FETCH, BLOCKED, LAUNCH = range(3)
Event = tuple[int, float, float]  # what; how long it blocked, or when all of it was launched; when the device was free


def room_ns(steps: Stretches, spans: RunSpans, waits: BatchWaits, known_queue: bool = False) -> float | None:
    """Return how much longer fetches could last per step, up to a step, if the run felt at most ROOM_FELT_SHARE of it.

    None if no step fetched or the device was not recorded. NaN if a full queue, or a call that blocks for an unknown
    time, may have held the host. ``known_queue``: the device reports when its queue held the host.
    """
    if spans.blocks_untimed:
        return math.nan if len(steps.starts) and len(spans.kernels) else None
    parts = [Stretches(steps.starts[:ROOM_STEPS_MAX], steps.ends[:ROOM_STEPS_MAX])]
    if len(steps.starts) > ROOM_STEPS_MAX:
        parts.append(Stretches(steps.starts[-ROOM_STEPS_MAX:], steps.ends[-ROOM_STEPS_MAX:]))
    found = [room for part in parts if (room := _room_ns(part, spans, waits, known_queue)) is not None]
    return float(np.min(found)) if found else None  # NaN where one of them is


def _room_ns(steps: Stretches, spans: RunSpans, waits: BatchWaits, known_queue: bool) -> float | None:
    if not len(steps.starts):
        return None
    spans = _near(steps, spans)
    found = _events(steps, spans, waits)
    fetches = sum(what == FETCH for what, _, _ in found)
    if not fetches or not any(what == LAUNCH for what, _, _ in found):
        return None
    step_ns = float((steps.ends - steps.starts).mean())
    if not known_queue and _held(steps, spans, step_ns):
        return math.nan
    low, high = 0.0, step_ns * len(steps.starts) / fetches
    for _ in range(ROOM_TRIES):
        longer_ns = (low + high) / 2
        if later_ns(found, longer_ns) <= ROOM_FELT_SHARE * longer_ns * fetches:
            low = longer_ns
        else:
            high = longer_ns
    return low * fetches / len(steps.starts)


def _near(steps: Stretches, spans: RunSpans) -> RunSpans:
    """``spans`` without the device's work that was launched long before or later: of a long run nearly all of it."""
    pieces = min(len(spans.kernels), len(spans.launches))
    since_ns, until_ns = int(steps.starts[0]), int(steps.ends[-1])
    inside = np.flatnonzero((spans.launches.starts[:pieces] >= since_ns) & (spans.launches.starts[:pieces] <= until_ns))
    low, high = (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)
    chosen = slice(max(0, low - ROOM_QUEUED_MAX), high)
    blocking = spans.blocking
    return replace(
        spans,
        kernels=spans.kernels.where(chosen),
        launches=spans.launches.where(chosen),
        blocking=blocking.where((blocking.ends >= since_ns) & (blocking.starts <= until_ns)),
    )


def _held(steps: Stretches, spans: RunSpans, step_ns: float) -> bool:
    """Return True if the device lags behind by the same time in most steps, although no recorded call blocked.

    Only a full queue does that. A slower host also keeps a constant distance, but then its device runs dry.
    """
    if len(steps.starts) < HELD_STEPS_MIN:
        return False
    pieces = min(len(spans.kernels), len(spans.launches))
    lags_ns = behind(steps.starts, spans.kernels.ends[:pieces], spans.launches.starts[:pieces])
    usual_ns, far_ns = np.quantile(lags_ns, [0.5, 0.9])
    blocked_ns = per_step(steps, union(spans.blocking.starts, spans.blocking.ends))
    held = usual_ns > LIMIT_SHARE_MIN * step_ns and far_ns - usual_ns < LIMIT_SHARE_MIN * step_ns
    idle_ns = steps.ends - steps.starts - per_step(steps, union(spans.kernels.starts, spans.kernels.ends))
    never_dry = np.median(idle_ns) < min(HELD_BLOCKED_SHARE * step_ns, HELD_IDLE_NS_MAX)
    filled = np.median(_least_queued_ns(steps, spans, pieces)) >= FULL_QUEUE_NS
    return bool(held and never_dry and filled and np.median(blocked_ns) < HELD_BLOCKED_SHARE * step_ns)


def _least_queued_ns(steps: Stretches, spans: RunSpans, pieces: int) -> NDArray[np.float64]:
    """Return the least queued work at an end of launching by step, where the device may have waited; else infinite."""
    launched, starts, ends = spans.launches.ends[:pieces], spans.kernels.starts[:pieces], spans.kernels.ends[:pieces]
    step = np.searchsorted(steps.starts, launched, side="right") - 1
    met = (step >= 0) & (starts <= launched) & (launched <= steps.ends[np.maximum(step, 0)])
    found = np.full(len(steps.starts), math.inf)
    np.minimum.at(found, step[met], (ends - launched)[met].astype(np.float64))
    return found


def later_ns(events: Sequence[Event], longer_ns: float) -> float:
    """By how much the run ends later where every fetch lasts ``longer_ns`` longer."""
    host = device = 0.0  # by how much later than recorded each of them is
    for what, value, free in events:
        if what == FETCH:
            host += longer_ns
        elif what == BLOCKED:
            host = max(host - value, device)
        else:
            device = max(free + device, value + host) - max(free, value)
    return max(host, device)


def _events(steps: Stretches, spans: RunSpans, waits: BatchWaits) -> list[Event]:
    """What the host did in ``steps``, in its order: ends of fetches, ends of blocking calls, pieces launched."""
    pieces = min(len(spans.kernels), len(spans.launches))
    if not pieces:
        return []
    launched = spans.launches.ends[:pieces]
    free = np.append(launched[:1], np.maximum.accumulate(spans.kernels.ends[:pieces])[:-1])
    fetched = waits.ends[(waits.rows >= 0) & (waits.ends <= steps.ends[-1])]
    blocked = clip(steps.starts, steps.ends, union(spans.blocking.starts, spans.blocking.ends))
    blocked_ns = blocked.ends - blocked.starts
    what = np.repeat([FETCH, BLOCKED, LAUNCH], [len(fetched), len(blocked.ends), pieces])
    moments = np.concatenate([fetched, blocked.ends, launched])
    value = np.concatenate([np.zeros(len(fetched), dtype=np.int64), blocked_ns, launched])
    until = np.concatenate([np.zeros(len(fetched) + len(blocked.ends), dtype=np.int64), free])
    inside = np.zeros(len(moments), dtype=np.bool_)
    inside[clip(moments - 1, moments, steps).owner] = True  # also what ends with a step
    order = np.flatnonzero(inside)[np.argsort(moments[inside], kind="stable")]
    begun = int(steps.starts[0])  # floats of it keep the nanoseconds
    return [
        (kind, float(one - begun if kind == LAUNCH else one), float(end - begun))
        for kind, one, end in zip(what[order].tolist(), value[order].tolist(), until[order].tolist(), strict=True)
    ]
