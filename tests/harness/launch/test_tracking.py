"""Experiment trackers: what they are told of a real study, and that none of them can hold anything up."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

from harness.launch.tracking import tracked_study
from harness.launch.tracking.tracked_study import MAX_WAITING_MESSAGES, NOTE, StudyTrackers, TrackerFeed, tracked
from harness.launch.tracking.trackers import NEEDS
from harness.scenario.model import TRACKERS, Scenario
from harness.study.records import StudyRecord
from harness.study.store import StudyFolder
from tests.commands import harness
from trainer.json_types import JsonObject

pytestmark = pytest.mark.slow  # each tracker is a process

OWN = """
import signal

class Tracker:
    def __init__(self, name):
        self.name = name
    def begin(self, run, parent, parameters, start_ms):
        print("a tracker prints")
        if self.name == "fails":
            raise RuntimeError("its server is down")
    def metrics(self, run, rows):
        if self.name == "hangs":
            while True:
                signal.pause()
    def attach(self, run, files): pass
    def end(self, run, status): pass
    def close(self): pass

def fails(): return Tracker("fails")
def hangs(): return Tracker("hangs")
def raises(): raise OSError("no disk")
"""
SCENARIO = """
name: tracked
question: Do both paths learn the same?
base:
  model: {preset: llama-tiny, layers: 1, width: 32}
  data:
    corpus: {builtin: python-docs, documents: 60}
    tokenizer: {train: {vocab_size: 512}}
    sequence_length: 16
    batch_size: 2
  optimizer: {schedule: linear, lr_warmup_steps: 2}
  compute: {device: cpu, threads: 1}
  evaluation: {fraction: 0.2, every_steps: 4, batches: 3}
  steps: 6
  warmup_steps: 1
arms:
  text: {data.path: text-padded}
  tokens: {data.path: tokens-padded}
controls: [data-only]
repeats: 1
slice_steps: 3
track: [jsonl, "own_trackers:fails", "own_trackers:raises"]
probes: {host: false, nvml: false}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_trackers.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def tracking_notes(study: StudyFolder) -> list[str]:
    """Return the notes on trackers. A busy machine adds one of its own."""
    return [note for note in study.read_study().notes if note.startswith(NOTE)]


def test_an_evaluated_study_and_what_its_trackers_keep_of_it(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "tracked.yaml").write_text(SCENARIO)
    done = harness("run", str(own / "tracked.yaml"), "--out", str(own / "out"), cwd=own)
    assert done.returncode == 0, done.stderr
    (path,) = (own / "out" / "tracked").iterdir()
    study = StudyFolder(path)

    # Evaluation: the same losses, passes outside of all steps, none in a control without a model.
    page = study.summary_md.read_text()
    assert "tokens and text have identical losses: all 9 training and 3 validation losses at common steps" in page
    assert "Evaluation: 6 passes" in page
    assert "plots/loss.png" in page
    assert (study.plots / "loss.png").stat().st_size > 0
    runs = {run.record.arm: run for run in study.runs()}
    assert runs["text+data-only"].evaluations is None
    for name in ("text", "tokens"):
        found = runs[name].evaluations
        assert found is not None
        assert found.column("step").to_pylist() == [3, 7, 8]
        spans = pq.read_table(study.run(name, 0) / "spans.parquet").to_pylist()
        passes = [one for one in spans if one["name"] == "evaluate"]
        assert [one["role"] for one in passes] == ["main"] * 3
        steps = pq.read_table(study.run(name, 0) / "steps.parquet").to_pylist()
        within = [(step["start_ns"], step["start_ns"] + step["wall_ns"]) for step in steps]
        assert not any(start < one["end_ns"] and one["start_ns"] < end for one in passes for start, end in within)
        assert steps[0]["learning_rate"] == pytest.approx(5e-4)  # the first of two steps of warmup

    # Trackers: what was lost is said in one line each, and the others have everything.
    notes = tracking_notes(study)
    assert len(notes) == 2
    assert notes[0] == f"{NOTE}own_trackers:fails: 7 of 10 messages recorded: RuntimeError: its server is down"
    assert notes[1].startswith(f"{NOTE}own_trackers:raises: 0 of 10 messages recorded: ")
    assert notes[1].endswith("OSError: no disk")
    assert "own_trackers:fails: 7 of 10 messages recorded" in page
    assert f"warning: {notes[0]}" in done.stderr
    (kept,) = (own / "out" / "tracking" / "jsonl").glob("*.jsonl")
    assert f"tracking: jsonl: {kept.parent}" in done.stderr.splitlines()
    lines = lines_of(kept)
    name = f"tracked/{path.name}"
    begun = {one["run"]: one for one in lines if one["event"] == "begin"}
    assert list(begun) == [name, "text/0", "tokens/0"]
    assert begun["text/0"]["parent"] == name
    assert begun["text/0"]["parameters"]["data.path"] == "text-padded"
    values = [one for one in lines if one["event"] == "metrics" and one["run"] == "tokens/0"]
    assert [one["validation_loss"] for one in values if "validation_loss" in one] == (
        runs["tokens"].evaluations.column("loss").to_pylist()  # type: ignore[union-attr]
    )
    assert [one["loss"] for one in values if "loss" in one] == runs["tokens"].steps.column("loss").to_pylist()  # type: ignore[union-attr]
    assert all(one["tokens_per_s"] > 0 and "learning_rate" in one for one in values if "loss" in one)
    attached = next(one for one in lines if one["event"] == "attach")
    assert {Path(one).name for one in attached["files"]} >= {"summary.md", "summary.json", "loss.png", "ledger.png"}
    assert [one["status"] for one in lines if one["event"] == "end"] == ["done"] * 3

    # One that hangs costs its time limit, and then says what it lost.
    record = study.read_study()
    asked = {**record.scenario_text, "track": ["own_trackers:hangs"], "limits": {"tracking_s": 1.5}}
    study.write_study(replace(record, scenario_text=asked))
    rebuilt: list[int] = []
    with tracked(path, lambda: rebuilt.append(1)):
        pass
    (note,) = tracking_notes(study)
    assert note.startswith(f"{NOTE}own_trackers:hangs: ")
    assert note.endswith("messages recorded: no answer in time")
    assert rebuilt == [1]

    # One that is not installed is not started.
    monkeypatch.setitem(NEEDS, "mlflow", ("json", "no_such_module_here"))
    study.write_study(replace(record, scenario_text={**record.scenario_text, "track": ["mlflow"]}))
    with tracked(path, lambda: rebuilt.append(2)):
        (note,) = tracking_notes(study)  # before the report is built, which shows it
    install = "pip install 'llm-training-harness[mlflow]'"
    assert note == f"{NOTE}mlflow: no_such_module_here not installed ({install})"
    assert rebuilt == [1]


