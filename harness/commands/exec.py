"""harness exec: runs any training command as it is, and says where the time of its steps went."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.attach import LEAST_WARMUP
from harness.commands.arguments import DEFAULT_OUT
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.study.store import StudyFolder

MOST_STEPS = 10_000_000
NOTE = """No line of the program changes: torch's DataLoader, backward pass and optimizers are timed from outside, and
its losses stay what they are. The exit code is the program's own; 1 where it ended well but nothing could be attached.
Not seen: a Python that ignores PYTHONPATH (env -i, python -I or -E); loaders that are not torch's, except a function
that returns the batch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command, and how much of it is measured."""
    parser.epilog = NOTE
    parser.usage = "harness exec [--steps N] [--warmup N] [--out DIR] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("program", nargs="*", metavar="-- COMMAND", help="what to run: python train.py, torchrun ...")
    parser.add_argument("--steps", type=int, metavar="N", help="end the program after N measured steps")
    parser.add_argument(
        "--warmup", type=int, default=5, metavar="N", help="steps that are not measured (default: %(default)s)"
    )
    parser.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help="where studies go (default: %(default)s)")
    parser.add_argument(
        "--recorded",
        metavar="DIR",
        help="run nothing: make the study of what was recorded there (STUDY/raw of an exec that was killed)",
    )


def execute(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the command, then print the first screen of its study; the exit code is the command's."""
    program = command[command.index("--") + 1 :] if "--" in command else []
    if arguments.recorded is not None and program:
        raise InputError("exec: --recorded runs nothing: leave the command away")
    if arguments.recorded is None and not program:
        raise InputError("exec: what is to run? harness exec -- python train.py")
    for option, least in (("steps", 1), ("warmup", LEAST_WARMUP)):
        value = getattr(arguments, option)
        if value is not None and not least <= value <= MOST_STEPS:
            raise InputError(f"exec: --{option} {value}: allowed: {least} to {MOST_STEPS:,}")
    from harness.attach.command import run_command
    from harness.attach.study import RAW, SCENARIO
    from harness.launch.preparation import check_writable
    from harness.launch.study import create_folder, now
    from trainer.leftovers import remove

    check_writable(Path(arguments.out))
    if arguments.recorded is not None and not Path(arguments.recorded).is_dir():
        raise InputError(f"exec: --recorded {arguments.recorded}: no such folder")
    folder = create_folder(Path(arguments.out), SCENARIO)
    begun_utc = now()
    if arguments.recorded is not None:
        return _report(folder, Path(arguments.recorded), command, command, 0, begun_utc)
    raw = (folder.path / RAW).absolute()
    raw.mkdir()
    try:
        code = run_command(program, raw, warmup=arguments.warmup, steps=arguments.steps)
    except InputError:
        remove(folder.path)
        raise
    status = _report(folder, raw, program, command, code, begun_utc)
    remove(raw)
    return status


def _report(folder: StudyFolder, raw: Path, program: list[str], command: list[str], code: int, begun_utc: str) -> int:
    """Make the study of what was recorded in ``raw`` and print its first screen; ``code``, or 1 where there is none."""
    from harness.attach.study import make_study
    from harness.commands.report import print_first_screen
    from trainer.leftovers import remove

    found = make_study(folder, raw, program, command, code, begun_utc)
    if not found.trained:
        what = "nothing was attached" if not found.started else "no training step was seen"
        print(f"harness: {what}: {_why(found.started)}", file=sys.stderr)
        remove(folder.path)
        return code or 1
    for fault in found.faults:
        print(f"harness: {fault}", file=sys.stderr)
    print_first_screen(folder.path, measured=True)
    say(f"study: {folder.path}")
    return code


def _why(started: int) -> str:
    if started:
        return "torch was imported, but no backward pass or optimizer of it ran in the main thread of any process"
    return "no Python process of the command imported torch, or its environment lost PYTHONPATH (env -i, python -I)"
