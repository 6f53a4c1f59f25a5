"""Run a command unchanged, with the agent importable in every Python process that it starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic_ns
from types import FrameType
from typing import Any, NamedTuple

from harness.attach.agent.events import SETTINGS_FILE
from harness.launch.ending import handled
from trainer.errors import InputError

SHIM = Path(__file__).parent / "shim"
SEGMENT_S = 60  # seconds of a program's record in one file
RETENTION_LOOK_S = 5.0  # seconds between two looks at the record's folder
RETENTION_NICE = 10  # niceness of the thread that looks. At 19 it would never run on a machine without a free core.
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class AgentSettings:
    """Settings of the agent. The launcher writes them as SETTINGS_FILE into the folder of the agent's records."""

    warmup: int  # unmeasured steps at the start
    steps: int | None = None  # measured steps after which the program ends; None: no limit
    gate: str | None = None  # socket of the launcher: the program takes turns (agent/gate.py)
    control: str | None = None  # changes how batches are served (agent/controls.py)
    fetch: str | None = None  # function that returns a batch: "name" in the program itself, or "module:name"
    step_ends: str | None = None  # class of the optimizer whose update ends a step
    profile_steps: int | None = None  # steps that torch.profiler records once the program is warm (agent/profiling.py)
    closing_steps: int | None = None  # steps recorded after the measured ones, if events do not explain their time
    profile_seconds: int | None = None  # seconds for which the launcher's py-spy samples the program (sampling.py)
    segment_s: int | None = None  # seconds of a process in one file (agent/record.py); None: all of it

    def write(self, raw: Path) -> None:
        (raw / SETTINGS_FILE).write_text(json.dumps(asdict(self)))


class Ended(NamedTuple):
    """Exit code, start and end of a command; times in ns (CLOCK_MONOTONIC)."""

    code: int  # exit code as in a shell (128 + N for signal N)
    begun_ns: int  # CLOCK_MONOTONIC, as in the agent's record
    ended_ns: int


def run_command(program: Sequence[str], raw: Path, settings: AgentSettings) -> Ended:
    """Run ``program`` to its end under the agent, which records into ``raw``. Raises InputError if it cannot start."""
    settings.write(raw)
    begun_ns = monotonic_ns()
    process = start(program, env=environment_of(raw))
    with _forwarding(process), _retaining(raw, settings.segment_s) if settings.segment_s else nullcontext():
        if settings.profile_seconds is not None:
            from harness.attach.sampling import sample_when_asked

            sample_when_asked(process, raw, settings.profile_seconds)
        code = process.wait()
    return Ended(code if code >= 0 else 128 - code, begun_ns, monotonic_ns())


@contextmanager
def _retaining(raw: Path, after_s: int) -> Iterator[None]:
    """Limit the disk space of the record in ``raw`` within the context, after its first ``after_s`` seconds."""
    over = threading.Event()

    def look() -> None:
        if over.wait(after_s):
            return
        with suppress(OSError):  # On Linux this is the thread's niceness. It gives way to the training.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), RETENTION_NICE)
        from harness.attach.retention import Retention  # 1 s of CPU, which a short program does not pay

        retention, failed = Retention(raw), False
        while not over.wait(RETENTION_LOOK_S):
            try:
                retention.look()
            except Exception as error:  # For example a full disk. The next look tries again.
                if not failed:
                    print(
                        f"harness: the record in {raw} could not be shortened ({type(error).__name__}: {error}). It "
                        "grows until that succeeds. The program goes on",
                        file=sys.stderr,
                    )
                failed = True

    thread = threading.Thread(target=look, name="retention", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


_AS_IT_IS = "commands run without a shell"
MARK = "HARNESS_ATTACH"  # environment variable: the agent's record folder, which also identifies its processes


def environment_of(raw: Path, places: Sequence[str] = ()) -> dict[str, str]:
    """Return this process's environment, changed to load the agent. ``places``: further import folders."""
    path = os.pathsep.join([str(SHIM), *places, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, MARK: str(raw)}


def check_program(program: Sequence[str]) -> None:
    """Raise InputError if the program does not exist, before anything starts."""
    if shutil.which(program[0]) is None and not Path(program[0]).exists():
        raise InputError(f"exec: {program[0]}: program not found; {_AS_IT_IS}")


def start(program: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start ``program`` with the options of :class:`subprocess.Popen`. Raise InputError if it cannot be started."""
    try:
        return subprocess.Popen(list(program), **options)
    except FileNotFoundError as error:
        raise InputError(f"exec: {program[0]}: program not found; {_AS_IT_IS}") from error
    except OSError as error:
        raise InputError(f"exec: {program[0]}: cannot be started ({error.strerror})") from error


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals of FORWARDED on to ``process`` within the context, except those that this process ignores."""

    def forward(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and _in_foreground():
            return  # the terminal has sent it to the command as well
        with suppress(ProcessLookupError):
            process.send_signal(number)

    with handled(FORWARDED, forward):
        yield


def _in_foreground() -> bool:
    """Return True if this process is in a terminal's foreground group: Ctrl-C then reaches the command, too."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
