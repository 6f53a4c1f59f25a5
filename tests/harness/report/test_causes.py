"""What removing a part would save, and what that does not know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.analysis.replay.critical_path import PathLink
from harness.analysis.replay.removals import Removal
from harness.analysis.report_types import ArmExplained, ModelSpeed
from harness.analysis.statistics import Estimate
from harness.analysis.study import analyse
from harness.report import causes
from harness.report.names import ArmNames
from tests.harness.synthetic import Arm, build


@pytest.mark.parametrize(
    ("kind", "emulation", "said"), [("kernel", None, True), ("kernel", "on paper", False), ("phase", None, False)]
)
def test_of_a_real_devices_kernels_it_says_that_a_full_queue_hides_savings(
    kind: str, emulation: str | None, said: bool
) -> None:
    (arm,) = analyse(*build([Arm("a")], [])).arms
    saved = Removal(kind, "forward", Estimate(2.0, 1.9, 2.1, 5), Estimate(1.2, 1.1, 1.3, 5))  # type: ignore[arg-type]
    explained = ArmExplained(within_tolerance=True, removals=(saved,))
    arm = replace(arm, explained=explained, speed=ModelSpeed(emulation=emulation))
    text = causes.section([arm], ArmNames([arm.name]))
    assert f"forward ({kind})" in text
    assert ("A real device's queue may be full" in text) == said


def test_the_critical_path_is_listed_in_shares_without_its_short_links() -> None:
    (arm,) = analyse(*build([Arm("a")], [])).arms
    path = {
        PathLink("stage", "tokenize"): 6.0,
        PathLink("kernel", "forward"): 3.5,
        PathLink("launch", "forward"): 0.4,
        PathLink("phase", "log"): 0.1,
    }
    text = causes.section([replace(arm, explained=ArmExplained(critical_path_ms=path))], ArmNames([arm.name]))
    assert "- a: tokenize (stage) 60 %, forward (kernel) 35 % and launching forward 4.0 %\n" in text
    assert "log" not in text
    assert "critical path" not in causes.section([replace(arm, explained=ArmExplained())], ArmNames([arm.name]))
