"""End a training or a study when its budget is spent, and record its predicted and actual cost (``cost.json``)."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from harness.judge.cost import (
    BUDGET_SCHEMA,
    COST,
    ArmMeasurement,
    HourlyPrice,
    PredictedCost,
    SpendingLimit,
    Standing,
    rounded_up,
)
from harness.scenario.model import Scenario
from harness.study.records import read_record
from harness.study.store import write_json
from trainer.devices.profiles import load_profile
from trainer.errors import InputError, in_words

# Seconds between two writes of cost.json. A killed training loses at most this much of its spent time. A study may
# lose a repetition's duration instead, if that is longer.
NOTE_INTERVAL_S = 10.0


class Deadline:
    """Time limit of a study, ``end_ns`` (CLOCK_MONOTONIC; None: no limit). ``stopped``: it ended the study."""

    def __init__(self, end_ns: int | None) -> None:
        self._end_ns = end_ns
        self.stopped = False

    @property
    def end_ns(self) -> int | None:
        return self._end_ns

    def begin(self, folder: Path, *, anew: bool = False) -> None:
        """Do nothing. Called when the study or training in ``folder`` begins."""

    def note(self) -> None:
        """Do nothing. Called regularly while the study or training runs."""

    def end(self, *, done: bool = False) -> None:
        """Do nothing. Called at the end of the study or training. ``done``: True if all of it is done."""


class Allowance(Deadline):
    """Budget of one training or study, with the cost so far, counted from construction or :meth:`begin`."""

    def __init__(self, predicted: PredictedCost, used_s: float = 0.0) -> None:
        """Begin to count. ``used_s``: seconds already used, besides ``predicted.spent_s``."""
        super().__init__(None)
        self._predicted = predicted
        self._begun_s = self._noted_s = time.monotonic()
        self._used_s = predicted.spent_s + used_s
        self._path: Path | None = None
        self._done = False

    def begin(self, folder: Path, *, anew: bool = False) -> None:
        """Write the predicted cost to cost.json in ``folder``. ``anew``: True to count the time from now."""
        self._path = folder / COST
        if anew:
            self._begun_s = time.monotonic()
        write_json(self._path, cost_json(self.now))

    @property
    def now(self) -> PredictedCost:
        """Predicted cost, with the seconds spent so far and the status (done, stopped or unfinished)."""
        standing: Standing = "done" if self._done else "stopped" if self.stopped else "unfinished"
        return replace(self._predicted, spent_s=self.spent_s, standing=standing)

    @property
    def spent_s(self) -> float:
        return self._used_s + time.monotonic() - self._begun_s

    @property
    def end_ns(self) -> int | None:
        """Time at which the budget is spent (CLOCK_MONOTONIC); None without a limit, or dollars without a price."""
        limit_s = self._predicted.limit_s
        return None if limit_s is None else round((self._begun_s + limit_s - self._used_s) * 1e9)

    def ends_before(self, ending_s: float) -> bool:
        """True if the training has to end now to stay within the budget. ``ending_s``: seconds that its end takes."""
        end_ns = self.end_ns
        return end_ns is not None and time.monotonic_ns() + ending_s * 1e9 >= end_ns

    @property
    def ending_s(self) -> float:
        """Expected seconds of a training's end: a last checkpoint, its tables, and the end of its process."""
        return max(
            (measurement.last_checkpoint.worst + measurement.ending_s for measurement in self._predicted.measured),
            default=0.0,
        )

    def note(self) -> None:
        """Write the spent cost to cost.json if the last write is NOTE_INTERVAL_S old. Cheap after every step."""
        now_s = time.monotonic()
        if self._path is not None and now_s - self._noted_s >= NOTE_INTERVAL_S:
            self._noted_s = now_s
            with suppress(OSError):  # A full disk ends the training elsewhere, with a message.
                write_json(self._path, cost_json(self.now))

    def end(self, *, done: bool = False) -> None:
        """Write the total cost to cost.json, with the status "done" or not. A failed write is only a warning."""
        if self._path is None:
            return
        self._done = done
        try:
            write_json(self._path, cost_json(self.now))
        except OSError as error:
            print(f"warning: {self._path}: the spending could not be written: {in_words(error)}", file=sys.stderr)


def cost_json(predicted: PredictedCost) -> dict[str, object]:
    """Return the content of cost.json: ``predicted`` (which includes the cost so far) and the schema version."""
    return {"schema": BUDGET_SCHEMA, **asdict(predicted)}


def read_cost(folder: Path) -> PredictedCost | None:
    """Return predicted and actual cost from cost.json; None without one. Raises InputError if it is damaged."""
    return read_record(folder / COST, PredictedCost, BUDGET_SCHEMA)


def limit_of(scenario: Scenario) -> SpendingLimit | None:
    """Return the limit in the scenario's ``budget`` (dollars or hours); None if the scenario has no budget."""
    budget = scenario.budget
    return None if budget is None else SpendingLimit(budget.usd, budget.hours)


def prices_of(
    arms: tuple[ArmMeasurement, ...],
    given_usd: float | None = None,
    profile: str | None = None,
    scenario_usd: float | None = None,
    round_up_usd: float | None = None,
) -> tuple[HourlyPrice | None, ...]:
    """Return the price of an hour of each arm, in the order of ``arms``; None for an arm without a known price.

    The first that is set counts: ``given_usd``, the price of the device ``profile``, the scenario's, that of the arm's
    own device. A given price covers all devices; a profile's is for one. ``round_up_usd``: multiple to round up to.
    Raises InputError if the named profile has no price.
    """
    named = None if profile is None else profile_price(profile)
    prices: list[HourlyPrice | None] = []
    for arm in arms:
        if given_usd is not None:
            price: HourlyPrice | None = HourlyPrice(given_usd, "option")
        elif named is not None:
            price = replace(named, devices=arm.devices)
        elif scenario_usd is not None:
            price = HourlyPrice(scenario_usd, "scenario")
        elif arm.profile is not None and arm.profile_usd:
            price = HourlyPrice(arm.profile_usd, "device", arm.devices, arm.profile)
        else:
            price = None
        prices.append(None if price is None else rounded_up(price, round_up_usd))
    return tuple(prices)


def profile_price(name: str) -> HourlyPrice:
    """Return the price of an hour of one device of profile ``name``. Raises InputError if it has none."""
    profile = load_profile(name)
    if profile.price_per_hour_usd is None:
        raise InputError(f"--device-profile {name}: it has no price ({profile.price.why}); give --price USD")
    return HourlyPrice(profile.price_per_hour_usd, "profile", 1, profile.name)
