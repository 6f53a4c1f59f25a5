"""harness exec: runs any training command as it is, and says where the time of its steps went."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.commands.arguments import DEFAULT_OUT
from harness.commands.output import say
from trainer.errors import InputError

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


def execute(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the command, then print the first screen of its study; the exit code is the command's."""
    program = command[command.index("--") + 1 :] if "--" in command else []
    if not program:
        raise InputError("exec: what is to run? harness exec -- python train.py")
    for option, least in (("steps", 1), ("warmup", 4)):
        value = getattr(arguments, option)
        if value is not None and not least <= value <= 10_000_000:
            raise InputError(f"exec: --{option} {value}: allowed: {least} to 10,000,000")
    from harness.attach.command import run_command
    from harness.attach.study import RAW, SCENARIO, make_study
    from harness.commands.report import print_first_screen
    from harness.launch.preparation import check_writable
    from harness.launch.study import create_folder, now
    from trainer.leftovers import remove

    check_writable(Path(arguments.out))
    folder = create_folder(Path(arguments.out), SCENARIO)
    raw = (folder.path / RAW).absolute()
    raw.mkdir()
    begun_utc = now()
    try:
        code = run_command(program, raw, warmup=arguments.warmup, steps=arguments.steps)
    except InputError:
        remove(folder.path)
        raise
    sys.stdout.flush()
    found = make_study(folder, program, command, code, begun_utc)
    if not found.trained:
        what = "nothing was attached" if not found.started else "no training step was seen"
        print(f"harness: {what}: {_why(found.started)}", file=sys.stderr)
        return code or 1
    remove(raw)
    print_first_screen(folder.path)
    say(f"study: {folder.path}")
    return code


def _why(started: int) -> str:
    if started:
        return "torch was imported, but no backward pass or optimizer of it ran in the main thread of any process"
    return "no Python process of the command imported torch, or its environment lost PYTHONPATH (env -i, python -I)"
