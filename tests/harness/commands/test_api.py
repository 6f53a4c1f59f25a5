"""The public functions: a study's verdicts and tables, as its report and its folder have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import harness
from harness.study.store import StudyFolder
from tests.commands import ROOT
from trainer.errors import InputError

QUICKSTART = ROOT / "results" / "reference" / "quickstart"


def test_the_verdicts_are_those_of_the_report() -> None:
    found = harness.load(QUICKSTART).verdicts
    said = json.loads((QUICKSTART / "summary.json").read_text())["comparisons"]
    assert [(one.baseline, one.candidate, one.verdict) for one in found] == [
        (one["baseline"], one["candidate"], one["verdict"]) for one in said
    ]
    assert found[0].ratio == pytest.approx(said[0]["measured_ratio"]["median"])


@pytest.mark.parametrize("name", ["steps", "spans", "samples"])
def test_a_table_of_all_runs_says_of_which_each_row_is(name: str) -> None:
    table = harness.load(QUICKSTART).table(name)  # type: ignore[arg-type]
    assert table.column_names[:2] == ["arm", "block"]
    rows = {
        (run.record.arm, run.record.block): len(getattr(run, name))
        for run in StudyFolder(QUICKSTART).runs()
        if getattr(run, name) is not None and len(getattr(run, name))
    }
    counted = table.group_by(["arm", "block"]).aggregate([([], "count_all")]).to_pylist()
    assert {(one["arm"], one["block"]): one["count_all"] for one in counted} == rows


def test_what_is_no_study_or_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; is this a study folder"):
        harness.load(tmp_path)
    with pytest.raises(InputError, match=r"^table 'losses': allowed: steps, spans, samples, evaluations$"):
        harness.load(QUICKSTART).table("losses")  # type: ignore[arg-type]


def test_nothing_else_is_public() -> None:
    assert all(
        hasattr(harness, name) for name in harness.__all__ if name not in ("AccelerateTracker", "LightningCallback")
    )
    with pytest.raises(AttributeError, match="module 'harness' has no attribute 'launch_everything'"):
        _ = harness.launch_everything  # type: ignore[attr-defined]
