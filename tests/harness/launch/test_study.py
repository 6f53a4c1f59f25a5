"""Studies as the command line runs them: real processes, real data, tiny sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import harness.launch.study as launch
from harness.launch.more_warmup import MAX_ADDED_STEPS
from harness.launch.preparation import StudyData
from harness.launch.process import RunProcess
from harness.launch.study import resume_study
from harness.machine.cpu import Load
from harness.machine.processes import descendants
from harness.study.records import ArmRecord, StudyRecord
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.launch.running import (
    SCENARIO,
    alive,
    before_repetitions,
    children,
    only_study,
    scenario,
    server_of,
    start,
    wait_for,
)
from tests.trainer.data.conftest import write_parquet
from trainer.errors import InputError
from trainer.json_types import JsonObject


@pytest.mark.slow
@pytest.mark.parametrize("interleave", ["slices", pytest.param("runs", marks=pytest.mark.nightly)])
def test_a_study_leaves_what_the_contract_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interleave: str
) -> None:
    """On a machine that others use, which is one of its notes."""
    if interleave == "runs":  # as in a long run, whose recorder writes after each repetition
        monkeypatch.setattr("harness.launch.block.MAX_PLANNED_BATCHES", 3)
    busy = Load(1.0, float(os.cpu_count() or 1), 0.0, (("make", 1.0),))
    monkeypatch.setattr("harness.launch.quiet._load_for", lambda *_: busy)
    page = tmp_path / "step-summary.md"
    words = ("--out", str(tmp_path / "out"), "--interleave", interleave)
    done = harness("run", scenario(tmp_path), *words, GITHUB_STEP_SUMMARY=str(page))
    assert done.returncode == 0, done.stderr
    assert "tokens against text:" in done.stdout
    assert "**tokens against text:" in page.read_text()
    assert "![" not in page.read_text()
    study = only_study(tmp_path / "out")
    record = study.read_study()
    assert (record.status, record.interleave, len(record.id)) == ("done", interleave, 12)
    (note,) = [one for one in record.notes if "this machine is busy" in one]
    assert "block 0" not in done.stderr.partition(f"warning: {note}\n")[0] != done.stderr
    runs = list(study.runs())
    assert [(run.record.arm, run.record.block) for run in runs] == [
        *(("text", 0), ("text", 1), ("tokens", 0), ("tokens", 1))
    ]
    for run in runs:
        assert run.record.status == "done"
        assert run.steps is not None
        rows = run.steps.to_pylist()
        assert run.record.config["seed"] == run.record.block  # every block sees other documents
        assert run.record.session.startswith(f"{record.id}.{run.record.block}-")
        measured = [row for row in rows if not row["warmup"]]
        assert len(measured) == 6
        assert {row["turn"] for row in measured} == {0, 1}
        ahead = run.record.arm == "tokens"
        warmup = 1 + 2 * (3 if ahead else 1)  # workers x prefetch + 1, and until prefetched batches are used up
        assert warmup <= len(rows) - 6 <= warmup + 2 * MAX_ADDED_STEPS * ahead
        assert all(row["loss"] is not None for row in rows)
        assert run.samples is not None
        assert run.spans is not None
        assert set(run.spans.column("role").to_pylist()) == {"main", *("loader-0", "receive") * ahead}
    names = {path.name for path in study.path.iterdir()}
    assert {"study.json", "summary.md", "summary.json", "plots", "timeline.json.gz", "runs"} <= names
    assert not list(study.path.rglob("*.tmp"))
    # The report is rebuilt from the tables alone.
    before = study.summary_json.read_text()
    assert json.loads(before)["status"] == "done"
    study.summary_json.unlink()
    again = harness("report", str(study.path))
    assert again.returncode == 0, again.stderr
    assert study.summary_json.read_text() == before


@pytest.mark.slow
def test_a_run_that_dies_leaves_its_status_and_the_others_go_on_and_resume_completes(tmp_path: Path) -> None:
    """The arm with a learning rate that diverges fails by itself; the other one finishes all its blocks."""
    text = SCENARIO.replace(
        "tokens: {data.path: tokens-padded, data.workers: 1}",
        "tokens: {optimizer.learning_rate: 1.0e+30, optimizer.lr_warmup_steps: 0, optimizer.clip_norm: null}",
    )
    done = harness("run", scenario(tmp_path, text), "--out", str(tmp_path / "out"), "--repeats", "1", "--json")
    assert done.returncode == 1
    study = only_study(tmp_path / "out")
    assert done.stdout == study.summary_json.read_text()
    assert study.read_study().status == "failed"
    failed, fine = study.read_record("tokens", 0), study.read_record("text", 0)
    assert failed is not None
    assert fine is not None
    assert (failed.status, fine.status) == ("failed", "done")
    assert "the gradient norm is" in (failed.error or "")
    assert "FloatingPointError" in (study.run("tokens", 0) / "log.txt").read_text()
    assert "failed" in study.summary_md.read_text()
    assert "harness run --resume" in done.stderr
    # Mended (the recorded configuration is what a resume runs), it completes; what was done is not run again.
    record = study.read_study()
    record.arms[1].config["optimizer"] = record.arms[0].config["optimizer"]
    study.write_study(record)
    resumed = harness("run", "--resume", str(study.path))
    assert resumed.returncode == 0, resumed.stderr
    assert study.read_study().status == "done"
    mended = study.read_record("tokens", 0)
    assert mended is not None
    assert mended.status == "done"
    assert study.read_record("text", 0) == fine
    again = harness("run", "--resume", str(study.path))
    assert (again.returncode, "every run of this study is done" in again.stderr) == (0, True)
    assert "0/0 runs" not in again.stderr


@pytest.fixture
def hangups_heard() -> Iterator[None]:
    """Under nohup they are ignored, and what is started from here would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.usefixtures("hangups_heard")
