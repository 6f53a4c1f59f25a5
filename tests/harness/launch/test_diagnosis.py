"""Which process is named, and which cause, from what /proc and the run's log show."""

from __future__ import annotations

import errno
import multiprocessing.synchronize
import os
import platform
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.launch.child import Run
from harness.launch.diagnosis import (
    RANK_NAME,
    WORKER_NAME,
    Snapshot,
    describe_process,
    diagnose,
    diagnose_process,
    explain_end,
    look_at,
    with_fix,
)
from harness.launch.opener import OpenTraining
from harness.machine.capacity import SharedMemory
from harness.machine.processes import ProcessState, read_session
from tests.harness.machine.tree import plant
from trainer.errors import EndedWorkerError

MIB = 2**20
MAIN = ProcessState(10, "python", "S", 100, "poll", 20, 1024)
FIRST = replace(MAIN, pid=11, name=WORKER_NAME, started_ticks=101)
SECOND = replace(FIRST, pid=12, started_ticks=102)
CALM = Snapshot([MAIN, FIRST, SECOND], 10, 2, "", SharedMemory(64 * MIB, 60 * MIB, True), 2**33)
LOST = "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"


@pytest.mark.parametrize(("changes", "process", "cause"), [
    ({}, "process 10 (main) is sleeping in poll", "it waits for an event that does not happen"),
    ({"processes": [MAIN, FIRST, replace(SECOND, state="T")]}, "process 12 (loader-1) is stopped",
     "it received SIGSTOP"),
    ({"processes": [MAIN, FIRST, replace(SECOND, state="t")]}, "process 12 (loader-1) is stopped by a debugger",
     "a debugger holds it"),
    ({"processes": [MAIN, FIRST, replace(SECOND, state="D", place="folio_wait_bit")]},
     "process 12 (loader-1) is waiting for a disk or a driver in folio_wait_bit",
     "a disk, a file server or a driver does not answer"),
    ({"processes": [MAIN, FIRST, replace(SECOND, place="read of /data/a.parquet")]},
     "process 12 (loader-1) is sleeping in read of /data/a.parquet", "no data from /data/a.parquet"),
    ({"processes": [MAIN, replace(FIRST, state="R", place=None), SECOND]}, "process 11 (loader-0) is running",
     "a step takes longer than this, or never ends"),
    ({"processes": [MAIN, FIRST, replace(SECOND, state="Z")]}, "process 10 (main) is sleeping in poll",
     "lost workers: 1 of 2 loader workers are alive"),
    ({"processes": [MAIN, FIRST], "killed_for_memory": 3}, "process 10 (main) is sleeping in poll",
     "lost workers: 1 of 2 loader workers are alive, and 3 processes of this control group were killed (out"),
    ({"processes": [replace(MAIN, open_files=1023), FIRST, SECOND]}, "process 10 (main) is sleeping in poll",
     "open files: 1023 of 1024 allowed"),
    ({"shared": SharedMemory(64 * MIB, MIB, True)}, "process 10 (main) is sleeping in poll",
     "shared memory: 1 MiB of 64 MiB is free in /dev/shm"),
    ({"free_memory_bytes": MIB}, "process 10 (main) is sleeping in poll", "out of memory: 1 MiB is free"),
    ({"log": f"step 10\n{LOST}\nstep 20\n"}, "process 10 (main) is sleeping in poll",
     f"shared memory: its log says {LOST!r} (shared memory: 60 MiB of 64 MiB is free in /dev/shm)"),
    ({"log": "OSError: [Errno 24] Too many open files"}, "process 10 (main)", "open files: its log says"),
    ({"log": "RuntimeError: can't start new thread"}, "process 10 (main)", "processes: its log says"),
    ({"processes": [FIRST]}, "process 10 (main) is gone", "it was killed"),
])  # fmt: skip
def test_the_likely_cause(changes: dict[str, Any], process: str, cause: str) -> None:
    finding = diagnose(replace(CALM, **changes), "limits.silence_s")
    assert finding.process.startswith(process)
    assert finding.cause.startswith(cause)
    assert finding.fix
    assert "\n" not in str(finding)


RANKS = [
    replace(MAIN, pid=pid, name=name, started_ticks=pid, place="futex")
    for pid, name in ((10, "python"), (11, f"{RANK_NAME}1"), (12, f"{RANK_NAME}2"), (13, f"{RANK_NAME}2"))
]


@pytest.mark.parametrize(("changes", "process"), [
    ({}, "process 10 (rank 0) is sleeping in futex"),  # all wait for one another: nobody knows for whom
    ({12: {"place": "clock_nanosleep"}}, "process 12 (rank 2) is sleeping in clock_nanosleep"),
    ({11: {"state": "R", "place": None}}, "process 11 (rank 1) is running"),
    ({10: {"place": "read of /data/a.parquet"}}, "process 10 (rank 0) is sleeping in read of /data/a.parquet"),
    ({11: {"place": "poll"}, 12: {"state": "R"}}, "process 12 (rank 2) is running"),
    ({11: {"state": "T"}}, "process 11 (rank 1) is stopped"),
    ({13: {"place": "poll"}}, "process 10 (rank 0) is sleeping in futex"),  # forked by a rank: no rank itself
])  # fmt: skip
def test_the_rank_that_the_others_wait_for(changes: dict[int, dict[str, Any]], process: str) -> None:
    seen = [replace(one, **changes.get(one.pid, {})) for one in RANKS]
    finding = diagnose(replace(CALM, processes=seen, workers=0), "limits.silence_s")
    assert finding.process == process


