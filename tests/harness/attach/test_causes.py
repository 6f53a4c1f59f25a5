"""What the agent finds of the causes of slow steps, on a CUDA device that is made up, and that it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.attach.frames import AttachedProcess, read
from harness.attach.run_record import RunOrigin, record_of
from harness.attach.steps import write_tables
from harness.explain.causes import BREAKS, SlowCause, slow_causes
from tests.harness.attach.running import PROGRAMS, Ran, losses, run_all

pytestmark = pytest.mark.slow

STEPS = 40
WAITS, OWN_MODE, LENGTHS = f"waits {STEPS}", f"waits {STEPS} 1", "compiled lengths"
VALUES, LAYERS, BROKEN, BROKEN_BEFORE = (f"compiled {name}" for name in ("values", "layers", "broken", "broken_before"))
FAULTS = [f"causes.{name}!{WAITS}" for name in ("_WaitAudit", "_counted", "_CallTimes")]
AUDITED = slice(4, 8)  # steps
WARNING = "called a synchronizing CUDA operation"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_all(tmp_path_factory.mktemp("alone") / "out", [WAITS], None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Ran], dict[int, AttachedProcess]]:
    folder = tmp_path_factory.mktemp("seen")
    programs = [WAITS, OWN_MODE, LENGTHS, VALUES, LAYERS, BROKEN, BROKEN_BEFORE, *FAULTS]
    ran = run_all(folder / "out", programs, folder / "raw", cold=False)
    return ran, {one.process.pid: one for one in read(folder / "raw")}


Seen = tuple[dict[str, Ran], dict[int, AttachedProcess]]


def causes(seen: Seen, program: str, folder: Path) -> dict[tuple[str, str], SlowCause]:
    """Return the causes of a program by kind and code."""
    ran, processes = seen
    one = processes[ran[program].pid]
    totals = write_tables(one, {}, lambda block: folder / str(block))
    runs = [record_of("script", block, one, part, RunOrigin({}, 0, "")) for block, part in enumerate(totals)]
    return {(cause.kind, cause.code): cause for cause in slow_causes([run.facts for run in runs])}


def line_of(code: str) -> int:
    (number,) = [
        number
        for number, line in enumerate((PROGRAMS / "waits.py").read_text().splitlines(), 1)
        if line.strip() == code
    ]
    return number


def last(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(line for line in ran.lines if line.startswith("{")))
    return found


def test_waits_and_copies_have_a_place_a_count_and_a_time(tmp_path: Path, seen: Seen) -> None:
    found = causes(seen, WAITS, tmp_path)
    assert not seen[1][seen[0][WAITS].pid].noted("cause_fault")
    by_name = found["device wait", code := "torch._C._cuda_synchronize()"]
    assert (by_name.place, by_name.times, by_name.share) == (f"waits.py:{line_of(code)}", 1, 1)
    audited = last(seen[0][WAITS])["waited"][AUDITED]
    assert by_name.ms is not None
    assert by_name.ms >= 1e3 * sum(audited) / len(audited) > 0
    read_value = found["device wait", code := "print(step, repr(item(loss)))"]
    assert (read_value.place, read_value.times) == (f"waits.py:{line_of(code)}", 1)
    assert read_value.ms is not None
    copy = found["copy", code := "batch = copied(batch)"]
    assert (copy.place, copy.times, copy.bytes) == (f"waits.py:{line_of(code)}", 1, 4 << 19)
    assert copy.ms is not None


def test_retries_of_the_allocator_are_counted_in_every_step_once_there_was_one(tmp_path: Path, seen: Seen) -> None:
    retries = causes(seen, WAITS, tmp_path)["retries", ""]
    expected = len([step for step in range(9, STEPS) if step % 3 == 0])  # seen first as step 8 ends
    assert (retries.times, retries.steps) == (expected, expected)
    assert retries.longer_ms is not None
    assert retries.longer_ms > 0


def test_a_compilation_is_counted_in_its_step(tmp_path: Path, seen: Seen) -> None:
    (found,) = [one for (kind, _), one in causes(seen, LENGTHS, tmp_path).items() if kind == "compiled"]
    assert (found.times, found.steps) == (3, 3)  # steps 5, 10 and 15
    assert found.longer_ms is not None


@pytest.mark.parametrize(("program", "reason"), [(LENGTHS, "size mismatch"), (VALUES, "self.scale == 1.")])
def test_a_compilation_has_its_function_and_its_reason(tmp_path: Path, seen: Seen, program: str, reason: str) -> None:
    (found,) = [one for (kind, _), one in causes(seen, program, tmp_path).items() if kind == "compiled"]
    assert reason in found.code
    lines = (PROGRAMS / "compiled.py").read_text().splitlines()
    forwards = [number for number, line in enumerate(lines, 1) if line.strip() == "def forward(self, x):"]
    assert found.place == f"compiled.py:{forwards[-1]}"


def test_a_compiled_model_of_torch_s_layers_has_no_place_in_the_program(tmp_path: Path, seen: Seen) -> None:
    (found,) = [one for (kind, _), one in causes(seen, LAYERS, tmp_path).items() if kind == "compiled"]
    assert "size mismatch" in found.code
    assert found.place == ""


def test_a_graph_break_has_its_place(tmp_path: Path, seen: Seen) -> None:
    (found,) = [one for one in causes(seen, BROKEN, tmp_path / "broken").values() if one.kind == BREAKS]
    lines = (PROGRAMS / "compiled.py").read_text().splitlines()
    line = next(number for number, line in enumerate(lines, 1) if "graph_break()" in line)
    assert (found.place, found.figures) == (f"compiled.py:{line}", {"breaks": 1.0})
    before = causes(seen, BROKEN_BEFORE, tmp_path / "before")
    assert [one for one in before.values() if one.kind == BREAKS] == []  # No step calls that function.


@pytest.mark.parametrize("program", [WAITS, *FAULTS])
def test_the_audit_changes_nothing_of_the_program(alone: dict[str, Ran], seen: Seen, program: str) -> None:
    ran, processes = seen
    assert (ran[program].code, ran[program].lines) == (0, [*losses(alone[WAITS].lines), ran[program].lines[-1]])
    end = last(ran[program])
    assert (end["restored"], end["caught"], end["mode"]) == (True, 0, 0)
    assert (1 in end["modes"]) == (program in (WAITS, FAULTS[1]))
    assert processes[ran[program].pid].noted("fault") == []
    assert bool(processes[ran[program].pid].noted("cause_fault")) == (program in FAULTS)


def test_a_program_with_a_mode_of_its_own_keeps_its_mode_and_its_warnings(seen: Seen) -> None:
    ran, processes = seen
    end = last(ran[OWN_MODE])
    assert (end["mode"], end["modes"]) == (1, [])
    assert [line for line in ran[OWN_MODE].lines if WARNING in line]
    assert processes[ran[OWN_MODE].pid].noted("cause") == []