def test_a_killed_fork_server_costs_its_block_and_an_interrupted_study_leaves_no_run_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block 0 loses its fork server, block 1 is whole, and a signal comes in block 2."""
    runs: list[int] = []  # and their workers

    def disturb(run: RunProcess, repetition: int) -> None:
        if run.record.block == 0:
            with suppress(ProcessLookupError):  # killed before
                os.kill(server_of(run), signal.SIGKILL)
        if (run.record.block, repetition) == (2, 1):
            runs.extend(descendants([server_of(run)]))
            signal.raise_signal(signal.SIGHUP)

    before_repetitions(monkeypatch, disturb)
    words = ("--out", str(tmp_path / "out"), "--repeats", "3", "--set", "compute.work=none")
    done = harness("run", scenario(tmp_path), *words)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert "--resume" in done.stderr
    assert len(runs) >= 3
    wait_for(lambda: not any(alive(pid) for pid in runs))
    study = only_study(tmp_path / "out")
    records = {(run.record.arm, run.record.block): run.record for run in study.runs()}
    assert [records[arm, 1].status for arm in ("text", "tokens")] == ["done", "done"]
    for arm in ("text", "tokens"):
        assert records[arm, 0].status == "failed"
        assert "fork server" in (records[arm, 0].error or "")
    assert study.read_study().status == "interrupted"
    assert study.summary_md.exists()
    monkeypatch.undo()
    resumed = harness("run", "--resume", str(study.path))
    assert resumed.returncode == 0, resumed.stderr
    again = {(run.record.arm, run.record.block): run.record for run in study.runs()}
    assert [run.status for run in again.values()] == ["done"] * 6
    assert all(again[arm, 1] == records[arm, 1] for arm in ("text", "tokens"))


@pytest.mark.slow
def test_the_suspended_runs_of_a_launcher_that_is_killed_end_with_it(tmp_path: Path) -> None:
    with start(tmp_path, steps=100_000) as process:
        wait_for(lambda: len(descendants([process.pid])) >= 4)  # a fork server, two runs, the loader worker of one
        everyone = descendants([process.pid])
        process.kill()
        process.wait(timeout=300)
    wait_for(lambda: not any(alive(pid) for pid in everyone))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "line"), [
    (["--set", "model.vocab_size=100"], "model.vocab_size: 100 is smaller than the tokenizer's vocabulary"),
    (["--set", "compute.device=cuda"], "compute.device: cuda, but there is no NVIDIA device"),
    (["--set", "data.corpus.documents=1", "--set", "data.tokenizer.pretrained=nowhere/none"], "data.tokenizer"),
])  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_runs(tmp_path: Path, words: list[str], line: str) -> None:
    if "cuda" in line and Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has CUDA")
    done = harness("run", scenario(tmp_path), "--out", str(tmp_path / "out"), *words)
    assert done.returncode == 2
    assert line in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("scenario_text", "config", "order", "problem"), [
    ({}, {"seed": 0}, [["a"]], "slice_steps: missing"),
    ({"slice_steps": "5"}, {"seed": 0}, [["a"]], "slice_steps: expected a whole number, got '5'"),
    ({"slice_steps": 5}, {"seed": None}, [["a"]], "seed: expected a whole number, got None"),
    ({"slice_steps": 5}, {"seed": 0}, [["a"], ["a", "b"]], "order: no arm is called b"),
    ({"slice_steps": -1}, {"seed": 0}, [["a"]], "slice_steps: 1 to 100,000"),
    ({"slice_steps": 10**12}, {"seed": 0}, [["a"]], "slice_steps: 1 to 100,000"),
    ({"slice_steps": 5}, {"seed": 0, "data": {"batch_size": {}}}, [["a"]],
     "config of a: data.batch_size: Input should be a valid integer"),
    ({"slice_steps": 5}, {"seed": 0}, [["a"]], "scenario_text.probes: not valid settings of a run: Key"),
])  # fmt: skip
def test_a_study_that_no_longer_says_what_to_run_is_not_resumed(
    tmp_path: Path, scenario_text: JsonObject, config: JsonObject, order: list[list[str]], problem: str
) -> None:
    arms = [ArmRecord("a", config=config)]
    record = StudyRecord("tiny", "?", "interrupted", scenario_text=scenario_text, order=order, arms=arms)
    StudyFolder(tmp_path).write_study(record)
    with pytest.raises(InputError) as refused:
        resume_study(tmp_path, ["harness"])
    assert str(refused.value).startswith(f"{tmp_path / 'study.json'}: {problem}")


def test_a_study_that_is_done_shows_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "record_environment", dict)
    record = StudyRecord("tiny", "?", "failed", scenario_text={"slice_steps": 5})
    assert launch._execute(StudyFolder(tmp_path), record, StudyData([], {}, {}), launch.DEFAULTS).status == "done"
    assert capsys.readouterr().err == "every run of this study is done\n"


@pytest.mark.slow
@pytest.mark.nightly
def test_interrupted_while_a_block_starts_it_says_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "run", scenario(tmp_path), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: bool(children(process.pid)) and any((tmp_path / "out").glob("tiny/*/study.json")))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "--resume" in said


def test_an_output_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file, not a folder")
    done = harness("run", scenario(tmp_path), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert f"--out {tmp_path / 'out'}: cannot write there" in done.stderr


@pytest.mark.slow
def test_another_corpus_fails_the_runs_that_find_it_and_is_not_resumed_into_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes the user's file anew between two blocks: half of the study would read other documents."""
    corpus = tmp_path / "corpus.parquet"
    write_parquet(corpus, ["one document", "two documents", "three documents"] * 20)
    text = SCENARIO.replace("{builtin: python-docs, documents: 60}", f"{{parquet: {corpus}}}")
    run_block = launch.run_block

    def run_block_and_replace(*given: Any) -> None:
        run_block(*given)
        write_parquet(corpus, ["another document", "and one more"] * 30)

    monkeypatch.setattr(launch, "run_block", run_block_and_replace)
    done = harness("run", scenario(tmp_path, text), "--out", str(tmp_path / "out"), "--set", "compute.work=none")
    assert done.returncode == 1
    study = only_study(tmp_path / "out")
    runs = {(run.record.arm, run.record.block): run.record for run in study.runs()}
    for arm in ("text", "tokens"):
        assert runs[arm, 0].status == "done"
        assert (runs[arm, 1].error or "").startswith(f"the corpus {corpus} changed since the study began ")
    resumed = harness("run", "--resume", str(study.path))
    assert resumed.returncode == 2
    assert "changed since the study began" in resumed.stderr
