"""Operators by self time: made traces whose answer is known, and torch's own sums for a real one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from harness.explain.probes.torch_profile import profiled_operators
from harness.study.traces.kineto import read_profile
from tests.harness.study.traces.kineto_text import complete, trace

MS = 1_000_000


def read(*events: str, role: str = "main"):
    return read_profile(trace(events), 0, role)


def by_name(role):
    return {one.name: one for one in role.operators}


LINEAR = [
    complete("ProfilerStep#3", 0, 10 * MS, "user_annotation"),
    complete("phase: forward", 1 * MS, 9 * MS, "user_annotation"),
    complete("aten::linear", 2 * MS, 6 * MS, External_id=1),
    complete("aten::addmm", 3 * MS, 3 * MS, External_id=2),
    complete("cudaLaunchKernel", 4 * MS, 1 * MS, "cuda_runtime", External_id=2, correlation=50),
    complete("frame", 0, 10 * MS, "python_function"),
]
GEMM = complete("gemm", 12 * MS, 9 * MS, "kernel", 0, 7, External_id=2, correlation=50)


def test_self_time_leaves_out_what_is_inside() -> None:
    found = profiled_operators([read(*LINEAR)], 10 * MS)
    (main,) = found.roles
    own = {name: (one.kind, one.self_ms, one.total_ms, one.device_ms) for name, one in by_name(main).items()}
    assert own == {
        "step": ("mark", 1.0, 10.0, None),
        "phase: forward": ("mark", 3.0, 9.0, None),
        "aten::linear": ("operator", 3.0, 6.0, None),
        "aten::addmm": ("operator", 2.0, 3.0, None),
        "cudaLaunchKernel": ("runtime call", 1.0, 1.0, None),
    }
    assert (main.role, main.span_ms) == ("main", 10.0)
    assert (found.kernels, found.device_ms) == ((), None)
    assert [one.self_ms for one in main.operators] == sorted(own_ms for _, own_ms, _, _ in own.values())[::-1]


@pytest.mark.parametrize("told", [True, False])
def test_a_kernel_belongs_to_the_operator_that_launched_it(told: bool) -> None:
    """Told by the profiler beside the kernel, or else found around the launch with the same correlation."""
    kernel = GEMM if told else GEMM.replace('"External id": 2,', "")
    found = profiled_operators([read(*LINEAR, kernel, complete("copy", 30 * MS, MS, "gpu_memcpy", 0, 7))], 10 * MS)
    operators = by_name(found.roles[0])
    assert {name: one.device_ms for name, one in operators.items() if one.device_ms} == {"aten::addmm": 9.0}
    assert operators["aten::linear"].device_ms == 0.0
    gemm, copy = found.kernels
    assert (gemm.name, gemm.calls, gemm.total_ms, gemm.launched_by) == ("gemm", 1, 9.0, "aten::addmm")
    assert (copy.name, copy.launched_by) == ("copy", "")
    assert found.device_ms == 10.0


def test_ids_that_each_file_counts_anew_are_told_apart() -> None:
    """A worker's operator with the number of the main process's one launched nothing."""
    other = read(complete("aten::stack", 0, 5 * MS, pid=2, External_id=2), role="loader-0")
    window = read(
        complete("aten::relu", 50 * MS, MS, External_id=2),
        complete("relu_kernel", 52 * MS, 4 * MS, "kernel", 0, 7, External_id=2),
    )
    found = profiled_operators([other, read(*LINEAR, GEMM), window], 12 * MS)
    main, loader = found.roles
    assert by_name(main)["aten::addmm"].device_ms == 9.0
    assert by_name(main)["aten::relu"].device_ms == 4.0
    assert by_name(loader)["aten::stack"].device_ms == 0.0
    assert (loader.role, loader.span_ms) == ("loader-0", 5.0)


def test_an_operator_dispatched_once_more_inside_itself_is_one_call() -> None:
    twice = [complete("aten::mean", 0, 4 * MS, External_id=1), complete("aten::mean", 1 * MS, 2 * MS, External_id=2)]
    ((only,),) = [role.operators for role in profiled_operators([read(*twice)], 4 * MS).roles]
    assert (only.calls, only.self_ms, only.total_ms) == (1, 4.0, 4.0)


def test_steps_are_one_row_and_threads_do_not_nest_in_each_other() -> None:
    found = profiled_operators(
        [
            read(
                complete("ProfilerStep#3", 0, 4 * MS, "user_annotation"),
                complete("ProfilerStep#4", 4 * MS, 4 * MS, "user_annotation"),
                complete("aten::mul", 1 * MS, 2 * MS, tid=2),
            )
        ],
        0,
    )
    (main,) = found.roles
    assert {(one.name, one.calls, one.self_ms) for one in main.operators} == {("step", 2, 8.0), ("aten::mul", 1, 2.0)}
    assert main.span_ms == 8.0  # it is not known how long the steps took


def test_a_real_profile_sums_as_torch_sums_it(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            with record_function("phase: forward"):
                loss = model(torch.randn(16, 64)).square().mean()
            loss.backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    (main,) = profiled_operators([read_profile(path, 0)], 0).roles
    expected = {one.key: one for one in profiler.key_averages()}
    assert set(by_name(main)) == set(expected)
    for name, one in by_name(main).items():
        assert one.calls == expected[name].count
        rounded_ms = 0.002 * one.calls  # torch sums microseconds
        assert one.self_ms == pytest.approx(expected[name].self_cpu_time_total / 1e3, abs=rounded_ms)
        assert one.total_ms == pytest.approx(expected[name].cpu_time_total / 1e3, abs=rounded_ms)
