"""Determines what limits a step beside an asynchronous device, and which device work waited for its launches.

    data      data work costs the largest share of the step, or loader workers work nearly all the time
    host      the largest share is device idle time while the host did other work than data
    launch    the largest share lies in launch-bound phases
    device or launch
              no share is noticeable, but the device's time in other phases is open: it worked or waited for launches
    device    nor that, and fetching could last noticeably longer at almost no cost, or this room is unknown
    balanced  nor that, and there is no such room

Room: how much longer fetches could last before the step ends later. Blocking calls and device idle time absorb a delay;
what they leave adds up from fetch to fetch. So the recorded order is replayed for each length that is tried:

    host    |fetch|++R++|launch|launch|== blocked: R shorter ==|launch|fetch|++R++|
    device  ======== the tail =========|===== work =====|idle|========= the tail ====

Launch-bound: CUDA events bracket all kernels of a phase, and hide that short kernels wait for launches. A bracket that
ends with its launches counts: the device worked or waited until the last launch (``open``), then it worked (``tail``):

    host         |launch|launch|launch|launch|               |launch|launch|launch|launch|
    device              |k|    |k|    |k|    |k|                    |==== k ====|==== k ====|==== k ====|==== k ====|
    bracket      |-----------------------------|             |------------------------------------------------------|
                 |<----- not known ---->|<tail>|             it works to the end: known
                      launch-bound

A phase with a blocking call (``.item()``, audited by torch in one step, untimed) also ends with its device, and never
counts. A profiled window shows the kernel time of each phase (by correlation id), which is assumed for measured steps:
the profiler only widens gaps. What stays open can be read in several ways (:data:`Reading`): the likely reading gives
the figure, and the interval includes the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.explain import policy
from harness.explain.probes.torch_profile import LaunchedWork, Window, launched_work, read_events, whole_profiles
from harness.explain.spans import Int, RunSpans, Stretches, clip, spans_of, total, touches, union
from harness.explain.waits import BatchWaits, behind
from harness.study.run_data import RunData


class KernelTime(NamedTuple):
    """Device time in ns of one kind of work (a phase, such as "forward") over its pieces in a profiled window. Time of
    kernels and copies, without gaps between them. A piece is the work that one execution of the phase launched."""

    least_ns: int
    usual_ns: int  # mean; the others are the least and the most
    most_ns: int


def kernel_times_of(run: RunData) -> Mapping[str, KernelTime]:
    """Return {name of device work: kernel time} from the arm's profiled run; empty without complete profiles."""
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
    """Return {name of device work: kernel time} over the pieces in ``windows``.

    A name is left out if one of its pieces has no kernel time."""
    inside = np.zeros(len(spans.launches), dtype=np.bool_)
    for since, until, _, _ in windows:
        inside |= (spans.launches.starts >= since) & (spans.launches.ends <= until)
    pieces = spans.launches.where(inside)
    pieces = pieces.where(np.argsort(pieces.starts, kind="stable"))
    owner = np.searchsorted(pieces.starts, work.launched, side="right") - 1
    owner[(owner >= 0) & (work.launched >= pieces.ends[np.maximum(owner, 0)])] = -1
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(len(pieces) + 1))
    times_ns: dict[str, list[int]] = {}
    for piece, code in enumerate(pieces.names.tolist()):
        rows = order[edges[piece] : edges[piece + 1]]
        times_ns.setdefault(spans.names[code], []).append(total(union(work.starts[rows], work.ends[rows])))
    return {
        name: KernelTime(min(worked), round(sum(worked) / len(worked)), max(worked))
        for name, worked in times_ns.items()
        if min(worked) > 0
    }


