"""The jobs that run studies, on a card on paper: their records, what an interrupted study leaves, their scenarios."""

from __future__ import annotations

import signal
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.scenario.load import load_scenario
from harness.scenario.plan import make_plan
from harness.study.store import StudyFolder
from tests.gpu.emulated import leased
from tests.gpu.jobs import crossover, studies
from tests.gpu.lease import processes
from tests.gpu.lease.place import EMULATED, Place
from tests.gpu.lease.processes import ROOT
from tests.gpu.lease.sheet import Figure, Result, Sheet

ARMS = {
    "gpt2-124m": {"eager", "compiled", "compiled-gelu", "fastest"},
    "founding-1b": {"text-padded", "tokens-padded", "text-stream", "tokens-stream"},
    "founding-8b": {"text-padded", "tokens-padded", "text-stream", "tokens-stream"},
}


def job(name: str, folder: Path) -> tuple[Path, dict[str, Figure]]:
    """Run the job on paper; the folder of its result, and its figures by name."""
    out, result = leased(name, folder)
    return out, {one.name: one for one in result.figures}


def place(out: Path, seconds: float) -> Place:
    sheet = Sheet(Result("job", "paper", True, "2026-11-28", "c"), out)
    return Place(EMULATED, out, out / "scratch", time.monotonic() + seconds, sheet)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ARMS)
def test_a_study_job_records_every_arm_and_verdict(name: str, tmp_path: Path) -> None:
    out, figures = job(name, tmp_path / "results")
    assert figures["blocks done"].seen == 1
    for arm in ARMS[name]:
        speed = figures[f"{arm}: tokens/s"].seen
        assert isinstance(speed, float)
        assert speed > 0
    with tarfile.open(out / studies.ARCHIVE) as tar:
        tar.extractall(tmp_path / "kept", filter="data")
    folder = StudyFolder(next((tmp_path / "kept").glob("*/*/study.json")).parent)
    pairs = {f"{pair.candidate} / {pair.baseline}" for pair in folder.read_study().comparisons}
    assert {one.removesuffix(": verdict") for one in figures if one.endswith(": verdict")} == pairs
    assert all(run.steps is not None for run in folder.runs() if run.record.control != "data-only")
    assert (out / "summary.md").read_text() == folder.summary_md.read_text()
    for path in (out / "summary.md", out / "study.json", out / "log.txt", folder.study_json):
        assert str(tmp_path) not in path.read_text()
        assert str(ROOT) not in path.read_text()
    assert {path.name for path in out.iterdir()} == {
        *("result.json", "log.txt", "summary.md", "summary.json", "study.json", "plots", studies.ARCHIVE)
    }


@pytest.mark.nightly
@pytest.mark.slow
def test_the_crossover_is_measured_and_predicted_at_every_point(tmp_path: Path) -> None:
    _, figures = job("crossover", tmp_path / "results")
    points = [one for name, one in figures.items() if name.endswith("pretokenized / on the fly")]
    assert len(points) == 6
    for one in points:
        assert isinstance(one.seen, float)
        assert float(one.asked.partition("x")[0]) > 1, "without data work a step is shorter"


@pytest.mark.nightly
@pytest.mark.slow
def test_an_interrupted_study_reports_its_finished_blocks(tmp_path: Path) -> None:
    here = place(tmp_path, 550)
    tmp_path.joinpath("many.yaml").write_text(
        """
name: many
question: many blocks?
base:
  compute: {device: {emulated: h200}, precision: bf16}
  data: {path: tokens-mmap, access: zero-copy}
  steps: 2
arms: {a: {}, b: {model.width: 64}}
repeats: 500
"""
    )
    one_block = tmp_path / "many"
    arguments = ["run", str(tmp_path / "many.yaml"), "--out", str(tmp_path)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as what a shell starts behind it inherits it
    try:
        studies.run_harness(here, arguments, lambda: any(one_block.glob("*/runs/*/1/run.json")), here.until)
    finally:
        signal.signal(signal.SIGINT, before)
    study = studies.read_study(here, "many", here.until)
    assert study.folder.read_study().status == "interrupted"
    assert set(study.arms) == {"a", "b"}
    studies.add_figures(replace(here, device="cuda"), study, 500)
    assert not here.sheet.is_whole, "it runs again in a later lease"
    blocks = here.sheet.result.figures[0].seen
    assert isinstance(blocks, int)
    assert 0 < blocks < 500


def test_a_killed_study_is_reported_by_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(studies, "run_harness", lambda _place, arguments, **_limits: ran.append(list(arguments)))
    folder = tmp_path / "name" / "1"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text("{}")
    study = studies.read_study(place(tmp_path, 60), "name", time.monotonic() + 60)
    assert ran == [["report", str(folder)]]
    assert (study.arms, study.comparisons) == ({}, [])


def test_a_scenario_that_left_nothing_is_a_figure_without_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "run_harness", lambda *_, **__: None)
    here = place(tmp_path, 60)
    assert studies.run_scenario(here, "gpt2-124m") is None
    assert [(one.name, one.seen) for one in here.sheet.result.figures] == [("study", None)]
    assert not here.sheet.is_whole


