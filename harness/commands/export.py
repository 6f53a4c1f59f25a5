"""harness export: converts models and tokenizers to formats of another trainer, one format per action."""

from __future__ import annotations

import argparse

from harness.commands.actions import Command, add_actions

ACTIONS = {
    "llmc-tokenizer": Command("harness.commands.export_llmc_tokenizer:export", "write a tokenizer as a file of llm.c"),
    "llmc-model": Command("harness.commands.export_llmc_model:export", "write a GPT-2 as a model file of llm.c"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions."""
    parser.epilog = "Tokens: harness data export."
    add_actions(parser, ACTIONS)


def export(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the chosen action, and return its exit code."""
    return ACTIONS[arguments.action].function()(arguments, command)
