"""harness list: what is shipped and can be called by its name."""

from __future__ import annotations

import argparse

from harness.commands.output import say


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments."""


def list_shipped(_arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print every shipped scenario with its question, and every published table."""
    from harness.audit.load import load_published
    from harness.scenario.load import load_scenario
    from harness.scenario.shipped import PUBLISHED, SCENARIOS, shipped

    scenarios, tables = shipped(SCENARIOS), shipped(PUBLISHED)
    width = max(map(len, [*scenarios, *tables]), default=0)
    say("harness run NAME")
    for name, path in scenarios.items():
        say(f"  {name:{width}}  {' '.join(load_scenario(path).question.split())}")
    say("harness audit NAME")
    for name, path in tables.items():
        say(f"  {name:{width}}  {load_published(path).title}")
    return 0
