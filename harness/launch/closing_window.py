"""Decides after the measured steps of a run if torch.profiler has to close what CUDA events leave open.

Events do not separate work from waiting while the host is still launching what the device is at
(``harness.explain.bounds``). If that is more than ``LIMIT_SHARE_MIN`` of the measured time, a few more steps are
profiled. They come last, because a profiler may slow its process for good.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.telemetry import Blocked, Kernel


class OpenTime:
    """Time of a run that its events leave open, and its measured time, added up over repetitions."""

    def __init__(self) -> None:
        self._open_ns = self._measured_ns = 0

    def add(self, kernels: Sequence[Kernel], blocking: Sequence[Blocked], since_ns: int, until_ns: int) -> None:
        """Add a repetition measured from ``since_ns`` until ``until_ns``, with what was recorded of its device."""
        self._open_ns += open_ns(kernels, blocking, since_ns, until_ns)
        self._measured_ns += until_ns - since_ns

    @property
    def noticeable(self) -> bool:
        """True if it is enough for a closing window."""
        from harness.explain.policy import LIMIT_SHARE_MIN

        return self._open_ns > LIMIT_SHARE_MIN * self._measured_ns


def open_ns(kernels: Sequence[Kernel], blocking: Sequence[Blocked], since_ns: int, until_ns: int) -> int:
    """Nanoseconds from ``since_ns`` until ``until_ns`` that events leave open, by the rule of the analysis."""
    import numpy as np

    from harness.explain.bounds import device_work, per_step
    from harness.explain.spans import RunSpans, Spans, Stretches, begun_when_launched

    names: dict[str, int] = {}

    def spans(rows: Sequence[tuple[str, int, int]]) -> Spans:
        codes = np.array([names.setdefault(name, len(names)) for name, _, _ in rows], dtype=np.int32)
        times = np.array([times for _, *times in rows], dtype=np.int64).reshape(-1, 2)
        none = np.full(len(rows), -1, dtype=np.int32)
        return Spans(codes, times[:, 0], times[:, 1], none, none.astype(np.float32))

    worked = spans([(one.name, one.start_ns, one.end_ns) for one in kernels])
    launched = spans([(one.name, one.launch_start_ns, one.launch_end_ns) for one in kernels])
    waited, none = spans([(one.site, one.start_ns, one.end_ns) for one in blocking]), spans([])
    found = RunSpans(tuple(names), none, none, worked, launched, waited, none, none)
    work = device_work(begun_when_launched(found))
    measured = Stretches(np.array([since_ns]), np.array([until_ns]))
    return int(per_step(measured, work.open)[0])