# Assumption about the device in a bracket before its last launch:
#   likely    it waited if the bracket is launch-bound, else it worked
#   waiting   it waited all the time
#   working   it worked all the time
#   blocking  as working, and a host that blocks untimed while it launches did nothing else; the likely reading assumes
#             such blocking only if the bracket ends with the launches
Reading = Literal["likely", "waiting", "working", "blocking"]
DEVICE_WORK = "device work"  # cache key of a run's device work
# Index into KernelTime.
KERNEL_TIME: Mapping[Reading, int] = {"waiting": 0, "likely": 1, "working": 2, "blocking": 2}


@dataclass(frozen=True)
class DeviceWork:
    """The device's work in queue order, (pieces,): one piece per phase that launched; see :func:`device_work`."""

    names: NDArray[np.int32]  # index into RunSpans.names
    starts: Int
    ends: Int
    launch_starts: Int
    launch_ends: Int
    launch_bound: NDArray[np.bool_]
    still_launching: NDArray[np.bool_]  # the device began it before the last launch; true if launch-bound
    may_block: NDArray[np.bool_]  # an audited step showed an untimed blocking call while work of its name was launched
    ended: NDArray[np.bool_]  # the device ended it as the host ended launching it
    kernel_ns: Int  # (3, pieces): least, mean and most kernel time from a profiled window; -1: unknown

    @property
    def known_from(self) -> Int:
        """Time (ns) from which the device certainly worked until the end of each piece."""
        return np.where(self.still_launching, self._launched, self.starts)

    def worked_from(self, reading: Reading) -> Int:
        """Return the time (ns) from which the device worked on each piece, as ``reading`` assumes.

        A kernel time known from a profile is taken to lie at the end of its piece."""
        by_events = np.where(self._waited_by_events(reading), self._launched, self.starts)
        return np.where(self.profiled, self.ends - self._worked_ns(reading), by_events)

    def waited(self, reading: Reading) -> NDArray[np.bool_]:
        """Return True for each piece during which the device waited for its launches, as ``reading`` assumes."""
        idle = self._worked_ns(reading) < self.ends - self.starts
        return np.where(self.profiled, idle, self._waited_by_events(reading))

    @property
    def profiled(self) -> NDArray[np.bool_]:
        """True for pieces whose kernel time comes from a profiled window, because CUDA events do not show it."""
        is_profiled: NDArray[np.bool_] = self.still_launching & (self.kernel_ns[0] >= 0)
        return is_profiled

    @property
    def _launched(self) -> Int:
        """End of the last launch of each piece (ns), clipped to the piece."""
        return np.clip(self.launch_ends, self.starts, self.ends)

    def _worked_ns(self, reading: Reading) -> Int:
        """Return the device time of each profiled piece in ns, as ``reading`` assumes.

        It is at least the time from the last launch to the end of the piece."""
        lasted = self.ends - self.starts
        worked_ns = np.clip(self.kernel_ns[KERNEL_TIME[reading]], self.ends - self._launched, lasted)
        return np.where(worked_ns >= policy.FILLED_PIECE_SHARE * lasted, lasted, worked_ns)

    def _waited_by_events(self, reading: Reading) -> NDArray[np.bool_]:
        if reading == "likely":
            return self.launch_bound
        return self.still_launching if reading == "waiting" else np.zeros_like(self.still_launching)

    def blocked(self, reading: Reading) -> NDArray[np.bool_]:
        """Return True for each piece during whose launching the host did nothing but wait, as ``reading`` assumes."""
        if reading == "likely":
            return self.may_block & self.ended
        return self.may_block if reading == "blocking" else np.zeros_like(self.may_block)

    @property
    def behind_full_queue(self) -> NDArray[np.bool_]:
        """True for pieces that may have been launched onto a full queue: part of the launching may then be waiting."""
        lasting = self.launch_ends > self.launch_starts
        may_be_full: NDArray[np.bool_] = lasting & (self.ends - self.launch_ends >= policy.FULL_QUEUE_NS)
        return may_be_full

    def differs_ns(self, reading: Reading) -> int:
        """Return how many ns of device and host time ``reading`` interprets differently from the likely reading."""
        differs = self.blocked(reading) != self.blocked("likely")
        device_ns = np.abs(self.worked_from(reading) - self.worked_from("likely")).sum()
        return int(device_ns + (self.launch_ends - self.launch_starts)[differs].sum())

    @property
    def open(self) -> Stretches:
        """Time of all pieces for which it is unknown if the device worked or waited for a launch."""
        return self._until_launched(self.still_launching)

    @property
    def launch_bound_open(self) -> Stretches:
        """Time for which it is unknown if the device worked or waited for a launch, in launch-bound pieces only.

        Launch-bound: the piece ended with its last launch (see the module)."""
        return self._until_launched(self.launch_bound)

    def _until_launched(self, chosen: NDArray[np.bool_]) -> Stretches:
        starts = self.starts[chosen]
        return union(starts, np.clip(self.launch_ends[chosen], starts, self.ends[chosen]))


