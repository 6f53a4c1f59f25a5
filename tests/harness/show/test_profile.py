"""The section on operators, from made profiles; and its picture of memory."""

from __future__ import annotations

import numpy as np
import pytest

from harness.explain.probes.torch_profile import torch_profile
from harness.show.drawing import thinned
from harness.show.plots import memory as memory_figure
from harness.show.policy import OPERATORS_LISTED, WORKERS_LISTED
from harness.show.profile import gap_line, operators_section
from harness.study.run_data import TorchProfilerRecord
from harness.study.traces.kineto import read_profile
from tests.harness.study.traces.kineto_text import complete, memory, trace

MS = 1_000_000
FACTS = TorchProfilerRecord(windows=((0, 20 * MS, 23, 24),), flops={"aten::mm": 4e9})
NO_FACTS = TorchProfilerRecord()
MAIN = [
    complete("ProfilerStep#2", 0, 10 * MS, "user_annotation"),
    complete("ProfilerStep#3", 10 * MS, 10 * MS, "user_annotation"),
    complete("phase: forward", 11 * MS, 8 * MS, "user_annotation"),
    complete("aten::mm", 12 * MS, 4 * MS, External_id=1),
    memory(13 * MS, 3 << 20, 3 << 20),
    memory(14 * MS, -(1 << 20), 2 << 20),
]
KERNEL = complete("gemm|`<float>` " + "x" * 200, 30 * MS, 6 * MS, "kernel", 0, 7, External_id=1)


def profiled(*events: str, facts=FACTS, problems=(), workers: int = 0):
    tables = [read_profile(trace([*MAIN, *events]), 0)]
    for worker in range(workers):
        text = trace([complete("stage: tokenize", 0, 5 * MS, "user_annotation", pid=9 + worker)])
        tables.append(read_profile(text, 0, f"loader-{worker}"))
    return torch_profile("text|1", tables, facts, problems)


