"""Runs a command as it is, with the agent within reach of every Python process that it starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic_ns
from types import FrameType
from typing import Any, NamedTuple

from trainer.errors import InputError

SHIM = Path(__file__).parent / "shim"
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class AgentSettings:
    """What the agent is told: the names and values of its settings.json."""

    warmup: int  # steps at the beginning that are not measured
    steps: int | None = None  # ends the program after that many measured steps; None: never
    gate: str | None = None  # socket of the launcher: the program takes turns (agent/gate.py)
    control: str | None = None  # serves batches otherwise (agent/controls.py)
    fetch: str | None = None  # function that returns a batch: "name" of the program itself, or "module:name"
    step_ends: str | None = None  # class of the optimizer whose update ends a step
    profile_steps: int | None = None  # that torch.profiler records once the program is warm (agent/profiling.py)
    closing_steps: int | None = None  # that it records after the measured steps, where events leave much of them open
    profile_seconds: int | None = None  # that the launcher's py-spy samples it for (sampling.py)

    def write(self, raw: Path) -> None:
        (raw / "settings.json").write_text(json.dumps(asdict(self)))


class Ended(NamedTuple):
    """How a command ended."""

    code: int  # its exit code as a shell gives it (128 + N for signal N)
    begun_ns: int  # CLOCK_MONOTONIC, as in the agent's record
    ended_ns: int


def run_command(program: Sequence[str], raw: Path, settings: AgentSettings) -> Ended:
    """Run ``program`` to its end. What the agent records goes into ``raw``.

    Raises InputError where the program cannot be started.
    """
    settings.write(raw)
    begun_ns = monotonic_ns()
    process = start(program, env=environment_of(raw))
    with _forwarding(process):
        if settings.profile_seconds is not None:
            from harness.attach.sampling import sample_when_asked

            sample_when_asked(process, raw, settings.profile_seconds)
        code = process.wait()
    return Ended(code if code >= 0 else 128 - code, begun_ns, monotonic_ns())


_AS_IT_IS = "a command is run as it is, without a shell"
MARK = "HARNESS_ATTACH"  # environment variable: where the agent records, and by what its processes are known


def environment_of(raw: Path, places: Sequence[str] = ()) -> dict[str, str]:
    """This process's environment, with the agent within reach; it records into ``raw``.

    ``places``: folders that are imported from before all others.
    """
    path = os.pathsep.join([str(SHIM), *places, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, MARK: str(raw)}


def check_program(program: Sequence[str]) -> None:
    """Raise InputError if there is no such program, before anything is waited for."""
    if shutil.which(program[0]) is None and not Path(program[0]).exists():
        raise InputError(f"exec: {program[0]}: no such program; {_AS_IT_IS}")


def start(program: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start ``program`` with the options of :class:`subprocess.Popen`; InputError where it cannot be started."""
    try:
        return subprocess.Popen(list(program), **options)
    except FileNotFoundError as error:
        raise InputError(f"exec: {program[0]}: no such program; {_AS_IT_IS}") from error
    except OSError as error:
        raise InputError(f"exec: {program[0]}: cannot be started ({error.strerror})") from error


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand signals on to the command: what it makes of them is its own business."""

    def forward(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and _in_foreground():
            return  # the terminal has sent it to the command as well
        with suppress(ProcessLookupError):
            process.send_signal(number)

    before = {
        number: signal.signal(number, forward)
        for number in FORWARDED
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether a terminal sends its Ctrl-C to this process, and so to the command."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