def device_work(
    spans: RunSpans, attached: bool = False, kernel_times: Mapping[str, KernelTime] | None = None
) -> DeviceWork:
    """Return the work of a run's device. ``attached``: True for a user's program, which may block within any launch.

    ``kernel_times``: profiled kernel time by name of work; None if unknown."""
    pieces = min(len(spans.kernels), len(spans.launches))
    kernels, launches = spans.kernels.where(slice(pieces)), spans.launches.where(slice(pieces))
    waits = union(spans.blocking.starts, spans.blocking.ends)
    lasting = launches.ends > launches.starts
    blocked = touches(launches.starts, launches.ends, waits) & lasting
    # An untimed blocking call within a launch: the device may have worked all the while.
    moments = np.sort(spans.blocking.starts[spans.blocking.ends <= spans.blocking.starts])
    within = np.searchsorted(moments, launches.ends) > np.searchsorted(moments, launches.starts)
    least_ns = _least_ns(kernels.starts, kernels.ends, launches.ends)
    still_launching = launched_meanwhile(kernels.starts, kernels.ends, launches.ends, least_ns)
    ended = ended_with_launches(kernels.starts, kernels.ends, launches.ends, least_ns)
    may_block = np.isin(launches.names, np.unique(launches.names[within])) & lasting & ~blocked
    return DeviceWork(
        names=kernels.names,
        starts=kernels.starts,
        ends=kernels.ends,
        launch_starts=launches.starts,
        launch_ends=launches.ends,
        launch_bound=ended & ~blocked & ~may_block,
        still_launching=still_launching if attached else still_launching & ~blocked,
        may_block=may_block,
        ended=ended,
        kernel_ns=_kernel_ns(spans.names, kernel_times or {})[:, kernels.names],
    )


def _kernel_ns(names: Sequence[str], known: Mapping[str, KernelTime]) -> Int:
    """Return least, mean and largest profiled kernel time (ns) by name of device work, (3, names); -1 if unknown."""
    times_ns = np.full((3, len(names)), -1, dtype=np.int64)
    for code, name in enumerate(names):
        if name in known:
            times_ns[:, code] = known[name]
    return times_ns


def _least_ns(starts: Int, ends: Int, launch_ends: Int) -> int:
    """Return ``least_ns`` for :func:`launched_meanwhile`: LAUNCH_TAIL_NS, or 0 if launches are short. They are short if
    times of up to LAUNCH_TAIL_NS, from a piece's start to its last launch, make up over SHORT_LAUNCHES_SHARE of the
    device's time."""
    if not len(starts):
        return policy.LAUNCH_TAIL_NS
    meanwhile = np.minimum(launch_ends, ends) - starts
    moments_ns = int(meanwhile[(meanwhile > 0) & (meanwhile <= policy.LAUNCH_TAIL_NS)].sum())
    # The sum of pieces is used, because between slices of this arm the device works for other arms.
    return 0 if moments_ns > policy.SHORT_LAUNCHES_SHARE * int((ends - starts).sum()) else policy.LAUNCH_TAIL_NS


