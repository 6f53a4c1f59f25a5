"""The shortest answer of a study: small whatever it holds, and the figures of the study's page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.study import analyse
from harness.show.brief import _fitted, brief
from harness.show.first_screen import first_screen
from harness.show.policy import BRIEF_BYTES
from tests.commands import harness
from tests.harness.synthetic import Arm, build

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "results" / "reference" / "quickstart"
ENTRIES = st.lists(st.text(max_size=300), max_size=40)


@given(st.dictionaries(st.sampled_from(["comparisons", "findings", "doubts", "next"]), ENTRIES))
def test_an_answer_is_small_and_counts_what_it_leaves_out(lists: dict[str, list[str]]) -> None:
    entries = sum(map(len, lists.values()))
    first = {name: texts[:1] for name, texts in lists.items()}
    answer = _fitted({"schema": 1, "step_ms": {}}, lists)
    assert len(json.dumps(answer, separators=(",", ":")).encode()) < BRIEF_BYTES
    kept = {name: answer[name] for name in first}
    assert sum(map(len, kept.values())) + answer["left_out"] == entries
    if not answer["left_out"]:
        assert {name: texts[:1] for name, texts in kept.items()} == first


def test_its_figures_are_those_of_the_summary() -> None:
    before = {path: path.stat().st_mtime_ns for path in QUICKSTART.iterdir()}
    done = harness("explain", "--json", str(QUICKSTART))
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    answer, summary = json.loads(done.stdout), json.loads((QUICKSTART / "summary.json").read_text())
    (stated,), (whole,) = answer["comparisons"], summary["comparisons"]
    assert (stated["verdict"], stated["of"]) == (whole["verdict"], whole["measured_in"])
    ratio = whole["measured_ratio"]
    assert stated["ratio"] == pytest.approx([ratio["median"], ratio["ci_low"], ratio["ci_high"]], rel=5e-4)
    assert answer["step_ms"].keys() == {name for name, arm in summary["arms"].items() if arm["control"] is None}
    assert {path: path.stat().st_mtime_ns for path in QUICKSTART.iterdir()} == before


def test_findings_are_of_the_arm_on_the_card() -> None:
    """The baseline works longer in a step, but the card describes the candidate."""
    facts = {"attached": "backward"}
    report = analyse(*build([Arm("a", tokenize=20.0, facts=facts), Arm("b", tokenize=5.0, facts=facts)], [("a", "b")]))
    answer = brief(report, first_screen(report))
    candidate = next(arm for arm in report.arms if arm.name == "b")
    assert answer["findings"]
    assert [finding["ms"][0] for finding in answer["findings"]] == [
        pytest.approx(diagnosis.ms.median, rel=5e-4) for diagnosis in candidate.diagnoses
    ]
