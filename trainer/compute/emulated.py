"""Emulates an accelerator: an in-order asynchronous queue that takes time and computes nothing.

It synchronizes as CUDA does. Queueing returns at once. The host blocks for a value, at a full queue, and at a copy from
pageable memory. The queue is arithmetic, not a thread: completion = max(queued, previous completion) + duration. Only
launching (``launch_us``) and blocking calls really take time, so a laptop can rehearse the input side of any device.

A phase of several kernels is reported as CUDA events report it: one bracket around all of them. It includes the time
that the device waited for the next launch. The device's working time is not reported.

    host     |launch|launch|launch|launch|
    kernels         |k|    |k|    |k|    |k|
    bracket  |-----------------------------|
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trainer import telemetry
from trainer.compute.base import NoCompute, call_site
from trainer.compute.host_lead import HostLead
from trainer.config import How, KernelDurations, TrainerConfig
from trainer.data.batch import Batch, InFlight
from trainer.devices.estimates import check_memory, kernels, matmul_flops_per_s, tensor_bytes
from trainer.devices.profiles import DeviceProfile, load_profile, matmul_dtype
from trainer.errors import InputError
from trainer.files import read_json
from trainer.inject import spend, wait_until
from trainer.model import Shape
from trainer.telemetry import Blocked, Kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# The host does not wait for copies "from host to device of a memory block of 64 KB or less" (CUDA C++ Programming
# Guide, asynchronous concurrent execution). It may wait for larger copies from pageable memory, and here it does. Each
# tensor of a batch is a copy of its own.
PAGEABLE_ASYNC_BYTES = 64 * 1024
_SHOWN_FROM_MS = 0.01  # A copy of a few kilobytes takes nanoseconds over such a link, which is not worth a line.


class DeviceQueue:
    """Queue of an emulated device: work runs in order. Reports work and blocking calls to ``telemetry``."""

    def __init__(self, depth: int, launch_us: float = 0.0, how: How = "busy") -> None:
        self._depth = depth
        self._launch_ms, self._how = launch_us / 1e3, how
        self._ends_ns: deque[int] = deque()  # ends of the work that was unfinished at the last look
        self._free_ns = 0
        self.lead = HostLead()

    def submit(self, name: str, duration_ns: int, kernels: int = 1) -> None:
        """Queue a phase of ``kernels`` kernels, ``duration_ns`` in total. Blocks to launch, and at a full queue."""
        now_ns = monotonic_ns()
        while self._ends_ns and self._ends_ns[0] <= now_ns:
            self._ends_ns.popleft()
        if len(self._ends_ns) >= self._depth:
            self._wait(self._ends_ns.popleft(), "full queue", ahead=True)
            now_ns = monotonic_ns()
        start, launched = max(now_ns, self._free_ns), now_ns
        self.lead.launched(dry=self._free_ns <= now_ns)
        if self._launch_ms:
            spend(kernels * self._launch_ms, self._how)
            launched = monotonic_ns()
        self._free_ns = last_end_ns(self._free_ns, (now_ns, launched), duration_ns, kernels)
        self.lead.launched(dry=self._free_ns > start + duration_ns)  # The device waited for one of the kernels.
        self._ends_ns.append(self._free_ns)
        telemetry.device(Kernel(name, now_ns, launched, start, self._free_ns))

    def drain(self, what: str) -> None:
        """Block until everything queued so far is done. ``what``: name of the wait in reports."""
        self._wait(self._free_ns, what)
        self._ends_ns.clear()

    @property
    def free_ns(self) -> int:
        """Time when everything queued so far is done (CLOCK_MONOTONIC, ns)."""
        return self._free_ns

    def wait_until(self, done_ns: int, what: str) -> None:
        """Block until ``done_ns`` (CLOCK_MONOTONIC), and report the wait as ``what``."""
        self._wait(done_ns, what, ahead=True)

    def hold(self, duration_ns: int) -> None:
        """Let the device pause for ``duration_ns`` after the queued work."""
        self._free_ns = max(monotonic_ns(), self._free_ns) + duration_ns
        self.lead.held()

    def _wait(self, until_ns: int, what: str, *, ahead: bool = False) -> None:
        """Block until ``until_ns``, and report it as ``what``. ``ahead``: True if the device has work beyond that."""
        site, start = call_site(what, __file__), monotonic_ns()
        wait_until(until_ns)
        end = monotonic_ns()
        if ahead:
            self.lead.waited(end - start)
        telemetry.blocked(Blocked(site, start, end))


def last_end_ns(free_ns: int, launching: tuple[int, int], duration_ns: int, kernels: int) -> int:
    """Return the time (ns) at which the last of ``kernels`` kernels ends, on a device that is free at ``free_ns``.

    Kernel i of n starts at max(its launch, end of kernel i - 1). Launches are spread evenly over ``launching`` (start,
    end).
    """
    first, last = launching
    return max(free_ns + duration_ns, first + (last - first) // kernels + duration_ns, last + duration_ns // kernels)


class EmulatedCompute(NoCompute):
    """Compute of an emulated device: its work takes calculated times and computes nothing, so no losses."""

    asynchronous = True
    emulated = True

    def __init__(self, config: TrainerConfig, shape: Shape, profile: DeviceProfile) -> None:
        device = config.compute.emulated
        assert device is not None
        check_memory(config, shape, profile)
        self.device = f"emulated {profile.name}"
        self._durations_ms = kernels(config, shape, profile)._asdict()
        self._recorded_ms = _recorded(device.recorded) if device.recorded is not None else {}
        self._speed, self._jitter = device.speed, device.jitter
        self._random = random.Random(config.seed)
        self._queue = DeviceQueue(device.queue_depth, device.launch_us, device.launch_how)
        self._kernels: dict[str, int] = device.launches.model_dump()
        self._extra_forwards = config.compute.extra_forwards
        self._blocking_copies = not config.data.pin_memory and tensor_bytes(config) > PAGEABLE_ASYNC_BYTES
        self._step, self._before_ns = 0, 0
        self._in_flight = InFlight()
        self._repeated = RepeatedRows(by_epoch=config.data.source is None)

    def begin_step(self, step: int) -> None:
        self._step, self._before_ns = step, self._queue.free_ns
        self._queue.lead.begin_step(monotonic_ns())

    def to_device(self, batch: Batch) -> Batch:
        self._submit("h2d")
        if self._blocking_copies:
            self._queue.drain("copy from pageable memory")
        else:
            done_ns = self._queue.free_ns
            self._in_flight.hold(batch, lambda: monotonic_ns() >= done_ns)
        self._repeated.add(batch)
        return batch

    def forward(self, batch: Batch) -> None:
        for _ in range(self._extra_forwards):
            self._submit("forward")
        self._submit("forward")

    def backward(self, loss: Any) -> None:
        self._submit("backward")

    def clip_gradients(self) -> None:
        self._submit("norm")

    def check_finite(self, norm: Any, step: int) -> None:
        self._queue.drain("value of the gradient norm")

    def optimizer_step(self) -> None:
        self._submit("optimizer")

    def read_losses(self, losses: list[list[Any]]) -> list[float | None]:
        self._queue.submit("read", 0)
        self._queue.drain("values of the losses")
        return [None] * len(losses)

    def copy_to_host(self, losses: list[Any], norm: Any) -> int:
        self._queue.submit("read", 0)
        return self._queue.free_ns

    def read_copy(self, copy: int, step: int) -> float | None:
        self._queue.wait_until(copy, "values of the step before")
        return None

    def drain_to_one_step(self) -> None:
        self._queue.wait_until(self._before_ns, "device one step behind")

    def hold_device(self) -> None:
        if (hold_ns := self._queue.lead.hold_ns(monotonic_ns())) is not None:
            self._queue.hold(hold_ns)

    def is_lead_settled(self) -> bool:
        return self._queue.lead.settled

    def repeated_rows(self) -> tuple[int, ...]:
        return self._repeated.counts

    def synchronize(self) -> None:
        self._queue.drain("synchronize")
        self._queue.lead.device_idle()

    def _submit(self, name: str) -> None:
        milliseconds = self._durations_ms[f"{name}_ms"]
        if recorded := self._recorded_ms.get(f"{name}_ms"):
            milliseconds = recorded[self._step % len(recorded)] / self._speed
        if self._jitter:
            milliseconds *= self._random.uniform(1 - self._jitter, 1 + self._jitter)
        self._queue.submit(name, round(milliseconds * 1e6), self._kernels[name])


def build_emulated(config: TrainerConfig, shape: Shape) -> EmulatedCompute:
    """Build the device that ``config.compute.device`` declares. Raises InputError if it is unknown or too small."""
    device = config.compute.emulated
    assert device is not None
    return EmulatedCompute(config, shape, load_profile(device.emulated))


def assumptions(config: TrainerConfig, shape: Shape) -> str:
    """Return a line on how long the emulated device's kernels take, and where those times come from."""
    device = config.compute.emulated
    assert device is not None
    profile, kernel_times = load_profile(device.emulated), kernels(config, shape, load_profile(device.emulated))
    sources = {name: "fixed" for name, value in device.kernels.model_dump().items() if value is not None}
    if device.recorded is not None:
        sources |= dict.fromkeys(_recorded(device.recorded), "recorded")
    rates = f"memory at {device.memory_efficiency:.0%} of {profile.memory_bandwidth_bytes_per_s / 1e12:.2f} TB/s"
    if "forward_ms" not in sources or "backward_ms" not in sources:
        matmul = matmul_flops_per_s(device, profile, config.compute.precision)
        dtype = matmul_dtype(config.compute.precision)
        share = matmul / profile.peak_flops_per_s(dtype)
        is_measured = device.matmul_efficiency is not None or dtype in profile.achievable_matmul_flops_per_s
        basis = f"{share:.0%} of the dense peak{'' if is_measured else f' of {dtype}, as published for bf16'}"
        rates = f"forward and backward at {matmul / 1e12:.0f} TFLOP/s ({basis}), {rates}"
    shown = {
        name: value for name, value in kernel_times._asdict().items() if value >= _SHOWN_FROM_MS or name in sources
    }
    kinds = [f"{name.removesuffix('_ms')} {value:.3g} ms" for name, value in shown.items()]
    kinds = [
        f"{kind} ({sources[f'{kind.split()[0]}_ms']})" if f"{kind.split()[0]}_ms" in sources else kind for kind in kinds
    ]
    extras = [f"speed {device.speed:g}x"] if device.speed != 1 else []
    extras += [f"jitter {device.jitter:.0%}"] if device.jitter else []
    launches = "launching kernels costs the host what compute.inject says"
    if device.launch_us:
        counts = device.launches.model_dump()
        counts_text = ", ".join(f"{name} {count}" for name, count in counts.items())
        launches = f"launching costs the host {device.launch_us:g} us a kernel ({counts_text})"
    return f"{profile.name}: {', '.join(kinds + extras)}; {rates}; {launches}"


