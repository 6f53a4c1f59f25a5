"""Defines the place of a command, and the actions of a command that has several. Each is imported when it is chosen."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command, or one of its actions. A module with ``ACTIONS`` has several."""

    place: str  # ``module:function`` of this room; it gets the parsed arguments and all words, returns the exit code
    help: str
    arguments: str = "add_arguments"  # function of the module that adds the arguments to a parser

    @property
    def module_name(self) -> str:
        return f"harness.commands.{self.place.partition(':')[0]}"

    def module(self) -> Any:
        """Import the command's module, and return it."""
        return import_module(self.module_name)

    def function(self) -> Callable[[argparse.Namespace, list[str]], int]:
        """Import the command's module, and return the function that runs the command."""
        function: Callable[[argparse.Namespace, list[str]], int] = getattr(self.module(), self.place.partition(":")[2])
        return function

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Import the command's module, and add the command's arguments to ``parser``."""
        getattr(self.module(), self.arguments)(parser)


def add_actions(parser: argparse.ArgumentParser, actions: Mapping[str, Command]) -> None:
    """Add each of ``actions`` as a subcommand to a command's parser. Its arguments are added only when it is chosen."""
    subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in actions.items():
        settings: Any = {"command": action}  # The entrance's parser imports the action when it is chosen.
        subparsers.add_parser(name, help=action.help, **settings)


def run_action(actions: Mapping[str, Command], arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the subcommand that was given, one of ``actions``, and return its exit code."""
    return actions[arguments.action].function()(arguments, command)
