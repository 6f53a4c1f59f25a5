"""Keep baselines: an arm's figures as small JSON files in git, one folder per environment.

Files: ``results/baselines/<environment>/<scenario>--<arm>.json``, with the newest study and the medians of earlier
sessions. The folder's name is a fingerprint of this machine (processor, cores, quota, governor, turbo, driver, memory),
the device, and the versions of Python and of the packages that do the work.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from harness.explain.policy import CONFIDENCE
from harness.machine.packages import OWN_PACKAGE, PACKAGES
from harness.regress.policy import KEPT_SESSIONS, MS_DIGITS
from harness.regress.series import MACHINE, STEP, BlockSeries, Days, Session, apart, session_of
from harness.study.files import check_folder_name
from trainer.errors import InputError
from trainer.files import read_json, write_text
from trainer.json_types import JsonObject

BASELINE_SCHEMA = 1
MEND = "restore it from version control, or delete it to start a new baseline"
LEAST_MS, MOST_MS = 10.0**-MS_DIGITS, 1e12  # Allowed range of a time in ms: saved times are rounded, and a run ends.
# Excludes the kernel's release, which changes with every security update, and the package under test.
KEYS = (*MACHINE, "python", *(package for package in PACKAGES if package != OWN_PACKAGE))


SAVE = "harness baseline save STUDY"  # command that keeps a baseline


class NoBaselineError(InputError):
    """Raised if no kept baseline is comparable: none exists for the arm, or only for another environment."""


@dataclass(frozen=True)
class Detection:
    """Limits of a check against a baseline on another day. Smaller changes may be variation between days."""

    slowdown: float  # smallest detectable slowdown, as a fraction
    same: bool  # True if the check can decide "same"
    known: bool  # True if the variation was measured, False if it is assumed
    more_sessions: int  # further sessions until it is measured


@dataclass(frozen=True)
class Baseline:
    """Content of a baseline file, made by :func:`read`."""

    path: Path
    key: str  # name of its environment
    series: BlockSeries  # newest session
    earlier: tuple[Session, ...] = ()  # other sessions, oldest first
    level: int = 0  # grows by 1 when the code's speed is changed on purpose, see :func:`save`

    @property
    def sessions(self) -> tuple[Session, ...]:
        return (*self.earlier, session_of(self.series, self.level))

    def limits_of_detection(self, within: float) -> Detection:
        """Return the smallest change of the step time that a check on another day detects (``within``: the same)."""
        allowance, measured = self.days.between(STEP, CONFIDENCE)
        edge = math.log1p(within)
        return Detection(math.expm1(edge + allowance), allowance < edge, measured, self.days.more_sessions)

    @property
    def days(self) -> Days:
        """All sessions, as the side that a study of another day is compared with."""
        return Days(self.sessions, centred=True)


@dataclass(frozen=True)
class _History:
    """Sessions of a baseline file before the newest one, and the newest one's ``level`` (number of its code state)."""

    earlier: tuple[Session, ...] = field(default=())
    level: int = 0


def environment_of(series: BlockSeries) -> JsonObject:
    """Return the facts that define a baseline's environment, by key: the machine, software versions and the device."""
    return {**_machine_of(series.environment), "device": series.facts.device}


def _machine_of(environment: JsonObject) -> JsonObject:
    """Return a baseline's environment that is known before a run: without the device, memory in whole GiB."""
    machine, memory = {key: environment.get(key) for key in KEYS}, environment.get("memory_bytes")
    # Kernels differ by a few pages.
    return machine | {"memory_bytes": round(memory / 2**30) * 2**30 if isinstance(memory, int) else memory}


def environment_key(series: BlockSeries) -> str:
    """Return the name of the environment's folder: twelve hex digits of a hash of :func:`environment_of`."""
    return hashlib.sha256(json.dumps(environment_of(series), sort_keys=True).encode()).hexdigest()[:12]


def path_of(folder: Path, series: BlockSeries) -> Path:
    """Return the path of this arm's baseline file in ``folder``. Raise InputError for a name that leads out of it."""
    return folder / environment_key(series) / _file_name(folder, series.scenario, series.arm)


def _file_name(folder: Path, scenario: str, arm: str) -> str:
    return check_folder_name(f"{scenario}--{arm}.json", f"{folder}: baseline")


