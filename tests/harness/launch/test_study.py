"""Studies as the command line runs them: real processes, real data, tiny sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harness.launch.study as launch
from harness.launch.more_warmup import MAX_ADDED_STEPS
from harness.launch.preparation import StudyData
from harness.launch.study import resume_study
from harness.machine.processes import descendants
from harness.study.records import ArmRecord, StudyRecord
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.launch.running import (
    SCENARIO,
    alive,
    children,
    fork_servers,
    only_study,
    scenario,
    start,
    wait_for,
    wait_for_runs,
    wait_for_study,
)
from tests.trainer.data.conftest import write_parquet
from trainer.errors import InputError
from trainer.json_types import JsonObject


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interleave", "repetitions"), [("slices", 2), pytest.param("runs", 1, marks=pytest.mark.nightly), ("runs", 2)]
)
def test_a_study_leaves_what_the_contract_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interleave: str, repetitions: int
) -> None:
    if interleave == "runs" and repetitions == 2:  # what a long run does: its recorder writes after each of them
        monkeypatch.setattr("harness.launch.block.MAX_PLANNED_BATCHES", 3)
    page = tmp_path / "step-summary.md"
    words = ("--out", str(tmp_path / "out"), "--interleave", interleave)
    done = harness("run", scenario(tmp_path), *words, GITHUB_STEP_SUMMARY=str(page))
    assert done.returncode == 0, done.stderr
    assert "tokens against text:" in done.stdout
    assert "**tokens against text:" in page.read_text()
    assert "![" not in page.read_text()
    study = only_study(tmp_path / "out")
    record = study.read_study()
    assert record.status == "done"
    assert record.interleave == interleave
    assert len(record.id) == 12
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
        assert {row["turn"] for row in measured} == set(range(repetitions))
        settle = 3 if run.record.arm == "tokens" else 1  # workers x prefetch + 1
        warmup = 1 + repetitions * settle
        if run.record.arm == "tokens":  # and until prefetched batches are used up
            assert warmup <= len(rows) - 6 <= warmup + repetitions * MAX_ADDED_STEPS
        else:
            assert len(rows) - 6 == warmup
        assert all(row["loss"] is not None for row in rows)
        assert run.samples is not None
        assert run.spans is not None
        roles = set(run.spans.column("role").to_pylist())
        assert roles == ({"main", "loader-0", "receive"} if run.record.arm == "tokens" else {"main"})
    names = {path.name for path in study.path.iterdir()}
    assert {"study.json", "summary.md", "summary.json", "plots", "timeline.json.gz", "runs"} <= names
    assert not list(study.path.rglob("*.tmp"))
    summary = json.loads(study.summary_json.read_text())
    assert summary["status"] == "done"
    # The report is rebuilt from the tables alone.
    before = study.summary_json.read_text()
    study.summary_json.unlink()
    again = harness("report", str(study.path))
    assert again.returncode == 0, again.stderr
    assert study.summary_json.read_text() == before


@pytest.mark.slow
def test_a_run_that_dies_leaves_its_status_and_the_others_go_on_and_resume_completes(tmp_path: Path) -> None:
    """The arm with a learning rate that diverges fails by itself; the other one finishes all its blocks."""
    text = SCENARIO + "  \n"
    text = text.replace(
        "tokens: {data.path: tokens-padded, data.workers: 1}",
        "tokens: {optimizer.learning_rate: 1.0e+30, optimizer.lr_warmup_steps: 0, optimizer.clip_norm: null}",
    ).replace("steps: 6", "steps: 30")
    done = harness("run", scenario(tmp_path, text), "--out", str(tmp_path / "out"), "--repeats", "1")
    assert done.returncode == 1
    study = only_study(tmp_path / "out")
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


@pytest.mark.slow
def test_a_killed_run_is_named(tmp_path: Path) -> None:
    with start(tmp_path, "--repeats", "1", steps=100_000) as process:
        study = wait_for_study(tmp_path / "out")
        victim = wait_for_runs(process.pid)[0]
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: any(study.path.glob("runs/*/0/run.json")))
        process.send_signal(signal.SIGINT)
        process.wait(timeout=300)
    (path,) = study.path.glob("runs/*/0/run.json")
    record = json.loads(path.read_text())
    assert record["status"] == "failed"
    assert "killed by SIGKILL" in record["error"]


@pytest.fixture
def hangups_heard() -> Iterator[None]:
    """Under nohup they are ignored, and what is started from here would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.usefixtures("hangups_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.nightly)])
def test_interrupted_it_keeps_finished_runs_leaves_no_process_and_resumes(tmp_path: Path, number: int) -> None:
    with start(tmp_path, "--repeats", "2", "--interleave", "runs", steps=200) as process:
        study = wait_for_study(tmp_path / "out")
        wait_for(lambda: any(study.path.glob("runs/*/*/run.json")))
        wait_for_runs(process.pid)
        everyone = descendants([process.pid])
        process.send_signal(number)
        assert process.wait(timeout=300) == 130
    wait_for(lambda: not any(alive(pid) for pid in everyone))
    assert study.read_study().status == "interrupted"
    kept = {path: path.read_text() for path in study.path.glob("runs/*/*/run.json")}
    assert 1 <= len(kept) < 4
    assert study.summary_md.exists()
    resumed = harness("run", "--resume", str(study.path))
    assert resumed.returncode == 0, resumed.stderr
    assert len(list(study.path.glob("runs/*/*/run.json"))) == 4
    assert {path: path.read_text() for path in kept} == kept
    if number == signal.SIGTERM:
        again = harness("run", "--resume", str(study.path))
        assert (again.returncode, "every run of this study is done" in again.stderr) == (0, True)
        assert "0/0 runs" not in again.stderr


@pytest.mark.slow
def test_a_running_study_is_not_resumed_and_its_stopped_runs_end_when_it_is_killed(tmp_path: Path) -> None:
    with start(tmp_path, "--repeats", "1", steps=100_000) as process:
        study = wait_for_study(tmp_path / "out")
        wait_for_runs(process.pid, at_least=3)  # two runs and the loader worker of one of them
        done = harness("run", "--resume", str(study.path))
        assert done.returncode == 2
        assert "another process runs this study" in done.stderr
        everyone = descendants([process.pid])
        process.kill()
        process.wait(timeout=300)
    wait_for(lambda: not any(alive(pid) for pid in everyone))


@pytest.mark.slow
def test_when_the_fork_server_is_killed_its_runs_are_reported_failed_and_later_blocks_go_on(tmp_path: Path) -> None:
    with start(tmp_path, "--repeats", "2", steps=2000, module="harness") as process:
        study = wait_for_study(tmp_path / "out")
        wait_for_runs(process.pid, at_least=3)  # both, and a loader worker: one that comes later gets another server
        (server,) = fork_servers(process.pid)
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: len(list(study.path.glob("runs/*/0/run.json"))) == 2)
        wait_for(lambda: any(study.path.glob("runs/*/1/log.txt")))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
    for path in study.path.glob("runs/*/0/run.json"):
        record = json.loads(path.read_text())
        assert record["status"] == "failed"
        assert "fork server" in record["error"]
    assert study.read_study().status == "interrupted"
    assert study.summary_md.exists()


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


