"""harness data: one action a file. Each action's module owns its arguments and is imported when it is chosen."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Action(NamedTuple):
    """Where an action lives, and what it is for.

    ``place`` is ``module:function``, as of a command: the function takes the parsed arguments and the whole command
    line, and returns the exit code; the module also has ``add_arguments(parser)``.
    """

    place: str
    help: str

    def module(self) -> Any:
        """The action's module, imported now."""
        return import_module(self.place.partition(":")[0])

    def function(self) -> Callable[[argparse.Namespace, list[str]], int]:
        """What runs the action."""
        function: Callable[[argparse.Namespace, list[str]], int] = getattr(self.module(), self.place.partition(":")[2])
        return function


ACTIONS = {
    "pretokenize": Action(
        "harness.commands.data_pretokenize:pretokenize",
        "write pretokenized files, of a corpus or for a scenario's arms",
    ),
    "export": Action("harness.commands.data_export:export", "write tokens as the files of llm.c or nanoGPT"),
    "import": Action("harness.commands.data_import:read", "make a corpus of the files of llm.c or nanoGPT"),
    "formats": Action("harness.commands.data_formats:formats", "print what each format takes: bytes and seconds"),
    "stats": Action(
        "harness.commands.data_stats:stats", "what a corpus is made of: lengths, padding, packing, duplicates"
    ),
    "dedup": Action("harness.commands.data_dedup:dedup", "remove near-duplicates from a corpus, here or on Spark"),
    "verify": Action("harness.commands.data_verify:verify", "prove that all data paths yield the same batches"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions. Each takes its arguments from its module when it is chosen."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in ACTIONS.items():
        settings: Any = {"command": action}  # of the entrance's parser, which knows when to import it
        actions.add_parser(name, help=action.help, **settings)


def data(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the action."""
    return ACTIONS[arguments.action].function()(arguments, command)
