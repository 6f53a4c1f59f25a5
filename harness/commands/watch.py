"""harness watch: shows where the time of a running training goes, again and again."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import add_export, add_port, add_program, checked_export, checked_port
from harness.commands.output import say
from trainer.errors import InputError, visible, visible_lines

if TYPE_CHECKING:
    from harness.attach.live import RecordedProgram
    from harness.show.metrics import Recent

EVERY_S = 10.0
LEAST_EVERY_S = 1.0
FIRST_EVERY_S = 2.0  # until the first measured step
LOOK_PERIODS = 10  # seconds between the begins of two looks for each second that a look takes
LEAST_PRIORITY = 19  # of nice(2)
STARTED_WITHIN_S, STARTED_EVERY_S = 10.0, 0.1  # for the first process of a command whose study was created
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
    add_export(parser)


def watch(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Show, again and again, where the time of a program under ``harness exec`` went in its last minutes. Returns 0.

    Ends with the program or by Ctrl-C. With --once, or if stdout is no terminal and nothing is exported, it prints this
    once.
    """
    if not arguments.every >= LEAST_EVERY_S:
        raise InputError(f"watch: --every {arguments.every:g}: at least {LEAST_EVERY_S:g} (seconds)")
    exports = checked_export(arguments, "watch")
    if arguments.once and exports:
        raise InputError("watch: --once prints one look: omit --otlp and --prometheus")
    port = checked_port(arguments.port)
    ended = threading.Event()
    if exports:  # harness exec asks for the last look when its command has ended.
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
    program = _program(arguments.target, ended)
    if program is None:
        return 0
    if arguments.once or not (arguments.web or exports or sys.stdout.isatty()):
        for line in _look(program):
            say(line)
        return 0
    try:
        with ExitStack() as open_views:
            views: list[View] = []
            if exports:
                exporting = _exporting(program, arguments.otlp, arguments.prometheus)
                views.append(open_views.enter_context(exporting))
            if arguments.web:
                views.append(open_views.enter_context(_serving(port)))
            elif sys.stdout.isatty():
                views.append(open_views.enter_context(_showing(program)))
            for recent in _looks(program, arguments.every, ended):
                for view in views:
                    view(recent)
    except KeyboardInterrupt:
        return 0
    say(f"the program has ended; its record or study: {program.raw.parent}")
    return 0


def _program(target: str | None, ended: threading.Event) -> RecordedProgram | None:
    """Return the program that ``target`` names. One whose study was just created is given time to start; None if
    ``ended`` is set before."""
    from harness.attach.live import find_program, recorded_programs
    from harness.study.contract import RAW

    until_s = time.monotonic() + STARTED_WITHIN_S
    while True:
        try:
            return find_program(target, recorded_programs())
        except InputError:
            if target is None or not (Path(target) / RAW).is_dir() or time.monotonic() > until_s:
                raise
            if ended.wait(STARTED_EVERY_S):
                return None


View = Callable[["Recent | None"], None]  # called with each look; None: no step was recorded yet


@contextmanager
def _showing(program: RecordedProgram) -> Iterator[View]:
    """Yield a view that shows each look in the terminal."""
    from rich.live import Live
    from rich.text import Text

    with Live(Text(FIRST_LOOK), screen=True, auto_refresh=False) as live:

        def show(recent: Recent | None) -> None:
            text = "\n".join([_heading(program), "", *_lines(program, recent)])
            live.update(Text(visible_lines(text), no_wrap=True), refresh=True)

        yield show


