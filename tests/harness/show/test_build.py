"""Whole reports from the tables alone: complete, partial and empty studies, and the contract of summary.json."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.judge.study import analyse
from harness.show import learning, plots
from harness.show.build import build_report, draw
from harness.show.plots import NAMES
from harness.study.contract import PHASES, STAGES
from harness.study.store import StudyFolder
from tests.conftest import PICTURE
from tests.harness.show.studies import QUIET
from tests.harness.synthetic import Arm, build, write
from trainer.errors import InputError

BASE = Arm("text", tokenize=3.0)
CANDIDATE = Arm("tokens", tokenize=0.0, declared={"data.path": "tokens-padded"})
PAIR = [("text", "tokens")]


def report(folder, study, runs):
    """Its first screen, summary.json and summary.md."""
    found = StudyFolder(folder)
    write(found, study, runs)
    screen = build_report(folder)
    summary = json.loads(found.summary_json.read_text(), parse_constant=lambda name: pytest.fail(name))
    return screen, summary, found.summary_md.read_text()


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A study whose runs all finished, and its report: folder, first screen, summary and page. Change a copy only."""
    folder = tmp_path_factory.mktemp("complete")
    arms = [BASE, CANDIDATE, *BASE.controls("a-a", "ideal-data", "data-only"), *CANDIDATE.controls("data-only")]
    return folder, *report(folder, *build(arms, PAIR, blocks=3, noise=QUIET))


def test_a_complete_study(complete, tmp_path):
    folder, screen, summary, page = complete
    assert [headline.text for headline in screen.headlines] == [summary["comparisons"][0]["headline"]]
    assert " faster (" in summary["comparisons"][0]["sentence"]
    for name in NAMES:
        assert (folder / "plots" / name).read_bytes().startswith(PICTURE.png)
        assert f"(plots/{name})" in page
    titles = ["## Verdict\n", "## Verdicts in full", "## Arms", "## Controls", "## How to read"]
    assert sorted(titles, key=page.index) == titles
    for text in (
        "**Question:** Does the truth come out?",
        "harness run scenarios/synthetic.yaml",
        "git_commit 0123abc",
    ):
        assert text in page
    assert "no device profile for Synthetic CPU" in page
    assert not list(folder.rglob("*.tmp"))
    again = Path(shutil.copytree(folder, tmp_path / "study"))
    files = [path for path in again.rglob("*") if path.is_file() and "runs" not in path.parts]
    before = {path: path.read_bytes() for path in files}
    build_report(again)
    assert {path: path.read_bytes() for path in files} == before


def test_summary_json_keeps_the_contract(complete):
    _, _, summary, _ = complete
    assert summary["schema"] == 2
    assert (summary["scenario"], summary["status"], summary["emulated"]) == ("synthetic", "done", False)
    arm = summary["arms"]["text"]
    for name in ("tokens_per_s", "trained_tokens_per_s", "step_ms"):
        assert {"median", "ci_low", "ci_high", "n"} <= set(arm[name])
        assert arm[name]["ci_low"] <= arm[name]["median"] <= arm[name]["ci_high"]
        assert arm[name]["n"] == 3
    assert arm["mfu"] is None
    assert arm["mfu_reason"]
    assert set(arm["ledger"]) == set(PHASES)
    assert sum(arm["ledger"].values()) == pytest.approx(1)
    assert set(arm["exposed_ms"]) == set(STAGES)
    assert arm["exposed_ms"]["tokenize"] == pytest.approx(3.0, rel=0.3)  # the synthetic days swing by 10 %
    assert sum(arm["exposed_ms"].values()) == pytest.approx(arm["phase_ms"]["fetch"])
    assert arm["contended_ms"] == 0
    comparison = summary["comparisons"][0]
    assert (comparison["baseline"], comparison["candidate"], comparison["verdict"]) == ("text", "tokens", "gain")
    for name in ("isolated_ratio", "ceiling_ratio", "ideal_ratio", "measured_ratio", "predicted_ratio"):
        assert comparison[name]["ci_low"] <= comparison[name]["median"] <= comparison[name]["ci_high"]
    # replay knew it beforehand: the baseline's compute with the candidate's data path
    assert comparison["predicted_ratio"]["median"] == pytest.approx(comparison["measured_ratio"]["median"], rel=0.02)
    assert 0 < comparison["noise_floor"] < 0.1
    assert comparison["confounds"] == []
    assert summary["arms"]["text+a-a"]["control"] == "a-a"
    assert comparison["judged"]["kind"] == "gain"
    assert comparison["judged"]["cause"] is None
    measured = comparison["figures"]["measured"]
    assert measured == {"unit": "ratio of trained tokens/s", **comparison["measured_ratio"]}
    assert summary["doubts"] == arm["doubts"] == comparison["doubts"] == []


