"""The reader of torch.profiler's traces: to the nanosecond, in any layout, and never half a file."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function

from harness.study.traces import kineto
from harness.study.traces.kineto import read_header, read_profile, table_schema
from tests.harness.study.traces.kineto_text import complete, flow, memory, trace
from trainer.errors import InputError

BASE_NS = 1_763_622_000_123_456_789


def rows(source, offset_ns=0, role="main"):
    return read_profile(source, offset_ns, role).to_pylist()


@settings(deadline=None)
@given(
    starts=st.lists(st.integers(0, 10**16), min_size=1, max_size=20),
    duration=st.integers(0, 10**12),
    offset=st.integers(-(10**18), 2 * 10**18),
)
def test_times_are_exact_to_the_nanosecond(starts, duration, offset) -> None:
    read = rows(trace([complete("op", start, duration) for start in starts], BASE_NS), offset)
    assert [row["start_ns"] for row in read] == [BASE_NS + start - offset for start in starts]
    assert {row["duration_ns"] for row in read} == {duration}


def test_what_each_event_says_lands_in_its_column() -> None:
    text = trace(
        [
            complete("aten::mm", 1000, 50, External_id=7, Input_Dims=[[2, 3], [], [[1], [4]]], Input_type=["int", ""]),
            complete("cudaLaunchKernel", 1010, 5, "cuda_runtime", External_id=7, cbid=211, correlation=99),
            flow("s", 99, 1010),
            flow("f", 99, 1100, pid=0, tid=7),
            complete("gemm", 1100, 400, "kernel", 0, 7, External_id=7, device=3, stream=7, correlation=99),
            memory(1020, -64, 128, (1, 3)),
        ]
    )
    mm, launch, kernel, release = rows(text, role="loader-1")
    assert (mm["category"], mm["name"], mm["pid"], mm["tid"], mm["external_id"]) == ("cpu_op", "aten::mm", 1, 1, 7)
    assert json.loads(mm["input_shapes"]) == [[2, 3], [], [[1], [4]]]
    assert mm["correlation"] is None
    assert (launch["category"], launch["correlation"], launch["role"]) == ("cuda_runtime", 99, "loader-1")
    assert (kernel["role"], kernel["device_id"], kernel["tid"], kernel["correlation"]) == ("device", 3, 7, 99)
    assert (release["bytes"], release["total_allocated_bytes"], release["duration_ns"]) == (-64, 128, 0)
    assert (release["device_type"], release["device_id"], release["role"]) == (1, 3, "loader-1")


def events(count: int) -> list[str]:
    shapes = [[4, 8], []]
    pairs = ((complete(f"op{i % 5}", i, 3, External_id=i, Input_Dims=shapes), memory(i, 8, i)) for i in range(count))
    return [event for pair in pairs for event in pair]


def test_a_file_of_several_blocks_reads_as_the_same_file_in_another_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "BLOCK_BYTES", 1 << 17)
    text = trace(events(2000), BASE_NS)
    assert len(text) > 2 * kineto.BLOCK_BYTES
    path = tmp_path / "torch_profile.json.gz"
    path.write_bytes(gzip.compress(text, 1))
    read = read_profile(path, 5)
    assert len(read) == 4_000
    assert read.schema.equals(table_schema())
    assert read.equals(read_profile(text, 5))
    compact = json.dumps(json.loads(text, parse_float=Decimal), default=float).encode()
    assert read_profile(compact, 5).to_pydict() == read.to_pydict()


def test_events_that_the_fast_parser_refuses_are_read_beside_the_others() -> None:
    odd = complete("odd", 7, 1, External_id=3).replace('"External id": 3', '"External id": 2,"External id": 3')
    longer = complete("longer", 8, 1).replace('"dur": 0.001', '"dur": 0.0014')
    whole = complete("whole", 9, 1).replace('"dur": 0.001', '"dur": 2')
    read = rows(trace([*events(1000), odd, longer, *events(1000), whole]))
    assert len(read) == 4_003
    assert [(row["name"], row["external_id"]) for row in read[2000:2002]] == [("odd", 3), ("longer", None)]
    assert read[2001]["duration_ns"] == 1
    assert read[-1]["duration_ns"] == 2000


def test_a_name_with_quotes_which_the_writer_does_not_escape() -> None:
    read = rows(trace([*events(300), complete('we"ird"', 5, 1), *events(300)]))
    assert [row["name"] for row in read].count('we"ird"') == 1
    assert len(read) == 1201


def test_no_events_at_all() -> None:
    empty = read_profile(trace([]), 0)
    assert len(empty) == 0
    assert empty.schema.equals(table_schema())


@pytest.mark.parametrize(("share", "packed"), [(0.0, False), (0.5, False), (0.999, False), (0.001, True), (0.9, True)])
def test_a_file_cut_short_is_refused_with_one_line(tmp_path: Path, share: float, packed: bool) -> None:
    text = trace(events(300))
    whole = gzip.compress(text) if packed else text
    path = tmp_path / "torch_profile.json.gz"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(InputError) as caught:
        read_profile(path, 0)
    assert str(caught.value).startswith(f"{path}: not a whole trace of torch.profiler")
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(st.integers(0, 2000))
def test_a_small_file_cut_anywhere_is_refused(at: int) -> None:
    text = trace([complete("op", 5, 1), memory(6, 1, 1), complete("op", 7, 1)])
    cut = text[: at % len(text)]
    with pytest.raises(InputError):
        read_profile(cut, 0)


@pytest.mark.parametrize("content", [
    b"{}",
    b"[]",
    b"null",
    b"\x1f\x8b\x00",
    b'{"traceEvents": []}',
    b'{"traceEvents": 3, "baseTimeNanoseconds": 1}',
    b'{"traceEvents": [4], "baseTimeNanoseconds": 1}',
    trace([complete("aten::mm", 1, 1, a=1).replace('"args": {\n      "a": 1\n    }', '"args": [1]')]),
])  # fmt: skip
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="trace of torch"):
        read_profile(content, 0)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_profile(tmp_path / "torch_profile.json.gz", 0)


def test_a_real_profile_reads_as_what_json_says(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
        profiler.add_metadata_json("harness", '{"cut": null, "offsets": [1, 2]}')
        with record_function("phase: forward"):
            loss = torch.nn.Linear(8, 8)(torch.randn(4, 8)).sum()
        loss.backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    content = json.loads(path.read_text(), parse_float=Decimal)
    assert read_header(path)["harness"] == {"cut": None, "offsets": [1, 2]}
    expected = [
        (event["name"], content["baseTimeNanoseconds"] + int(event["ts"] * 1000), int(event.get("dur", 0) * 1000))
        for event in content["traceEvents"]
        if isinstance(event["pid"], int) and (event["ph"] == "X" or event.get("cat") == "cpu_instant_event")
    ]
    read = read_profile(path, 0)
    found = list(zip(*(read.column(name).to_pylist() for name in ("name", "start_ns", "duration_ns")), strict=True))
    assert found == expected
    assert {"phase: forward", "aten::addmm", "[memory]"} <= {name for name, _, _ in found}
    shapes = {row["name"]: row["input_shapes"] for row in read.to_pylist()}
    assert json.loads(shapes["aten::addmm"])[1] == [4, 8]
