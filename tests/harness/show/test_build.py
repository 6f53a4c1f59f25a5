"""Whole reports from the tables alone: complete, partial and empty studies, and the contract of summary.json."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from harness.judge.comparisons import Measured
from harness.judge.confounds import Confound, ConfoundKind
from harness.judge.probes.machine_load import HostFinding, HostFindingKind
from harness.judge.report_types import (
    ArmExplained,
    ArmReport,
    ArmTotals,
    Comparison,
    Explained,
    ModelSpeed,
    NotCompared,
    StudyReport,
)
from harness.judge.study import analyse
from harness.show import learning, plots
from harness.show.build import build_report, draw
from harness.show.plots import NAMES
from harness.show.text.doubts import confound_lines
from harness.show.text.findings import host_finding
from harness.study.contract import PHASES, STAGES
from harness.study.store import StudyFolder
from tests.conftest import PICTURE, drawing
from tests.harness.synthetic import Arm, build, write
from trainer.errors import InputError

KINDS = ("a-a", "ideal-data", "data-only")
BASE = Arm("text", tokenize=3.0)
CANDIDATE = Arm("tokens", tokenize=0.0, declared={"data.path": "tokens-padded"})
PNG = PICTURE.png


def arms(**changes):
    candidate = Arm(**{**vars(CANDIDATE), **changes})
    return [BASE, candidate, *BASE.controls(*KINDS), *candidate.controls("data-only")]


def report(folder, arms, comparisons=(("text", "tokens"),), **how):
    study = StudyFolder(folder)
    write(study, *build(arms, list(comparisons), **how))
    screen = build_report(folder)
    summary = json.loads(study.summary_json.read_text(), parse_constant=lambda name: pytest.fail(name))
    return screen, summary, study.summary_md.read_text()


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A study whose runs all finished, and its report: folder, first screen, summary and page. Change a copy only."""
    folder = tmp_path_factory.mktemp("complete")
    with drawing():
        return folder, *report(folder, arms())


@pytest.fixture(scope="module")
def analysed(complete):
    folder = StudyFolder(complete[0])
    return analyse(folder.read_study(), list(folder.runs()))


@pytest.fixture(scope="module")
def partial(tmp_path_factory):
    """The same without any run of one arm."""
    folder = tmp_path_factory.mktemp("partial")
    return folder, *report(folder, arms(failed_blocks=(0, 1, 2, 3, 4)), status="failed")


def test_a_complete_study(complete):
    folder, screen, summary, page = complete
    assert [headline.text for headline in screen.headlines] == [summary["comparisons"][0]["headline"]]
    assert " faster (" in summary["comparisons"][0]["sentence"]
    for name in NAMES:
        assert (folder / "plots" / name).read_bytes().startswith(PNG)
        assert (folder / "plots" / name).stat().st_size > 10_000  # it is drawn
        assert f"(plots/{name})" in page
    assert "**Question:** Does the truth come out?" in page
    assert (
        page.index("## Verdict\n")
        < page.index("## Verdicts in full")
        < page.index("## Arms")
        < page.index("## Controls")
        < page.index("## How to read")
    )
    assert "harness run scenarios/synthetic.yaml" in page
    assert "git_commit 0123abc" in page
    assert "no device profile for Synthetic CPU" in page
    assert not list(folder.rglob("*.tmp"))


def test_summary_json_keeps_the_contract(complete):
    _, _, summary, _ = complete
    assert summary["schema"] == 2
    assert (summary["scenario"], summary["status"], summary["emulated"]) == ("synthetic", "done", False)
    arm = summary["arms"]["text"]
    for name in ("tokens_per_s", "trained_tokens_per_s", "step_ms"):
        assert {"median", "ci_low", "ci_high", "n"} <= set(arm[name])
        assert arm[name]["ci_low"] <= arm[name]["median"] <= arm[name]["ci_high"]
        assert arm[name]["n"] == 5
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


@pytest.mark.usefixtures("pictures")
def test_building_twice_gives_the_same_bytes(complete, tmp_path):
    folder = Path(shutil.copytree(complete[0], tmp_path / "study"))
    files = [path for path in folder.rglob("*") if path.is_file() and "runs" not in path.parts]
    before = {path: path.read_bytes() for path in files}
    build_report(folder)
    assert {path: path.read_bytes() for path in files} == before


def test_a_partial_study_says_so_at_the_top(partial):
    folder, screen, summary, page = partial
    assert "not measured" in screen.headlines[0].text
    top = page[: page.index("## Verdict")]
    assert "Partial study: 25 of 30 runs finished; missing: tokens/0, tokens/1, tokens/2 and 2 more." in top
    assert "tokens: failed (killed by signal 9), blocks 0, 1, 2, 3, 4" in top
    assert summary["arms"]["tokens"]["tokens_per_s"] is None
    assert summary["comparisons"][0]["measured_ratio"] is None
    assert summary["comparisons"][0]["verdict"] == "none"
    assert not (folder / "plots" / "comparisons.png").exists()
    assert (folder / "plots" / "ledger.png").exists()


def test_pictures_that_no_longer_hold_are_removed(complete, tmp_path):
    folder = Path(shutil.copytree(complete[0], tmp_path / "study"))
    assert (folder / "plots" / "comparisons.png").exists()
    report(folder, arms(failed_blocks=(0, 1, 2, 3, 4)), spans=False)
    assert not (folder / "plots" / "comparisons.png").exists()


