"""The campaign of slow trainings: what counts as right, and its page."""

from __future__ import annotations

import subprocess
from dataclasses import asdict, replace

import pytest

from tests.campaigns.cases.__main__ import HERE as FOLDER
from tests.campaigns.cases.__main__ import OURS, Case, Found, Row, attempted, judge
from tests.campaigns.cases.ordinary import SCRIPTS
from tests.campaigns.cases.page import page

WALLS = {"slow": [30.0, 60.0, 31.0], "fixed": [10.0, 20.0, 11.0]}  # the load doubles in the second turn
SAVE = Case(("checkpoint-bound",), "torch.save")
RIGHT = Found("checkpoint-bound", "train.py:3 torch.save(model)", 20.0, 0.66, 30.0, "Save less often.")
HEALTHY = Found("compute-bound", "backward", 9.0, 0.9, 10.0)


@pytest.mark.parametrize(
    ("slow", "fixed", "judged"),
    [
        (RIGHT, HEALTHY, (True, True, True, False)),
        (RIGHT, Found("checkpoint-bound", "torch.save", 1.0, 0.1, 10.0), (True, True, True, True)),
        (RIGHT, Found("checkpoint-bound", "torch.save", 5.0, 0.5, 10.0), (True, True, False, True)),
        (replace(RIGHT, ms=26.0, share=0.86), Found("checkpoint-bound", "torch.save", 5.0, 0.5, 10.0), (True,) * 4),
        (RIGHT, Found("checkpoint-bound", "torch.save", 0.3, 0.03, 10.0), (True, True, True, False)),
        (RIGHT, Found("checkpoint-bound", "save_file", 1.0, 0.1, 10.0), (True, True, True, False)),
        (Found("checkpoint-bound", "torch.save", 10.0, 0.33, 30.0), HEALTHY, (True, True, False, False)),
        (replace(RIGHT, share=0.33, at_least=True), HEALTHY, (True, True, None, False)),
        (replace(RIGHT, share=0.9, at_least=True), HEALTHY, (True, True, False, False)),
        (Found("checkpoint-bound", "save_file", 20.0, 0.66, 30.0), HEALTHY, (True, False, False, False)),
        (Found("own code", "torch.save", 20.0, 0.66, 30.0), HEALTHY, (False, False, False, False)),
    ],
)
def test_kind_place_and_size_are_asked_in_turn(slow: Found, fixed: Found, judged: tuple[bool | None, ...]) -> None:
    assert judge("saving", SAVE, WALLS, slow, fixed) == judged


def test_a_cause_without_a_cost_is_looked_for_below_the_first_diagnosis() -> None:
    case = Case(noted="setting anomaly")
    slow = Found("own code", "train.py:3", 1.0, 0.1, 10.0, noted=("padding ", "setting anomaly"))
    assert judge("left on", case, WALLS, slow, HEALTHY) == (True, True, None, False)
    assert judge("left on", case, WALLS, HEALTHY, slow) == (False, False, None, True)
    assert judge("logits", SAVE, WALLS, RIGHT, replace(RIGHT, share=0.04)) == (True, True, False, False)


def test_a_run_that_fails_is_a_row_that_has_the_reason() -> None:
    def run() -> dict[str, object]:
        raise subprocess.CalledProcessError(3, "train.py", stderr="Traceback\nValueError: no rows\n")

    assert attempted(run) == {"failed": "a run ended with code 3: ValueError: no rows"}


def test_the_page_counts_what_is_right_and_shows_false_findings_and_failures() -> None:
    row = Row(
        "saving", "common", WALLS["slow"], WALLS["fixed"], RIGHT, HEALTHY, True, True, False, False, None, "A|B", "C"
    )
    tried = asdict(row) | {"remedy_ratio": [3.0, 2.5, 3.5], "false_of_fixed": True}
    findings = [asdict(RIGHT) | {"true": ""}, asdict(HEALTHY) | {"true": "the model"}]
    text = page({
        "cases": {"saving": asdict(row), "tried": tried, "broken": {"failed": "a run took longer than 180 s"}},
        "ordinary": {"plain": {"findings": findings}, "silent": {"findings": []}},
        "others": {"versions": "TraceML 1, gpuprof 2"},
    })  # fmt: skip
    assert "Of 3 trainings" in text
    assert "cause in 2, its place, too, in 2. 2 causes have a size: it is within 20 % or 1 ms in 0" in text
    assert "names the cause in 1 without it" in text
    assert "| saving | common | 31.0, 11.0 | 67 % (65 % to 67 %) | 66 %, 20.0 ms |" in text
    assert "| truth: 2.82x | compute-bound, 90 % | A\\|B | C |" in text
    assert "| 3.00x (2.50x to 3.50x) | compute-bound, 90 % (false) |" in text
    assert "| broken | not measured: a run took longer than 180 s |" in text
    assert "nothing in particular slows: 1. False by hand: 1." in text
    assert "| plain | checkpoint-bound | train.py:3 torch.save(model) | 66 % | **false** |" in text
    assert "| plain | compute-bound | backward | 90 % | the model |" in text
    assert "| silent | none |" in text
    assert {
        line.count(" | ") for line in text.splitlines() if line.startswith("| saving") or line.startswith("| broken")
    } == {12}


def test_a_finding_is_true_up_to_its_share() -> None:
    plain, judged = SCRIPTS["plain loop"], SCRIPTS["accelerate"]
    assert [bool(judged.verdict("evaluation-bound", share)) for share in (0.07, 0.2)] == [True, False]
    assert not plain.verdict("evaluation-bound", 0.07)
    assert plain.verdict("compute-bound", 0.9)


def test_each_case_and_each_ordinary_training_has_its_program() -> None:
    programs = {path.stem for path in (FOLDER / "programs").glob("*.py")} - {"small"}
    assert programs == set(OURS)
    scripts = {path.name for path in (FOLDER / "scripts").glob("*.py")}
    assert scripts == {
        words[0].rpartition("/")[2] for words in (one.words for one in SCRIPTS.values()) if "/scripts/" in words[0]
    }
