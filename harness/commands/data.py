"""harness data: one action per file. Each action's module has its arguments and is imported when it is chosen."""

from __future__ import annotations

import argparse

from harness.commands.actions import Command, add_actions

ACTIONS = {
    "pretokenize": Command(
        "harness.commands.data_pretokenize:pretokenize",
        "write pretokenized files, of a corpus or for a scenario's arms",
    ),
    "export": Command("harness.commands.data_export:export", "write tokens as the files of llm.c or nanoGPT"),
    "import": Command("harness.commands.data_import:read", "make a corpus of the files of llm.c or nanoGPT"),
    "formats": Command("harness.commands.data_formats:formats", "print what each format takes: bytes and seconds"),
    "stats": Command(
        "harness.commands.data_stats:stats", "what a corpus is made of: lengths, padding, packing, duplicates"
    ),
    "dedup": Command("harness.commands.data_dedup:dedup", "remove near-duplicates from a corpus, here or on Spark"),
    "verify": Command("harness.commands.data_verify:verify", "prove that all data paths yield the same batches"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions. Each takes its arguments from its module when it is chosen."""
    add_actions(parser, ACTIONS)


def data(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the chosen action, and return its exit code."""
    return ACTIONS[arguments.action].function()(arguments, command)
