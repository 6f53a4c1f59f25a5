"""Studies in jobs of a real Slurm with two nodes on this machine: gathered, cancelled, resumed, waited for in vain."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.launch.preparation import recorded_configs
from harness.launch.slurm import batch, study
from harness.study.store import StudyFolder
from tests import slurm
from tests.commands import ROOT, Done, harness
from tests.harness.launch.running import SCENARIO, only_study, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(slurm.missing() is not None, reason=slurm.missing() or "")]
# Without a model: what is tested is where the runs are, and who says what became of them.
TINY = SCENARIO.replace(
    "  steps: 6\n",
    """  steps: 6
  compute: {work: none, inject: {forward_ms: 5, how: sleep}}
  launch: {slurm: {partition: main, exclusive: false, time: "5"}}
""",
)


@pytest.fixture(scope="module")
def conf() -> Iterator[Path]:
    with slurm.cluster() as found:
        yield found


@pytest.fixture
def scenario(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setenv("PATH", slurm.PATH)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def jobs_of(folder: Path, submission: int) -> str:
    return str(json.loads((folder / "slurm" / str(submission) / "jobs.json").read_text())["job"])


def run(scenario: str, out: Path, *words: str) -> Done:
    return harness("run", scenario, "--out", str(out), *words)


def test_blocks_are_jobs_and_only_what_is_missing_is_submitted_again(scenario: str, tmp_path: Path, conf: Path) -> None:
    done = run(scenario, tmp_path / "out", "--no-wait", "--set", "launch.slurm.extra=[--hold]")
    assert done.returncode == 0, done.stderr
    folder = only_study(tmp_path / "out").path
    first = jobs_of(folder, 0)
    assert f"jobs {first} stay in the queue" in done.stderr
    assert not (folder / "summary.md").exists()
    slurm.ask(conf, "scancel", f"{first}_1")

    resumed = harness("run", "--resume", str(folder), "--no-wait")
    assert resumed.returncode == 0, resumed.stderr
    second = jobs_of(folder, 1)
    assert json.loads((folder / "slurm" / "1" / "jobs.json").read_text())["blocks"] == [1]
    assert "#SBATCH --array=1\n" in (folder / "slurm" / "1" / "script.sh").read_text()
    here = harness("run", "--resume", str(folder), "--here")
    assert (here.returncode, here.stderr.count("\n")) == (2, 1), here.stderr
    assert f"jobs {first}, {second} are still in the queue" in here.stderr

    for job in (f"{first}_0", f"{second}_1"):
        slurm.ask(conf, "scontrol", "release", job)
    ended = harness("run", "--resume", str(folder))
    assert ended.returncode == 0, ended.stderr
    assert not (folder / "slurm" / "2").exists()
    record = StudyFolder(folder).read_study()
    assert (record.status, record.interleave) == ("done", "slices")
    assert "memory of Slurm's nodes is free" in record.interleave_reason
    runs = {(one.record.arm, one.record.block): one.record for one in StudyFolder(folder).runs()}
    assert {key: one.status for key, one in runs.items()} == {
        (arm, block): "done" for arm in ("text", "tokens") for block in (0, 1)
    }
    assert runs["text", 0].session == runs["tokens", 0].session != runs["text", 1].session
    assert (folder / "summary.md").exists()
    assert "every run" not in (folder / "slurm" / "1" / f"job-{second}_1.log").read_text()


def test_a_cancelled_job_costs_its_own_block_and_is_named(scenario: str, tmp_path: Path, conf: Path) -> None:
    """Block 1 would run for minutes; it is cancelled once block 0 is done."""
    text = TINY.replace("repeats: 2", "repeats: 2\ninterleave: runs").replace('time: "5"', 'time: "5", at_once: 1')
    Path(scenario).write_text(text)
    long = "--set", "steps=12000", "--arm", "text"
    command = [sys.executable, "-m", "harness", "run", scenario, "--out", str(tmp_path / "out"), *long]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: any((tmp_path / "out").glob("tiny/*/slurm/0/jobs.json")))
        folder = only_study(tmp_path / "out")
        job = jobs_of(folder.path, 0)
        wait_for(lambda: (folder.run("text", 0) / "log.txt").exists())
        slurm.ask(conf, "scancel", f"{job}_1")  # which is still in the queue
        slurm.ask(conf, "scancel", f"{job}_0")  # which runs
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1, errors
    (line,) = [line for line in errors.splitlines() if line.startswith("harness: block 0: ")]
    assert f"job {job}_0 on n" in line
    assert "was cancelled: a signal ended it (time limit, scancel or preemption); " in line
    assert f"job-{job}_0.log ends: " in line
    (line,) = [line for line in errors.splitlines() if line.startswith("harness: block 1: ")]
    assert f"job {job}_1 was cancelled; it never began to run the study; it left no log" in line
    record = folder.read_study()
    assert record.status == "failed"
    assert line.removeprefix("harness: ") in record.notes
    assert [one.record.error for one in folder.runs()] == [note for note in record.notes if note.startswith("block")]
    assert f"harness run --resume {folder.path}" in errors


def test_an_allocation_of_two_nodes_trains_one_model_on_both(scenario: str, tmp_path: Path) -> None:
    """srun starts the other node's agent, from within the one job that runs all blocks."""
    text = SCENARIO.replace("  steps: 6\n", "  steps: 6\n  compute: {device: cpu, threads: 1}\n")
    Path(scenario).write_text(text)
    launch = "launch={torchrun: {nproc: 1, nnodes: 2}, timeout_s: 240, slurm: {mode: allocation, exclusive: false}}"
    done = run(scenario, tmp_path / "out", "--set", launch, "--arm", "text", "--repeats", "1")
    folder = only_study(tmp_path / "out")
    job = jobs_of(folder.path, 0)
    log = (folder.path / "slurm" / "0" / f"job-{job}.log").read_text()
    assert done.returncode == 0, done.stderr + log
    assert "1 running" not in done.stderr or f"1 running ({job} on n[1-2])" in done.stderr
    (found,) = folder.runs()
    facts = found.record.facts
    assert (facts.ranks, facts.nodes, found.record.status) == (2, 2, "done")
    assert len(str(facts.parameters_digest)) == 64  # both held the same parameters at the end
    assert facts.clock_error_ns is not None
    assert json.loads((folder.path / "slurm" / "0" / "study.json").read_text())["status"] == "done"
    assert "The clocks of 2 machines were compared" in (folder.path / "summary.md").read_text()


