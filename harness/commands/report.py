"""harness report: rebuilds a study's report from its tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.arguments import add_study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The study."""
    add_study(parser)


def report(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Rebuild the report of a study from its tables; print the verdicts."""
    print_verdicts(Path(arguments.study))
    return 0


def print_verdicts(folder: Path) -> None:
    """Build the report of the study in ``folder``; print its verdicts, and where the summary lies."""
    from harness.report.build import build_report
    from harness.study.store import StudyFolder

    for sentence in build_report(folder):
        print(sentence)
    print(f"summary: {StudyFolder(folder).summary_md}")
