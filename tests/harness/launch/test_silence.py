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
from harness.launch.process import RunProcess
from harness.machine.processes import descendants, read_process
from harness.study.store import StudyFolder
from tests.commands import ROOT, Done, KeptForkServer, harness
from tests.harness.launch.running import before_repetitions

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
    "warmup_steps": 0,
}


def written(folder: Path, arms: dict[str, Any], **keys: Any) -> str:
    content = {"name": "tiny", "question": "Does it end?", "base": BASE, "arms": arms, "repeats": 1, "slice_steps": 3}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(content | keys))
    return str(path)


def errors(folder: Path, block: int = 0) -> dict[str, str | None]:
    """By arm, of a block of the only study below ``folder``."""
    records = [json.loads(path.read_text()) for path in folder.glob(f"out/tiny/*/runs/*/{block}/run.json")]
    return {record["arm"]: record["error"] for record in records}


def test_each_run_that_hangs_is_named_and_one_that_was_suspended_meanwhile_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that never answers (as on a file server that has died), a batch that does not come, and a step that does
    not end. The arm without a fault stands still, with its worker, for as long as the step is waited for.
    """
    recorded = tmp_path / "kernels.json"
    recorded.write_text('{"forward_ms": [1]}')
    prepare = launch.prepare_data

    def prepare_and_break(configs: Any, start_s: float, codes: Any = None) -> Any:
        found = prepare(configs, start_s, codes)
        recorded.unlink()
        os.mkfifo(recorded)
        return found

    monkeypatch.setattr(launch, "prepare_data", prepare_and_break)
    device = {"emulated": "gh200", "recorded": str(recorded), "matmul_efficiency": 0.5}
    slow = {"read_ms": 60_000, "how": "sleep"}
    arms = {
        "fine": {"data.workers": 1, "data.timeout_s": 4, "warmup_steps": 1},
        "piped": {"compute": {"device": device, "work": "model"}},
        "batch": {"data.workers": 1, "data.inject": slow, "data.timeout_s": 3, "warmup_steps": 1},
        "step": {"compute.inject": {"forward_ms": 60_000, "how": "sleep"}},
    }
    scenario = written(tmp_path, arms, limits={"start_s": 20, "silence_s": 5}, interleave="slices")
    done = harness("run", scenario, "--out", str(tmp_path / "out"))
    assert done.returncode == 1, done.stderr
    found = errors(tmp_path)
    assert found["fine"] is None
    sleeping = "sleeping in clock_nanosleep; likely cause: it waits for an event that does not happen; fix: .*raise"
    for arm, expected in {
        "piped": r"no message for 20 s \(limits\.start_s\) while starting: process \d+ \(main\) is sleeping in openat; "
        r"likely cause: .*; fix: .*raise limits\.start_s",
        "batch": r"no batch came from 1 loader worker within 3 s \(data\.timeout_s\): process \d+ \(loader-0\) is "
        rf"{sleeping} data\.timeout_s if it is only slow",
        "step": r"no message for 5 s \(limits\.silence_s\) while in repetition 1: process \d+ \(main\) is "
        rf"{sleeping} limits\.silence_s if it is only slow$",
    }.items():
        error = found[arm] or ""
        assert re.match(expected, error), error
        assert done.stderr.count(error) == 1
    (study,) = (tmp_path / "out" / "tiny").iterdir()
    (run,) = [run for run in StudyFolder(study).runs() if run.record.arm == "fine"]
    assert run.steps is not None
    starts = [row["start_ns"] for row in run.steps.to_pylist()]
    assert max(after - before for before, after in pairwise(starts)) > 4e9  # it did stand so long


def test_a_stopped_worker_and_a_killed_run_are_named_and_a_running_study_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped worker keeps the run in the middle of receiving a batch, of which DataLoader knows no timeout."""
    stopped: set[int] = set()
    resumed: list[Done] = []

    def disturb(run: RunProcess, repetition: int) -> None:
        if run.record.arm == "workers":  # which the launcher lets go on, as a whole, before each of its repetitions
            for pid in descendants([run._pid]):
                if (state := read_process(pid)) and state.name == WORKER_NAME:
                    stopped.add(pid)
                    os.kill(pid, signal.SIGSTOP)
        elif repetition == 2:
            resumed.append(harness("run", "--resume", str(run._folder.path)))
            os.kill(run._pid, signal.SIGKILL)

    before_repetitions(monkeypatch, disturb)
    arms = {"workers": {"data.workers": 1}, "inline": {}}
    limits = {"silence_s": 5}
    study = written(tmp_path, arms, base=BASE | {"steps": 30}, interleave="slices", limits=limits)
    done = harness("run", study, "--out", str(tmp_path / "out"))
    assert done.returncode == 1, done.stderr
    found = errors(tmp_path)
    assert "killed by SIGKILL" in (found["inline"] or "")
    error, (worker,) = found["workers"] or "", stopped
    assert error.startswith("no message for 5 s (limits.silence_s) while in repetition ")
    assert f": process {worker} (loader-0) is stopped; likely cause: it received SIGSTOP; fix: find the sender" in error
    assert "\n" not in error
    assert resumed[0].returncode == 2
    assert "another process runs this study" in resumed[0].stderr


