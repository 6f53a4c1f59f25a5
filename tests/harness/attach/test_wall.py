"""The parts of a real program, attached: they sum to the wall clock of its steps, and of the whole command."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.explain.wall import AFTER_STEPS, EVALUATING_STEPS, MEASURED_STEPS, START_UP, Wall
from harness.judge.study import analyse
from tests.harness.attach.test_exec import attached, program, study_in

pytestmark = pytest.mark.slow


def wall_of(out: Path, command: list[str]) -> Wall:
    done = attached(out, command)
    assert done.returncode == 0, done.stderr
    study = study_in(out)
    (arm,) = analyse(study.read_study(), list(study.runs())).arms
    assert arm.wall is not None
    return arm.wall


@pytest.mark.parametrize("evaluates", [True, False])
def test_the_parts_of_a_program_sum_to_its_wall_clock(evaluates: bool, tmp_path: Path) -> None:
    found = wall_of(tmp_path, program("plain", "--steps", 60, *(["--evaluate-every", 10] * evaluates)))
    whole = {one.name: one.ms for one in found.program}
    assert sum(part.ms.median for part in found.parts) == pytest.approx(found.step_ms.median)
    steps_ms = whole[MEASURED_STEPS] + whole[EVALUATING_STEPS]
    assert found.step_ms.median * found.steps == pytest.approx(steps_ms, rel=1e-3)  # shares are kept to four digits
    assert (whole[EVALUATING_STEPS] > 0) == evaluates == (found.total("evaluation") > 0)
    assert min(whole[START_UP], whole[AFTER_STEPS]) > 0
    assert {"forward", "backward", "optimizer"} <= {part.name for part in found.parts}


def test_a_slow_line_of_the_program_is_a_part(tmp_path: Path) -> None:
    found = wall_of(tmp_path, program("own_time", "save", 200))
    (line,) = [part for part in found.parts if part.kind == "code" and part.code == "time.sleep(0.2)"]
    assert (line.function, line.share > 0.2) == ("slow", True)
