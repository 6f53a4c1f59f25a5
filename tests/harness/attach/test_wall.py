"""The parts of a real program, attached: they sum to the wall clock of its steps, and of the whole command."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.explain.wall import AFTER_STEPS, EVALUATING_STEPS, MEASURED_STEPS, START_UP
from harness.judge.study import analyse
from tests.harness.attach.test_exec import attached, program, study_in


@pytest.mark.slow
@pytest.mark.parametrize("words", [("plain", "--steps", 60, "--evaluate-every", 10), ("own_time", "save", 80)])
def test_the_parts_of_a_program_sum_to_its_wall_clock(words: tuple[str | int, ...], tmp_path: Path) -> None:
    """An evaluation is a part of the program, and a slow line is a part of a step."""
    done = attached(tmp_path, program(str(words[0]), *words[1:]))
    assert done.returncode == 0, done.stderr
    study, evaluates = study_in(tmp_path), words[0] == "plain"
    (arm,) = analyse(study.read_study(), list(study.runs())).arms
    assert arm.wall is not None
    found = arm.wall
    whole = {one.name: one.ms for one in found.program}
    assert sum(part.ms.median for part in found.parts) == pytest.approx(found.step_ms.median)
    steps_ms = whole[MEASURED_STEPS] + whole[EVALUATING_STEPS]
    assert found.step_ms.median * found.steps == pytest.approx(steps_ms, rel=1e-3)  # shares are kept to four digits
    assert (whole[EVALUATING_STEPS] > 0) == evaluates == (found.total("evaluation") > 0)
    assert min(whole[START_UP], whole[AFTER_STEPS]) > 0
    assert evaluates <= ({"forward", "backward", "optimizer"} <= {part.name for part in found.parts})
    slow = [part for part in found.parts if part.kind == "code" and part.code == "time.sleep(0.2)"]
    assert [(part.function, part.share > 0.2) for part in slow] == [("slow", True)] * (not evaluates)
