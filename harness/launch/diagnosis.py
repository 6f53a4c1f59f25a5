"""Says in one line which process of a run hangs, in what state, and the likely cause with its fix."""

from __future__ import annotations

import errno
import os
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.machine import capacity
from harness.machine.cgroup import find_group, memory_limit
from harness.machine.check import size
from harness.machine.environment import available_memory_bytes
from harness.machine.files import ROOT, read_mounts
from harness.machine.processes import RANK_NAME, STATES, ProcessState, read_process, read_session
from trainer.errors import in_words

WORKER_NAME, PIN_NAME = "pt_data_worker", "pt_data_pin"  # name of the processes of torch's DataLoader
LITTLE_MEMORY_BYTES = 64 * 2**20  # With less free memory, the kernel is about to kill a process.
LITTLE_SHARED = 0.05  # share of /dev/shm
_LOG_BYTES = 20_000  # bytes read from the end of a run's log
_STOPPED = "it received SIGSTOP", "find the sender (a batch system, a debugger, Ctrl-Z), and run it again"
_SENT = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Finding:
    """Result of a diagnosis, as texts: the process that hangs with its state, the likely cause, and the fix."""

    process: str
    cause: str
    fix: str

    def __str__(self) -> str:
        return f"{self.process}; likely cause: {self.cause}; fix: {self.fix}"


@dataclass(frozen=True)
class Snapshot:
    """Facts about a silent run: its processes, the end of its log, and free memory (:func:`look_at`)."""

    processes: Sequence[ProcessState]
    main_pid: int
    workers: int
    log: str
    shared: capacity.SharedMemory | None = None
    free_memory_bytes: int | None = None
    killed_for_memory: int | None = None


def look_at(main_pid: int, workers: int, log: Path, log_start: int = 0, root: Path = ROOT) -> Snapshot:
    """Read all that may explain a silent run. ``log_start``: byte offset at which its log begins."""
    limit = memory_limit(find_group("memory", root))
    return Snapshot(
        read_session(main_pid, root),
        main_pid,
        workers,
        _end_of(log, log_start),
        capacity.read_shared_memory(read_mounts(root), root),
        available_memory_bytes(),
        None if limit is None else limit.oom_kills,
    )


def diagnose(seen: Snapshot, longer: str) -> Finding:
    """Return the process that hangs, the likely cause and the fix. ``longer``: setting that allows more time."""
    roles = roles_of(seen)
    living = [process for process in seen.processes if not process.dead]
    stopped = next((process for process in living if process.stopped), None)
    if stopped is not None:
        stop_cause, fix = _STOPPED
        return Finding(_described(stopped, roles), "a debugger holds it" if stopped.state == "t" else stop_cause, fix)
    main = next((process for process in living if process.pid == seen.main_pid), None)
    if main is None:
        return Finding(
            f"process {seen.main_pid} (main) is gone", "it was killed (out of memory?)", capacity.MORE_MEMORY
        )
    finding = _of_log(seen, _described(main, roles))
    if finding is not None:
        return finding
    crowded = next((process for process in living if process.out_of_files), None)
    if crowded is not None:
        cause = f"open files: {crowded.open_files} of {crowded.most_open_files} allowed"
        return Finding(_described(crowded, roles), cause, capacity.MORE_OPEN_FILES)
    alive = len(living) - 1  # Processes of any name count: a spawned worker changes its name only after its start.
    if alive < seen.workers:
        cause = f"lost workers: {alive} of {seen.workers} loader workers are alive"
        if seen.killed_for_memory:
            cause += f", and {seen.killed_for_memory} processes of this control group were killed (out of memory)"
        return Finding(_described(main, roles), cause, f"{capacity.MORE_MEMORY}; the run's log.txt may say more")
    if seen.free_memory_bytes is not None and seen.free_memory_bytes < LITTLE_MEMORY_BYTES:
        cause = f"out of memory: {size(seen.free_memory_bytes)} is free"
        return Finding(_described(main, roles), cause, capacity.MORE_MEMORY)
    shared = seen.shared
    if seen.workers and shared is not None and shared.free_bytes < LITTLE_SHARED * shared.total_bytes:
        return Finding(_described(main, roles), _full(shared), capacity.MORE_SHARED_MEMORY)
    blocked = next((process for process in living if process.state == "D"), None)
    culprit = blocked or _busiest(living, roles) or _awaited_rank(living, roles) or main
    return Finding(_described(culprit, roles), *_by_itself(culprit, longer))


def explain_end(code: int) -> str:
    """Return ``likely cause: ...; fix: ...`` for an ended worker. ``code``: exit code, negative for a signal."""
    if code == -signal.SIGKILL:
        cause, fix = "the kernel killed it (out of memory), or another process did", capacity.MORE_MEMORY
    elif -code in _SENT:
        cause, fix = "another process sent it that signal", "find the sender (a batch system, a script)"
    elif code < 0:
        cause, fix = "a fault in native code that makes its batches", "the run's log.txt may say more"
    else:
        cause = "the code that makes its batches ended it (sys.exit, os._exit, KeyboardInterrupt)"
        fix = "let it raise another error; the run's log.txt may say more"
    return f"likely cause: {cause}; fix: {fix}"


