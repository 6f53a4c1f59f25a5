"""torch.profiler's window in the main process: what it records, when, on which clock, and what it leaves behind."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch.profiler import ProfilerActivity, profile, record_function

from harness.explain.probes.torch_profile import torch_profile
from harness.probes.ledger.recorders import StepRecorder
from harness.probes.profilers.torch_profiler import TorchProfiler
from harness.probes.profilers.torch_session import (
    TorchProfilerSettings,
    describe,
    export,
    pack,
    realtime_minus_monotonic,
)
from harness.study.run_data import TorchProfilerRecord
from harness.study.traces.kineto import STEP, header, read_profile, read_profiles
from trainer import telemetry

ALIGNED_NS = 50_000


def settings(**changes: Any) -> TorchProfilerSettings:
    return replace(TorchProfilerSettings(wait=1, warmup=1, active=2), **changes)


def recorded(probe: TorchProfiler) -> TorchProfilerRecord:
    """What the probe reports, as it is read back from probes.json."""
    return TypeAdapter(TorchProfilerRecord).validate_json(json.dumps(probe.facts(), allow_nan=False), strict=True)


def stepper(first: int = 20) -> Callable[[], int]:
    """Steps as the trainer takes them, by telemetry, with their numbers from ``first``."""
    numbers, weight = count(first), torch.randn(32, 32)

    def next_step() -> int:
        number = next(numbers)
        telemetry.step(number)
        with telemetry.span("fetch"), telemetry.span("tokenize"):
            batch = torch.randn(8, 32)
        with telemetry.span("forward"):
            torch.mm(batch, weight)
        return number

    return next_step


@pytest.fixture
def recorder():
    recorder = StepRecorder()
    telemetry.attach(recorder)
    yield recorder
    telemetry.attach(None)


def names(table) -> list[str]:
    return table.column("name").to_pylist()


def test_the_window_holds_the_declared_steps_and_nothing_else(tmp_path: Path, recorder: StepRecorder) -> None:
    probe = TorchProfiler(settings(wait=2, warmup=1, active=3), tmp_path)
    before_ns = monotonic_ns()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe.run_window(stepper(), recorder)
    facts = recorded(probe)
    ((start_ns, end_ns, first, last),) = facts.windows
    assert (first, last) == (23, 25)
    assert before_ns < start_ns < end_ns < monotonic_ns()
    assert probe.problems == []
    assert facts.workers == ()
    assert [path.name for path in tmp_path.iterdir()] == ["torch_profile.json.gz"]
    (table,), problems = read_profiles(tmp_path, facts.realtime_minus_monotonic_ns)
    assert problems == []
    found = names(table)
    assert found.count("aten::mm") == 3
    assert sum(name.startswith(STEP) for name in found) == 3
    assert [found.count(f"phase: {name}") for name in ("fetch", "forward", "backward")] == [3, 3, 0]
    assert found.count("stage: tokenize") == 3
    # The ledger goes on: all steps, each with its phases, the last one closed before the profile was written.
    assert [row.step for row in recorder.rows().steps] == [20, 21, 22, 23, 24, 25]
    assert [span.name for span in recorder.rows().phases] == ["fetch", "forward"] * 6
    last, written_ns = recorder.rows().steps[-1], (tmp_path / "torch_profile.json.gz").stat().st_mtime_ns
    coarse_ns = 20_000_000  # of file times
    assert last.start_ns + last.wall_ns <= written_ns - facts.realtime_minus_monotonic_ns[-1] + coarse_ns
    # What was profiled lies in its steps, on our clock.
    forward = [row for row in table.to_pylist() if row["name"] == "phase: forward"]
    marks = sorted((row["start_ns"], row["start_ns"] + row["duration_ns"]) for row in forward)
    ledger = [(span.start_ns, span.end_ns) for span in recorder.rows().phases if span.name == "forward"][-3:]
    for (mark_start, mark_end), (start, end) in zip(marks, ledger, strict=True):
        assert mark_start - ALIGNED_NS < start
        assert end < mark_end + ALIGNED_NS


def test_times_agree_with_monotonic_stamps_within_50_us(tmp_path: Path) -> None:
    """Each stamp was taken inside its block, so it must lie between the block's edges, give or take the alignment."""
    stamps = []
    before = realtime_minus_monotonic()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for number in range(300):
            with record_function(f"block {number}"):
                stamps.append(monotonic_ns())
                torch.ones(64).sum()
        describe(profiler, [before[0], realtime_minus_monotonic()[0]])
    assert before[1] < ALIGNED_NS / 10
    assert export(profiler, tmp_path / "torch_profile.json.gz") is False
    (table,), _ = read_profiles(tmp_path, {})
    blocks = {row["name"]: row for row in table.to_pylist() if row["name"].startswith("block ")}
    assert len(blocks) == 300
    for number, stamp in enumerate(stamps):
        block = blocks[f"block {number}"]
        assert block["start_ns"] - ALIGNED_NS < stamp < block["start_ns"] + block["duration_ns"] + ALIGNED_NS