@pytest.mark.parametrize(("code", "cause", "fix"), [
    (-signal.SIGKILL, "the kernel killed it (out of memory), or another process did", "more memory, or use less"),
    (-signal.SIGTERM, "another process sent it that signal", "find the sender"),
    (-signal.SIGSEGV, "a fault in native code", "log.txt"),
    (3, "the code that makes its batches ended it (sys.exit,", "let it raise another error"),
])  # fmt: skip
def test_the_likely_cause_of_a_worker_s_own_end(code: int, cause: str, fix: str) -> None:
    said = explain_end(code)
    assert said.startswith(f"likely cause: {cause}")
    assert fix in said.partition("; fix: ")[2]
    assert "data.timeout_s" not in said


def test_a_run_says_why_its_worker_ended_and_of_no_wait_wherever_torch_says_it() -> None:
    run = object.__new__(Run)
    ended = EndedWorkerError("loader-1 (process 2) was killed by SIGKILL", [-signal.SIGKILL])
    batches: Any = SimpleNamespace(ended=lambda error: ended if "worker" in str(error) else None)
    run._training = cast(OpenTraining, SimpleNamespace(batches=batches))
    for error in (ended, RuntimeError("DataLoader worker (pid 2) is killed by signal: Killed.")):
        with pytest.raises(EndedWorkerError) as found, run._explaining():
            raise error
        assert str(found.value).startswith("loader-1 (process 2) was killed by SIGKILL; likely cause: the kernel kill")
        assert "data.timeout_s" not in str(found.value)
    other = RuntimeError("shapes differ")
    with pytest.raises(RuntimeError) as kept, run._explaining():
        raise other
    assert kept.value is other


def test_a_disk_that_is_full_is_no_lack_of_shared_memory_but_python_s_own_locks_lie_there() -> None:
    """A full /dev/shm was said to be a full disk: multiprocessing's error names no file."""
    full = OSError(errno.ENOSPC, "No space left on device")
    assert with_fix(full) == "OSError: [Errno 28] No space left on device"
    assert with_fix(RuntimeError(LOST)).startswith(f"RuntimeError: {LOST}; fix: docker run --shm-size=8g")
    of_python = compile("raise full", multiprocessing.synchronize.__file__, "exec")
    with pytest.raises(OSError, match="No space left") as error:
        exec(of_python, {"full": full})
    expected = "OSError: [Errno 28] No space left on device: in /dev/shm; fix: docker run --shm-size=8g"
    assert with_fix(error.value).startswith(expected)


@pytest.mark.slow
def test_a_process_that_somebody_stopped_is_said_to_be() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        found = diagnose_process(process.pid, "fork server", "limits.start_s")
        process.kill()
    assert found.startswith(f"process {process.pid} (fork server) is stopped; likely cause: it received SIGSTOP; fix: ")


def stat(name: str, state: str, session: int, started: int) -> str:
    return f"1 ({name}) {state} 1 {session} {session} {'0 ' * 15}{started} 0"


def test_a_session_is_read_in_the_order_of_its_starts_whatever_its_processes_are_called(tmp_path: Path) -> None:
    number = {"x86_64": 0, "aarch64": 63}.get(platform.machine(), 0)
    plant(
        tmp_path,
        {
            "proc/30/stat": stat("a) b (c", "S", 20, 7),
            "proc/30/syscall": f"{number} 0x5 0x7ffc",
            "proc/30/limits": "Limit  Soft Limit  Hard Limit\nMax open files            1024      4096     files",
            "proc/20/stat": stat("python", "T", 20, 5),
            "proc/20/syscall": "running",
            "proc/20/wchan": "do_signal_stop",
            "proc/40/stat": stat("other", "R", 40, 1),
            "proc/50/stat": "",
            "proc/self/stat": stat("x", "R", 20, 1),
        },
    )
    (tmp_path / "proc/30/fd").mkdir()
    (tmp_path / "proc/30/fd/5").symlink_to("/data/a.parquet")
    first, second = read_session(20, tmp_path)
    assert (first.pid, first.stopped, first.place, first.open_files) == (20, True, "do_signal_stop", None)
    assert (second.pid, second.name, second.open_files, second.most_open_files) == (30, "a) b (c", 1, 1024)
    if platform.machine() in ("x86_64", "aarch64"):
        assert second.place == "read of /data/a.parquet"


def test_this_process_itself(tmp_path: Path) -> None:
    """The real /proc. A run that looks at itself was waiting until now; an earlier try's log says nothing of it."""
    log = tmp_path / "log.txt"
    log.write_text(f"{LOST}\n")
    seen = look_at(os.getpid(), 0, log, log.stat().st_size)
    assert seen.log == ""
    assert look_at(os.getpid(), 0, log).log == f"{LOST}\n"
    assert describe_process(os.getpid(), "main") == f"process {os.getpid()} (main) waits for a batch"
    assert describe_process(2**30, "fork server") == f"process {2**30} (fork server) is gone"