@contextmanager
def _serving(port: int) -> Iterator[View]:
    """Yield a view that serves the page of each look on loopback."""
    from harness.show.build import build_report
    from harness.show.server import EVENTS, HTML, LOOPBACK, Changes, Route, TraceServer, tunnel

    changes = Changes()
    server = TraceServer({"/": Route(WAITING.encode(), HTML)}, port)

    def serve(recent: Recent | None) -> None:
        if recent is not None:
            build_report(recent.study.path, live=True)
            page = recent.study.summary_html.read_bytes()
            server.routes = {"/": Route(page, HTML), "/changes": Route(changes, EVENTS)}
            changes.tell("look")

    try:
        say(f"open: http://{LOOPBACK}:{server.port}/")
        say(f"from another machine, first: {tunnel(server.port)}")
        say("Ctrl-C ends the view only")
        yield serve
        changes.tell("ended")
        time.sleep(LAST_MESSAGE_S)
    finally:
        server.close()


@contextmanager
def _exporting(program: RecordedProgram, otlp: str | None, port: int | None) -> Iterator[View]:
    """Yield a view that sends each look to ``otlp``, and serves it to Prometheus on ``port`` of loopback."""
    from harness.show.metrics import Exporter
    from harness.show.server import LOOPBACK, PROMETHEUS, Route, TraceServer

    server = None if port is None else TraceServer({"/metrics": Route(b"", PROMETHEUS)}, port)
    exporter = Exporter(otlp, program.pids[0])
    failed = None

    def export(recent: Recent | None) -> None:
        nonlocal failed
        if recent is None:
            return
        before, failed = failed, exporter.update(recent)
        if failed is not None and failed != before:
            print(visible(f"--otlp {otlp}: {failed}"), file=sys.stderr)
        if server is not None:
            server.routes = {"/metrics": Route(exporter.prometheus(), PROMETHEUS)}

    try:
        if server is not None:
            say(f"metrics for Prometheus: http://{LOOPBACK}:{server.port}/metrics")
        yield export
    finally:
        exporter.close()
        if server is not None:
            server.close()


def _looks(program: RecordedProgram, every_s: float, ended: threading.Event) -> Iterator[Recent | None]:
    """Yield each look when it is due, and one when the program has ended, or ``ended`` is set. Looks take at most a
    tenth of a core's time. They are more frequent until the first measured step.
    """
    from harness.attach.live import is_over

    def over() -> bool:
        return ended.is_set() or is_over(program)

    os.nice(LEAST_PRIORITY)  # The training goes first.
    last = False
    while not last:
        last = over()
        begun_s = time.monotonic()
        with _recent(program) as recent:
            if recent is not None or not last:
                yield recent
        took_s = time.monotonic() - begun_s
        period_s = min(every_s, FIRST_EVERY_S) if recent is None else every_s
        due_s = begun_s + max(period_s, LOOK_PERIODS * took_s)
        while time.monotonic() < due_s and not over():
            ended.wait(min(1.0, max(0.0, due_s - time.monotonic())))


def _heading(program: RecordedProgram) -> str:
    return f"process {program.pids[0]}, the last minutes; {datetime.now(UTC):%H:%M:%S} UTC; Ctrl-C ends the view only"


def _look(program: RecordedProgram) -> list[str]:
    """Return the lines that ``harness watch`` shows at one time: a short report, and step times by minute."""
    with _recent(program) as recent:
        return _lines(program, recent)


def _lines(program: RecordedProgram, recent: Recent | None) -> list[str]:
    from harness.show import terminal
    from harness.show.first_screen import first_screen

    if recent is None:
        return terminal.look(None, {}) if program.raw.is_dir() else ["The program has ended."]
    return terminal.look(first_screen(recent.report), recent.minutes)


@contextmanager
def _recent(program: RecordedProgram) -> Iterator[Recent | None]:
    """Yield the study of the program's last minutes, which is removed afterwards; None if no step was recorded."""
    from harness.attach.live import recent_study
    from harness.show.metrics import Recent
    from harness.study.store import StudyFolder

    with tempfile.TemporaryDirectory(prefix="harness-watch-") as name:
        try:
            steps = recent_study(program, Path(name))
        except FileNotFoundError:
            if program.raw.is_dir():
                raise
            steps = False  # The program has ended, and its record was removed during the look.
        yield Recent(StudyFolder(Path(name))) if steps else None