def test_ctrl_c_ends_the_waiting_and_not_the_jobs(scenario: str, tmp_path: Path, conf: Path) -> None:
    words = ["--out", str(tmp_path / "out"), "--set", "launch.slurm.extra=[--hold]", "--arm", "text"]
    command = [sys.executable, "-m", "harness", "run", scenario, *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        seen = ""
        while "2 pending" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    job = jobs_of(only_study(tmp_path / "out").path, 0)
    assert f"jobs {job} stay in the queue; wait for them and gather: harness run --resume " in errors
    assert slurm.ask(conf, "squeue", "--noheader", "--array", f"--jobs={job}", "--format=%T").split() == ["PENDING"] * 2


def test_a_refused_job_leaves_nothing(scenario: str, tmp_path: Path) -> None:
    done = run(scenario, tmp_path / "out", "--set", "launch.slurm.partition=nowhere")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "harness: launch.slurm: sbatch refused the job: Batch job submission failed: Invalid partition name specified; "
        "invalid partition specified: nowhere (--dry-run prints it)"
    )
    assert not (tmp_path / "out").exists()


def test_a_wait_has_an_end_and_says_for_whom(
    scenario: str, tmp_path: Path, conf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time of the jobs is over while they are held; then the controller gives no answer."""
    options = ("--set", "launch.slurm.extra=[--hold]", "--set", "launch.slurm.wait_s=0.1")
    done = run(scenario, tmp_path / "out", *options)
    assert done.returncode == 1
    folder = only_study(tmp_path / "out").path
    job = jobs_of(folder, 0)
    assert f"waited 0.1 s (launch.slurm.wait_s) for job {job}: 2 pending (JobHeldUser)\n" in done.stderr
    assert f"end them: scancel {job}\n" in done.stderr

    nobody = tmp_path / "slurm.conf"
    nobody.write_text(conf.read_text().replace("SlurmctldPort=", "SlurmctldPort=1 #"))
    monkeypatch.setenv("SLURM_CONF", str(nobody))
    monkeypatch.setattr(batch, "COMMAND_S", 0.5)
    done = harness("run", "--resume", str(folder))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "launch.slurm: the queue could not be read: squeue: no answer within 0.5 s" in done.stderr
    monkeypatch.setattr(study, "CONTROLLER_S", 0.1)
    found = StudyFolder(folder)
    record = found.read_study()
    settings = study.slurm_of(recorded_configs(found.study_json, record))
    assert settings is not None
    waiting = study.Jobs(found, record, settings.model_copy(update={"wait_s": 60.0}), nodes=1)
    waiting.find_submissions()
    outcome = waiting.finish()
    assert (outcome.status, outcome.in_queue) == ("failed", True)
    assert "harness: Slurm did not answer for 0.1 s: squeue: no answer within 0.5 s" in capsys.readouterr().err
