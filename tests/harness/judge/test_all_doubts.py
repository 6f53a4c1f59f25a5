"""Every doubt of a study as a record: of arms, of comparisons with their undeclared differences, and of probes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import harness
from harness.judge.all_doubts import comparison_doubts, study_doubts
from harness.judge.confounds import ConfoundKind
from harness.judge.doubts import DoubtKind
from harness.judge.study import analyse
from harness.judge.verdicts import UndecidedKind
from harness.study.store import StudyFolder
from tests.harness.synthetic import Arm, build, write

BUSY = Arm("text", tokenize=3.0, other_cpu_cores=0.9)


def test_every_kind_of_a_detector_is_in_the_table() -> None:
    kinds = set(get_args(DoubtKind))
    assert set(get_args(UndecidedKind)) <= kinds
    assert set(get_args(ConfoundKind)) - {"losses"} <= kinds  # "other loss" or "explained loss"


def test_an_undeclared_difference_is_a_doubt_that_bars_nothing() -> None:
    report = analyse(*build([BUSY, *BUSY.controls("a-a"), Arm("tokens", tokenize=0.5)], [("text", "tokens")]))
    (c,) = report.compared
    assert c.measured.verdict == "gain"
    found = comparison_doubts(c)
    assert [(one.kind, one.bars) for one in found] == [("host load", "nothing")]
    assert found[0].arms == ("text", "tokens")
    assert set(found) <= set(study_doubts(report))


def test_an_arm_has_the_doubts_of_its_own_figures() -> None:
    facts = {"attached": "fetch: DataLoader without workers", "evaluating_steps": 3, "evaluating_share": 0.1}
    report = analyse(*build([Arm("script", nan_from=5, facts=facts)], blocks=2))
    (arm,) = report.arms
    found = {one.kind: one for one in arm.doubts}
    assert list(found) == ["too few blocks", "diverged", "evaluation left out"]
    assert found["diverged"].share == 1.0
    assert found["evaluation left out"].share == 0.1
    remedy = found["too few blocks"].remedy
    assert remedy is not None
    assert (remedy.kind, remedy.blocks) == ("more steps", 5)  # its blocks are parts of one run


def test_a_loaded_study_has_them(tmp_path: Path) -> None:
    write(StudyFolder(tmp_path), *build([Arm("text"), Arm("tokens", tokenize=0.5)], [("text", "tokens")]))
    loaded = harness.load(tmp_path)
    (verdict,) = loaded.verdicts
    assert verdict.cause is not None
    assert (verdict.verdict, verdict.cause.kind) == ("undecided", "no noise floor")
    assert verdict.cause.remedy is not None
    assert verdict.cause.remedy.kind == "a-a control"
    assert verdict.cause in verdict.doubts
    assert verdict.cause in loaded.doubts
    assert all(one.parts == () for one in loaded.ledger)
