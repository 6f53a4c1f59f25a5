"""harness report: rebuilds a study's report from its tables. harness explain: prints its answer alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.commands.arguments import add_study, study_path
from harness.commands.output import append_step_summary, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    parser.add_argument(
        "--format",
        choices=("md", "html", "json"),
        help="print summary.md, .html or .json instead of the first screen; all of them are rewritten",
    )


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    parser.add_argument(
        "--json", action="store_true", help="verdicts, findings, remedies and doubts as one line of under 2 kB"
    )


def explain(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the first screen (short report) of a study, or (--json) its verdicts as one line of JSON. Writes no file,
    returns 0.
    """
    from harness.show import terminal
    from harness.show.brief import brief
    from harness.show.build import report_of
    from harness.show.first_screen import first_screen
    from harness.study.store import StudyFolder

    study = StudyFolder(study_path(arguments.study))
    found, _, _ = report_of(study, study.read_study(), list(study.runs()))
    screen = first_screen(found)
    if arguments.json:
        print(json.dumps(brief(found, screen), separators=(",", ":"), allow_nan=False))
        return 0
    for line in terminal.lines(screen):
        say(line)
    return 0


def report(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Rebuild the report of a study from its tables. Print its first screen, or (--format) the requested page."""
    folder = study_path(arguments.study)
    if arguments.format is None:
        print_first_screen(folder)
        return 0
    from harness.show.build import build_report
    from harness.study.store import StudyFolder

    build_report(folder)
    study = StudyFolder(folder)
    pages = {"md": study.summary_md, "html": study.summary_html, "json": study.summary_json}
    print(pages[arguments.format].read_text(encoding="utf-8"), end="")  # The page is made of escaped text.
    return 0


def print_first_screen(folder: Path, *, as_json: bool = False, measured: bool = False) -> None:
    """Build the report of the study in ``folder``, and print its first screen and the paths of its pages. ``as_json``:
    True to print summary.json instead. ``measured``: True if the study is new. Then the first screen is also added to
    the summary of a GitHub workflow's step, if this is one.
    """
    from harness.show import markdown, terminal
    from harness.show.build import build_report
    from harness.study.store import StudyFolder

    screen, study = build_report(folder), StudyFolder(folder)
    if measured:
        append_step_summary(markdown.opening(study.read_study().scenario, screen))
    if as_json:
        print(study.summary_json.read_text(encoding="utf-8"), end="")
        return
    for line in terminal.lines(screen):
        say(line)
    say(f"page: {study.summary_html}")
    say(f"summary: {study.summary_md}")
