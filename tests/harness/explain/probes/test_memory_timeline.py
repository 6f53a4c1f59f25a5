"""Memory over time: made events, and a real program whose largest moment is known."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from harness.explain.probes.torch_profile import memory_timelines
from harness.study.traces.kineto import read_profile
from tests.harness.study.traces.kineto_text import complete, memory, trace

STEPS = [
    complete("ProfilerStep#3", 0, 99, "user_annotation"),
    complete("phase: forward", 10, 40, "user_annotation"),
    complete("phase: optimizer", 60, 30, "user_annotation"),
    complete("ProfilerStep#4", 100, 100, "user_annotation"),
    complete("phase: forward", 110, 50, "user_annotation"),
]


def test_the_peak_is_found_in_its_step_and_phase() -> None:
    events = [memory(20, 64, 64), memory(120, 192, 256), memory(170, -192, 64)]
    (one,) = memory_timelines([read_profile(trace([*STEPS, *events]), 0)], [[1, 199, 23, 24]])
    assert (one.role, one.device, one.peak_bytes, one.peak_ns) == ("main", "CPU", 256, 120)
    assert (one.peak_step, one.peak_phase) == (24, "forward")
    assert one.steps_ns == ((23, 0, 99), (24, 100, 200))
    assert one.time_ns.tolist() == [20, 120, 170]
    assert one.allocated_bytes.tolist() == [64, 256, 64]


def test_devices_and_processes_are_apart_and_need_not_be_in_order() -> None:
    main = trace([*STEPS, memory(30, 8, 8), memory(20, 9, 5, (1, 0)), memory(70, 1, 900, (1, 1)), memory(10, 4, 4)])
    worker = trace([memory(40, 7, 7, pid=2), complete("stage: pack", 35, 10, "user_annotation", pid=2)])
    found = memory_timelines([read_profile(worker, 0, "loader-0"), read_profile(main, 0)], [[1, 199, 0, 1]])
    assert [(one.role, one.device) for one in found] == [
        ("main", "CUDA 0"), ("main", "CUDA 1"), ("main", "CPU"), ("loader-0", "CPU"),
    ]  # fmt: skip
    assert [(one.peak_step, one.peak_phase) for one in found] == [
        (0, "forward"), (0, "optimizer"), (0, "forward"), (None, "pack"),
    ]  # fmt: skip
    assert found[2].time_ns.tolist() == [10, 30]


def test_each_window_of_a_cpu_begins_at_zero_and_shared_memory_counts() -> None:
    """The profiler's totals say 0 at shared memory and go on where the last window ended; sizes are right."""
    first = trace([memory(10, 64, 64), memory(20, 2048, 0), memory(30, -2048, 0), memory(40, 32, 96)])
    second = trace([memory(110, 16, 112), memory(120, -16, 96)])
    (one,) = memory_timelines([read_profile(first, 0), read_profile(second, 0)])
    assert one.allocated_bytes.tolist() == [64, 2112, 64, 96, 16, 0]
    assert (one.peak_bytes, one.peak_ns) == (2112, 20)


def test_no_memory_was_recorded() -> None:
    assert memory_timelines([read_profile(trace(STEPS), 0)]) == []


def test_a_real_program(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for step in range(5):
            with record_function("phase: forward"):
                kept = torch.empty(1 << 10, dtype=torch.uint8)
            with record_function("phase: backward"):
                large = torch.empty(1 << (22 if step == 3 else 12), dtype=torch.uint8)
                del large
            profiler.step()
    del kept
    (one,) = memory_timelines([read_profile(path, 0)], [[0, 2**62, 102, 104]])
    assert one.peak_step == 103
    assert one.peak_phase == "backward"
    assert 1 << 22 <= one.peak_bytes < (1 << 22) + (1 << 14)
    assert len(one.steps_ns) == 3