@pytest.mark.parametrize(("first", "schedule", "windows"), [
    (0, {"repeat": 3}, [(2, 3), (6, 7), (10, 11)]),
    (5, {"wait": 0, "warmup": 0, "active": 1, "repeat": 2}, [(5, 5), (6, 6)]),
])  # fmt: skip
def test_each_window_has_its_file_and_a_second_try_leaves_nothing_of_the_first(
    tmp_path: Path, recorder: StepRecorder, first: int, schedule: dict[str, int], windows: list[tuple[int, int]]
) -> None:
    for name in ("torch_profile.4.json.gz", "torch_profile.loader-3.json.gz"):
        (tmp_path / name).write_bytes(b"old")
    probe = TorchProfiler(settings(**schedule), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe.run_window(stepper(first), recorder)
    facts = recorded(probe)
    assert ([window[2:] for window in facts.windows], facts.workers) == (windows, ())
    names = [f"torch_profile{f'.{number}' if number > 1 else ''}.json.gz" for number in range(1, len(windows) + 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    tables, _ = read_profiles(tmp_path, facts.realtime_minus_monotonic_ns)
    for table, (start_ns, end_ns, begin, last) in zip(tables, facts.windows, strict=True):
        mm = [row["start_ns"] for row in table.to_pylist() if row["name"] == "aten::mm"]
        assert len(mm) == last - begin + 1
        assert all(start_ns - ALIGNED_NS < at < end_ns + ALIGNED_NS for at in mm)
    report = torch_profile("text", tables, facts)
    assert report is not None
    assert (report.steps, report.problems, report.gaps) == (sum(b - a + 1 for a, b in windows), (), ())


def test_what_was_asked_for_is_recorded(tmp_path: Path, recorder: StepRecorder) -> None:
    probe = TorchProfiler(settings(shapes=True, memory=True, stack=True, flops=True), tmp_path)
    probe.run_window(stepper(), recorder)
    facts = recorded(probe)
    (table,), _ = read_profiles(tmp_path, facts.realtime_minus_monotonic_ns)
    rows = table.to_pylist()
    assert {row["input_shapes"] for row in rows if row["name"] == "aten::mm"} == {"[[8, 32], [32, 32]]"}
    assert any(row["bytes"] == 8 * 32 * 4 for row in rows if row["name"] == "[memory]")
    assert any(row["category"] == "python_function" and "next_step" in row["name"] for row in rows)
    assert facts.flops["aten::mm"] == 2 * (2 * 8 * 32 * 32)


def test_recording_to_know_its_cost_leaves_no_file(tmp_path: Path) -> None:
    probe = TorchProfiler(settings(), tmp_path)
    next_step = stepper()
    for _ in range(2):
        probe.begin_repetition()
        next_step()
        probe.end_repetition()
    probe.end_repetition()
    assert probe.problems == []
    assert list(tmp_path.iterdir()) == []


def test_a_profile_that_is_too_large_is_cut_between_two_events(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(200):
            torch.ones(4).sum()
        describe(profiler, [0, 0])
    whole, text, cut = tmp_path / "whole.json.gz", tmp_path / "text.json", tmp_path / "cut.json.gz"
    assert export(profiler, whole) is False
    text.write_bytes(gzip.decompress(whole.read_bytes()))
    assert pack(text, cut, 20_000) is True
    assert len(gzip.decompress(cut.read_bytes())) < 21_000
    kept, all_of_it = read_profile(cut, 0), read_profile(whole, 0)
    assert 10 < len(kept) < len(all_of_it)
    assert kept.to_pylist() == all_of_it.to_pylist()[: len(kept)]
    # What is kept is what came first.
    assert max(kept.column("start_ns").to_pylist()) <= min(all_of_it.column("start_ns").to_pylist()[len(kept) :])
    assert header(cut)["cut"] is None
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, recorder: StepRecorder) -> None:
    probe = TorchProfiler(settings(), tmp_path)
    (tmp_path / "torch_profile.json.gz").mkdir()  # where the file should go
    probe.run_window(stepper(), recorder)
    (problem,) = probe.problems
    assert "window 1 could not be written" in problem


TOO_LARGE = """
import json, resource, signal, sys
from pathlib import Path
from harness.probes.ledger.recorders import StepRecorder
from harness.probes.profilers.torch_profiler import TorchProfiler
from tests.harness.probes.profilers.test_torch_profiler import settings, stepper

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
probe, next_step = TorchProfiler(settings(repeat=2), Path(sys.argv[1])), stepper()
next_step()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
probe.run_window(next_step, StepRecorder())
print("said", json.dumps(probe.problems))
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_disk_that_is_full_is_named_as_the_cause_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    """Here: no file may be larger than 1000 bytes."""
    command = [sys.executable, "-c", TOO_LARGE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("said ")] or [done.stderr]
    problems = json.loads(said.removeprefix("said "))
    assert len(problems) == 2
    assert all("could not be written (" in problem for problem in problems)
    assert all("is the disk full" in problem for problem in problems)
    assert [path for path in tmp_path.iterdir() if path.stat().st_size] == []
