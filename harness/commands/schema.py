"""harness schema: prints the JSON Schema of scenario files, for editors."""

from __future__ import annotations

import argparse
import sys


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments."""


def schema(_arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the schema."""
    from harness.scenario.schema import schema_text

    sys.stdout.write(schema_text())
    return 0
