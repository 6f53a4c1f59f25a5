"""Runs a command as it is, with the agent within reach of every Python process that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from trainer.errors import InputError

SHIM = Path(__file__).parent / "shim"
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_command(program: Sequence[str], raw: Path, *, warmup: int, steps: int | None) -> int:
    """Run ``program`` to its end; its exit code as a shell gives it (128 + N for signal N).

    What the agent records goes into ``raw``. ``warmup``: steps at the beginning that are not measured; ``steps``: ends
    the program after that many measured steps, None: never. InputError where the program cannot be started.
    """
    (raw / "settings.json").write_text(json.dumps({"warmup": warmup, "steps": steps}))
    path = os.pathsep.join([str(SHIM), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "HARNESS_ATTACH": str(raw)}
    try:
        process = subprocess.Popen(list(program), env=environment)
    except FileNotFoundError as error:
        raise InputError(f"exec: {program[0]}: no such program; what follows -- is run as it is") from error
    except OSError as error:
        raise InputError(f"exec: {program[0]}: cannot be started ({error.strerror})") from error
    with _forwarding(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


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