def device_work_of(run: RunData) -> DeviceWork:
    """Return the device work of the whole ``run``, computed once; see :func:`device_work`."""
    attached = run.record.facts.attached is not None
    return run.once(DEVICE_WORK, lambda: device_work(spans_of(run), attached, kernel_times_of(run)))


def launched_meanwhile(
    starts: Int, ends: Int, launch_ends: Int, least_ns: int = policy.LAUNCH_TAIL_NS
) -> NDArray[np.bool_]:
    """True for pieces that the host still launched over ``least_ns`` after the device began them; times in ns."""
    result: NDArray[np.bool_] = np.minimum(launch_ends, ends) - starts > least_ns
    return result


def ended_with_launches(
    starts: Int, ends: Int, launch_ends: Int, least_ns: int = policy.LAUNCH_TAIL_NS
) -> NDArray[np.bool_]:
    """True for pieces that launches limited: the piece ended as its last launch ended; times in ns.

    The last launch must have ended over ``least_ns`` after the start of the piece."""
    ended = ends - launch_ends <= np.maximum(policy.LAUNCH_TAIL_NS, policy.LAUNCH_TAIL_SHARE * (ends - starts))
    result: NDArray[np.bool_] = launched_meanwhile(starts, ends, launch_ends, least_ns) & ended
    return result


def per_step(steps: Stretches, stretches: Stretches) -> Int:
    """Return the nanoseconds of each step that lie in ``stretches``, (steps,)."""
    inside = clip(steps.starts, steps.ends, stretches)
    return np.bincount(inside.owner, inside.ends - inside.starts, minlength=len(steps.starts)).astype(np.int64)


def launch_bound_shares(steps: Stretches, work: DeviceWork, names: Sequence[str]) -> dict[str, float]:
    """Return {name of device work: share of the steps with this work in which it was launch-bound}, largest first.

    ``names``: text of each code in ``work.names``. Names that were never launch-bound are left out."""
    row = np.searchsorted(steps.starts, work.launch_starts, side="right") - 1
    inside = (row >= 0) & (work.launch_starts < steps.ends[np.maximum(row, 0)])
    shares = {}
    for code in np.unique(work.names[inside & work.launch_bound]).tolist():
        pieces = inside & (work.names == code)
        bound = np.unique(row[pieces & work.launch_bound]).size
        shares[names[code]] = bound / np.unique(row[pieces]).size
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


Bound = Literal["data", "host", "launch", "device or launch", "device", "balanced"]


@dataclass(frozen=True)
class BoundShares:
    """Shares (0 to 1) that determine what limits the step: of the step time; ``loader``: of the workers' time."""

    data: float  # cost of data work
    host: float  # device idle while the host did other work than data, outside of launch-bound phases
    launch: float  # time within launch-bound phases: an upper bound of their idle time, unless that is known
    room: float  # possible extra fetch time at almost no cost, see ``bounds``; NaN: unknown
    open: float = 0.0  # time within other phases that the host was still launching
    loader: float = 0.0  # share of the loader workers' time spent working; 0 without workers

    @property
    def bound(self) -> Bound:
        """Name of what limits the step: data, host or launch if the largest of these shares is noticeable.

        Otherwise "device or launch", "device" or "balanced"; see the module docstring."""
        if self.loader > policy.LOADERS_BUSY_SHARE and self.data > policy.LIMIT_SHARE_MIN:
            return "data"
        shares: dict[Bound, float] = {"data": self.data, "host": self.host, "launch": self.launch}
        largest = max(shares, key=lambda name: shares[name])
        if shares[largest] > policy.LIMIT_SHARE_MIN:
            return largest
        if self.open > policy.LIMIT_SHARE_MIN:
            return "device or launch"
        return "device" if math.isnan(self.room) or self.room > policy.LIMIT_SHARE_MIN else "balanced"


def agreed(blocks: Mapping[Bound, int]) -> Bound | None:
    """Return the limit of all blocks; None if they differ. ``blocks``: number of blocks by limit."""
    return next(iter(blocks)) if len(blocks) == 1 else None