def test_a_fork_server_that_is_stopped_before_it_forked_is_named_and_afterwards_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say how a run ended that it forked: the run is whole without its word. The next run has another."""
    fork = KeptForkServer.fork
    servers: list[int] = []

    def stopped(server: KeptForkServer, *given: Any) -> int:
        servers.append(server._process.pid)
        if len(servers) == 1:
            os.kill(servers[0], signal.SIGSTOP)
        pid = fork(server, *given)
        os.kill(servers[-1], signal.SIGSTOP)
        return pid

    monkeypatch.setattr(KeptForkServer, "fork", stopped)
    limits = {"start_s": 10, "silence_s": 4}
    study = written(tmp_path, {"first": {}, "second": {}}, interleave="runs", limits=limits)
    done = harness("run", study, "--out", str(tmp_path / "out"))
    assert done.returncode == 1, done.stderr
    error, whole = sorted(errors(tmp_path).values(), key=lambda text: text is None)
    assert whole is None
    assert error == (
        "it did not start within 10 s (limits.start_s): the fork server did not answer for 10 s: "
        f"process {servers[0]} (fork server) is stopped; likely cause: it received SIGSTOP; fix: find the sender "
        "(a batch system, a debugger, Ctrl-Z), and run it again"
    )
    assert len(set(servers)) == 2


def under(shell: str, folder: Path, workers: dict[str, Any]) -> tuple[int, dict[str, str | None], str]:
    """Run a study in a shell that first runs ``shell``; exit code, errors by arm, and what it printed."""
    arms = {"workers": {"data.workers": 2, "data.timeout_s": 15, **workers}, "inline": {}}
    scenario = written(folder, arms, limits={"silence_s": 60})
    command = [sys.executable, "-m", "harness", "run", scenario, "--out", str(folder / "out")]
    done = subprocess.run(
        ["sh", "-c", f'{shell} && "$@"', "sh", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, errors(folder), done.stderr


MOUNT = "mount -t tmpfs -o size=128k tmpfs /dev/shm"
OWN_MOUNTS = ["unshare", "-Urm", "sh", "-c"]


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_too_few_open_files_are_warned_of_and_named(tmp_path: Path) -> None:
    code, found, printed = under("ulimit -n 18", tmp_path, {})
    assert code == 1
    assert found["inline"] is None
    assert "Too many open files" in (found["workers"] or "")
    assert "fix: ulimit -n 4096" in (found["workers"] or "")
    assert "warning: a process of it opens about 36 files, at most 18 allowed: batches will be lost; fix: " in printed