def save(folder: Path, series: BlockSeries, *, anew: bool = False) -> Path:
    """Add ``series`` to the baseline of its arm and environment as the newest session. Return the file's path.

    ``anew``: the code's speed changed on purpose, so earlier sessions only show the variation between days. A session
    within :data:`SESSION_APART_H` hours is replaced; at most :data:`KEPT_SESSIONS` are kept.
    """
    path = path_of(folder, series)
    history = _after(path, series, anew)
    figures = {**asdict(series), "facts": series.facts.to_json()}
    content = {"schema": BASELINE_SCHEMA, "environment_key": environment_key(series), **figures}
    content |= {"level": history.level, "earlier": [asdict(session) for session in history.earlier]}
    lines = [f" {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in content.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def _after(path: Path, series: BlockSeries, anew: bool) -> _History:
    """Return the sessions to keep when ``series`` becomes the newest. Raise InputError for a damaged file: they took
    days.
    """
    if not path.exists():
        return _History()
    baseline = read(path)
    level = baseline.level + 1 if anew else baseline.level
    earlier = [
        session
        for session in baseline.sessions
        if session.level != level or apart(session.created_utc, series.created_utc)
    ]
    return _History(tuple(earlier[-(KEPT_SESSIONS - 1) :]), level)


def read(path: Path) -> Baseline:
    """Read the baseline at ``path``. Raise InputError if it is not valid."""
    from pydantic import TypeAdapter, ValidationError

    try:
        content = read_json(path)
        schema = content["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a baseline ({error}); {MEND}") from error
    if schema != BASELINE_SCHEMA:
        raise InputError(f"{path}: schema {schema!r}; this version reads schema {BASELINE_SCHEMA}; {MEND}")
    names = {entry.name for entry in fields(BlockSeries)}
    try:
        series = TypeAdapter(BlockSeries).validate_python({key: content[key] for key in content if key in names})
        history = TypeAdapter(_History).validate_python(
            {"earlier": content.get("earlier", ()), "level": content.get("level", 0)}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; {MEND}") from error
    for name in dict.fromkeys([STEP, *series.part_ms]):
        if not series.part_ms.get(name):
            raise InputError(f"{path}: part_ms.{name}: no times; {MEND}")
    for place, times in _times(series, history):
        if odd := [time_ms for time_ms in times if time_ms and not LEAST_MS <= time_ms <= MOST_MS]:
            raise InputError(f"{path}: {place}: {odd[0]} ms is outside of the valid range; {MEND}")
    return Baseline(path, str(content.get("environment_key")), series, history.earlier, history.level)


def _times(series: BlockSeries, history: _History) -> Iterator[tuple[str, list[float]]]:
    """Yield each place in a baseline's file with its list of times in ms; 0 means that a part took no time."""
    yield from ((f"part_ms.{part}", times) for part, times in series.part_ms.items())
    yield "startup_ms", series.startup_ms
    for index, session in enumerate(history.earlier):
        yield f"earlier.{index}.ms", [*session.ms.values()]


def every(folder: Path) -> Iterator[Baseline]:
    """Yield all baselines under ``folder``, sorted by environment and file name. InputError for an invalid one."""
    for path in sorted(folder.glob("*/*.json")):
        yield read(path)


def find(folder: Path, series: BlockSeries, command: str = SAVE) -> Baseline:
    """Return the kept baseline of the arm and environment of ``series``. Raise NoBaselineError with ``command``."""
    path = path_of(folder, series)
    if path.is_file():
        return read(path)
    raise _missing(folder, series.scenario, series.arm, environment_of(series), command)


def check_kept(folder: Path, scenario: str, arm: str, environment: JsonObject, command: str = SAVE) -> None:
    """Raise NoBaselineError if no baseline of this arm was kept in ``environment``, of which no device is known."""
    machine = _machine_of(environment)
    if not any(_machine_of(baseline.series.environment) == machine for baseline in _of_arm(folder, scenario, arm)):
        raise _missing(folder, scenario, arm, machine, command)


def _of_arm(folder: Path, scenario: str, arm: str) -> list[Baseline]:
    """Return the baselines of this arm in every environment below ``folder``. Raise InputError if one is not valid."""
    name = _file_name(folder, scenario, arm)
    return [read(path) for path in sorted(folder.glob("*/*.json")) if path.name == name]


def _missing(folder: Path, scenario: str, arm: str, here: JsonObject, command: str) -> NoBaselineError:
    baselines = _of_arm(folder, scenario, arm)
    if not baselines:
        return NoBaselineError(f"{folder}: no baseline of {scenario}, {arm}; keep one: {command}")
    environment = environment_of(baselines[0].series)
    differs = [f"{key} {environment[key]!r}, here {here[key]!r}" for key in here if here[key] != environment.get(key)]
    return NoBaselineError(
        f"{folder}: the baseline of {scenario}, {arm} was measured in another environment "
        f"({'; '.join(differs)}), so it cannot be compared; keep one for this environment: {command}"
    )
