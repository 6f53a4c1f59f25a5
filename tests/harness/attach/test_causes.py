"""What the agent finds of the causes of slow steps, on a CUDA device that is made up, and that it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.attach.run_record import RunOrigin, record_of
from harness.explain.causes import BREAKS, SlowCause, slow_causes
from tests.harness.attach.running import Ran, Recorded, chosen, losses, place_of, record_all, run_all

pytestmark = pytest.mark.slow

STEPS = 24
WAITS, OWN_MODE, LENGTHS = f"waits {STEPS}", f"waits {STEPS} 1", "compiled lengths"
VALUES, LAYERS, BROKEN, BROKEN_BEFORE = (f"compiled {name}" for name in ("values", "layers", "broken", "broken_before"))
FAULTS = [f"causes.{name}!{WAITS}" for name in ("_WaitAudit", "_counted", "_CallTimes")]
AUDITED = slice(4, 8)  # steps
WARNING = "called a synchronizing CUDA operation"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_all(tmp_path_factory.mktemp("alone") / "out", [WAITS], None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recorded:
    programs = [WAITS, OWN_MODE, LENGTHS, *chosen(request, [VALUES, LAYERS, BROKEN, BROKEN_BEFORE, *FAULTS])]
    return record_all(tmp_path_factory.mktemp("seen"), programs)


def causes(seen: Recorded, program: str, folder: Path) -> dict[tuple[str, str], SlowCause]:
    """Return the causes of a program by kind and code."""
    one, blocks = seen.of(program), seen.tables(program, folder).blocks
    runs = [record_of("script", block, one, part, RunOrigin({}, 0, "")) for block, part in enumerate(blocks)]
    return {(cause.kind, cause.code): cause for cause in slow_causes([run.facts for run in runs])}


def last(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(line for line in ran.lines if line.startswith("{")))
    return found


def test_waits_and_copies_have_a_place_a_count_and_a_time(tmp_path: Path, seen: Recorded) -> None:
    """Retries of the allocator are counted in every step once there was one."""
    found = causes(seen, WAITS, tmp_path)
    assert not seen.of(WAITS).noted("cause_fault")
    for kind, code, size in (
        ("device wait", "torch._C._cuda_synchronize()", 0),
        ("device wait", "print(step, repr(item(loss)))", 0),
        ("copy", "batch = copied(batch)", 4 << 17),
    ):
        cause = found[kind, code]
        assert (cause.place, cause.times, cause.share, cause.bytes or 0) == (place_of("waits", code), 1, 1, size)
        assert cause.ms is not None
    audited = last(seen.ran[WAITS])["waited"][AUDITED]
    assert (found["device wait", "torch._C._cuda_synchronize()"].ms or 0) >= 1e3 * sum(audited) / len(audited) > 0
    retries = found["retries", ""]
    expected = len([step for step in range(9, STEPS) if step % 3 == 0])  # seen first as step 8 ends
    assert (retries.times, retries.steps) == (expected, expected)
    assert retries.longer_ms is not None
    assert retries.longer_ms > 0


@pytest.mark.parametrize(
    ("program", "reason", "code"),
    [
        (LENGTHS, "size mismatch", "def forward(self, x):"),
        pytest.param(VALUES, "self.scale == 1.", "def forward(self, x):", marks=pytest.mark.nightly),
        # Of torch's layers: no place in the program.
        pytest.param(LAYERS, "size mismatch", "", marks=pytest.mark.nightly),
    ],
)
def test_a_compilation_is_counted_in_its_step_with_its_reason(
    tmp_path: Path, seen: Recorded, program: str, reason: str, code: str
) -> None:
    (found,) = [one for (kind, _), one in causes(seen, program, tmp_path).items() if kind == "compiled"]
    assert reason in found.code
    assert found.place == (place_of("compiled", code) if code else "")
    assert found.longer_ms is not None
    if program == LENGTHS:
        assert (found.times, found.steps) == (3, 3)  # steps 5, 10 and 15


@pytest.mark.parametrize("program", [BROKEN, pytest.param(BROKEN_BEFORE, marks=pytest.mark.nightly)])
def test_a_graph_break_has_its_place(tmp_path: Path, seen: Recorded, program: str) -> None:
    """No step calls the function that is broken before."""
    found = [one for one in causes(seen, program, tmp_path).values() if one.kind == BREAKS]
    place = place_of("compiled", "graph_break()  # in each step")
    assert [(one.place, one.figures) for one in found] == [(place, {"breaks": 1.0})] * (program == BROKEN)


@pytest.mark.parametrize("program", [WAITS, *FAULTS])
def test_the_audit_changes_nothing_of_the_program(alone: dict[str, Ran], seen: Recorded, program: str) -> None:
    ran, one = seen.ran[program], seen.of(program)
    assert (ran.code, ran.lines) == (0, [*losses(alone[WAITS].lines), ran.lines[-1]])
    end = last(ran)
    assert (end["restored"], end["caught"], end["mode"]) == (True, 0, 0)
    assert (1 in end["modes"]) == (program in (WAITS, FAULTS[1]))
    assert one.noted("fault") == []
    assert bool(one.noted("cause_fault")) == (program in FAULTS)


def test_a_program_with_a_mode_of_its_own_keeps_its_mode_and_its_warnings(seen: Recorded) -> None:
    end = last(seen.ran[OWN_MODE])
    assert (end["mode"], end["modes"]) == (1, [])
    assert [line for line in seen.ran[OWN_MODE].lines if WARNING in line]
    assert seen.of(OWN_MODE).noted("cause") == []
