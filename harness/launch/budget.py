"""End a training or a study when its budget is spent, record its cost (``cost.json``), and add up what was spent.

Without a cost.json, the begin and end of each run count: runs that took turns once, and no killed part of a training,
which has no record.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

from harness.judge.cost import (
    BUDGET_SCHEMA,
    COST,
    ArmMeasurement,
    HourlyPrice,
    PredictedCost,
    SpendingLimit,
    Standing,
    rounded_up,
    usd_of,
)
from harness.scenario.model import Scenario
from harness.study.records import RunRecord, StudyRecord, read_record
from harness.study.store import StudyFolder, write_json
from trainer.devices.profiles import load_profile
from trainer.errors import InputError, in_words
from trainer.files import read_json

# Seconds between two writes of cost.json. A killed training loses at most this much of its spent time. A study may
# lose a repetition's duration instead, if that is longer.
NOTE_INTERVAL_S = 10.0


class Deadline:
    """Time limit of a study, ``end_ns`` (CLOCK_MONOTONIC; None: no limit). ``stopped``: True if it ended a study."""

    def __init__(self, end_ns: int | None) -> None:
        self._end_ns = end_ns
        self.stopped = False

    @property
    def end_ns(self) -> int | None:
        return self._end_ns

    def begin(self, folder: Path, *, anew: bool = False) -> None:
        """Do nothing here; a subclass may. Called when the study or training in ``folder`` begins."""

    def note(self) -> None:
        """Do nothing here; a subclass may. Called regularly while the study or training runs."""

    def end(self, *, done: bool = False) -> None:
        """Do nothing here; a subclass may. Called when the study or training ends. ``done``: True if it is complete."""


class Allowance(Deadline):
    """Budget of one training or study, with the cost so far, counted from construction or :meth:`begin`."""

    def __init__(self, predicted: PredictedCost, used_s: float = 0.0) -> None:
        """Begin to count the spent seconds. ``used_s``: seconds already spent, besides ``predicted.spent_s``."""
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
        """Expected seconds of a training's end: saving a last checkpoint, writing result tables, ending the process."""
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
    """Return the price of an hour of each arm; None if unknown. The first counts that is set: ``given_usd`` (all
    devices), the price of the device ``profile`` (InputError without one), the scenario's, that of the arm's own
    device.
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


Kind = Literal["cost probe", "sweep", "training", "study"]
Part = TypeVar("Part")
SWEEP, TRIALS, PILOT, TRIAL_SPENT = ("sweep.json", "trials", "pilot", "spent.json")  # names used by harness.sweep.store


@dataclass(frozen=True)
class Expense:
    """Time, and cost in US dollars, of one study, training, sweep or cost probe (a run of ``harness cost``)."""

    kind: Kind
    folder: Path
    seconds: float
    usd: float | None  # None without a known price
    faults: tuple[InputError, ...] = ()
    """One error for each part that is not counted, because its record is missing or damaged."""


def expenses(place: Path, price_usd_per_hour: float | None = None) -> Iterator[Expense | InputError]:
    """Yield the expense of every study, training, cost probe and sweep at or below ``place``, or its InputError."""
    for folder, below, files in os.walk(place):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if SWEEP in files or "study.json" in files:
            if SWEEP in files:
                below[:] = [name for name in below if name not in (TRIALS, PILOT)]
            try:
                spent = expense_of(Path(folder), price_usd_per_hour)
            except InputError as error:
                yield error
                continue
            yield from spent.faults
            if spent.seconds or not spent.faults:
                yield spent


def expense_of(folder: Path, price_usd_per_hour: float | None = None) -> Expense:
    """Return time and cost of the study, training, cost probe or sweep in ``folder``. A part's damaged record is one of
    its ``faults``; for the folder's own, it raises InputError.
    """
    if (folder / SWEEP).is_file():
        return _of_sweep(folder, price_usd_per_hour)
    store = StudyFolder(folder)
    study, cost = store.read_study(), read_cost(folder)
    records, faults = _parted(_records(store, study))
    is_probe = "cost" in study.command[:2]
    if cost is not None:
        seconds = _amount(folder / COST, "spent_s", cost.spent_s)
        faults = ()
    elif is_probe and study.ended_utc:
        begin_s, end_s = _span(store.study_json, study.created_utc, study.ended_utc)
        seconds, faults = end_s - begin_s, ()
    else:
        spans, undated = _parted(_spans(store, records))
        seconds, faults = _in_total(spans), (*faults, *undated)
    price = price_usd_per_hour or (None if cost is None else cost.per_hour_usd) or _price(study, records)
    kind: Kind = "cost probe" if is_probe else "training" if study.is_training else "study"
    return Expense(kind, folder, seconds, usd_of(seconds, price), faults)


def seconds_of(record: RunRecord) -> float | None:
    """Return the seconds of a run, from its imports to the end of its process. None if its times are not recorded."""
    try:
        begin_s, end_s = _span_of(Path(), record)
    except InputError:
        return None
    return end_s - begin_s


def _parted(parts: Iterator[Part | InputError]) -> tuple[list[Part], tuple[InputError, ...]]:
    """Separate values from errors. Return (values, errors), each in the order of ``parts``."""
    results = list(parts)
    errors = tuple(result for result in results if isinstance(result, InputError))
    return [result for result in results if not isinstance(result, InputError)], errors


def _in_total(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds in which any run was running; overlaps count once. ``spans``: (begin, end) in seconds."""
    total_s, reached_s = 0.0, 0.0
    for begin_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(begin_s, reached_s))
        reached_s = max(reached_s, end_s)
    return total_s


