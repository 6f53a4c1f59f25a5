"""The comparison of ledger and kernels, on steps whose truth is made up: no device needed."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from gzip import decompress

import pyarrow as pa
import pytest

from harness.show.timeline.formats import write_chrome
from harness.show.timeline.model import Process, Trace, resolve
from harness.show.timeline.operators import add_operators, shown
from harness.study.contract import SPAN_COLUMNS, arrow_schema
from tests.gpu.kernel_times import PHASE_OF, compare, covered_ns, launched, stray_arrows
from tests.harness.show.timeline import tables

US, MS = 1_000, 1_000_000
STEPS = 5
STEP_NS = 130 * MS
LASTS = {"h2d": 30 * US, "forward": 40 * MS, "backward": 80 * MS, "norm": 1 * MS, "optimizer": 2 * MS}
KERNELS = {"h2d": 2, "forward": 20, "backward": 20, "norm": 10, "optimizer": 4}
GAP = 2 * US  # after a kernel, and between the first one and the event before it
CLOCK_ERROR = 40 * US  # of the profiler's

NOWHERE: Mapping[str, tuple[int, int]] = {}


def spans(moved: Mapping[str, tuple[int, int]] = NOWHERE, steps: Collection[int] = range(STEPS)) -> pa.Table:
    """Of a host that is done with a step after 20 ms and a device that works on it from there on.

    ``moved``: by how much the ledger has the start and the end of a phase wrong, in ``steps``.
    """
    rows = []
    for step in range(STEPS):
        at, clock = step * STEP_NS, step * STEP_NS + 20 * MS
        for name, lasts in LASTS.items():
            rows.append(("main", PHASE_OF[name], at, at + 3 * MS))
            rows.append(("launch", name, at + 5 * US, at + 3 * MS - 5 * US))
            start_off, end_off = moved.get(name, (0, 0)) if step in steps else (0, 0)
            rows.append(("device", name, clock + start_off, clock + lasts + end_off))
            at, clock = at + 3 * MS + 20 * US, clock + lasts
        rows.append(("device", "read", clock, clock + 1 * MS))
        rows.append(("launch", "read", at, at + 2 * MS))
    rows = [(1, 7, role, 0, name, 0, start, end, None) for role, name, start, end in rows]
    columns = {name: [row[place] for row in rows] for place, (name, _) in enumerate(SPAN_COLUMNS)}
    return pa.table(columns, schema=arrow_schema(SPAN_COLUMNS))


def kernels(
    off: int = CLOCK_ERROR, missing: Collection[tuple[str, int]] = (), steps: Collection[int] = range(STEPS)
) -> pa.Table:
    """The kernels that fill those phases, on a clock that is ``off``; one launched before the profile began.

    ``missing``: phase and number of kernels that are not there, in ``steps``.
    """
    rows = [("kernel", "earlier", 13, off, 9 * MS, "device", {"correlation": 1})]
    for step in range(STEPS):
        at, clock = step * STEP_NS, step * STEP_NS + 20 * MS
        for name, lasts in LASTS.items():
            each = lasts // KERNELS[name]
            for number in range(KERNELS[name]):
                call = at + 100 * US + number * 100 * US
                start = clock + number * each + GAP
                ids = {"correlation": len(rows) + 1, "device_id": 0}
                rows.append(("cuda_runtime", "cudaLaunchKernel", 7, call + off, 5 * US, "main", ids))
                if (name, number) not in missing or step not in steps:
                    rows.append(("kernel", name, 13, start + off, each - 2 * GAP, "device", ids))
            at, clock = at + 3 * MS + 20 * US, clock + lasts
    return tables.operators(*rows)


def problems(spans_table: pa.Table, operators: pa.Table) -> list[str]:
    steps = [(step * STEP_NS, (step + 1) * STEP_NS) for step in range(STEPS)]
    return [line for one in compare(spans_table, operators, steps) for line in one.problems()]


def phases(lines: list[str]) -> set[str]:
    return {line.split(":")[0] for line in lines}


def test_a_right_ledger_agrees_and_its_figures_are_the_truth():
    steps = [(step * STEP_NS, (step + 1) * STEP_NS) for step in range(STEPS)]
    found = {one.name: one for one in compare(spans(), kernels(), steps)}
    assert list(found) == list(LASTS)
    assert not [line for one in found.values() for line in one.problems()]
    forward = found["forward"]
    assert (forward.spans, forward.with_kernels) == (STEPS, STEPS)
    assert (forward.span_ns, forward.kernels_ns) == (40 * MS, 40 * MS - 20 * 2 * GAP)
    assert forward.short_ns == 20 * 2 * GAP
    assert (forward.start_ns, forward.end_ns) == (CLOCK_ERROR + GAP, CLOCK_ERROR - GAP)


@pytest.mark.parametrize("off", [-5 * MS, 5 * MS])
def test_a_boundary_at_the_wrong_place_is_a_problem_of_both_its_phases(off):
    lines = problems(spans({"forward": (0, off), "backward": (off, 0)}), kernels())
    assert phases(lines) == {"forward", "backward"}
    assert len(lines) == 4  # each by an edge and by its sum


@pytest.mark.parametrize("off", [-10 * MS, 10 * MS])
def test_a_ledger_on_a_clock_10_ms_off_is_a_problem_of_every_phase(off):
    lines = problems(spans(dict.fromkeys(LASTS, (off, off))), kernels())
    assert phases(lines) == set(LASTS)
    assert len(lines) == 2 * len(LASTS)  # its sums are right: only the edges tell


@pytest.mark.parametrize("off", [-10 * MS, 10 * MS])
def test_a_profiler_on_a_clock_10_ms_off_is_a_problem(off):
    assert {"forward", "backward"} <= phases(problems(spans(), kernels(off)))


@pytest.mark.parametrize("name", ["forward", "backward", "optimizer"])
def test_a_kernel_missing_within_a_phase_is_a_problem_of_its_sum(name):
    (line,) = problems(spans(), kernels(missing={(name, KERNELS[name] // 2)}))
    assert line.startswith(f"{name}: ")
    assert " of kernels in a span of " in line


def test_a_step_without_any_kernel_in_a_phase_is_a_problem_even_alone():
    lines = problems(spans(), kernels(missing={("h2d", 0), ("h2d", 1)}, steps={2}))
    assert lines == ["h2d: no kernels in 1 of 5 spans"]


def test_a_phase_without_any_kernel_is_told():
    lines = problems(spans(), kernels(missing={("norm", number) for number in range(KERNELS["norm"])}))
    assert lines == ["norm: no kernels in 5 of 5 spans", "norm: 0.0 us of kernels in a span of 1000.0 us"]


def test_one_disturbed_step_is_none():
    assert not problems(spans({"forward": (-3 * MS, 0)}, steps={0}), kernels())


def test_a_step_without_one_of_its_spans_is_no_comparison():
    rows = [row for row in spans().to_pylist() if row["name"] != "norm"]
    with pytest.raises(AssertionError, match="a step has"):
        problems(pa.Table.from_pylist(rows, arrow_schema(SPAN_COLUMNS)), kernels())


def test_work_that_the_host_launched_in_another_phase_is_no_comparison():
    rows = spans().to_pylist()
    for row in rows:
        if row["role"] == "main" and row["name"] == "forward":
            row["name"] = "backward"
    with pytest.raises(AssertionError, match="in other phases"):
        problems(pa.Table.from_pylist(rows, arrow_schema(SPAN_COLUMNS)), kernels())


def test_a_launch_is_known_by_the_first_of_its_calls():
    found = tables.operators(
        ("cuda_driver", "cuLaunchKernelEx", 7, 12, 2, "main", {"correlation": 4}),
        ("cuda_runtime", "cudaLaunchKernelExC", 7, 10, 5, "main", {"correlation": 4}),
        ("cuda_runtime", "cudaDeviceSynchronize", 7, 15, 5, "main"),
        ("kernel", "gemm", 13, 20, 5, "device", {"correlation": 4}),
        ("kernel", "of no launch", 13, 30, 5, "device"),
    )
    assert list(launched(found)) == [(10, (20, 25))]


@pytest.mark.parametrize(
    ("ranges", "total"),
    [([], 0), ([(-9, -4)], 5), ([(5, 9), (0, 3)], 7), ([(0, 10), (2, 4), (8, 12)], 12), ([(0, 2), (2, 4)], 4)],
)
def test_time_that_kernels_of_several_streams_share_counts_once(ranges, total):
    assert covered_ns(ranges) == total


def test_arrows_from_launches_end_at_kernels():
    processes = {"main": Process("main"), "device": Process("device")}
    arrows = add_operators(shown(kernels()), "a", processes, {})
    events = json.loads(decompress(write_chrome(resolve(Trace([*processes.values()], arrows)))))["traceEvents"]
    assert stray_arrows(events) == (STEPS * sum(KERNELS.values()), [])
    end = next(event for event in events if event["ph"] == "f")
    beside = {**end, "ts": end["ts"] - 1}
    other = {**beside, "name": "batch", "cat": "batch"}
    assert stray_arrows([*events, beside, other]) == (STEPS * sum(KERNELS.values()) + 1, [beside])
