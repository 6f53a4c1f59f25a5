"""harness audit: checks a published results table for consistency."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.commands.output import say, say_page

if TYPE_CHECKING:
    from harness.audit.table import Peak


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="published table, a file or the name of a shipped one")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def audit(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Check a published results table and print the findings, as a page or (--json) as JSON. Returns 0 whatever it
    finds.
    """
    from harness.audit.checkup import audit as check
    from harness.audit.load import load_published
    from harness.audit.report import as_json, as_text
    from harness.scenario.load import PUBLISHED, find_file

    table = load_published(find_file(arguments.file, PUBLISHED))
    result = check(table, known_peaks())
    if arguments.json:
        say(as_json(result).removesuffix("\n"))
    else:
        say_page(as_text(result, table).removesuffix("\n"))
    return 0


def known_peaks() -> list[Peak]:
    """Return the peak FLOP/s of each device profile and dtype, for dense matrices; empty if no profiles are shipped."""
    from harness.audit.table import Peak
    from trainer.devices.profiles import load_profile, profile_names

    return [
        Peak(profile.name, str(dtype), figure.value)
        for profile in map(load_profile, profile_names())
        for dtype, figure in profile.peak.items()
        if figure.value is not None
    ]