def _spans(store: StudyFolder, records: Sequence[RunRecord]) -> Iterator[tuple[float, float] | InputError]:
    """Yield (begin, end) of every run that began, in Unix seconds; an error for a run without valid times."""
    for record in records:
        if record.status == "done" or record.started_utc or record.ended_utc:
            try:
                yield _span_of(store.run_json(record.arm, record.block), record)
            except InputError as error:
                yield error


def _span_of(path: Path, record: RunRecord) -> tuple[float, float]:
    """Return (begin, end) of a run's process in Unix seconds. Raises InputError, with ``path``, for invalid times."""
    begin_s, end_s = _span(path, record.started_utc, record.ended_utc)
    import_s, ending_s = (
        _amount(path, key, value or 0) / 1e9
        for key, value in (("import_ns", record.import_ns), ("ending_ns", record.ending_ns))
    )
    return begin_s - import_s, end_s + ending_s


def _span(path: Path, begin_utc: str, end_utc: str) -> tuple[float, float]:
    """Return (begin, end) in Unix seconds. Raises InputError, with ``path``, if not times or in wrong order."""
    try:
        begin_s, end_s = (datetime.fromisoformat(time_utc).timestamp() for time_utc in (begin_utc, end_utc))
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path}: begin or end of the run is not a time ({in_words(error)})") from error
    if end_s < begin_s:
        raise InputError(f"{path}: it ends ({end_utc}) before it begins ({begin_utc})")
    return begin_s, end_s


def _records(store: StudyFolder, study: StudyRecord) -> Iterator[RunRecord | InputError]:
    """Yield the record of every run that began (its folder exists; all of a training), or an InputError."""
    for block, names in enumerate(study.order):
        for name in names:
            path = store.run_json(name, block)
            if path.exists():
                try:
                    yield store.intact_record(name, block)
                except InputError as error:
                    yield error
            elif study.is_training or path.parent.is_dir():
                yield InputError(f"{path}: no such file; the run was killed, still runs, or lost its record")


def _price(study: StudyRecord, records: Sequence[RunRecord]) -> float | None:
    """Return US dollars per hour, from the scenario or the devices' profile; None if neither has a price."""
    price = study.scenario_text.get("price_usd_per_hour")
    if isinstance(price, int | float) and not isinstance(price, bool):
        return float(price)
    facts = next(
        (record.facts for record in records if record.facts.price_per_hour_usd and not record.facts.emulated), None
    )
    if facts is None or facts.price_per_hour_usd is None:
        return None
    return facts.price_per_hour_usd * (facts.device_count or 1)


def _of_sweep(folder: Path, price_usd_per_hour: float | None) -> Expense:
    record = _object(folder / SWEEP)
    price = price_usd_per_hour or _number(record.get("price_usd_per_hour"))
    parts, faults = _parted(_sweep_seconds(folder, record))
    return Expense("sweep", folder, sum(parts), usd_of(sum(parts), price), faults)


def _sweep_seconds(folder: Path, record: Mapping[str, object]) -> Iterator[float | InputError]:
    """Yield the seconds spent in a sweep's pilots, then those of each trial; an InputError for a damaged record."""
    parts = [
        (folder / SWEEP, "lost_s"),
        *((trial / TRIAL_SPENT, "seconds") for trial in sorted(folder.glob(f"{TRIALS}/*/"))),
    ]
    for path, key in parts:
        try:
            content = record if path.name == SWEEP else _object(path)
            yield _amount(path, key, content.get(key, 0.0 if content is record else None))
        except InputError as error:
            yield error


def _amount(path: Path, key: str, value: object) -> float:
    """Return ``value`` as a finite number, 0 or more. Raises InputError, with file and key, for another value."""
    parsed = _number(value)
    if parsed is None or not 0 <= parsed < math.inf:
        raise InputError(f"{path}: {key}: {value!r:.40} is not a duration; allowed: a number from 0")
    return parsed


def _object(path: Path) -> dict[str, object]:
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not an object")
    return content


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
