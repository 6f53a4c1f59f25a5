"""harness list: prints the shipped scenarios, sweeps and tables that can be called by name."""

from __future__ import annotations

import argparse

from harness.commands.output import say


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments."""


def list_shipped(_arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print every shipped scenario and sweep with its question, and every published table with its title."""
    from harness.audit.load import load_published
    from harness.scenario.load import load_scenario
    from harness.scenario.shipped import PUBLISHED, SCENARIOS, SWEEPS, shipped
    from harness.sweep.load import load_sweep

    scenarios, sweeps, tables = shipped(SCENARIOS), shipped(SWEEPS), shipped(PUBLISHED)
    width = max(map(len, [*scenarios, *sweeps, *tables]), default=0)
    say("harness run NAME")
    for name, path in scenarios.items():
        say(f"  {name:{width}}  {' '.join(load_scenario(path).question.split())}")
    say("harness sweep NAME")
    for name, path in sweeps.items():
        say(f"  {name:{width}}  {load_sweep(path).settings.question}")
    say("harness audit NAME")
    for name, path in tables.items():
        say(f"  {name:{width}}  {load_published(path).title}")
    return 0
