"""harness import: converts files of another trainer, one format per action."""

from __future__ import annotations

import argparse

from harness.commands.actions import Command, add_actions

ACTIONS = {
    "llmc-model": Command(
        "harness.commands.import_llmc_model:read", "make a folder for transformers of a model file of llm.c"
    ),
    "llmc-log": Command("harness.commands.import_llmc_log:read", "make tables of losses of llm.c's main.log"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    parser.epilog = "Tokens: harness data import."
    add_actions(parser, ACTIONS)


def read(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the chosen action, and return its exit code."""
    return ACTIONS[arguments.action].function()(arguments, command)
