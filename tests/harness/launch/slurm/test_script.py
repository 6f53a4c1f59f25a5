"""What is asked of Slurm, before anything is submitted: scripts, refusals, and what is said of a job that ended."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from harness.launch.slurm.batch import JobState
from harness.launch.slurm.job import JobEnding, read_ending
from harness.launch.slurm.study import Jobs, why_lost
from harness.launch.study import Sequential, run_study
from harness.scenario.load import load_scenario
from harness.scenario.plan import make_plan
from harness.study.records import StudyRecord
from harness.study.store import StudyFolder, write_json
from tests.commands import harness
from tests.harness.launch.running import SCENARIO
from trainer.config import SlurmConfig
from trainer.errors import InputError

SLURM = SCENARIO.replace(
    "  steps: 6\n",
    """  steps: 6
  launch:
    slurm:
      partition: gpu
      time: "02:00:00"
      cpus_per_task: 8
      gpus_per_node: h100:4
      account: llm
      mem: 64G
      extra: [--constraint=ib, "--comment=two words"]
      setup: [module load cuda]
""",
)


@pytest.fixture
def written(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(SLURM)
    return str(path)


def test_a_dry_run_prints_the_script_and_makes_nothing(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", "/shared/my cache")
    monkeypatch.setenv("PATH", "")  # no Slurm is needed
    done = harness("run", written, "--dry-run", "--out", str(tmp_path / "out"), "--repeats", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "#!/bin/bash"
    asked = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH --")]
    folder = tmp_path / "out" / "tiny" / "<time>-<id>" / "slurm" / "0"
    assert asked == [
        *("job-name=harness-tiny", "array=0-2", f"output={folder}/job-%A_%a.log", "nodes=1", "ntasks-per-node=1"),
        *("partition=gpu", "account=llm", "time=02:00:00", "cpus-per-task=8", "mem=64G", "gpus-per-node=h100:4"),
        *("exclusive", "no-requeue", "constraint=ib"),
    ]
    assert "#SBATCH '--comment=two words'" in lines
    assert "export HARNESS_CACHE='/shared/my cache'" in lines
    assert lines.index("module load cuda") < len(lines) - 1
    assert lines[-1].startswith("exec ")
    assert '--block "$SLURM_ARRAY_TASK_ID"' in lines[-1]
    assert not (tmp_path / "out").exists()


def test_an_allocation_is_one_job_with_the_nodes_of_the_largest_arm(written: str, tmp_path: Path) -> None:
    options = ("--set", "launch.slurm.mode=allocation", "--set", "launch.torchrun={nproc: 4, nnodes: 3}")
    done = harness("run", written, "--dry-run", "--set", "compute.device=cpu", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [part in done.stdout for part in ("#SBATCH --nodes=3\n", "/job-%j.log", "--array", "--block")] == [
        *(True, True, False, False)
    ]


@pytest.mark.slow
def test_bash_takes_the_script_whatever_the_folder_is_called(written: str, tmp_path: Path) -> None:
    place = tmp_path / "a $b 'c' %d"
    place.mkdir()
    done = harness("run", written, "--dry-run", "--out", str(place), cwd=tmp_path)
    script = tmp_path / "script.sh"
    script.write_text(done.stdout)
    assert subprocess.run(["bash", "-n", str(script)], check=False, timeout=300).returncode == 0
    (output,) = [line for line in done.stdout.splitlines() if "--output=" in line]
    assert output.startswith("#SBATCH '--output=")
    assert "%%d/" in output
    words = subprocess.run(
        ["bash", "-c", f"set -- {done.stdout.splitlines()[-1]}; printf '%s\\n' \"$@\""],
        env={"SLURM_ARRAY_TASK_ID": "7"}, capture_output=True, text=True, check=True, timeout=300,
    ).stdout.splitlines()  # fmt: skip
    folder = place / "tiny" / "<time>-<id>"
    assert words[4:] == [str(folder), "--block", "7", "--record", str(folder / "slurm" / "0" / "block-7.json")]


@pytest.mark.parametrize(("option", "line"), [
    ("launch.slurm.time=a b", "launch.slurm.time: must be one word; got 'a b'"),
    ("launch.slurm.extra=[constraint]", "launch.slurm.extra[0]: must be an option of sbatch"),
    ("launch.slurm.mode=steps", "launch.slurm.mode"),
    ("launch.slurm={mode: allocation, at_once: 2}", "at_once: needs mode array"),
    ("launch.slurm={nodes: 2, partition: a, mode: array}", ""),
    ("launch={torchrun: {nnodes: 3}, slurm: {nodes: 2}}", "slurm.nodes: 2, but torchrun.nnodes is 3"),
])  # fmt: skip
def test_a_wrong_key_is_one_line(written: str, option: str, line: str, tmp_path: Path) -> None:
    done = harness("run", written, "--dry-run", "--set", option, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == ((2, 1) if line else (0, 0)), done.stderr
    assert line in done.stderr


def test_what_cannot_be_submitted_is_one_line(written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    out = ("--out", str(tmp_path / "out"))
    done = harness("run", written, *out, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("harness: launch.slurm: sbatch, squeue, scancel: not found here; ")
    assert "--here" in done.stderr
    (tmp_path / "plain.yaml").write_text(SCENARIO)
    arms = SLURM.replace("{data.path: text-padded}", "{data.path: text-padded, launch.slurm.partition: other}")
    (tmp_path / "arms.yaml").write_text(arms)
    for words, said in (
        (("run", "plain.yaml", "--dry-run"), "launch.slurm: not in this scenario"),
        (("run", "plain.yaml", "--no-wait"), "run --no-wait: needs launch.slurm"),
        (("train", written, "--arm", "text"), "train: launch.slurm: "),
        (("run", "arms.yaml"), "launch.slurm: arm tokens differs from text"),
    ):
        done = harness(*words, *(out if words[0] == "run" else ()), cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert said in done.stderr
    plan = make_plan(load_scenario(written), written)
    with pytest.raises(InputError, match=r"^launch\.slurm: a regression check runs on this machine"):
        run_study(plan, tmp_path / "out", [], written, Sequential(lambda *_: True))
    assert not (tmp_path / "out").exists()


def test_more_machines_need_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    (tmp_path / "plain.yaml").write_text(SCENARIO)
    done = harness("run", "plain.yaml", "--set", "launch.torchrun.nnodes=2", cwd=tmp_path)
    assert done.returncode == 2
    assert "torchrun.nnodes 2: the ranks of other machines are started by a job; allowed: nnodes 1, or" in done.stderr
    options = ("--set", "launch={torchrun: {nnodes: 2}, slurm: {}}", "--here", "--out", str(tmp_path / "out"))
    done = harness("run", "plain.yaml", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert "launch.torchrun.nnodes: 2 machines, but this is not a Slurm job; leave out --here" in done.stderr
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    done = harness("run", "plain.yaml", *options, cwd=tmp_path)
    assert "launch.torchrun.nnodes: 2 machines, but this job has 1; leave out --here" in done.stderr


def test_the_command_that_gathers_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = StudyFolder(tmp_path / "two words")
    Jobs(folder, StudyRecord("s", "?", "running"), SlurmConfig(), 1).leave("submitted")
    assert f"gather: harness run --resume '{folder.path}'; end them: " in capsys.readouterr().err


def test_why_a_block_is_missing_names_the_job_its_end_and_its_log(tmp_path: Path) -> None:
    log, record = tmp_path / "job-12_3.log", tmp_path / "block-3.json"
    log.write_text("one\ntwo\nslurmstepd: error: *** JOB 15 ON n1 CANCELLED DUE TO TIME LIMIT ***\nfour\x1b[2J\n\n")

    def line(state: str, ending: JobEnding | None, nodes: str = "n1") -> str:
        if ending is not None:
            write_json(record, asdict(ending))
        return why_lost(3, "12_3", JobState("12_3", state, "None", nodes), read_ending(record), log)

    found = line("PREEMPTED", None)
    assert found.startswith("block 3: job 12_3 on n1 was preempted; it never began to run the study; ")
    assert found.endswith(
        f"{log} ends: two | slurmstepd: error: *** JOB 15 ON n1 CANCELLED DUE TO TIME LIMIT *** | four\\x1b[2J"
    )
    begun = JobEnding("12_3", "host-a")
    found = line("TIMEOUT", begun)
    assert found.startswith("block 3: job 12_3 on n1 hit its time limit (launch.slurm.time); it was killed before it")
    refused = JobEnding("12_3", "host-a", "refused", "arm x: compute.device: cuda, but there is no NVIDIA device here")
    found = line("GONE", refused, nodes="")
    assert found.startswith("block 3: job 12_3 on host-a has ended, and Slurm has no record of it: arm x: compute.dev")
    log.write_text("")
    assert line("FAILED", refused).endswith(f"; {log} is empty")
    log.unlink()
    assert line("FAILED", refused).endswith("; it left no log")
    record.write_text("{")
    assert read_ending(record) is None
    record.write_text(json.dumps({"job": "1"}))
    assert read_ending(record) is None
