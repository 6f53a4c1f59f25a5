"""Launch-bound phases on a real CUDA device: many small kernels, the same as one CUDA graph, and compiled.

Run it there with `python -m pytest tests/gpu/test_launch_bound.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from harness.explain.bounds import ended_with_launches
from trainer import telemetry
from trainer.compute.base import NoCompute
from trainer.compute.cuda_timeline import CudaTimeline
from trainer.telemetry import Kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KERNELS, ROUNDS = 400, 20


class Kept(telemetry.Recorder):
    """A recorder that keeps the device's work and ignores the rest."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []

    def device(self, kernel: Kernel) -> None:
        self.kernels.append(kernel)


class Work(NoCompute):
    """A compute whose forward phase is ``run``."""

    device, asynchronous = "cuda", True

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def forward(self, batch: Any) -> None:
        self._run()

    def synchronize(self) -> None:
        torch.cuda.synchronize()


@contextmanager
def kept() -> Iterator[Kept]:
    recorder = Kept()
    telemetry.attach(recorder)
    try:
        yield recorder
    finally:
        telemetry.attach(None)


def forwards(run: Callable[[], Any]) -> list[Kernel]:
    """The brackets of some forward phases, each from a device that has nothing to do."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with kept() as recorder:
        timeline = CudaTimeline(Work(run), pinned=True)
        for _ in range(ROUNDS):
            timeline.forward(None)  # type: ignore[arg-type]
            timeline.synchronize()
    return [kernel for kernel in recorder.kernels if kernel.name == "forward"]


def launch_bound(found: list[Kernel]) -> float:
    """Share of the brackets that end with their launches, by the rule of ``harness.explain.bounds``."""
    starts, ends, launch_ends = np.array([(one.start_ns, one.end_ns, one.launch_end_ns) for one in found]).T
    return float(ended_with_launches(starts, ends, launch_ends).mean())


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(KERNELS):
        x = x * 1.0001
    return x


def test_many_small_kernels_are_launch_bound() -> None:
    x = torch.ones(1024, device="cuda")
    assert launch_bound(forwards(lambda: chain(x))) >= 0.9


def test_large_kernels_are_not() -> None:
    x = torch.ones(4096, 4096, device="cuda")

    def run() -> None:
        for _ in range(20):
            torch.mm(x, x)

    assert launch_bound(forwards(run)) <= 0.1


def test_the_same_kernels_as_one_cuda_graph_are_not() -> None:
    """One launch for all of them: the bracket is work, and shorter than launching each by itself took."""
    x = torch.ones(1024, device="cuda")
    eager = forwards(lambda: chain(x))
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        chain(x)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        chain(x)
    found = forwards(graph.replay)
    assert launch_bound(found) <= 0.1
    assert np.median([one.end_ns - one.start_ns for one in found]) < np.median(
        [one.end_ns - one.start_ns for one in eager]
    )


def test_compiled_they_are_few_and_their_bracket_is_short() -> None:
    """torch.compile fuses the chain: the bracket gets short, whatever it is bound by."""
    x = torch.ones(1024, device="cuda")
    compiled = torch.compile(chain)
    eager, fused = forwards(lambda: chain(x)), forwards(lambda: compiled(x))
    assert np.median([one.end_ns - one.start_ns for one in fused]) < 0.5 * np.median(
        [one.end_ns - one.start_ns for one in eager]
    )