def test_a_tracker_that_cannot_start_is_named_before_anything_runs(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study is refused here for want of memory: nothing runs."""
    monkeypatch.setitem(NEEDS, "mlflow", ("json", "no_such_module_here"))
    asked = '[jsonl, mlflow, "nowhere:tracker", "own_trackers:raises"]'
    (own / "tracked.yaml").write_text(SCENARIO.replace('[jsonl, "own_trackers:fails", "own_trackers:raises"]', asked))
    with mock.patch("harness.launch.needs.free_host_bytes", return_value=1):
        done = harness("run", str(own / "tracked.yaml"), "--out", str(own / "out"), cwd=own)
    assert (done.returncode, (own / "out").exists()) == (2, False)
    assert "needs at least " in done.stderr.partition("harness: ")[2]
    warnings = [line for line in done.stderr.partition("harness: ")[0].splitlines() if "gets no data" in line]
    install = "no_such_module_here not installed (pip install 'llm-training-harness[mlflow]')"
    assert warnings[0] == f"warning: track: mlflow gets no data: {install}"
    assert warnings[1].startswith("warning: track: nowhere:tracker gets no data: no module nowhere in ")
    assert len(warnings) == 2


class Hanging:
    """A feed that answers nothing: it makes whoever waits for it wait to the end. Its clock is nobody's."""

    now_s = 100.0
    given_s: list[float]  # to each that is closed

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def send(self, message: JsonObject, until_s: float) -> None:
        pass

    def lost(self, until_s: float) -> str:
        Hanging.now_s = max(Hanging.now_s, until_s)
        return "no answer in time"

    def end(self, until_s: float) -> None:
        Hanging.given_s.append(until_s - Hanging.now_s)


def test_one_that_hangs_in_the_runs_leaves_the_others_time_for_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a report that takes longer to build than trackers may take."""
    Hanging.given_s = []
    monkeypatch.setattr(tracked_study, "TrackerFeed", Hanging)
    monkeypatch.setattr(tracked_study, "monotonic", lambda: Hanging.now_s)
    trackers = StudyTrackers("s/1", ["jsonl", "own_trackers:hangs"], 120, tmp_path)
    record = StudyRecord("s", "?", "done")
    assert trackers.send_runs(record, []) == ["no answer in time"] * 2
    Hanging.now_s += 1000  # the report
    assert trackers.end("done", []) == []
    assert Hanging.given_s == [60, 60]


def test_a_folder_that_cannot_be_written_costs_its_tracker_alone(own: Path) -> None:
    (own / "to").mkdir()
    (own / "to" / "jsonl").write_text("a file")
    trackers = StudyTrackers("s/1", ["jsonl", "own_trackers:raises"], 60, own / "to")
    jsonl, other = trackers.end("done", [])
    assert jsonl.startswith("jsonl: not started (FileExistsError: ")
    assert other.endswith("OSError: no disk")


def begin(run: str = "s/1", parent: str | None = None) -> JsonObject:
    return {"do": "begin", "run": run, "parent": parent, "parameters": {"a.b": 1, "c": "x"}, "start_ms": 1000}


def rows(count: int) -> JsonObject:
    return {
        "do": "metrics", "run": "arm/0",
        "rows": [[step, 1000 + step, {"loss": 4.0 - step / 8, "step_ms": 2.5}] for step in range(count)],
    }  # fmt: skip


def test_a_tracker_that_hangs_or_is_killed_says_so_and_nobody_waits_for_it(own: Path) -> None:
    hangs, killed = TrackerFeed("own_trackers:hangs", own / "kept"), TrackerFeed("jsonl", own / "killed")
    for feed in (hangs, killed):
        feed.send(begin())
        assert feed.lost(monotonic() + 240) is None  # it works so far
    for _ in range(2 * MAX_WAITING_MESSAGES):  # more than the queue and any pipe hold: no call blocks
        hangs.send(rows(50))
    recorded = f"1 of {2 * MAX_WAITING_MESSAGES + 2} messages recorded"
    assert hangs.end(monotonic()) == f"own_trackers:hangs: {recorded}: no answer in time"
    with pytest.raises(ProcessLookupError):
        os.kill(hangs._process.pid, 0)
    assert "a tracker prints" in (own / "kept" / "tracker.log").read_text()  # not into what answers
    killed._process.kill()
    killed.send(rows(1))
    assert killed.end(monotonic() + 240) == "jsonl: 1 of 3 messages recorded: its process ended"


def test_a_loss_that_is_not_finite_stays_readable_json(own: Path) -> None:
    feed = TrackerFeed("jsonl", own / "kept")
    feed.send(begin())
    feed.send({"do": "metrics", "run": "s/1", "rows": [[0, 1, {"loss": math.nan}]]})
    assert feed.end(monotonic() + 240) is None
    assert lines_of(own / "kept" / "s-1.jsonl")[1]["loss"] == "nan"


def test_every_tracker_of_the_scenario_is_known() -> None:
    assert set(TRACKERS) == set(NEEDS)
    with pytest.raises(ValueError, match="allowed: jsonl, mlflow, tensorboard, wandb, trackio, or MODULE:FUNCTION"):
        Scenario.model_validate({"name": "x", "question": "?", "arms": {"a": None}, "track": ["mlfow"]})


def fed(name: str, folder: Path) -> Path:
    """A study of one run with 8 steps, its page and a picture, given to a real tracker."""
    from matplotlib.image import imsave

    page, picture = folder / "summary.md", folder / "loss.png"
    page.write_text("# found")
    imsave(picture, [[0.0, 1.0], [1.0, 0.0]])
    feed = TrackerFeed(name, folder / name)
    files: list[Any] = [str(page), str(picture)]
    for message in (
        begin(), begin("arm/0", "s/1"), rows(8), {"do": "end", "run": "arm/0", "status": "done"},
        {"do": "attach", "run": "s/1", "files": files}, {"do": "end", "run": "s/1", "status": "done"},
    ):  # fmt: skip
        feed.send(message)
    assert feed.end(monotonic() + 300) is None
    return folder / name


LOSSES = [4.0 - step / 8 for step in range(8)]


@pytest.mark.nightly
def test_mlflow_keeps_it_in_sqlite(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    pytest.importorskip("sqlalchemy", reason="the extra mlflow is not installed")
    folder = fed("mlflow", tmp_path)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("s")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"s/1", "arm/0"}
    arm, study = runs["arm/0"], runs["s/1"]
    assert arm.data.tags["mlflow.parentRunId"] == study.info.run_id
    assert arm.data.params == {"a.b": "1", "c": "x"}
    assert [one.value for one in client.get_metric_history(arm.info.run_id, "loss")] == LOSSES
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {one.path for one in client.list_artifacts(study.info.run_id)} == {"summary.md", "plots"}


@pytest.mark.nightly
def test_tensorboard_reads_its_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = fed("tensorboard", tmp_path)
    arm, study = (EventAccumulator(str(folder / name)).Reload() for name in ("s/1/arm/0", "s/1"))
    assert [(one.step, one.value) for one in arm.Scalars("loss")] == list(enumerate(LOSSES))
    assert study.Tags()["images"] == ["loss"]


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log, which a .wandb file is behind 7 bytes of its own within the first block."""
    block, at, held = 32_768, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block  # the rest of a block that no header fits into
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        held += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield held
            held = b""


@pytest.mark.nightly
def test_wandb_keeps_it_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    from wandb.proto import wandb_internal_pb2

    losses = []
    for path in (fed("wandb", tmp_path) / "wandb").glob("offline-run-*/*.wandb"):
        for data in leveldb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            items = [(one.key or ".".join(one.nested_key), one.value_json) for one in record.history.item]
            losses += [float(value) for key, value in items if key == "loss"]
    assert losses == LOSSES


@pytest.mark.nightly
def test_trackio_keeps_it_locally(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="the extra trackio is not installed")
    import sqlite3

    (path,) = fed("trackio", tmp_path).glob("*.db")
    with sqlite3.connect(path) as database:
        found = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    kept = [(step, json.loads(metrics)) for run, step, metrics in found if run.endswith("arm/0")]
    assert [(step, one["loss"]) for step, one in kept] == list(enumerate(LOSSES))
