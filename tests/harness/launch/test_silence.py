"""Runs that hang: each fails in one line that names its process, and the study goes on. Real processes throughout."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import harness.launch.study as launch
from harness.launch.diagnosis import WORKER_NAME
from harness.machine.processes import read_process
from harness.study.store import StudyFolder
from tests.commands import ROOT, harness
from tests.harness.launch.running import fork_servers, start, wait_for, wait_for_runs, wait_for_study

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # they wait for limits rather than compute: beside the other parts

BASE = {
    "model": {"layers": 1, "width": 32},
    "data": {
        "corpus": {"builtin": "python-docs", "documents": 60},
        "tokenizer": {"train": {"vocab_size": 512}},
        "sequence_length": 16,
        "batch_size": 2,
    },
    "compute": {"work": "none"},
    "steps": 6,
    "warmup_steps": 1,
}


def study_of(folder: Path, arms: dict[str, Any], *words: str, **keys: Any) -> tuple[int, StudyFolder, str]:
    """Run a study; its exit code, its folder, and what it printed as errors."""
    content = {"name": "tiny", "question": "Does it end?", "base": BASE, "arms": arms, "repeats": 1, "slice_steps": 3}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(content | keys))
    done = harness("run", str(path), "--out", str(folder / "out"), *words)
    assert (folder / "out").exists(), done.stderr
    (study,) = (folder / "out" / "tiny").iterdir()
    return done.returncode, StudyFolder(study), done.stderr


def errors(study: StudyFolder) -> dict[str, str | None]:
    """By arm, of block 0."""
    records = [json.loads(path.read_text()) for path in study.path.glob("runs/*/0/run.json")]
    return {record["arm"]: record["error"] for record in records}


def loader_workers(pid: int) -> list[int]:
    return [one for one in wait_for_runs(pid) if (state := read_process(one)) and state.name == WORKER_NAME]


def parent_is_suspended(pid: int) -> bool:
    """Whether the run of a loader worker stands still: it has started, and another run of its block is measured."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    state = read_process(parent)
    return state is not None and state.stopped


def test_a_stopped_worker_ends_its_run_and_the_other_arm_goes_on(tmp_path: Path) -> None:
    """A stopped worker keeps the run in the middle of receiving a batch, of which DataLoader knows no timeout."""
    with start(tmp_path, "--repeats", "1", "--set", "limits.silence_s=5", steps=600) as process:
        study = wait_for_study(tmp_path / "out")
        wait_for(lambda: bool(loader_workers(process.pid)))
        (worker,) = loader_workers(process.pid)
        wait_for(lambda: parent_is_suspended(worker))

        def stopped_for_good() -> bool:
            if "tokens" in errors(study):
                return True
            os.kill(worker, signal.SIGSTOP)  # the launcher lets the whole run go on before each of its repetitions
            return False

        wait_for(stopped_for_good)
        assert process.wait(timeout=300) == 1
    found = errors(study)
    assert found["text"] is None
    error = found["tokens"]
    assert error is not None
    assert error.startswith("no message for 5 s (limits.silence_s) while in repetition ")
    assert f": process {worker} (loader-0) is stopped; likely cause: it received SIGSTOP; fix: " in error
    assert "find the sender" in error
    assert "\n" not in error


def test_a_batch_that_does_not_come_ends_its_run_in_the_trainer(tmp_path: Path) -> None:
    slow = {"data.workers": 1, "data.inject": {"read_ms": 60_000, "how": "sleep"}, "data.timeout_s": 3}
    code, study, printed = study_of(tmp_path, {"fine": {"data.workers": 2}, "slow": slow})
    assert code == 1
    found = errors(study)
    assert found["fine"] is None
    error = found["slow"]
    assert error is not None
    assert re.match(
        r"no batch came from 1 loader worker within 3 s \(data\.timeout_s\): process \d+ \(loader-0\) ", error
    )
    assert "sleeping in clock_nanosleep; likely cause: it waits for an event that does not happen; fix: " in error
    assert "raise data.timeout_s if it is only slow" in error
    assert printed.count(error) == 1


def test_a_step_that_does_not_end_is_named_with_its_repetition(tmp_path: Path) -> None:
    """Without workers: the main process itself does not come back."""
    slow = {"compute.inject": {"forward_ms": 60_000, "how": "sleep"}, "warmup_steps": 0}
    code, study, _ = study_of(tmp_path, {"fine": {}, "slow": slow}, "--set", "limits.silence_s=5")
    assert code == 1
    found = errors(study)
    assert found["fine"] is None
    assert re.match(
        r"no message for 5 s \(limits\.silence_s\) while in repetition 1: process \d+ \(main\) is sleeping in "
        r"clock_nanosleep; likely cause: .*; fix: .*raise limits\.silence_s if it is only slow$",
        found["slow"] or "",
    )


