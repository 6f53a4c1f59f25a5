"""A CUDA stream on paper, on a clock of its own: what torch.cuda tells of it goes through the real ``CudaTimeline``.

Launching a kernel takes the host as long as declared; a kernel begins when it is launched and the one before is done.
The tables that come of it are a recording of a CUDA run, made up but in order, for machines without such a device.
"""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

import trainer.compute.cuda_timeline as cuda_timeline
from harness.launch.more_warmup import take_more
from harness.study.contract import PHASES, SPAN_COLUMNS, STEP_COLUMNS
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import ProbesRecord, RunData, TorchProfilerRecord
from harness.study.tables import make_table
from harness.study.traces.kineto import STEP, file_name
from tests.harness.study.traces.kineto_text import complete, trace
from trainer import telemetry
from trainer.compute.base import NoCompute
from trainer.compute.cuda_timeline import CudaTimeline
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.loop import train
from trainer.telemetry import Blocked, Kernel

US, MS = 1_000, 1_000_000
START_NS = 10**12
EVENT_NS = 2 * US  # host time to record one, or to ask for one that was reached
CYCLES_PER_NS = 1.7  # of the device's clock
WINDOW_STEPS = 3  # profiled after the measured ones
PROFILED_LAUNCH = 1.8  # times as long as without a profiler


@dataclass(frozen=True)
class Declared:
    """A run: ``kernels`` is (how many, host microseconds to launch one, device microseconds of one) by phase.

    ``last_us``: of a phase's last kernel, where that is another. ``early``: an event counts as reached when the work
    before it is done, even if that was before it was recorded. ``slow``: every so many batches one takes so many
    milliseconds longer. ``longer``: after so many batches each does. ``queue``: of so many kernels; while it is full a
    launch waits, which nothing records. ``item``: after so many kernels of a phase the host reads a value of the
    device, and waits for it: torch warns of such a call in the step that is audited, and nothing else records it.
    ``jitter``: standard deviation of what launching and working take in a phase of a step, as shares of their mean.
    ``rare``: by that chance a batch takes so many milliseconds longer. Both are drawn anew for each step, from its
    number and ``seed``: a step is the same wherever a run begins.
    """

    kernels: dict[str, tuple[int, float, float]]
    data_ms: float
    last_us: dict[str, float] = field(default_factory=dict)
    check_finite: bool = True
    sync: str = "norm"
    early: bool = False
    drift: float = 0.0  # of the device's clock against the host's
    warmup: int = 3
    steps: int = 30
    slow: tuple[int, float] = (1, 0.0)
    longer: tuple[int, float] = (0, 0.0)
    queue: int | None = None
    item: dict[str, int] = field(default_factory=dict)
    settle: int = 0  # more warm-up steps at most, until the host is as far ahead as it gets
    jitter: tuple[float, float] = (0.0, 0.0)
    rare: tuple[float, float] = (0.0, 0.0)
    seed: int = 0
    accumulation: int = 1
    log_every: int = 1_000_000
    scatter: float = 0.0  # share by which the kernels of two steps that follow one another differ

    @property
    def config(self) -> TrainerConfig:
        """The trainer's configuration of such a run."""
        return TrainerConfig.model_validate(
            {
                "compute": {"check_finite": self.check_finite, "sync": self.sync},
                "data": {"pin_memory": True},
                "optimizer": {"accumulation": self.accumulation},
                "log_every": self.log_every,
            }
        )


# 641 kernels of 7.8 us, launched every 25 us: 5 ms of work, 16 ms of launching, and 6 ms of data in a step of 22 ms.
LAUNCH_BOUND = Declared(
    {
        "h2d": (1, 25, 7.8),
        "forward": (200, 25, 7.8),
        "backward": (380, 25, 7.8),
        "norm": (10, 25, 7.8),
        "optimizer": (50, 25, 7.8),
    },
    data_ms=6,
)

