"""Holding a real CUDA device brings its host a step ahead. Run it there with `python -m pytest tests/gpu`."""

from __future__ import annotations

import time

import pytest
import torch

from tests.gpu.test_launch_bound import Work, kept
from trainer.compute.cuda_timeline import CudaTimeline

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CYCLES = 40_000_000  # of a step's only kernel: 20 ms on an H200


def test_a_held_device_gives_a_host_that_is_little_faster_nearly_a_step_of_lead() -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    for _ in range(10):  # an idle card's clock is slow
        torch.cuda._sleep(CYCLES)
    begin.record()  # type: ignore[no-untyped-call]
    torch.cuda._sleep(CYCLES)
    end.record()  # type: ignore[no-untyped-call]
    end.synchronize()
    host_s = 0.8e-3 * begin.elapsed_time(end)  # type: ignore[no-untyped-call]
    with kept() as recorder:
        timeline = CudaTimeline(Work(lambda: torch.cuda._sleep(CYCLES)), pinned=True)
        settled = []
        for step in range(4):
            if step == 3:
                timeline.hold_device()
            timeline.begin_step(step)
            timeline.forward(None)  # type: ignore[arg-type]
            time.sleep(host_s)
            timeline.drain_to_one_step()
            settled.append(timeline.is_lead_settled())
        drained_ns = time.monotonic_ns()
        timeline.synchronize()
    assert settled == [False, False, False, True]
    before, last = recorder.kernels[-2:]
    assert last.start_ns - before.end_ns > host_s * 1e9, "the device stood still for longer than the host took"
    assert last.end_ns - drained_ns > 0.85 * (last.end_ns - last.start_ns), "the host is as far ahead as it gets"
