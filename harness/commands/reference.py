"""harness list, schema and completion: what can be called by name, what files and tables contain, shell completions."""

from __future__ import annotations

import argparse
import sys

from harness.commands.output import say
from trainer.errors import InputError


def add_list_arguments(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments."""


def list_shipped(_arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print every shipped scenario and sweep with its question, and every published table with its title."""
    from harness.audit.load import load_published
    from harness.scenario.load import PUBLISHED, SCENARIOS, SWEEPS, load_scenario, shipped
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


def add_schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--columns", action="store_true", help="print the meaning of each column of a run's tables")


def schema(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the JSON Schema of scenario files, or (--columns) the meaning of the tables' columns."""
    if arguments.columns:
        from harness.study.contract import column_reference

        sys.stdout.write(column_reference())
        return 0
    from harness.scenario.schema import schema_text

    sys.stdout.write(schema_text())
    return 0


SHELLS = ("bash", "zsh", "tcsh")


def add_completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "bash: harness completion bash > ~/.local/share/bash-completion/completions/harness"
    parser.add_argument("shell", choices=SHELLS, help="shell of the script")


def completion(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the completion script for the requested shell. Raises InputError if the package shtab is missing."""
    try:
        import shtab
    except ImportError as error:
        raise InputError("completion: needs shtab: pip install 'shtab>=1.7'") from error
    print(shtab.complete(arguments.everything(), shell=arguments.shell))
    return 0