# Any run: kernels by phase, microseconds of a phase's last kernel, milliseconds of data, check_finite.
ANY_RUN = (
    st.fixed_dictionaries(
        dict.fromkeys(
            ("forward", "backward", "optimizer"),
            st.tuples(
                st.integers(1, 250), st.sampled_from([5.0, 15.0, 40.0]), st.sampled_from([4.0, 12.0, 30.0, 80.0])
            ),
        )
    ),
    st.dictionaries(st.sampled_from(["forward", "backward", "optimizer"]), st.sampled_from([500.0, 1500.0, 4000.0])),
    st.sampled_from([0.5, 2.0, 6.0]),
    st.booleans(),
)


@dataclass
class Stream:
    """The host's clock and the device's queue; also what CudaTimeline uses of torch.cuda."""

    declared: Declared
    now_ns: float = START_NS
    free_ns: float = START_NS
    busy_ns: float = 0.0
    audited: bool = False
    drawn: random.Random = field(default_factory=random.Random)
    step: int = 0
    profile: list[str] | None = None  # events of a trace, while steps are profiled
    kernels_ns: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=4096))  # start, duration

    def __post_init__(self) -> None:
        # When the device was free before each piece of work that the queue holds.
        self.queued_ns: deque[float] = deque(maxlen=self.declared.queue)

    def monotonic_ns(self) -> int:
        return round(self.now_ns)

    def begin_step(self, step: int) -> None:
        self.step, self.drawn = step, random.Random(self.declared.seed * 1_000_003 + step)

    def varied(self, mean: float, deviation: float) -> float:
        return mean * self.drawn.lognormvariate(-(deviation**2) / 2, deviation) if deviation else mean

    def launch(self, name: str) -> None:
        kernels, host_us, device_us = self.declared.kernels[name]
        last_us = self.declared.last_us.get(name, device_us)
        on_host, on_device = (self.varied(1.0, deviation) for deviation in self.declared.jitter)
        on_host *= 1.0 if self.profile is None else PROFILED_LAUNCH
        on_device *= 1 + self.declared.scatter * (self.step % 2 - 0.5)
        for number in range(1, kernels + 1):
            called_ns, call_ns = self.now_ns, host_us * on_host * US
            self.now_ns += call_ns
            work_ns = (last_us if number == kernels else device_us) * on_device * US
            self.push(work_ns)
            self.busy_ns += work_ns
            self._profiled(called_ns, call_ns, work_ns)
            if number == self.declared.item.get(name):
                if self.audited:
                    warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
                self.synchronize()

    def push(self, work_ns: float) -> None:
        if self.declared.queue:
            self.queued_ns.append(self.free_ns)
            self.now_ns = max(self.now_ns, self.queued_ns[0])
        self.free_ns = max(self.free_ns, self.now_ns) + work_ns

    def _sleep(self, cycles: int) -> None:
        self.now_ns += EVENT_NS
        self.push(cycles / CYCLES_PER_NS)

    def _profiled(self, called_ns: float, call_ns: float, lasted_ns: float) -> None:
        if self.profile is None:
            self.kernels_ns.append((round(self.free_ns - lasted_ns), round(lasted_ns)))
            return
        number, lasts = len(self.profile), round(lasted_ns)
        call = complete("cudaLaunchKernel", round(called_ns), round(call_ns), "cuda_runtime", correlation=number)
        kernel = complete("k", round(self.free_ns) - lasts, lasts, "kernel", 0, 7, device=0, correlation=number)
        self.profile += [call, kernel]

    def synchronize(self, *_: Any) -> None:
        self.now_ns = max(self.now_ns, self.free_ns)

    def Event(self, enable_timing: bool = False) -> _Event:  # noqa: N802 (as torch names it)
        return _Event(self)

    def set_sync_debug_mode(self, mode: str) -> None:
        self.audited = mode == "warn"


@dataclass
class _Event:
    stream: Stream
    at_ns: float = 0.0

    def record(self) -> None:
        stream = self.stream
        stream.now_ns += EVENT_NS
        self.at_ns = stream.free_ns if stream.declared.early else max(stream.free_ns, stream.now_ns)

    def synchronize(self) -> None:
        self.stream.now_ns = max(self.stream.now_ns + EVENT_NS, self.at_ns)

    def query(self) -> bool:
        return self.at_ns <= self.stream.now_ns

    def elapsed_time(self, end: _Event) -> float:
        return (end.at_ns - self.at_ns) * (1 + self.stream.declared.drift) / MS