@pytest.mark.slow
def test_another_corpus_is_not_resumed_into_a_study(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(word: str) -> None:
        pq.write_table(
            pa.table({"text": [f"{word} {number} " * 9 for number in range(30)]}), tmp_path / "corpus.parquet"
        )

    write("one")
    words = ("--set", f"data.corpus.parquet={tmp_path}/corpus.parquet", "--set", "data.corpus.documents=30")
    done = harness("run", scenario(tmp_path), "--out", str(tmp_path / "out"), "--repeats", "1", "--json", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout == only_study(tmp_path / "out").summary_json.read_text()
    write("other")
    resumed = harness("run", "--resume", str(only_study(tmp_path / "out").path))
    assert resumed.returncode == 2
    assert "changed since the study began" in resumed.stderr


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
def test_interrupted_while_a_block_starts_it_says_no_traceback(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", path, "--out", str(tmp_path / "out")],
        stderr=subprocess.PIPE,
        text=True,
    )
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
def test_a_run_that_finds_another_corpus_than_the_study_was_begun_with_fails(
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
    done = harness("run", scenario(tmp_path, text), "--out", str(tmp_path / "out"))
    assert done.returncode == 1
    runs = {(run.record.arm, run.record.block): run.record for run in only_study(tmp_path / "out").runs()}
    assert [runs[arm, 0].status for arm in ("text", "tokens")] == ["done", "done"]
    for arm in ("text", "tokens"):
        assert (runs[arm, 1].error or "").startswith(f"the corpus {corpus} changed since the study began ")
