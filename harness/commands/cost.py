"""harness cost and spent: predict hours and money of trainings or a study from a few steps; add up what was spent."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands import exit_codes
from harness.commands.arguments import MOST_USD, PATHS_NOTE, SCENARIO_HELP, add_overrides, load_plan, refuse_ranks
from harness.commands.output import say
from trainer.errors import InputError, visible
from trainer.files import shell_word

if TYPE_CHECKING:
    from harness.judge.cost import Undertaking


OUT = "results/cost"
MAX_COSTED_STEPS = 10_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = PATHS_NOTE
    parser.add_argument("scenario", metavar="SCENARIO", help=SCENARIO_HELP)
    parser.add_argument(
        "--steps", type=int, metavar="N", help="optimizer steps of each arm's training (default: the scenario's steps)"
    )
    price = parser.add_mutually_exclusive_group()
    price.add_argument("--price", type=float, metavar="USD", help="price per hour of all devices of an arm")
    price.add_argument(
        "--device-profile", metavar="NAME",
        help="take the price of this profile (h100-sxm), for each device (default: price_usd_per_hour of the scenario, "
        "else the profile of the device that the arm runs on)",
    )  # fmt: skip
    parser.add_argument("--round-up", type=float, metavar="USD", help="round the price up to a multiple of this (0.5)")
    parser.add_argument(
        "--study", action="store_true", help="predict harness run instead: all runs of all blocks, with controls"
    )
    add_overrides(parser)
    parser.add_argument("--out", default=OUT, metavar="DIR", help="folder for measured steps (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the prediction as JSON")
    parser.add_argument("--force", action="store_true", help="start even if it cannot fit into the free memory")


def cost(arguments: argparse.Namespace, command: list[str]) -> int:
    """Measure the first steps of every arm, and print the predicted time and cost of each training, or of the study."""
    begun_s = time.monotonic()
    refuse_ranks("cost")
    _check(arguments)
    undertaking: Undertaking = "study" if arguments.study else "training"
    plan = load_plan(arguments)
    scenario = plan.scenario
    if arguments.device_profile is not None:
        from harness.launch.budget import profile_price

        profile_price(arguments.device_profile)  # Fails now, not after the measurement.
    from harness.judge.cost import PredictedCost
    from harness.launch.budget import limit_of, prices_of
    from harness.launch.costing import MeasurementFailed, measure, works_of
    from harness.show.cost import cost_json, lines

    # Raises InputError for a plan that cannot be predicted, before anything is measured.
    works = works_of(plan, undertaking, arguments.steps)
    launcher_s = time.monotonic() - begun_s
    source = arguments.scenario
    try:
        measured = measure(plan, undertaking, Path(arguments.out), command, source, force=arguments.force)
    except MeasurementFailed as failed:
        if failed.status == "interrupted":
            raise KeyboardInterrupt from failed
        print(f"harness: {failed}" + (f"; its log: {failed.log}" if failed.log else ""), file=sys.stderr)
        return exit_codes.OF_STUDY["failed"]
    arms = measured.after(launcher_s)
    prices = prices_of(arms, arguments.price, arguments.device_profile, scenario.price_usd_per_hour, arguments.round_up)
    prediction = PredictedCost(undertaking, scenario.name, arms, works, prices, limit_of(scenario))
    if arguments.json:
        say(json.dumps({**cost_json(prediction), "measured": str(measured.folder)}, indent=1, allow_nan=False))
        return 0
    for line in lines(prediction):
        say(line)
    say(f"measured: {measured.folder} (where those steps went: harness report {shell_word(measured.folder)})")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise InputError if an option has an impossible value."""
    if arguments.steps is not None:
        if arguments.study:
            raise InputError("cost: --steps is only for trainings; the runs of a study have the steps of its scenario")
        if not 0 < arguments.steps <= MAX_COSTED_STEPS:
            raise InputError(f"--steps: {arguments.steps}; allowed: 1 to {MAX_COSTED_STEPS:,}")
    for name in ("price", "round_up"):
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and 0 < value <= MOST_USD):
            raise InputError(f"--{name.replace('_', '-')}: {value:g}; allowed: more than 0, at most {MOST_USD:,.0f}")


def add_spent_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="folders of harness train, run, cost and sweep, or folders above them"
    )
    parser.add_argument("--price", type=float, metavar="USD", help="US dollars per hour, instead of recorded prices")
    parser.add_argument("--json", action="store_true", help="print the expenses as JSON")


def spent(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the hours and cost of each training, study or sweep in the folders, their sums, and unreadable folders."""
    from harness.launch.budget import Expense, expenses
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
