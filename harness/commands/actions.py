"""Defines where a command lives, and the actions of one that has several: each is imported when it is chosen."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """Where a command, or an action of one, lives, and what it is for.

    ``place`` is ``module:function``; the function takes the parsed arguments and the whole command line, and returns
    the exit code. The module also has ``add_arguments(parser)``, and ``ACTIONS`` where the command has several.
    """

    place: str
    help: str

    def module(self) -> Any:
        """Its module, imported now."""
        return import_module(self.place.partition(":")[0])

    def function(self) -> Callable[[argparse.Namespace, list[str]], int]:
        """What runs it."""
        function: Callable[[argparse.Namespace, list[str]], int] = getattr(self.module(), self.place.partition(":")[2])
        return function


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, Command]) -> None:
    """Add the actions to a command's parser. Each takes its arguments from its module when it is chosen."""
    each = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in actions.items():
        settings: Any = {"command": action}  # of the entrance's parser, which knows when to import it
        each.add_parser(name, help=action.help, **settings)