class _Model(NoCompute):
    """The compute that CudaTimeline wraps: launches kernels, and waits where torch does."""

    device, asynchronous = "a CUDA stream on paper", True

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def begin_step(self, step: int) -> None:
        self._stream.begin_step(step)

    def to_device(self, batch: Batch) -> Batch:
        self._stream.launch("h2d")
        return batch

    def forward(self, batch: Batch) -> None:
        self._stream.launch("forward")

    def backward(self, loss: None) -> None:
        self._stream.launch("backward")

    def clip_gradients(self) -> None:
        self._stream.launch("norm")

    def check_finite(self, norm: None, step: int) -> None:
        self._stream.synchronize()

    def optimizer_step(self) -> None:
        self._stream.launch("optimizer")

    def read_losses(self, losses: list[list[None]]) -> list[None]:
        self._stream.synchronize()
        return [None] * len(losses)

    def copy_to_host(self, losses: list[None], norm: None) -> float:
        return self._stream.free_ns

    def read_copy(self, copy: float, step: int) -> None:
        self._stream.now_ns = max(self._stream.now_ns + EVENT_NS, copy)

    def synchronize(self) -> None:
        self._stream.synchronize()


@dataclass
class _Rows(telemetry.Recorder):
    """A recorder that writes the contract's rows on the stream's clock."""

    stream: Stream
    steps: list[dict[str, Any]] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    open: list[tuple[str, int]] = field(default_factory=list)
    warmup: bool = True

    def span(self, role: str, name: str, start: int, end: int) -> None:
        row = {"pid": 1, "tid": 1, "role": role, "rank": 0, "name": name, "batch": -1}
        self.spans.append(row | {"start_ns": start, "end_ns": end, "cpu_ns": None})

    def enter(self, name: str) -> None:
        self.open.append((name, self.stream.monotonic_ns()))

    def exit(self, name: str) -> None:
        _, start = self.open.pop()
        self.span("main", name, start, self.stream.monotonic_ns())
        if name in PHASES:
            self.steps[-1][f"{name}_ns"] += self.stream.monotonic_ns() - start

    def step(self, index: int) -> None:
        self.pause()
        phases = {f"{phase}_ns": 0 for phase in PHASES}
        start = {"start_ns": self.stream.monotonic_ns(), "wall_ns": 0}
        self.steps.append({"step": index, "turn": 0, "warmup": self.warmup, **start, **phases, "tokens": 128})

    def pause(self) -> None:
        if self.steps and not self.steps[-1]["wall_ns"]:
            row = self.steps[-1]
            row["wall_ns"] = self.stream.monotonic_ns() - row["start_ns"]
            row["other_ns"] = row["wall_ns"] - sum(row[f"{phase}_ns"] for phase in PHASES)

    def device(self, kernel: Kernel) -> None:
        self.span("launch", kernel.name, kernel.launch_start_ns, kernel.launch_end_ns)
        self.span("device", kernel.name, kernel.start_ns, kernel.end_ns)

    def blocked(self, call: Blocked) -> None:
        self.span("sync", call.site, call.start_ns, call.end_ns)


@dataclass(frozen=True)
class Recorded:
    """The run, and what its record does not hold."""

    run: RunData
    busy_ms: float  # of the device, per measured step
    settling: int  # warm-up steps beyond those declared


