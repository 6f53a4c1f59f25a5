"""The public functions: a study's verdicts and tables, as its report and its folder have them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import harness
from harness.commands.api import LoadedStudy
from harness.show.build import build_report
from harness.study.store import StudyFolder
from tests.commands import ROOT
from tests.harness.synthetic import Arm, build, write
from trainer.errors import InputError

QUICKSTART = ROOT / "results" / "reference" / "quickstart"


@pytest.fixture(scope="module")
def quickstart() -> LoadedStudy:
    return harness.load(QUICKSTART)


def test_the_verdicts_are_those_of_the_report(quickstart: LoadedStudy) -> None:
    found = quickstart.verdicts
    said = json.loads((QUICKSTART / "summary.json").read_text())["comparisons"]
    assert [(one.baseline, one.candidate, one.verdict) for one in found] == [
        (one["baseline"], one["candidate"], one["verdict"]) for one in said
    ]
    assert found[0].ratio == pytest.approx(said[0]["measured_ratio"]["median"])


def test_the_ledger_is_that_of_the_report_for_every_arm_and_control(quickstart: LoadedStudy) -> None:
    found = {one.arm: one for one in quickstart.ledger}
    arms = json.loads((QUICKSTART / "summary.json").read_text())["arms"]
    assert set(found) == set(arms)
    for name, arm in arms.items():
        assert (found[name].control, found[name].blocks, found[name].steps) == (
            arm["control"], arm["blocks"], arm["steps"]
        )  # fmt: skip
        for key in ("phase_ms", "exposed_ms", "hidden_ms", "contended_ms"):
            assert getattr(found[name], key) == pytest.approx(arm[key])
        assert found[name].mean_step_ms == pytest.approx(sum(arm["phase_ms"].values()))


class Reader(HTMLParser):
    """Collects the text of a page, and the elements that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.opened, self.seen = "", list[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.opened.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_the_first_screen_of_a_study_of_one_program(tmp_path: Path) -> None:
    """It has no comparison; a question with markup is text."""
    study, runs = build([Arm("script", tokenize=9.0)], [])
    write(StudyFolder(tmp_path), replace(study, question="Where does <script>the time</script> go?"), runs)
    loaded = harness.load(tmp_path)
    (ledger,) = loaded.ledger
    assert loaded.verdicts == ()
    assert ledger.exposed_ms["tokenize"] == pytest.approx(9.0, rel=0.1)
    page = Reader()
    page.feed(loaded._repr_html_())
    page.close()
    assert page.opened == []
    assert {"h1", "strong"} <= page.seen
    assert "script" not in page.seen
    assert "<script>the time</script>" in page.text
    assert str(tmp_path) in page.text
    build_report(tmp_path)
    (line,) = json.loads((tmp_path / "summary.json").read_text())["lone_arms"]
    assert line in " ".join(page.text.split())


def test_a_notebook_shows_every_comparison(quickstart: LoadedStudy) -> None:
    page = Reader()
    page.feed(quickstart._repr_html_())
    summary = json.loads((QUICKSTART / "summary.json").read_text())
    assert all(one["headline"] in page.text for one in summary["comparisons"])
    assert page.seen >= {"table", "th", "td"}


def test_a_table_of_all_runs_says_of_which_each_row_is(quickstart: LoadedStudy) -> None:
    runs = list(StudyFolder(QUICKSTART).runs())
    for name in ("steps", "samples"):
        table = quickstart.table(name)
        assert table.column_names[:2] == ["arm", "block"]
        rows = {
            (run.record.arm, run.record.block): len(getattr(run, name))
            for run in runs
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
    callbacks = {"AccelerateTracker", "HarnessCallback", "LightningCallback"}
    assert set(dir(harness)) == set(harness.__all__) - callbacks
    assert all(hasattr(harness, name) for name in (*dir(harness), "HarnessCallback"))
    assert harness.InputError is InputError
    with pytest.raises(AttributeError, match="module 'harness' has no attribute 'launch_everything'"):
        _ = harness.launch_everything  # type: ignore[attr-defined]


@pytest.mark.slow
def test_help_shows_the_entry_points_and_loads_no_framework() -> None:
    code = """
import harness, pydoc, sys
text = pydoc.plain(pydoc.render_doc(harness))
print(text)
print(*sys.modules, file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    functions = done.stdout.partition("\nFUNCTIONS\n")[2]
    assert all(f"\n    {name}(" in f"\n{functions}" for name in ("load", "record", "run", "span", "step"))
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & {"torch", "transformers", "lightning", "accelerate", "matplotlib"}
