"""Records when a CUDA stream worked on each phase, on the host's clock, from events at the phase boundaries.

The kernels of a phase count as one piece of work with the gaps between them. Analysis calls a piece that ends with its
launches (``launch_end_ns``) launch-bound, and its busy time unknown.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer import telemetry
from trainer.compute.base import call_site, short_path
from trainer.compute.host_lead import HostLead
from trainer.data.batch import Batch
from trainer.telemetry import Blocked, Kernel

if TYPE_CHECKING:
    from trainer.compute.base import Compute

AUDITED_STEP = 1  # step whose unannounced blocking calls are reported too; step 0 also has those of the start-up
_ANCHOR_TRIES = 10
_CYCLES_PER_NS = 2  # multiprocessor clock at its fastest; a slower one holds the device for longer
_SYNC_WARNING = "called a synchronizing CUDA operation"  # torch.cuda.set_sync_debug_mode("warn")


class _Pending(NamedTuple):
    name: str
    launch_start_ns: int
    launch_end_ns: int
    start: Any  # torch.cuda.Event
    end: Any


class CudaTimeline:
    """Wraps a ``Compute`` on CUDA, and reports to telemetry when the device worked and when the host waited."""

    asynchronous = True
    emulated = False

    def __init__(self, inner: Compute, pinned: bool) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._inner = inner
        self._pinned = pinned
        self._pending: list[_Pending] = []
        self._before: Any = None  # event that is reached when everything queued before this step is done
        self._announced = False
        self._lead = HostLead()
        self._audit = _Audit(self._cuda, lambda: self._announced)
        self._cuda.synchronize()
        # Undocumented in torch. Without it, the lead of a host about as fast as its device is not settled.
        self._sleep: Callable[[int], None] | None = getattr(self._cuda, "_sleep", None)
        if self._sleep is not None:
            self._sleep(1)  # The first launch of a kernel loads it, which may take long.
        self._anchor, self._anchor_ns = self._set_anchor()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin_step(self, step: int) -> None:
        self._audit.switch(step == AUDITED_STEP)
        self._before = self._cuda.Event()
        self._before.record()
        self._lead.begin_step(monotonic_ns())
        self._inner.begin_step(step)

    def to_device(self, batch: Batch) -> Batch:
        with self._queued("h2d"):
            if self._pinned:
                return self._inner.to_device(batch)
            # The driver stages the copy, and may or may not wait for the stream.
            with self._blocking("copy from pageable memory"):
                return self._inner.to_device(batch)

    def forward(self, batch: Batch) -> Any:
        with self._queued("forward"):
            return self._inner.forward(batch)

    def backward(self, loss: Any) -> None:
        with self._queued("backward"):
            self._inner.backward(loss)

    def clip_gradients(self) -> Any:
        with self._queued("norm"):
            return self._inner.clip_gradients()

    def check_finite(self, norm: Any, step: int) -> None:
        with self._blocking("value of the gradient norm"):
            self._inner.check_finite(norm, step)

    def optimizer_step(self) -> None:
        with self._queued("optimizer"):
            self._inner.optimizer_step()

    def read_losses(self, losses: list[list[Any]]) -> list[float | None]:
        with self._queued("read"), self._blocking("values of the losses"):
            return self._inner.read_losses(losses)

    def copy_to_host(self, losses: list[Any], norm: Any) -> Any:
        with self._queued("read"):
            return self._inner.copy_to_host(losses, norm)

    def read_copy(self, copy: Any, step: int) -> float | None:
        with self._blocking("values of the step before", ahead=True):
            return self._inner.read_copy(copy, step)

    def drain_to_one_step(self) -> None:
        if self._before is not None:
            with self._blocking("device one step behind", ahead=True):
                self._before.synchronize()

    def hold_device(self) -> None:
        hold_ns = self._lead.hold_ns(monotonic_ns())
        if hold_ns is not None and self._sleep is not None:
            self._sleep(hold_ns * _CYCLES_PER_NS)
            self._lead.held()

    def is_lead_settled(self) -> bool:
        return self._lead.settled

    def synchronize(self) -> None:
        """Block until the device is done, then report all its work since the last call."""
        self._audit.switch(False)
        with self._blocking("synchronize"):
            self._inner.synchronize()
        before_ns, last, clock_ns = self._anchor_ns, self._anchor, 0.0
        self._anchor, self._anchor_ns = self._set_anchor()
        # elapsed_time is a float of milliseconds. A sum of short intervals keeps nanoseconds that one long interval
        # loses.
        times = []
        for work in self._pending:
            start_ns = clock_ns + last.elapsed_time(work.start) * 1e6
            clock_ns = start_ns + work.start.elapsed_time(work.end) * 1e6
            times.append((start_ns, clock_ns))
            last = work.end
        whole_ns = clock_ns + last.elapsed_time(self._anchor) * 1e6
        # The clocks of device and host drift apart by tens of parts in a million, so both anchors must fit.
        scale = (self._anchor_ns - before_ns) / whole_ns if whole_ns > 0 else 1.0
        for work, (start_ns, end_ns) in zip(self._pending, times, strict=True):
            times_ns = (before_ns + round(start_ns * scale), before_ns + round(end_ns * scale))
            telemetry.device(Kernel(work.name, work.launch_start_ns, work.launch_end_ns, *times_ns))
        self._pending.clear()
        self._lead.device_idle()

    def end_together(self) -> str | None:
        with self._blocking("digest of the parameters"):
            return self._inner.end_together()

    @contextmanager
    def _queued(self, name: str) -> Iterator[None]:
        """Record everything that the body queues on the stream as one piece of device work called ``name``."""
        self._lead.launched(dry=not self._pending or self._pending[-1].end.query())
        start_ns, start, end = monotonic_ns(), self._event(), self._event()
        start.record()
        yield
        end.record()
        self._pending.append(_Pending(name, start_ns, monotonic_ns(), start, end))

    @contextmanager
    def _blocking(self, what: str, *, ahead: bool = False) -> Iterator[None]:
        """Report the body, a call that blocks, as ``what``. ``ahead``: True if the device has more work queued."""
        site, start_ns = call_site(what, __file__, contextlib.__file__), monotonic_ns()
        self._announced = True
        try:
            yield
        finally:
            self._announced = False
            end_ns = monotonic_ns()
            if ahead:
                self._lead.waited(end_ns - start_ns)
            telemetry.blocked(Blocked(site, start_ns, end_ns))

    def _event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def _set_anchor(self) -> tuple[Any, int]:
        """Return a CUDA event on the idle stream, and the time (CLOCK_MONOTONIC, ns) at which it was reached."""
        best: tuple[int, Any, int] | None = None
        for _ in range(_ANCHOR_TRIES):
            event = self._event()
            before_ns = monotonic_ns()
            event.record()
            event.synchronize()
            after_ns = monotonic_ns()
            if best is None or after_ns - before_ns < best[0]:
                best = (after_ns - before_ns, event, (before_ns + after_ns) // 2)
        assert best is not None
        return best[1], best[2]


class _Audit:
    """Reports the call site of each call that synchronizes without an announcement by :class:`CudaTimeline`."""

    def __init__(self, cuda: Any, announced: Any) -> None:
        self._cuda, self._announced = cuda, announced
        self._catcher: Any = None

    def switch(self, on: bool) -> None:
        if on == (self._catcher is not None):
            return
        if not on:
            self._cuda.set_sync_debug_mode("default")
            catcher, self._catcher = self._catcher, None
            catcher.__exit__(None, None, None)
            return
        self._catcher = warnings.catch_warnings()
        self._catcher.__enter__()
        warnings.filterwarnings("always", message=f".*{_SYNC_WARNING}.*")
        previous = warnings.showwarning

        def report(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
            if _SYNC_WARNING not in str(message):
                previous(message, category, filename, lineno, *rest)
            elif not self._announced():
                now_ns = monotonic_ns()
                telemetry.blocked(Blocked(f"{short_path(filename)}:{lineno}: unannounced", now_ns, now_ns))

        warnings.showwarning = report  # type: ignore[assignment]
        self._cuda.set_sync_debug_mode("warn")