def mean_shares(found: list[BoundShares]) -> BoundShares | None:
    """Return the mean of each share over ``found``; None for an empty list."""
    if not found:
        return None
    rows = [(shares.data, shares.host, shares.launch, shares.room, shares.open, shares.loader) for shares in found]
    return BoundShares(*(sum(values) / len(found) for values in zip(*rows, strict=True)))


FETCH, BLOCKED, LAUNCH = range(3)
Event = tuple[int, float, float]  # kind; ns blocked, or end of the launches; end of the previous device work


def room_ns(steps: Stretches, spans: RunSpans, waits: BatchWaits, known_queue: bool = False) -> float | None:
    """Return by how many ns all fetches of a step together could get longer at almost no cost; at most the step time.

    Almost no cost: the run gets longer by at most ROOM_FELT_SHARE of the time added to fetches. None if no step fetched
    or the device was not recorded. NaN if a full queue or an untimed blocking call may have held the host.
    ``known_queue``: True if the device reports when its queue held the host.
    """
    if spans.blocks_untimed:
        return math.nan if len(steps.starts) and len(spans.kernels) else None
    parts = [Stretches(steps.starts[: policy.ROOM_STEPS_MAX], steps.ends[: policy.ROOM_STEPS_MAX])]
    if len(steps.starts) > policy.ROOM_STEPS_MAX:
        parts.append(Stretches(steps.starts[-policy.ROOM_STEPS_MAX :], steps.ends[-policy.ROOM_STEPS_MAX :]))
    rooms_ns = [room for part in parts if (room := _room_ns(part, spans, waits, known_queue)) is not None]
    return float(np.min(rooms_ns)) if rooms_ns else None  # min() keeps a NaN


def _room_ns(steps: Stretches, spans: RunSpans, waits: BatchWaits, known_queue: bool) -> float | None:
    if not len(steps.starts):
        return None
    spans = _near(steps, spans)
    events = _events(steps, spans, waits)
    fetches = sum(kind == FETCH for kind, _, _ in events)
    if not fetches or not any(kind == LAUNCH for kind, _, _ in events):
        return None
    step_ns = float((steps.ends - steps.starts).mean())
    if not known_queue and _held(steps, spans, step_ns):
        return math.nan
    low, high = 0.0, step_ns * len(steps.starts) / fetches
    for _ in range(policy.ROOM_TRIES):
        longer_ns = (low + high) / 2
        if later_ns(events, longer_ns) <= policy.ROOM_FELT_SHARE * longer_ns * fetches:
            low = longer_ns
        else:
            high = longer_ns
    return low * fetches / len(steps.starts)


def _near(steps: Stretches, spans: RunSpans) -> RunSpans:
    """Return ``spans`` without device work launched long before or after ``steps``. Work still queued is kept."""
    pieces = min(len(spans.kernels), len(spans.launches))
    since_ns, until_ns = int(steps.starts[0]), int(steps.ends[-1])
    inside = np.flatnonzero((spans.launches.starts[:pieces] >= since_ns) & (spans.launches.starts[:pieces] <= until_ns))
    low, high = (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)
    chosen = slice(max(0, low - policy.ROOM_QUEUED_MAX), high)
    blocking = spans.blocking
    return replace(
        spans,
        kernels=spans.kernels.where(chosen),
        launches=spans.launches.where(chosen),
        blocking=blocking.where((blocking.ends >= since_ns) & (blocking.starts <= until_ns)),
    )


