"""Finds the hours and the cost of trainings, studies, cost probes and sweeps below a folder.

A study or a training with a budget notes what it spent (cost.json). A cost probe is one study, from its start to its
end. Of others the runs say when they began and ended: runs that took turns count once, and a part of a training that
was killed, which wrote no record, does not count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from harness.analysis.cost import usd_of
from harness.launch.budget import read_cost
from harness.study.records import RunRecord, StudyRecord
from harness.study.store import StudyFolder
from trainer.errors import InputError
from trainer.files import read_json

Kind = Literal["cost probe", "sweep", "training", "study"]
SWEEP, TRIAL_SPENT = "sweep.json", "trials/*/spent.json"  # files that harness.sweep.store writes


@dataclass(frozen=True)
class Expense:
    """Time and cost of one folder."""

    kind: Kind
    folder: Path
    seconds: float
    usd: float | None
    """None if no price is known."""


def expenses(place: Path, price_usd_per_hour: float | None = None) -> Iterator[Expense | InputError]:
    """Yield the expense of every folder at or below ``place``, by name; the error in place of a damaged one.

    A folder within such a folder (a sweep's trial) is part of it. ``price_usd_per_hour``: in place of recorded ones.
    """
    for folder, below, files in os.walk(place):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if SWEEP in files or "study.json" in files:
            below.clear()
            try:
                yield expense_of(Path(folder), price_usd_per_hour)
            except InputError as error:
                yield error


def expense_of(folder: Path, price_usd_per_hour: float | None = None) -> Expense:
    """Return time and cost of the sweep, study or training in ``folder``. Raises InputError for a damaged record."""
    if (folder / SWEEP).is_file():
        return _of_sweep(folder, price_usd_per_hour)
    store = StudyFolder(folder)
    study, cost = store.read_study(), read_cost(folder)
    records = [one for one in _records(store, study) if one is not None]
    is_probe = "cost" in study.command[:2]
    if cost is not None:
        seconds = cost.spent_s
    elif is_probe and study.ended_utc:
        seconds = _between(study.created_utc, study.ended_utc)
    else:
        seconds = seconds_of(records)
    price = price_usd_per_hour or (None if cost is None else cost.per_hour_usd) or _price(study, records)
    kind: Kind = "cost probe" if is_probe else "training" if study.is_training else "study"
    return Expense(kind, folder, seconds, usd_of(seconds, price))


def seconds_of(records: Iterable[RunRecord]) -> float:
    """Return the seconds in which at least one run was running. Runs without recorded begin and end count as 0."""
    found, reached_s = 0.0, 0.0
    for begin_s, end_s in sorted(_span(one) for one in records if one.started_utc and one.ended_utc):
        found += max(0.0, end_s - max(begin_s, reached_s))
        reached_s = max(reached_s, end_s)
    return found


def _span(record: RunRecord) -> tuple[float, float]:
    """Return the begin and the end of a run's process in Unix seconds, including imports and shutdown."""
    begin, end = (datetime.fromisoformat(one).timestamp() for one in (record.started_utc, record.ended_utc))
    return begin - (record.import_ns or 0) / 1e9, end + (record.ending_ns or 0) / 1e9


def _between(begin_utc: str, end_utc: str) -> float:
    return (datetime.fromisoformat(end_utc) - datetime.fromisoformat(begin_utc)).total_seconds()


def _records(store: StudyFolder, study: StudyRecord) -> Iterator[RunRecord | None]:
    for block, names in enumerate(study.order):
        for name in names:
            yield store.read_record(name, block)


def _price(study: StudyRecord, records: Sequence[RunRecord]) -> float | None:
    """Return US dollars per hour: the scenario's price, else that of the devices. Emulated devices have none."""
    given = study.scenario_text.get("price_usd_per_hour")
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    facts = next((one.facts for one in records if one.facts.price_per_hour_usd and not one.facts.emulated), None)
    if facts is None or facts.price_per_hour_usd is None:
        return None
    return facts.price_per_hour_usd * (facts.device_count or 1)


def _of_sweep(folder: Path, price_usd_per_hour: float | None) -> Expense:
    record = _object(folder / SWEEP)
    price = price_usd_per_hour or _number(record.get("price_usd_per_hour"))
    seconds = _number(record.get("lost_s")) or 0.0
    seconds += sum(_number(_object(path).get("seconds")) or 0.0 for path in sorted(folder.glob(TRIAL_SPENT)))
    return Expense("sweep", folder, seconds, usd_of(seconds, price))


def _object(path: Path) -> dict[str, object]:
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: not an object")
    return found


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
