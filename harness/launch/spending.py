"""Find the hours and the cost of trainings, studies, cost probes and sweeps below a folder.

Their cost.json counts. Without it, the begin and end of each run count: runs that took turns once, and no killed part
of a training, which has no record.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

from harness.judge.cost import COST, usd_of
from harness.launch.budget import read_cost
from harness.study.records import RunRecord, StudyRecord
from harness.study.store import StudyFolder
from trainer.errors import InputError, in_words
from trainer.files import read_json

Kind = Literal["cost probe", "sweep", "training", "study"]
Part = TypeVar("Part")
SWEEP, TRIALS, PILOT, TRIAL_SPENT = ("sweep.json", "trials", "pilot", "spent.json")  # names used by harness.sweep.store


@dataclass(frozen=True)
class Expense:
    """Time and cost of one study, training, cost probe or sweep."""

    kind: Kind
    folder: Path
    seconds: float
    usd: float | None
    """None without a known price."""
    faults: tuple[InputError, ...] = ()
    """One error for each part that is not counted, because its record is missing or damaged."""


def expenses(place: Path, price_usd_per_hour: float | None = None) -> Iterator[Expense | InputError]:
    """Yield the expense of every study, training, cost probe and sweep at or below ``place``, by folder.

    A damaged part yields an InputError instead. Trials and pilots are parts of their sweep. ``price_usd_per_hour``
    replaces recorded prices.
    """
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
    """Return time and cost of ``folder``. Raises InputError if its record is damaged; damaged parts are faults."""
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
    """Return the seconds in which a run was running. ``spans``: (begin, end) of each in seconds."""
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
    """Yield the record of every run that began (with a folder, or a training's part), or an error for it."""
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
    """Return US dollars per hour, from the scenario or the devices' profile; None without (emulated devices)."""
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
    """Yield the seconds spent in the pilots, then those of each trial; an error for a damaged record."""
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
    """Return ``value`` as a number from 0. Raises InputError, with the file and the key, for another value."""
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