def record(declared: Declared, profiled: Path | None = None) -> Recorded:
    """Run ``declared`` through the trainer's loop and CudaTimeline.

    ``profiled``: a folder for the trace of some more steps, which are profiled.
    """
    stream = Stream(declared)
    rows = _Rows(stream)
    with driven(stream, rows) as (compute, take, loop):
        take(declared.warmup)
        settling = take_more(take, declared.settle, compute, declared.config, lambda: False)
        rows.warmup, worked_ns = False, stream.busy_ns
        take(declared.steps)
        rows.pause()
        worked_ns = stream.busy_ns - worked_ns
        compute.synchronize()
        probes = ProbesRecord() if profiled is None else _window(stream, rows, loop, profiled)
        rows.pause()
        compute.synchronize()
    facts = RunFacts.from_json(
        {"device": "on paper", "asynchronous": True, "emulated": False, "threads": 1, "cores": 8}
    )
    run = RunRecord(
        arm="cuda",
        block=0,
        status="done",
        config=declared.config.model_dump(mode="json"),
        facts=facts,
        interleave="slices",
    )
    tables = [
        make_table(columns, {name: [row.get(name) for row in found] for name, _ in columns})
        for columns, found in ((STEP_COLUMNS, rows.steps), (SPAN_COLUMNS, _numbered(rows.spans)))
    ]
    windows: dict[str, RunData] = {}
    data = RunData(run, *tables, None, probes, profiled, windows=windows)
    if profiled is not None:
        windows[run.arm] = data
    return Recorded(data, worked_ns / declared.steps / MS, settling)


def _window(stream: Stream, rows: _Rows, loop: Iterator[int], folder: Path) -> ProbesRecord:
    """Take steps whose kernels a profiler records, and write its trace."""
    rows.warmup = True
    next(loop)
    begun_ns = stream.monotonic_ns()
    before = [(start, lasts) for start, lasts in stream.kernels_ns if start >= begun_ns]  # a host that ran ahead
    stream.profile = [complete("k", *times, "kernel", 0, 7, device=0, correlation=10**6) for times in before]
    steps = []
    for number in range(WINDOW_STEPS):
        stream.profile.append(complete(f"{STEP}{number}", stream.monotonic_ns(), 1, "user_annotation"))
        steps.append(next(loop))
    events, stream.profile = stream.profile, None
    (folder / file_name("main")).write_bytes(trace(events, 0))
    window = (begun_ns, stream.monotonic_ns(), steps[0], steps[-1])
    return ProbesRecord(torch_profiler=TorchProfilerRecord(windows=(window,), realtime_minus_monotonic_ns=(0, 0)))


@contextmanager
def driven(
    stream: Stream, rows: _Rows | None, first_step: int = 0
) -> Iterator[tuple[CudaTimeline, Callable[[int], None], Iterator[int]]]:
    """A run on ``stream`` and what takes steps of it, as ``harness.launch.child`` does. ``rows`` records them."""
    with _in_place_of_cuda(stream):
        telemetry.attach(rows)
        try:
            compute = CudaTimeline(_Model(stream), pinned=True)
            loop = train(stream.declared.config, compute, _batches(stream, rows), first_step)

            def take(steps: int) -> None:
                for _ in range(steps):
                    next(loop)
                compute.drain_to_one_step()

            yield compute, take, loop
        finally:
            telemetry.attach(None)


def _batches(stream: Stream, rows: _Rows | None) -> Iterator[Batch]:
    ids = torch.zeros((1, 2), dtype=torch.int64)
    every, longer_ms = stream.declared.slow
    since, all_longer_ms = stream.declared.longer
    for number in count(1):
        start = stream.monotonic_ns()
        extra_ms = (0.0 if number % every else longer_ms) + (all_longer_ms if number > since else 0.0)
        chance, rarely_ms = stream.declared.rare
        extra_ms += rarely_ms if stream.drawn.random() < chance else 0.0
        stream.now_ns += (stream.declared.data_ms + extra_ms) * MS
        if rows is not None:
            rows.span("main", "tokenize", start, stream.monotonic_ns())
        yield Batch(ids, ids, None, 2, 2, 1)


def _numbered(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spans with the numbers of their batches: that of the fetch which they are in or follow."""
    starts = sorted(row["start_ns"] for row in spans if (row["role"], row["name"]) == ("main", "fetch"))
    return [row | {"batch": sum(start <= row["start_ns"] for start in starts) - 1} for row in spans]


@contextmanager
def _in_place_of_cuda(stream: Stream) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "cuda", stream)
        patch.setattr(cuda_timeline, "monotonic_ns", stream.monotonic_ns)
        yield