def test_a_study_without_any_run_is_still_a_report(tmp_path):
    study, _ = build(arms(), [("text", "tokens")], status="interrupted")
    StudyFolder(tmp_path).write_study(study)
    assert "not measured" in build_report(tmp_path).headlines[0].text
    assert "No run has finished" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "timeline.json.gz").exists()


def test_a_run_whose_table_is_gone_is_named_and_the_others_are_reported(complete, tmp_path):
    shutil.copytree(complete[0], tmp_path, dirs_exist_ok=True)
    steps = StudyFolder(tmp_path).run("tokens", 2) / "steps.parquet"
    steps.unlink()
    assert "faster" in build_report(tmp_path).headlines[0].text
    page = (tmp_path / "summary.md").read_text()
    assert "Partial study: 29 of 30 runs finished; missing: tokens/2." in page
    assert "tokens: failed (it was done, but its steps.parquet is missing), block 2" in page
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["arms"]["tokens"]["blocks"] == 4


def test_runs_of_an_arm_that_the_study_does_not_have_are_named_and_not_counted(tmp_path):
    study, runs = build([BASE, Arm("tokens"), Arm("old", failed_blocks=(1,)), Arm("older")], [], blocks=3, spans=False)
    study = replace(study, arms=study.arms[:2])
    gone = [run for run in runs if (run.record.arm, run.record.block) == ("tokens", 1)]
    write(StudyFolder(tmp_path), study, [run for run in runs if run not in gone])
    build_report(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["problems"] == [
        "Partial study: 5 of 6 runs finished; missing: tokens/1",
        "The runs in runs/old and runs/older belong to no arm of this study and are not counted",
    ]


def test_a_profiled_arm_is_planned_once():
    profiled = BASE.variant("profiled")
    study, runs = build([BASE, profiled], [], blocks=3, spans=False)
    planned = [run for run in runs if run.record.control is None or run.record.block == 0]
    assert not [one for one in analyse(study, planned).problems if one.kind == "partial"]
    (partial,) = [one for one in analyse(study, planned[:-2]).problems if one.kind == "partial"]
    assert (partial.count, partial.planned, partial.names) == (2, 4, ("text/1", "text/2"))


def test_a_run_without_a_measured_step_counts_as_missing(tmp_path):
    study, runs = build([BASE], [], spans=False)
    runs[2] = replace(runs[2], steps=runs[2].steps.slice(0, 0))
    write(StudyFolder(tmp_path), study, runs)
    build_report(tmp_path)
    assert "text: done, but without a measured step in its tables, block 2" in (tmp_path / "summary.md").read_text()


def test_confounds_stand_in_bold_before_the_verdict(tmp_path):
    _, _, page = report(tmp_path, arms(environment={"torch": "2.12.0"}), spans=False)
    line = "> **The arms also differ: environment: torch is '2.11.0' against '2.12.0' (tokens against text)**"
    assert page.index(line) < page.index("## Verdict\n") < page.index("- **tokens against text: ")


def test_emulated_devices_are_labelled(tmp_path):
    _, summary, page = report(tmp_path, [Arm("text", facts={"emulated": True})], [], spans=False)
    assert summary["emulated"] is True
    assert "**Emulated:**" in page


def test_arm_names_and_questions_cannot_break_the_tables(tmp_path):
    _, _, page = report(tmp_path, [Arm("a|b_*c*")], [], blocks=3)
    assert "| a\\|b\\_\\*c\\* |" in page


@pytest.mark.slow
def test_importing_the_report_stays_light():
    code = "import sys, harness.show.build; print(sorted({'matplotlib', 'pyarrow', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_that_is_no_study_is_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="is this a study folder") as error:
        build_report(tmp_path)
    assert "\n" not in str(error.value)


def test_a_comparison_that_was_not_measured_has_every_key_of_one_that_was(complete, partial):
    _, _, measured, _ = complete
    _, _, missing, _ = partial
    assert set(missing["comparisons"][0]) == set(measured["comparisons"][0])


@pytest.mark.parametrize("kind", get_args(ConfoundKind))
def test_every_kind_of_confound_has_its_line(kind):
    (line,) = confound_lines([Confound(kind, ("a", "b"), "key", (0.25, 0.5), (1, 2), 0)])
    assert line
    assert "\n" not in line


@pytest.mark.parametrize("kind", get_args(HostFindingKind))
def test_every_finding_about_the_host_has_its_line(kind):
    assert "\n" not in (line := host_finding(HostFinding(kind, 0.5, 2.0, "main")))
    assert any(figure in line for figure in ("0.50", "50 %", "0 ", "1 "))


def test_records_of_the_analysis_cannot_be_changed():
    for one in (
        StudyReport,
        ArmReport,
        ArmTotals,
        ArmExplained,
        ModelSpeed,
        Comparison,
        NotCompared,
        Measured,
        Explained,
    ):
        assert one.__dataclass_params__.frozen, one


@pytest.mark.parametrize("name", [*NAMES, learning.PICTURE, learning.CHOICES_PICTURE])
def test_every_picture_is_written_and_removed_with_what_it_shows(complete, analysed, tmp_path, monkeypatch, name):
    _, screen, *_ = complete
    study = StudyFolder(tmp_path)
    for shown in ({name: PICTURE}, {}):
        monkeypatch.setattr(plots, "pictures", lambda *_, shown=shown: dict(shown))
        draw(replace(analysed, step_times=()), study, [], screen)
        assert [path.name for path in study.plots.glob("*.png")] == list(shown)