def test_a_file_that_never_answers_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that turns into a pipe that nobody writes to: like one on a file server that has died."""

    def make(folder: Path) -> Path:
        folder.mkdir()
        return folder

    recorded = tmp_path / "kernels.json"
    recorded.write_text('{"forward_ms": [1]}')
    prepare = launch.prepare_data

    def prepare_and_break(configs: Any, start_s: float, codes: Any = None) -> Any:
        found = prepare(configs, start_s, codes)
        if "piped" in configs:
            recorded.unlink()
            os.mkfifo(recorded)
        return found

    monkeypatch.setattr(launch, "prepare_data", prepare_and_break)
    device = {"emulated": "gh200", "recorded": str(recorded), "matmul_efficiency": 0.5}
    arms = {"piped": {"compute": {"device": device, "work": "model"}}, "fine": {}}
    study_of(make(tmp_path / "first"), {"fine": {}})  # whose fork server has everything imported
    code, study, _ = study_of(make(tmp_path / "then"), arms, limits={"start_s": 15})
    assert code == 1
    found = errors(study)
    assert found["fine"] is None
    assert re.match(
        r"no message for 15 s \(limits\.start_s\) while starting: process \d+ \(main\) is sleeping in openat; "
        r"likely cause: .*; fix: .*raise limits\.start_s",
        found["piped"] or "",
    )


def test_suspended_for_longer_than_the_limits_a_run_lives_on(tmp_path: Path) -> None:
    """The first arm stands still with its worker during two repetitions of the other one (ABBA)."""
    arms = {
        "quick": {"data.workers": 1, "data.timeout_s": 4},
        "long": {"compute.inject": {"forward_ms": 400, "how": "sleep"}},
    }
    code, study, printed = study_of(tmp_path, arms, limits={"silence_s": 4}, slice_steps=6, base=BASE | {"steps": 18})
    assert code == 0, printed
    (run,) = [run for run in study.runs() if run.record.arm == "quick"]
    assert run.steps is not None
    starts = [row["start_ns"] for row in run.steps.to_pylist()]
    assert max(after - before for before, after in pairwise(starts)) > 4e9  # it did stand so long


def under(shell: str, folder: Path, workers: dict[str, Any]) -> tuple[int, dict[str, str | None], str]:
    """Run a study in a shell that first runs ``shell``; exit code, errors by arm, and what it printed."""
    content = {"name": "tiny", "question": "Does it end?", "base": BASE, "repeats": 1, "slice_steps": 3}
    arms = {"workers": {"data.workers": 2, "data.timeout_s": 15, **workers}, "inline": {}}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(content | {"arms": arms, "limits": {"silence_s": 60}}))
    command = [sys.executable, "-m", "harness", "run", str(path), "--out", str(folder / "out")]
    done = subprocess.run(
        ["sh", "-c", f'{shell} && "$@"', "sh", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    (study,) = (folder / "out" / "tiny").iterdir()
    return done.returncode, errors(StudyFolder(study)), done.stderr


MOUNT = "mount -t tmpfs -o size=128k tmpfs /dev/shm"
OWN_MOUNTS = ["unshare", "-Urm", "sh", "-c"]


def test_shared_memory_that_is_full_is_warned_of_and_named(tmp_path: Path) -> None:
    """The batch is lost in the worker's feeder thread, which sends the error in its place."""
    if shutil.which("unshare") is None or subprocess.run([*OWN_MOUNTS, MOUNT], capture_output=True).returncode:
        pytest.skip("a small /dev/shm can be mounted in a user namespace only")
    shell = f'exec unshare -Urm sh -c \'{MOUNT} && exec "$@"\' sh "$@"; true'
    code, found, printed = under(shell, tmp_path, {"data.batch_size": 16, "data.sequence_length": 256})
    assert code == 1
    assert found["inline"] is None
    error = found["workers"] or ""
    assert re.match(r"loader-[01] could not hand over a batch: RuntimeError: unable to allocate shared memory", error)
    assert "(main) waits for a batch; likely cause: shared memory: its log says 'RuntimeError: unable to alloc" in error
    assert "is free in /dev/shm); fix: docker run --shm-size=8g" in error
    (warning,) = [line for line in printed.splitlines() if line.startswith("warning: ") and "/dev/shm" in line]
    assert "2 loader workers of 2 arms at a time need about 576 KiB in /dev/shm" in warning
    assert "batches will be lost; fix: docker run --shm-size=8g" in warning


def test_too_few_open_files_are_warned_of_and_named(tmp_path: Path) -> None:
    code, found, printed = under("ulimit -n 18", tmp_path, {})
    assert code == 1
    assert found["inline"] is None
    assert "Too many open files" in (found["workers"] or "")
    assert "fix: ulimit -n 4096" in (found["workers"] or "")
    assert "warning: a process of it opens about 36 files, at most 18 allowed: batches will be lost; fix: " in printed


def test_a_stopped_fork_server_keeps_nobody_waiting(tmp_path: Path) -> None:
    """It forked the run, and would say how that ended: the run is whole without its word. The next run has another."""
    words = ("--repeats", "1", "--interleave", "runs", "--set", "limits.silence_s=4")
    with start(tmp_path, *words, steps=200, module="harness") as process:
        study = wait_for_study(tmp_path / "out")
        (run, *_) = wait_for_runs(process.pid)
        wait_for(lambda: cpu_ticks(run) >= 10)  # it builds: the launcher has been told that it was forked
        (server,) = fork_servers(process.pid)
        os.kill(server, signal.SIGSTOP)
        assert process.wait(timeout=300) == 0
    assert errors(study) == {"text": None, "tokens": None}


def cpu_ticks(pid: int) -> int:
    """What it has computed, in hundredths of a second: a forked run next to nothing before it is told what to do."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def test_a_fork_server_that_is_stopped_before_it_forked_is_named(tmp_path: Path) -> None:
    words = ("--repeats", "1", "--interleave", "runs", "--set", "limits.start_s=3")
    with start(tmp_path, *words, steps=6, module="harness") as process:
        study = wait_for_study(tmp_path / "out")
        wait_for(lambda: bool(fork_servers(process.pid)))
        (server,) = fork_servers(process.pid)
        os.kill(server, signal.SIGSTOP)
        wait_for(lambda: bool(errors(study)))
    (error,) = errors(study).values()
    assert error == (
        "it did not start within 3 s (limits.start_s): the fork server did not answer for 3 s: "
        f"process {server} (fork server) is stopped; likely cause: it received SIGSTOP; fix: find the sender "
        "(a batch system, a debugger, Ctrl-Z), and run it again"
    )
