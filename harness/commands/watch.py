"""harness watch: shows where the time of a running training goes, again and again."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.output import say
from trainer.errors import InputError, visible_lines

if TYPE_CHECKING:
    from harness.attach.live import RecordedProgram

EVERY_S = 10.0
LEAST_EVERY_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        metavar="PID|STUDY",
        help="a process of the command that `harness exec` runs, or its study folder (default: the only such command)",
    )
    parser.add_argument(
        "--every", type=float, default=EVERY_S, metavar="SECONDS", help="between two looks (default: %(default)g)"
    )
    parser.add_argument("--once", action="store_true", help="print one look, as into a file or a pipe")


def watch(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Show, again and again, where the time of a program under ``harness exec`` went in its last minutes. Returns 0.

    Ends with the program or by Ctrl-C. With --once, or if stdout is no terminal, it prints this once.
    """
    if not arguments.every >= LEAST_EVERY_S:
        raise InputError(f"watch: --every {arguments.every:g}: at least {LEAST_EVERY_S:g} (seconds)")
    from harness.attach.live import find_program, is_over, recorded_programs

    program = find_program(arguments.target, recorded_programs())
    if arguments.once or not sys.stdout.isatty():
        for line in _look(program):
            say(line)
        return 0
    from rich.live import Live
    from rich.text import Text

    with Live(Text("The first look takes some seconds."), screen=True, auto_refresh=False) as live:
        try:
            while not is_over(program):
                begun_s = time.monotonic()
                text = "\n".join([_heading(program), "", *_look(program)])
                live.update(Text(visible_lines(text), no_wrap=True), refresh=True)
                time.sleep(max(0.0, arguments.every - (time.monotonic() - begun_s)))
        except KeyboardInterrupt:
            return 0
    say(f"the program has ended; its study: {program.raw.parent}")
    return 0


def _heading(program: RecordedProgram) -> str:
    return f"process {program.pids[0]}, the last minutes; {datetime.now(UTC):%H:%M:%S} UTC; Ctrl-C ends the view only"


def _look(program: RecordedProgram) -> list[str]:
    """Return the lines that ``harness watch`` shows at one time: a short report, and step times by minute."""
    from harness.attach.live import recent_study
    from harness.show import live
    from harness.show.build import report_of
    from harness.show.first_screen import first_screen
    from harness.study.run_data import read_history
    from harness.study.store import StudyFolder

    with tempfile.TemporaryDirectory(prefix="harness-watch-") as name:
        try:
            if not recent_study(program, Path(name)):
                return live.look(None, {})
        except FileNotFoundError:
            if program.raw.is_dir():
                raise
            return ["The program has ended."]  # Its record was removed during the look.
        study = StudyFolder(Path(name))
        report, _, _ = report_of(study, study.read_study(), list(study.runs()))
        history = read_history(study.path)
        return live.look(first_screen(report), {} if history is None else history.minutes)
