"""Every doubt of a study as a record: of arms, of comparisons with their undeclared differences, and of probes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

import harness
from harness.judge.confounds import ConfoundKind
from harness.judge.doubts import DoubtKind
from harness.judge.predictions import few_blocks_remedy
from harness.judge.study import analyse, comparison_doubts, study_doubts
from harness.show.sentences import sentence
from harness.study.records import COMMAND, ArmRecord
from harness.study.store import StudyFolder
from tests.harness.synthetic import Arm, build, write

BUSY = Arm("text", tokenize=3.0, other_cpu_cores=0.9)


def test_every_kind_of_a_detector_is_in_the_table() -> None:
    kinds = set(get_args(DoubtKind))
    assert set(get_args(ConfoundKind)) - {"losses"} <= kinds  # "other loss" or "explained loss"


def test_an_undeclared_difference_is_a_doubt_that_bars_nothing() -> None:
    arms = [BUSY, *BUSY.controls("a-a"), Arm("tokens", tokenize=0.5)]
    report = analyse(*build(arms, [("text", "tokens")], blocks=3, spans=False))
    (c,) = report.compared
    assert c.measured.verdict == "gain"
    found = comparison_doubts(c)
    assert [(one.kind, one.bars) for one in found] == [("host load", "nothing")]
    assert found[0].arms == ("text", "tokens")
    assert set(found) <= set(study_doubts(report))


def test_an_arm_has_the_doubts_of_its_own_figures() -> None:
    facts = {"attached": "fetch: DataLoader without workers", "evaluating_steps": 3, "evaluating_share": 0.1}
    report = analyse(*build([Arm("script", nan_from=5, facts=facts)], blocks=2, spans=False))
    (arm,) = report.arms
    found = {one.kind: one for one in arm.doubts}
    assert list(found) == ["too few blocks", "diverged", "evaluation left out"]
    assert found["diverged"].share == 1.0
    assert found["evaluation left out"].share == 0.1
    remedy = found["too few blocks"].remedy
    assert (remedy.kind, remedy.blocks) == ("more steps", 5)  # its blocks are parts of one run


def test_a_loaded_study_has_them(tmp_path: Path) -> None:
    write(StudyFolder(tmp_path), *build([Arm("text"), Arm("tokens", tokenize=0.5)], [("text", "tokens")], blocks=3))
    loaded = harness.load(tmp_path)
    (verdict,) = loaded.verdicts
    assert (verdict.verdict, verdict.cause.kind) == ("undecided", "no noise floor")
    assert verdict.cause.remedy.kind == "a-a control"
    assert verdict.cause in verdict.doubts
    assert verdict.cause in loaded.doubts
    assert all(one.parts == () for one in loaded.ledger)


@pytest.mark.parametrize(
    ("status", "planned", "blocks", "remedy"),
    [
        ("interrupted", 5, 2, "finish the study"),
        ("failed", 3, 2, "finish the study"),
        ("done", 5, 2, "more blocks"),
        ("interrupted", 2, 1, "more blocks"),  # the rest of it would be no interval either
    ],
)
def test_an_unfinished_study_is_to_be_finished_before_more_blocks_are_asked_for(
    status: str, planned: int, blocks: int, remedy: str
) -> None:
    study, runs = build([Arm("text"), Arm("tokens", tokenize=0.5)], [("text", "tokens")], blocks=blocks, spans=False)
    report = analyse(replace(study, status=status, blocks=planned), runs)
    (c,) = report.compared
    few = [one for one in study_doubts(report) if one.kind == "too few blocks"]
    assert {one.remedy.kind for one in few if one.remedy is not None} == {remedy}
    assert {one.arms for one in few} == {(), ("text",), ("tokens",)}
    assert c.measured.cause in few
    assert ("--resume" in sentence(c)) == (remedy == "finish the study")


def test_an_a_a_control_of_too_few_blocks_is_to_be_finished_too() -> None:
    text = Arm("text")
    short = [replace(one, failed_blocks=(2, 3, 4)) for one in text.controls("a-a")]
    study, runs = build([text, *short, Arm("tokens", tokenize=0.5)], [("text", "tokens")], status="failed", spans=False)
    (c,) = analyse(study, runs).compared
    assert (c.measured.cause.kind, c.measured.cause.remedy.kind) == ("no noise floor", "finish the study")


@pytest.mark.parametrize("own", [{"scenario_file": ""}, {"arms": [ArmRecord("text", declared={COMMAND: "train.py"})]}])
def test_what_cannot_be_resumed_takes_more_blocks(own: dict[str, Any]) -> None:
    study, _ = build([Arm("text")], status="interrupted")
    assert few_blocks_remedy(study) == "finish the study"
    assert few_blocks_remedy(replace(study, **own)) == "more blocks"
