"""harness watch: shows where the time of a running training goes, again and again."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import add_port, add_program, checked_port
from harness.commands.output import say
from trainer.errors import InputError, visible_lines

if TYPE_CHECKING:
    from harness.attach.live import RecordedProgram
    from harness.study.store import StudyFolder

EVERY_S = 10.0
LEAST_EVERY_S = 1.0
LOOK_PERIODS = 10  # seconds between the begins of two looks for each second that a look takes
LEAST_PRIORITY = 19  # of nice(2)
LAST_MESSAGE_S = 1.0  # in which browsers get the message that the program has ended
FIRST_LOOK = "The first look takes some seconds."
WAITING = f'<!DOCTYPE html><meta http-equiv="refresh" content="2"><title>harness watch</title><p>{FIRST_LOOK}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_program(parser)
    parser.add_argument(
        "--every", type=float, default=EVERY_S, metavar="SECONDS", help="between two looks (default: %(default)g)"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--once", action="store_true", help="print one look, as into a file or a pipe")
    group.add_argument(
        "--web", action="store_true", help="serve the page of the report on loopback, which updates itself"
    )
    add_port(parser, "the page of --web")


def watch(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Show, again and again, where the time of a program under ``harness exec`` went in its last minutes. Returns 0.

    Ends with the program or by Ctrl-C. With --once, or if stdout is no terminal, it prints this once.
    """
    if not arguments.every >= LEAST_EVERY_S:
        raise InputError(f"watch: --every {arguments.every:g}: at least {LEAST_EVERY_S:g} (seconds)")
    port = checked_port(arguments.port)
    from harness.attach.live import find_program, recorded_programs

    program = find_program(arguments.target, recorded_programs())
    try:
        if arguments.web:
            _serve(program, arguments.every, port)
        elif arguments.once or not sys.stdout.isatty():
            for line in _look(program):
                say(line)
            return 0
        else:
            _show(program, arguments.every)
    except KeyboardInterrupt:
        return 0
    say(f"the program has ended; its record or study: {program.raw.parent}")
    return 0


def _show(program: RecordedProgram, every_s: float) -> None:
    """Show each look in the terminal until the program ends."""
    from rich.live import Live
    from rich.text import Text

    with Live(Text(FIRST_LOOK), screen=True, auto_refresh=False) as live:
        for _ in _looks(program, every_s):
            text = "\n".join([_heading(program), "", *_look(program)])
            live.update(Text(visible_lines(text), no_wrap=True), refresh=True)


def _looks(program: RecordedProgram, every_s: float) -> Iterator[None]:
    """Yield when a look is due, until the program ends. A look takes at most a tenth of a core's time."""
    from harness.attach.live import is_over

    os.nice(LEAST_PRIORITY)  # The training goes first.
    while not is_over(program):
        begun_s = time.monotonic()
        yield
        took_s = time.monotonic() - begun_s
        due_s = begun_s + max(every_s, LOOK_PERIODS * took_s)
        while time.monotonic() < due_s and not is_over(program):
            time.sleep(min(1.0, max(0.0, due_s - time.monotonic())))


def _serve(program: RecordedProgram, every_s: float, port: int) -> None:
    """Serve the page of the last minutes on loopback, built anew for each look, until the program ends."""
    from harness.show.timeline.server import EVENTS, HTML, LOOPBACK, Changes, Route, TraceServer, tunnel

    changes = Changes()
    server = TraceServer({"/": Route(WAITING.encode(), HTML)}, port)
    try:
        say(f"open: http://{LOOPBACK}:{server.port}/")
        say(f"from another machine, first: {tunnel(server.port)}")
        say("Ctrl-C ends the view only")
        for _ in _looks(program, every_s):
            if (page := _page(program)) is not None:
                server.routes = {"/": Route(page, HTML), "/changes": Route(changes, EVENTS)}
                changes.tell("look")
        changes.tell("ended")
        time.sleep(LAST_MESSAGE_S)
    finally:
        server.close()


def _page(program: RecordedProgram) -> bytes | None:
    """Return the report of the program's last minutes as an HTML file; None if no step was recorded."""
    from harness.show.build import build_report

    with _recent(program) as study:
        if study is None:
            return None
        build_report(study.path, live=True)
        return study.summary_html.read_bytes()


def _heading(program: RecordedProgram) -> str:
    return f"process {program.pids[0]}, the last minutes; {datetime.now(UTC):%H:%M:%S} UTC; Ctrl-C ends the view only"


def _look(program: RecordedProgram) -> list[str]:
    """Return the lines that ``harness watch`` shows at one time: a short report, and step times by minute."""
    from harness.show import live
    from harness.show.build import report_of
    from harness.show.first_screen import first_screen
    from harness.study.run_data import read_history

    with _recent(program) as study:
        if study is None:
            return live.look(None, {}) if program.raw.is_dir() else ["The program has ended."]
        report, _, _ = report_of(study, study.read_study(), list(study.runs()))
        history = read_history(study.path)
        return live.look(first_screen(report), {} if history is None else history.minutes)


@contextmanager
def _recent(program: RecordedProgram) -> Iterator[StudyFolder | None]:
    """Yield the study of the program's last minutes, which is removed afterwards; None if no step was recorded."""
    from harness.attach.live import recent_study
    from harness.study.store import StudyFolder

    with tempfile.TemporaryDirectory(prefix="harness-watch-") as name:
        try:
            steps = recent_study(program, Path(name))
        except FileNotFoundError:
            if program.raw.is_dir():
                raise
            steps = False  # The program has ended, and its record was removed during the look.
        yield StudyFolder(Path(name)) if steps else None
