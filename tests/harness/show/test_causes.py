"""What removing a part would save, and what that does not know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.explain.replay.attribution import PathLink, PathTime, Removal
from harness.explain.replay.predict import Replays
from harness.explain.statistics import Estimate
from harness.judge.report_types import ArmExplained, ModelSpeed
from harness.show import why
from harness.show.names import ArmNames
from tests.cuda_stream import LAUNCH_BOUND, record
from tests.harness.show.studies import analysed
from tests.harness.synthetic import Arm


@pytest.mark.parametrize(
    ("kind", "emulation", "said"), [("kernel", None, True), ("kernel", "on paper", False), ("phase", None, False)]
)
def test_of_a_real_devices_kernels_it_says_that_a_full_queue_hides_savings(
    kind: str, emulation: str | None, said: bool
) -> None:
    (arm,) = analysed(Arm("a"), blocks=3).arms
    saved = Removal(kind, "forward", Estimate(2.0, 1.9, 2.1, 5), Estimate(1.2, 1.1, 1.3, 5))
    explained = ArmExplained(within_tolerance=True, removals=(saved,))
    arm = replace(arm, explained=explained, speed=ModelSpeed(emulation=emulation))
    text = why.savings([arm], ArmNames([arm.name]))
    assert f"forward ({kind})" in text
    assert ("A real device's queue may be full" in text) == said


def test_the_critical_path_is_listed_in_shares_without_its_short_links() -> None:
    (arm,) = analysed(Arm("a"), blocks=3).arms

    def listed(explained: ArmExplained) -> str:
        return why.critical_paths([replace(arm, explained=explained)], ArmNames([arm.name]))

    path = {
        PathLink("stage", "tokenize"): PathTime(6.0, 6.0, 6.0),
        PathLink("kernel", "forward"): PathTime(3.5, 0.5, 3.5),
        PathLink("launch", "forward"): PathTime(0.4, 0.4, 3.4),
        PathLink("phase", "log"): PathTime(0.1, 0.1, 0.1),
    }
    known = ArmExplained(critical_path_ms=path, within_tolerance=True)
    text = listed(known)
    assert "- a: tokenize (stage) 60 %, forward (kernel) 5.0 % to 35 % and launching forward 4.0 % to 34 %\n" in text
    assert "log" not in text
    assert not listed(ArmExplained(within_tolerance=True))
    assert not listed(replace(known, within_tolerance=False))  # of a replay that is off


def test_a_path_that_events_leave_open_says_so() -> None:
    """A long last kernel of each phase: the device may have waited for launches, and then data is on the path."""
    declared = replace(LAUNCH_BOUND, data_ms=1, last_us={"forward": 3000, "backward": 4000, "optimizer": 1500})
    found = Replays([record(declared).run]).critical_path_ms()
    tokenize = found[PathLink("stage", "tokenize")]
    assert (tokenize.least_ms, tokenize.most_ms) == (pytest.approx(0, abs=0.05), pytest.approx(1, abs=0.05))