def _held(steps: Stretches, spans: RunSpans, step_ns: float) -> bool:
    """True if a full queue may have held the host, in most of ``steps``. That is: about the same device work is queued
    at the start of each step, the device is hardly idle, and no call blocks for long. ``step_ns``: mean step time."""
    if len(steps.starts) < policy.HELD_STEPS_MIN:
        return False
    pieces = min(len(spans.kernels), len(spans.launches))
    lags_ns = behind(steps.starts, spans.kernels.ends[:pieces], spans.launches.starts[:pieces])
    usual_ns, far_ns = np.quantile(lags_ns, [0.5, 0.9])
    blocked_ns = per_step(steps, union(spans.blocking.starts, spans.blocking.ends))
    steady = usual_ns > policy.LIMIT_SHARE_MIN * step_ns and far_ns - usual_ns < policy.LIMIT_SHARE_MIN * step_ns
    idle_ns = steps.ends - steps.starts - per_step(steps, union(spans.kernels.starts, spans.kernels.ends))
    never_dry = np.median(idle_ns) < min(policy.HELD_BLOCKED_SHARE * step_ns, policy.HELD_IDLE_NS_MAX)
    filled = np.median(_least_queued_ns(steps, spans, pieces)) >= policy.FULL_QUEUE_NS
    return bool(steady and never_dry and filled and np.median(blocked_ns) < policy.HELD_BLOCKED_SHARE * step_ns)


def _least_queued_ns(steps: Stretches, spans: RunSpans, pieces: int) -> NDArray[np.float64]:
    """Return by step the least ns that the device still had to work on a piece when the piece's launch ended, (steps,).

    Counts pieces that the device had begun by then; infinite for a step without such a piece."""
    launched, starts, ends = spans.launches.ends[:pieces], spans.kernels.starts[:pieces], spans.kernels.ends[:pieces]
    step = np.searchsorted(steps.starts, launched, side="right") - 1
    meets = (step >= 0) & (starts <= launched) & (launched <= steps.ends[np.maximum(step, 0)])
    least_ns = np.full(len(steps.starts), math.inf)
    np.minimum.at(least_ns, step[meets], (ends - launched)[meets].astype(np.float64))
    return least_ns


def later_ns(events: Sequence[Event], longer_ns: float) -> float:
    """Return how many ns later the run ends if every fetch lasts ``longer_ns`` longer. ``events``: in order."""
    host = device = 0.0  # delays against the recording
    for kind, value, free in events:
        if kind == FETCH:
            host += longer_ns
        elif kind == BLOCKED:
            host = max(host - value, device)
        else:
            device = max(free + device, value + host) - max(free, value)
    return max(host, device)


def _events(steps: Stretches, spans: RunSpans, waits: BatchWaits) -> list[Event]:
    """Return the host's events within ``steps`` in order of time: ends of fetches, ends of blocking calls, launches."""
    pieces = min(len(spans.kernels), len(spans.launches))
    if not pieces:
        return []
    launched = spans.launches.ends[:pieces]
    free = np.append(launched[:1], np.maximum.accumulate(spans.kernels.ends[:pieces])[:-1])
    fetched = waits.ends[(waits.rows >= 0) & (waits.ends <= steps.ends[-1])]
    blocked = clip(steps.starts, steps.ends, union(spans.blocking.starts, spans.blocking.ends))
    blocked_ns = blocked.ends - blocked.starts
    kinds = np.repeat([FETCH, BLOCKED, LAUNCH], [len(fetched), len(blocked.ends), pieces])
    moments = np.concatenate([fetched, blocked.ends, launched])
    value = np.concatenate([np.zeros(len(fetched), dtype=np.int64), blocked_ns, launched])
    until = np.concatenate([np.zeros(len(fetched) + len(blocked.ends), dtype=np.int64), free])
    inside = np.zeros(len(moments), dtype=np.bool_)
    inside[clip(moments - 1, moments, steps).owner] = True  # also includes events at the end of a step
    order = np.flatnonzero(inside)[np.argsort(moments[inside], kind="stable")]
    begun = int(steps.starts[0])  # Times relative to this start keep their nanoseconds as floats.
    return [
        (kind, float(amount - begun if kind == LAUNCH else amount), float(end - begun))
        for kind, amount, end in zip(kinds[order].tolist(), value[order].tolist(), until[order].tolist(), strict=True)
    ]
