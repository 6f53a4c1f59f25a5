"""The job known-truth on the emulated device, where the same code meets costs that are declared."""

from __future__ import annotations

import json
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.study.store import StudyFolder
from tests.cuda_stream import Declared, record
from tests.gpu.emulated import leased
from tests.gpu.jobs import known_truth
from tests.gpu.jobs.known_truth import row_of
from tests.gpu.lease.place import EMULATED, Place
from tests.gpu.lease.sheet import Figure, Result, Sheet
from tests.gpu.pipelines import CUDA, FEW, PIPELINES, Pipeline, scenario

# Kernels, microseconds to launch one and to run one: much like the models of tests/gpu/pipelines.py on an H200.
ON_PAPER: dict[str, dict[str, tuple[int, float, float]]] = {
    "launch": {"h2d": (2, 20, 2), "forward": (350, 18, 3), "backward": (700, 8, 3), "norm": (30, 8, 3),
     "optimizer": (10, 30, 10)},
    "device": {"h2d": (2, 20, 2), "forward": (70, 20, 75), "backward": (130, 10, 80), "norm": (8, 10, 60),
     "optimizer": (2, 150, 550)},
}  # fmt: skip
RECORDED = Path(__file__).parents[2] / "results" / "reference" / "gpu" / "h200" / "known-truth" / "study-0.tar.xz"
WITHIN = 10.0  # percent of the step, on a machine whose cores others use too


def place_in(folder: Path) -> Place:
    result = Result(job="known-truth", card="emulated", emulated=True, date="", commit="")
    return Place(EMULATED, folder / "out", folder / "work", time.monotonic() + 600, Sheet(result, folder / "out"))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.alone
def test_it_finds_what_the_emulated_device_declares(tmp_path: Path) -> None:
    out, result = leased("known-truth", tmp_path)
    figures = {figure.name: figure for figure in result.figures}
    waited = figures["waited for a core: the worst run"].seen
    assert isinstance(waited, float)
    for pipeline in FEW:
        for quantity in known_truth.QUANTITIES:
            figure = figures[f"{pipeline.name}: {quantity}"]
            assert figure.holds is None
            assert isinstance(figure.seen, float)
            assert abs(figure.seen) <= WITHIN + waited, figure
    assert figures["within 3 %"].unit == "of 10 figures"
    predicted = {(row["pipeline"], row["quantity"]): row for row in json.loads((out / "rows.json").read_text())}
    exposed = predicted["launch-inline", "exposed"]
    assert exposed["predicted_ms"] >= sum(FEW[0].stages.values())  # nothing hides it, and a sleep is never shorter
    hidden = predicted["device-inline-norm", "exposed"]
    assert hidden["predicted_ms"] < sum(FEW[1].stages.values())  # the optimizer hides some
    with tarfile.open(out / "study-0.tar.xz") as packed:
        packed.extractall(tmp_path / "study", filter="data")
    assert sum(run.record.status == "done" for run in StudyFolder(tmp_path / "study").runs()) == 8
    most = figures["warm-up: extra steps of a turn, most"].seen
    assert isinstance(most, int)
    assert 0 <= most <= 60
    too_fast = figures["warm-up: faster than the steady state"].seen
    assert isinstance(too_fast, float)
    assert abs(too_fast) <= WITHIN + waited


def test_a_study_that_leaves_nothing_is_reported_as_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_nothing(*_: str, log: Path, seconds: float) -> int:
        assert not log.exists()
        assert seconds <= 600
        return 1

    monkeypatch.setattr(known_truth, "harness", run_nothing)
    place = place_in(tmp_path)
    known_truth.run(place)
    result = Result.read(place.out)
    *missing, within = result.figures
    assert [figure.seen for figure in missing] == [None] * 10
    assert within == Figure("within 3 %", 0, "of 10 figures", asked="all 10 within 3 % of the step")


@pytest.mark.parametrize(("bound", "exposed_ms", "sync"), [("launch", 6.0, "norm"), ("device", 5.0, "late")])
def test_a_stream_on_paper_is_predicted_within_one_percent(bound: str, exposed_ms: float, sync: str) -> None:
    pipeline = Pipeline("inline", bound, {"tokenize": 6.0}, sync=sync)
    declared = Declared(ON_PAPER[bound], data_ms=6.0, sync=sync, steps=40, warmup=20)
    without = record(replace(declared, data_ms=0.05)).run
    runs = {pipeline.name: record(declared).run, pipeline.edited: without, pipeline.none: without}
    rows = {quantity: row_of(pipeline, quantity, runs) for quantity in known_truth.QUANTITIES}
    assert [quantity for quantity, row in rows.items() if abs(row.error) > 1.0] == []
    # Only a host that is a step ahead of its device hides all of it; one that waits for the norm, 1 ms.
    hidden = bound == "device" and sync == "late"
    assert rows["exposed"].predicted_ms == pytest.approx(0.0 if hidden else exposed_ms, abs=0.1)


def test_a_miss_on_a_card_is_told_apart_from_the_scatter_of_its_turns(tmp_path: Path) -> None:
    """Two runs of one configuration differed by 6 ms in a turn there, both ways."""
    with tarfile.open(RECORDED) as packed:
        packed.extractall(tmp_path, filter="data")
    runs = {run.record.arm: run for run in StudyFolder(tmp_path).runs()}
    rows = {one.name: row_of(one, "exposed", runs) for one in PIPELINES if one.bound == "launch"}
    missed = [name for name, row in rows.items() if abs(row.error) > known_truth.WITHIN]
    assert missed == ["launch-inline", "launch-inline-busy", "launch-inline-norm", "launch-fed"]
    beyond = [name for name, row in rows.items() if row.interval[1] < -known_truth.WITHIN]
    assert beyond == ["launch-fed"]
    # Student's t of 3 degrees of freedom, by hand: four differences between turns with a deviation of 1.3 ms.
    assert rows["launch-fed"].scatter_ms == pytest.approx(3.182 * 1.29 / 2, rel=0.01)


def test_both_models_have_six_kinds_of_loader_and_a_twin() -> None:
    assert len(PIPELINES) == 12
    for bound in CUDA:
        own = [one for one in PIPELINES if one.bound == bound]
        arms = scenario(own, CUDA)["arms"]
        assert len([name for name in arms if name.startswith("twin-")]) == 1
        for one in own:
            assert {one.name, one.edited, one.none} <= set(arms)
            assert arms[one.name] != arms[one.edited]