def test_a_partial_study_says_so_at_the_top(complete, tmp_path):
    candidate = replace(CANDIDATE, failed_blocks=(0, 1, 2))
    study = build([BASE, candidate, *BASE.controls("a-a")], PAIR, blocks=3, spans=False, status="failed")
    screen, summary, page = report(tmp_path, *study)
    assert "not measured" in screen.headlines[0].text
    top = page[: page.index("## Verdict")]
    assert "Partial study: 6 of 9 runs finished; missing: tokens/0, tokens/1 and tokens/2." in top
    assert "tokens: failed (killed by signal 9), blocks 0, 1, 2" in top
    assert summary["arms"]["tokens"]["tokens_per_s"] is None
    (comparison,) = summary["comparisons"]
    assert (comparison["measured_ratio"], comparison["verdict"]) == (None, "none")
    assert set(comparison) == set(complete[2]["comparisons"][0])
    assert [(tmp_path / "plots" / name).exists() for name in ("comparisons.png", "ledger.png")] == [False, True]


def test_a_study_without_any_run_is_still_a_report(tmp_path):
    study, _ = build([BASE, CANDIDATE], PAIR, status="interrupted")
    StudyFolder(tmp_path).write_study(study)
    assert "not measured" in build_report(tmp_path).headlines[0].text
    assert "No run has finished" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "timeline.json.gz").exists()


def test_a_run_whose_table_is_gone_is_named_and_the_others_are_reported(tmp_path):
    report(tmp_path, *build([BASE, CANDIDATE], PAIR, blocks=3, spans=False))
    (StudyFolder(tmp_path).run("tokens", 2) / "steps.parquet").unlink()
    build_report(tmp_path)
    page = (tmp_path / "summary.md").read_text()
    assert "Partial study: 5 of 6 runs finished; missing: tokens/2." in page
    assert "tokens: failed (it was done, but its steps.parquet is missing), block 2" in page
    assert json.loads((tmp_path / "summary.json").read_text())["arms"]["tokens"]["blocks"] == 2


def test_runs_that_are_none_of_the_study_or_have_no_step_are_named_and_not_counted(tmp_path):
    study, runs = build([BASE, Arm("tokens"), Arm("old", failed_blocks=(1,)), Arm("older")], [], blocks=3, spans=False)
    gone = [run for run in runs if (run.record.arm, run.record.block) == ("tokens", 1)]
    runs[0] = replace(runs[0], steps=runs[0].steps.slice(0, 0))
    _, summary, _ = report(tmp_path, replace(study, arms=study.arms[:2]), [run for run in runs if run not in gone])
    assert summary["problems"] == [
        "Partial study: 4 of 6 runs finished; missing: text/0 and tokens/1",
        "The runs in runs/old and runs/older belong to no arm of this study and are not counted",
        "text: done, but without a measured step in its tables, block 0",
    ]


def test_a_profiled_arm_is_planned_once():
    study, runs = build([BASE, BASE.variant("profiled")], [], blocks=3, spans=False)
    planned = [run for run in runs if run.record.control is None or run.record.block == 0]
    assert not [one for one in analyse(study, planned).problems if one.kind == "partial"]
    (partial,) = [one for one in analyse(study, planned[:-2]).problems if one.kind == "partial"]
    assert (partial.count, partial.planned, partial.names) == (2, 4, ("text/1", "text/2"))


def test_what_limits_a_verdict_stands_before_it(tmp_path):
    other = replace(CANDIDATE, environment={"torch": "2.12.0"}, facts={"emulated": True})
    _, summary, page = report(tmp_path, *build([BASE, other], PAIR, blocks=3, spans=False))
    line = "> **The arms also differ: environment: torch is '2.11.0' against '2.12.0' (tokens against text)**"
    assert page.index(line) < page.index("## Verdict\n") < page.index("- **tokens against text on ")
    assert summary["emulated"] is True
    assert "**Emulated:**" in page


@pytest.mark.slow
def test_importing_the_report_stays_light():
    code = "import sys, harness.show.build; print(sorted({'matplotlib', 'pyarrow', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_that_is_no_study_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="is this a study folder") as error:
        build_report(tmp_path)
    assert "\n" not in str(error.value)


def test_every_picture_is_written_and_removed_with_what_it_shows(complete, tmp_path, monkeypatch):
    study = StudyFolder(tmp_path)
    analysed = replace(analyse(StudyFolder(complete[0]).read_study(), []), step_times=())
    for name in (*NAMES, learning.PICTURE, learning.CHOICES_PICTURE):
        for shown in ({name: PICTURE}, {}):
            monkeypatch.setattr(plots, "pictures", lambda *_, shown=shown: dict(shown))
            draw(analysed, study, [], complete[1])
            assert [path.name for path in study.plots.glob("*.png")] == list(shown)
