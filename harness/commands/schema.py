"""harness schema: prints the JSON Schema of scenario files for editors, or the meaning of the tables' columns."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --columns."""
    parser.add_argument("--columns", action="store_true", help="print what each column of a run's tables means")


def schema(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the JSON Schema of scenario files, or (--columns) the meaning of the tables' columns."""
    if arguments.columns:
        from harness.study.column_reference import reference

        sys.stdout.write(reference())
        return 0
    from harness.scenario.schema import schema_text

    sys.stdout.write(schema_text())
    return 0