def test_a_figure_that_fails_is_recorded_as_missing(tmp_path: Path) -> None:
    here = place(tmp_path, 60)
    with studies.attempt(here, "speeds"):
        raise KeyError("mfu")
    here.add("next", 1.0)
    assert [(one.name, one.seen) for one in here.sheet.result.figures] == [("speeds", None), ("next", 1.0)]
    assert "KeyError" in here.sheet.result.figures[0].asked


def test_goals_are_judged_by_median_speed_and_mfu(tmp_path: Path) -> None:
    sheet = Sheet(Result("job", "card", False, "2026-11-28", "c"), tmp_path)
    card = Place("cuda", tmp_path, tmp_path, time.monotonic() + 60, sheet)
    arm = {"tokens_per_s": {"median": 400.0, "ci_low": 380.0, "ci_high": 420.0}, "mfu": 0.5}
    studies.add_speed(card, "a", arm, studies.Goal(390, 51, "over 390"))
    speed, mfu = sheet.result.figures
    assert (speed.seen, speed.low, speed.high, speed.holds) == (400, 380, 420, True)
    assert (mfu.seen, mfu.low, mfu.high, mfu.holds) == (50, 47.5, 52.5, False)


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(0.98, 1.02, 2.0), (None, None, None), (1.0, 1.0, 0.0)]
)  # fmt: skip
def test_half_an_interval_in_percent(low: float | None, high: float | None, expected: float | None) -> None:
    found = studies.half_width({"median": 1.0, "ci_low": low, "ci_high": high})
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("size", "found"), [(1e-3, "small"), (5e-3, "large")])
def test_a_crossover_lies_where_data_work_is_two_percent(
    size: float, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes ``flops`` x 1 ms on the device and 20 ms more for data: 2 % of it at 1,000."""
    monkeypatch.setattr(crossover, "gain", lambda _replays, point, _one: 1 + 20 / point.flops_per_token)
    points = [crossover.Point(name, 1, name, flops) for name, flops in (("small", 500.0), ("large", 4000.0))]
    ratio = {"ci_low": None, "ci_high": None}
    study: Any = SimpleNamespace(
        comparisons=[
            {"baseline": "small", "step_time_ratio": {"median": 1.04, **ratio}},
            {"baseline": "large", "step_time_ratio": {"median": 1 + 5 * size, **ratio}},
        ]
    )
    here = place(tmp_path, 60)
    crossover.add_crossover(here, study, points, SimpleNamespace(), points[0])  # type: ignore[arg-type]
    measured, predicted = here.sheet.result.figures
    assert measured.seen == found
    assert predicted.seen == pytest.approx(1000 / 1e9, rel=0.01)


@pytest.mark.parametrize("name", [*ARMS, "crossover-gpu"])
def test_a_study_on_a_card_measures_five_blocks_with_a_noise_floor(name: str) -> None:
    plan = make_plan(load_scenario(str(ROOT / "scenarios" / f"{name}.yaml")), name)
    assert {arm.config.compute.device for arm in plan.arms} == {"cuda"}
    assert len(plan.blocks) == (crossover.BLOCKS if name == "crossover-gpu" else 5)
    if name != "crossover-gpu":
        assert {pair.baseline for pair in plan.comparisons} == {arm.of for arm in plan.arms if arm.control == "a-a"}


@pytest.mark.parametrize("there", [True, False])
def test_bytecode_is_written_where_torch_has_none(there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "torch.pyc"
    if there:
        cached.touch()
    monkeypatch.setattr(processes, "find_spec", lambda _name: SimpleNamespace(cached=str(cached)))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    found = processes.environment()
    assert ("PYTHONDONTWRITEBYTECODE" in found, "PYTHONPYCACHEPREFIX" in found) == (there, not there)
