"""Defines the actions of a command that has several, one a file: each is imported when it is chosen."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
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


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, Action]) -> None:
    """Add the actions to a command's parser. Each takes its arguments from its module when it is chosen."""
    each = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in actions.items():
        settings: Any = {"command": action}  # of the entrance's parser, which knows when to import it
        each.add_parser(name, help=action.help, **settings)
