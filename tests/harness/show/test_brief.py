"""The shortest answer of a study: small whatever it holds, and the figures of the study's page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.study import analyse
from harness.show.brief import _fitted, brief
from harness.show.build import build_report
from harness.show.first_screen import first_screen
from harness.show.lone_arms import cause_findings, loader_texts
from harness.show.policy import BRIEF_BYTES
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.synthetic import Arm, build, write

ENTRIES = st.lists(st.text(max_size=300), max_size=40)


@given(st.dictionaries(st.sampled_from(["comparisons", "findings", "doubts", "next"]), ENTRIES))
def test_an_answer_is_small_and_counts_what_it_leaves_out(lists: dict[str, list[str]]) -> None:
    whole = {name: [*texts] for name, texts in lists.items()}
    answer = _fitted({"schema": 1, "step_ms": {}}, lists)
    assert len(json.dumps(answer, separators=(",", ":")).encode()) < BRIEF_BYTES
    kept = {name: len(answer[name]) for name in whole}
    assert {name: answer[name] for name in whole} == {name: texts[: kept[name]] for name, texts in whole.items()}
    assert sum(kept.values()) + answer["left_out"] == sum(map(len, whole.values()))


def test_its_figures_are_those_of_the_summary(tmp_path: Path) -> None:
    write(StudyFolder(tmp_path), *build([Arm("text", tokenize=9.0), Arm("tokens")], [("text", "tokens")], spans=False))
    build_report(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    done = harness("explain", "--json", str(tmp_path))
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    answer, summary = json.loads(done.stdout), json.loads((tmp_path / "summary.json").read_text())
    (stated,), (whole,) = answer["comparisons"], summary["comparisons"]
    assert (stated["verdict"], stated["of"]) == (whole["verdict"], whole["measured_in"])
    ratio = whole["measured_ratio"]
    assert stated["ratio"] == pytest.approx([ratio["median"], ratio["ci_low"], ratio["ci_high"]], rel=5e-4)
    assert answer["step_ms"].keys() == {"text", "tokens"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_findings_are_of_the_arm_on_the_card() -> None:
    """The baseline works longer in a step, but the card describes the candidate."""
    facts = {"attached": "backward"}
    report = analyse(
        *build([Arm("a", tokenize=20.0, facts=facts), Arm("b", tokenize=5.0, facts=facts)], [("a", "b")], blocks=3)
    )
    answer = brief(report, first_screen(report))
    candidate = next(arm for arm in report.arms if arm.name == "b")
    assert answer["findings"]
    assert answer["also"] == cause_findings(candidate) + loader_texts(candidate, "b")
    assert [finding["ms"][0] for finding in answer["findings"]] == [
        pytest.approx(diagnosis.ms.median, rel=5e-4) for diagnosis in candidate.diagnoses
    ]