def killed_by(number: int) -> str:
    """Return a text on the signal ``number`` that ended a process, like ``killed by SIGKILL (out of memory?)``."""
    name = signal.Signals(number).name
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def describe_process(pid: int, role: str) -> str:
    """Return a text on the state of process ``pid``, like ``process 42 (fork server) is sleeping in futex``."""
    process = read_process(pid)
    return f"process {pid} ({role}) is gone" if process is None else _described(process, {pid: role})


def diagnose_process(pid: int, role: str, longer: str) -> str:
    """Return one line on a process that hangs: state, likely cause, fix. ``longer``: setting that allows more time."""
    process = read_process(pid)
    if process is None:
        return describe_process(pid, role)
    cause, fix = _STOPPED if process.stopped else _by_itself(process, longer)
    return f"{_described(process, {pid: role})}; likely cause: {cause}; fix: {fix}"


def roles_of(seen: Snapshot) -> dict[int, str]:
    """Return roles by process id: main, rank K, loader-K in order of their start, or the process's name."""
    roles = {process.pid: process.name for process in seen.processes}
    workers = [process.pid for process in seen.processes if process.name == WORKER_NAME]
    ranks: dict[str, int] = {}
    for process in seen.processes:
        if process.name.startswith(RANK_NAME):
            ranks.setdefault(process.name, process.pid)  # Child processes of a rank have the same name.
    roles |= {pid: f"loader-{place}" for place, pid in enumerate(workers)}
    roles |= {pid: f"rank {name.removeprefix(RANK_NAME)}" for name, pid in ranks.items()}
    return roles | {seen.main_pid: "rank 0" if ranks else "main"}


def _described(process: ProcessState, roles: dict[int, str]) -> str:
    if process.pid == os.getpid():  # The run itself waited for a batch before it called this.
        return f"process {process.pid} ({roles[process.pid]}) waits for a batch"
    place = f" in {process.place}" if process.place is not None and process.state in "SD" else ""
    state = STATES.get(process.state, f"in state {process.state}")
    return f"process {process.pid} ({roles[process.pid]}) is {state}{place}"


def _of_log(seen: Snapshot, process: str) -> Finding | None:
    """Return the cause that the end of the run's log names, with its line; None if no line does."""
    for line in reversed(seen.log.splitlines()):
        if (cause := capacity.cause_in(line)) is not None:
            detail = f" ({_full(seen.shared)})" if cause == "shared memory" and seen.shared is not None else ""
            return Finding(process, f"{cause}: its log says {line.strip()[:160]!r}{detail}", capacity.REMEDIES[cause])
    return None


def with_fix(error: Exception) -> str:
    """Return ``error`` as one line, with the fix if a limit of the machine caused it."""
    text = in_words(error)
    # The message does not name a file.
    if getattr(error, "errno", None) == errno.ENOSPC and _of_multiprocessing(error):
        return f"{text}: in /dev/shm; fix: {capacity.MORE_SHARED_MEMORY}"
    cause = capacity.cause_in(text)
    return text if cause is None else f"{text}; fix: {capacity.REMEDIES[cause]}"


def _of_multiprocessing(error: Exception) -> bool:
    """True if Python's multiprocessing raised ``error``: its locks and shared memory are in /dev/shm."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parent.name == "multiprocessing"


def _full(shared: capacity.SharedMemory) -> str:
    return f"shared memory: {size(shared.free_bytes)} of {size(shared.total_bytes)} is free in /dev/shm"


def _busiest(living: Sequence[ProcessState], roles: dict[int, str]) -> ProcessState | None:
    """Return a loader worker that runs, or sleeps elsewhere than in ``poll``, where an idle one waits; else None."""
    workers = [process for process in living if roles[process.pid].startswith("loader")]
    at_work = [process for process in workers if process.place is not None and "poll" not in process.place]
    return next((process for process in workers if process.state == "R"), at_work[0] if at_work else None)


def _awaited_rank(living: Sequence[ProcessState], roles: dict[int, str]) -> ProcessState | None:
    """Return a rank that others seem to wait for: it runs, or sleeps outside of an exchange (a futex); else None."""
    ranks = [process for process in living if roles[process.pid].startswith("rank ")]
    awaited = [rank for rank in ranks if rank.state == "R" or (rank.place is not None and "futex" not in rank.place)]
    if not 0 < len(awaited) < len(ranks):
        return None
    return next((rank for rank in awaited if rank.state == "R"), awaited[0])


def _by_itself(process: ProcessState, longer: str) -> tuple[str, str]:
    """Return (cause, fix) for a process that hangs, judged by it alone. ``longer``: setting that allows more time."""
    advice = f"raise {longer} if it is only slow"
    if process.state == "D":
        return "a disk, a file server or a driver does not answer", f"check it (dmesg, mount); {advice}"
    if process.state == "R":
        return "a step takes longer than this, or never ends", f"py-spy dump --pid shows where it is; {advice}"
    if process.place is not None and " of " in process.place:
        return f"no data from {process.place.partition(' of ')[2]}", f"check it; {advice}"
    return "it waits for an event that does not happen", f"py-spy dump --pid shows where; {advice}"


def _end_of(log: Path, start: int) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(file.seek(0, 2) - _LOG_BYTES, start))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
