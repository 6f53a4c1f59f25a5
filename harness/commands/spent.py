"""harness spent: adds up the hours and the cost of trainings, studies, cost probes and sweeps."""

from __future__ import annotations

import argparse
import json
import math
import sys

from harness.commands.arguments import MOST_USD
from harness.commands.output import say
from trainer.errors import InputError, visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folders, and one price for all of them."""
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="folders of harness train, run, cost and sweep, or folders above them"
    )
    parser.add_argument("--price", type=float, metavar="USD", help="US dollars per hour, in place of recorded prices")
    parser.add_argument("--json", action="store_true", help="print the expenses as JSON")


def spent(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the hours and cost of each training, study or sweep in the folders, and their sums.

    Unreadable ones are named.
    """
    from harness.launch.spending import Expense, expenses
    from harness.show.cost import spending_json, spending_lines
    from trainer.files import expanded

    price = arguments.price
    if price is not None and not (math.isfinite(price) and 0 < price <= MOST_USD):
        raise InputError(f"--price: {price:g}; allowed: more than 0, at most {MOST_USD:,.0f}")
    by_folder: dict[str, Expense] = {}  # expenses by folder: arguments may repeat or overlap
    for argument in arguments.folders:
        place = expanded(argument)
        if not place.is_dir():
            raise InputError(f"{place}: no such folder")
        entries = list(expenses(place, price))
        if not entries:
            raise InputError(
                f"{place}: contains no training, study, cost probe or sweep; give a folder of harness "
                "train, run, cost or sweep"
            )
        for entry in entries:
            if isinstance(entry, InputError):
                print(visible(f"not counted: {entry}"), file=sys.stderr)
            else:
                by_folder.setdefault(str(entry.folder.resolve()), entry)
    if not by_folder:
        raise InputError("spent: no folder could be read; see the lines above")
    listed = list(by_folder.values())
    if arguments.json:
        say(json.dumps(spending_json(listed), indent=1))
        return 0
    for line in spending_lines(listed):
        say(visible(line))
    return 0
