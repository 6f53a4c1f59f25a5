"""The parts of a step on a machine in use: what is known without the waits for a core, against the truth."""

from __future__ import annotations

from typing import Any

import pytest

from harness.explain.causes import WAITING, StepPart
from harness.judge.report_types import ArmReport
from harness.judge.study import analyse
from tests.harness.synthetic import NOISE, Arm, build

EXACT = dict.fromkeys(NOISE, 0.0)
ATTACHED = {"attached": "fetch: DataLoader without workers; backward"}
STEP_MS = 4.0 + 9.0 + 25.0 + 0.02  # 8 ms of these are waits for a core


def arm_of(waited_ms: float, off_core: dict[str, float], noise: dict[str, float] = EXACT, **facts: Any) -> ArmReport:
    known = {**ATTACHED, "waiting_share": waited_ms / STEP_MS, **facts}
    arm = Arm("script", read=4.0, tokenize=0.0, pack=0.0, transfer=0.0, workers=0,
              compute={"forward": 9.0, "backward": 25.0}, off_core=off_core, facts=known)  # fmt: skip
    (found,) = analyse(*build([arm], noise=noise)).arms
    return found


def by_name(arm: ArmReport) -> dict[str, StepPart]:
    return {one.name: one for one in arm.parts}


def test_what_had_no_core_is_a_part_of_its_own_and_the_others_are_without() -> None:
    found = arm_of(8.0, {"backward": 8.0})
    parts = by_name(found)
    assert {name: part.ms.median for name, part in parts.items()} == {
        "backward": pytest.approx(17.0, abs=0.1),
        "forward": pytest.approx(9.0, abs=0.1),
        WAITING: pytest.approx(8.0, abs=0.1),
        "fetch": pytest.approx(4.0, abs=0.1),
        "other": pytest.approx(0.02, abs=0.02),
    }
    assert sum(part.ms.median for part in found.parts) == pytest.approx(STEP_MS, rel=1e-3)
    assert sum(part.share for part in found.parts) == pytest.approx(1.0)


def test_a_wait_for_data_is_no_wait_for_a_core_and_the_interval_says_that_it_might_be() -> None:
    """The fetch runs for 0.2 of its 4 ms; of 8 ms that had no core it can have had a third, by the time off a core."""
    parts = by_name(arm_of(8.0, {"backward": 9.0, "fetch": 3.8}))
    fetch, backward = parts["fetch"].ms, parts["backward"].ms
    assert fetch.median == pytest.approx(4.0, abs=0.15)
    assert fetch.ci_low == pytest.approx(4.0 - 8.0 * 3.8 / 12.8, abs=0.1)
    assert backward.ci_low is not None
    assert backward.ci_high is not None
    assert backward.ci_low <= 17.2 <= backward.ci_high


def test_blocks_that_scatter_give_an_interval() -> None:
    parts = by_name(arm_of(8.0, {"backward": 8.0}, noise={**NOISE, "block": 0.05}))
    assert all(part.ms.ci_low is not None for part in parts.values())
    backward = parts["backward"].ms
    assert backward.ci_low is not None
    assert backward.ci_high is not None
    assert backward.ci_low < 17.0 < backward.ci_high


def test_the_finding_stands_where_verdict_and_prediction_are_barred() -> None:
    found = arm_of(8.0, {"backward": 8.0})
    assert [(one.kind, one.bars) for one in found.doubts] == [("no core", "all")]
    assert found.doubts[0].share == pytest.approx(8.0 / STEP_MS, abs=1e-3)
    assert found.explained.ideal_predicted is None
    assert found.parts


@pytest.mark.parametrize("facts", [{"waiting_share": 0.05}, {"waiting_share": None}])
def test_a_quiet_machine_needs_no_such_parts(facts: dict[str, Any]) -> None:
    assert arm_of(8.0, {"backward": 8.0}, **facts).parts == ()