def row(page: str, start: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{start}`")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_nothing_was_profiled() -> None:
    assert torch_profile("a", [], NO_FACTS) is None
    assert torch_profile("a", [read_profile(trace([]), 0)], NO_FACTS) is None
    assert operators_section([], []) == ""


def test_times_are_per_step_and_shares_of_the_steps() -> None:
    page = operators_section([profiled()], ["memory.png"])
    assert "**main**, steps 23 to 24, 10.0 ms a step under the profiler:" in page
    assert row(page, "aten::mm")[1:] == ["operator", "0.50", "2.00", "20 %", "2.00", "2.00"]  # the last: GFLOP
    assert row(page, "step")[1:5] == ["mark", "1.00", "6.00", "60 %"]
    assert "device ms" not in page
    assert "(plots/memory.png)" in page
    assert "| text\\|1 | main | CPU | 3.00 | 24 | forward | 3.00 | 2.00 |" in page


WINDOWS = TorchProfilerRecord(windows=((0, 20 * MS, 23, 24), (50 * MS, 70 * MS, 33, 34)), flops={"aten::mm": 8e9})
SECOND = [
    complete("ProfilerStep#0", 50 * MS, 10 * MS, "user_annotation"),
    complete("ProfilerStep#1", 60 * MS, 10 * MS, "user_annotation"),
    complete("aten::mm", 52 * MS, 4 * MS, External_id=1),
]


def of_windows(*files: list[str]) -> str:
    return operators_section([torch_profile("text", [read_profile(trace(file), 0) for file in files], WINDOWS)], [])


def test_every_window_has_its_profile() -> None:
    page = of_windows(MAIN, SECOND)
    assert "**main**, steps 23 to 24, 33 to 34, 10.0 ms a step" in page
    assert row(page, "aten::mm")[1:] == ["operator", "0.50", "2.00", "20 %", "2.00", "2.00"]
    assert "left out" not in page


@pytest.mark.parametrize("second", [[], [SECOND[:1]], [SECOND[2:]]])
def test_a_window_without_a_whole_profile_is_said_and_counts_for_nothing(second) -> None:
    page = of_windows(MAIN, *second)
    assert "**main**, steps 23 to 24, 10.0 ms a step" in page
    # and no FLOPs: whose would they be
    assert row(page, "aten::mm")[1:] == ["operator", "0.50", "2.00", "20 %", "2.00"]
    assert "steps 33 to 34 were profiled, but their complete profile is missing" in page


def test_a_profile_that_was_cut_is_in_no_table() -> None:
    """All marks of its steps may be there: they come before the steps' events, and those on a device come last."""
    cut = read_profile(trace(SECOND).replace(b'"traceName": "torch_profile.json"', b'"traceName": "cut"'), 0)
    found = torch_profile("text", [read_profile(trace(MAIN), 0), cut], WINDOWS)
    assert found.steps == 2
    assert [*map(gap_line, found.gaps)] == [
        "a profile of 2 steps is incomplete or outside of a window: ignored",
        "steps 33 to 34 were profiled, but their complete profile is missing",
    ]


def test_a_profile_of_no_window_is_left_out_and_windows_without_any_are_said() -> None:
    late = [complete("ProfilerStep#0", 90 * MS, 10 * MS, "user_annotation"), complete("aten::mm", 91 * MS, MS)]
    page = of_windows(MAIN, SECOND, late)
    assert "a profile of 1 step is incomplete or outside of a window: ignored" in page
    assert row(page, "aten::mm")[2] == "0.50"
    found = torch_profile("text", [], WINDOWS)
    assert (found.steps, len(found.gaps)) == (0, 2)


def test_with_a_device_its_time_and_its_kernels_are_shown() -> None:
    page = operators_section([profiled(KERNEL)], [])
    assert row(page, "aten::mm")[6] == "3.00"
    (kernel,) = [line for line in page.splitlines() if line.startswith("| `gemm")]
    assert kernel.endswith("x…` | 0.50 | 3.00 | 100 % | `aten::mm` |")
    assert "plots/" not in page


def test_workers_are_listed_up_to_a_few_and_many_operators_are_summed_up() -> None:
    page = operators_section([profiled(workers=WORKERS_LISTED + 2)], [])
    assert page.count("stage: tokenize") == WORKERS_LISTED
    assert "2 more workers recorded" in page
    assert "**loader-0**, 5.00 ms recorded:" in page
    (line,) = [line for line in page.splitlines() if "stage: tokenize" in line][:1]
    assert line.split(" | ")[1:5] == ["mark", "1.00", "5.00", "100 %"]
    many = [complete(f"aten::op{i}", (100 + i) * MS, MS) for i in range(2 * OPERATORS_LISTED)]
    (rest,) = [line for line in operators_section([profiled(*many)], []).splitlines() if " others |" in line]
    assert rest.split(" | ")[0] == f"| {2 * OPERATORS_LISTED + 3 - OPERATORS_LISTED} others"


def test_problems_are_said_even_where_nothing_could_be_read() -> None:
    page = operators_section([torch_profile("a", [], NO_FACTS, ["window 1 could not be written"])], [])
    assert "- window 1 could not be written" in page
    assert "Memory" not in page


def test_the_picture_is_of_processes_with_memory() -> None:
    figure = memory_figure([profiled(facts=NO_FACTS), profiled(workers=1)])
    assert len(figure.axes) == 2
    assert memory_figure([torch_profile("a", [read_profile(trace([complete("aten::mm", 0, 5)]), 0)], NO_FACTS)]) is None


def test_a_long_curve_keeps_its_peaks() -> None:
    size = np.arange(100_000) % 1000
    size[54_321], size[77] = 10**9, -5
    time, kept = thinned(np.arange(100_000), size, 500)
    assert len(kept) <= 500
    assert (kept.max(), kept.min()) == (10**9, -5)
    assert (np.diff(time) > 0).all()