def _recorded(path: str) -> dict[str, list[float]]:
    """Read {"forward_ms": [ms in step 0, step 1, ...], ...} (of a micro-batch) from JSON. Raises InputError."""
    allowed = ", ".join(KernelDurations.model_fields)
    place = f"compute.device.recorded: {path}"
    try:
        content = read_json(Path(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{place}: not readable JSON ({getattr(error, 'strerror', None) or error})") from error
    if not isinstance(content, dict) or not content:
        raise InputError(f'{place}: expected {{"forward_ms": [milliseconds, ...], ...}}; allowed keys: {allowed}')
    for key, values in content.items():
        if key not in KernelDurations.model_fields:
            raise InputError(f"{place}: unknown key {key!r}; allowed: {allowed}")
        good = isinstance(values, list) and values and all(_is_duration(value) for value in values)
        if not good:
            raise InputError(f"{place}: {key}: expected a list of milliseconds, each from 0 to 60000")
    return content


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 60_000


COUNTED_ROWS_MAX = 1 << 16  # rows of a run; their digests take about 5 MB


class RepeatedRows:
    """Counts the rows that one run has already trained on, by which arms without losses are compared."""

    def __init__(self, *, by_epoch: bool) -> None:
        """Start counting. ``by_epoch``: True if a row counts as new in each epoch, as documents of a corpus do."""
        self._by_epoch = by_epoch
        self._seen: set[tuple[int, int]] = set()
        self._rows = self._repeated = 0
        self._counts: list[int] = []
        self._weights: dict[int, NDArray[np.int64]] = {}

    def add(self, batch: Batch) -> None:
        """Count the rows of a batch, at about 1 ns a token. Rows after the first COUNTED_ROWS_MAX are ignored."""
        if self._rows >= COUNTED_ROWS_MAX:
            return
        epoch = self._epoch(batch)
        for digest in self._digests(batch):
            self._rows += 1
            self._repeated += (epoch, digest) in self._seen
            self._seen.add((epoch, digest))
            if self._rows & (self._rows - 1) == 0:
                self._counts.append(self._repeated)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of repeated rows among the first 1, 2, 4, ... rows. Runs of any length share some of these counts."""
        return tuple(self._counts)

    def _epoch(self, batch: Batch) -> int:
        position = batch.position
        if not self._by_epoch or position is None or not position.per_epoch:
            return 0
        return max(0, position.document - 1) // position.per_epoch  # last document with a part in the batch

    def _digests(self, batch: Batch) -> list[int]:
        """Return a 64-bit digest per row: the sum of its ids times random odd numbers, modulo 2**64."""
        import numpy as np

        ids = batch.input_ids.numpy()
        width = ids.shape[1]
        if width not in self._weights:
            numbers = np.random.default_rng(0).integers(-(2**62), 2**62, width, dtype=np.int64)
            self._weights[width] = np.asarray(numbers * 2 + 1)
        digests: list[int] = (ids @ self._weights[width]).tolist()
        return digests
