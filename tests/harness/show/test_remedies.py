"""The lines of the first screen that name what slows the steps of an attached program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.explain.causes import slow_causes
from harness.show.first_screen import first_screen
from harness.show.lone_arms import lone_lines
from harness.show.names import ArmNames
from harness.study.records import RunFacts
from tests.harness.show.studies import analysed
from tests.harness.synthetic import Arm

FACTS = {"attached": "fetch: DataLoader without workers; backward", "asynchronous": True}
PLACE = {"place": "train.py:88", "code": "losses.append(loss.item())", "times": 1.0, "bytes": 0}
COUNT = {"times": 2, "steps": 1, "of": 10, "ms": 60.0, "rest_ms": 90.0}


def lines(*causes: dict[str, Any]) -> dict[str, str]:
    """Return the first screen's lines about an arm of five blocks by subject."""
    report = analysed(Arm("script", facts={**FACTS, "causes": causes}), spans=False)
    return {one.subject: one.text for one in first_screen(report).headlines}


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ({"ms": 5.2}, "train.py:88 (`losses.append(loss.item())`), every step: 5.20 ms a step"),
        ({"times": 0.5}, "`), in 50 % of the steps. "),
        ({"times": 3.0}, "`), 3 times a step. "),
        # Two calls in each of two audited steps out of four are one a step on average.
        ({"share": 0.5}, "`), in 50 % of the steps. "),
        ({"share": 1.0}, "`), every step. "),
    ],
)
def test_a_wait_has_its_place_its_code_and_its_time_once_for_all_blocks(cause: dict[str, Any], said: str) -> None:
    text = lines({"kind": "device wait", "ms": None, **PLACE, **cause})["Waits for the device"]
    assert text.count(said) == 1


def test_a_copy_has_its_size() -> None:
    text = lines({"kind": "copy", "ms": 7.1, **PLACE, "bytes": 64_000_000})["Blocking copy"]
    assert "64 MB a step from pageable memory at train.py:88" in text
    assert "pin_memory=True" in text
    assert "pageable" not in lines({"kind": "copy", "ms": 7.1, **PLACE})["Blocking copy"]
    assert "64 MB" in lines({"kind": "pageable", "bytes": 64_000_000})["Pageable memory"]


@pytest.mark.parametrize(("kind", "subject"), [("retries", "Device memory"), ("compiled", "Compilation")])
def test_counts_of_all_blocks_are_summed(kind: str, subject: str) -> None:
    """A step of 60 ms, and nine of 10 ms, in each of five blocks."""
    text = lines({"kind": kind, **COUNT})[subject]
    assert "5 of 50 steps: such a step takes 50.0 ms longer" in text
    assert " 10 " in text  # times
    assert subject not in lines({"kind": kind, **COUNT, "times": 0, "steps": 0, "ms": 0.0})


def test_steps_are_launch_bound_unless_they_compile() -> None:
    """Nothing is launched meanwhile, so events alone would say so. A cause of a later version is left out."""
    later = {"kind": "moonlight", "phase": "full"}
    for causes, expected in (([later], {"Launch-bound"}), ([{"kind": "compiled", **COUNT, "ms": 60_000.0}], set())):
        (arm,) = analysed(Arm("script", facts={**FACTS, "causes": causes}), spans=False).arms
        bound = replace(arm, totals=replace(arm.totals, bounds={"launch": 5}))
        before, after = ({one.subject for one in lone_lines(one, ArmNames([arm.name]))} for one in (arm, bound))
        assert after - before == expected
        assert ("Compilation" in after) is (expected == set())


SAMPLED = {"kind": "sampled", "of": 10, "wall_ms": 1000.0, "looks": 100}


def spent(kind: str, place: str, ms: float, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "place": place, "code": f"work_at({place!r})", "spent_ms": ms, **more}


def test_collections_of_all_places_are_summed_and_only_a_place_with_most_of_them_is_named() -> None:
    near, far = (spent("gc", place, ms, times=2) for place, ms in (("a.py:1", 120.0), ("b.py:2", 80.0)))
    text = lines(SAMPLED, near, far)["Garbage collection"]
    assert "20.0 ms a step (20 %) in 20 collections, most of it at a.py:1 (`work_at('a.py:1')`)." in text
    assert "most of it" not in lines(SAMPLED, near, {**far, "spent_ms": 120.0})["Garbage collection"]
    assert "Garbage collection" not in lines(SAMPLED, spent("gc", "a.py:1", 20.0, times=2))


def test_collections_take_the_place_of_own_code_only_where_they_are_most_of_it() -> None:
    """Collections elsewhere do not explain what takes time here."""
    code = spent("code", "a.py:1", 300.0)
    assert "Own code" not in lines(SAMPLED, code, spent("gc", "a.py:1", 601.0, times=1))
    kept = lines(SAMPLED, code, spent("gc", "a.py:1", 200.0, times=1), spent("gc", "b.py:2", 300.0, times=1))
    assert "30.0 ms a step (30 %) at a.py:1" in kept["Own code"]


def test_a_place_that_some_block_saw_exactly_is_exact() -> None:
    facts = [{**FACTS, "causes": (SAMPLED, spent("code", "a.py:1", 300.0, late=late))} for late in (True, False)]
    (cause,) = slow_causes([RunFacts(**one) for one in facts])
    assert (cause.late, cause.step_ms, cause.looks) == (False, 30.0, 200)


def test_what_is_within_a_phase_or_may_be_chance_is_no_own_code() -> None:
    assert "Own code" not in lines(SAMPLED, spent("code", "a.py:1", 300.0, phase="forward"))
    assert "Own code" not in lines({**SAMPLED, "looks": 2}, spent("code", "a.py:1", 80.0))
    assert "Own code" in lines(SAMPLED, spent("code", "a.py:1", 80.0))
