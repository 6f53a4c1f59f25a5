"""Keeps baselines: the figures of an arm as small JSON files in git, in a folder for each environment they hold for.

``results/baselines/<environment>/<scenario>--<arm>.json``. An environment is this machine's processor, cores, CPU
quota, governor and turbo, NVIDIA driver and memory, the device, Python's version and those of the packages that do the
work; their fingerprint names the folder. A file holds the newest study and the medians of earlier sessions, whose
scatter is what days differ by.
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
from trainer.json_types import Json, JsonObject

BASELINE_SCHEMA = 1
MEND = "restore it from version control, or delete it to begin anew"
LEAST_MS, MOST_MS = 10.0**-MS_DIGITS, 1e12  # what a time may be: those that are saved are rounded, and a run has an end
# Not the kernel's release, which changes with every security update, nor the package that baselines are kept to judge.
KEYS = (*MACHINE, "python", *(package for package in PACKAGES if package != OWN_PACKAGE))


SAVE = "harness baseline save STUDY"  # the command that keeps a baseline


class NoBaselineError(InputError):
    """None is kept that may be compared: none at all, or of another environment."""


@dataclass(frozen=True)
class Detection:
    """What a check against a baseline can decide, even if blocks did not scatter: days differ by more than that.

    ``slowdown``: the smallest fraction that is called slower. ``same``: True if a change can be called the same.
    ``known``: True if the sessions show what days differ by, else it is assumed. ``more_sessions``: until they do.
    """

    slowdown: float
    same: bool
    known: bool
    more_sessions: int


@dataclass(frozen=True)
class Baseline:
    """One file: where it lies, the environment it holds for, and what was measured.

    ``series``: the newest session; ``earlier``: the others, oldest first; ``level``: of the newest.
    """

    path: Path
    key: str
    series: BlockSeries
    earlier: tuple[Session, ...] = ()
    level: int = 0

    @property
    def sessions(self) -> tuple[Session, ...]:
        return (*self.earlier, session_of(self.series, self.level))

    def limits_of_detection(self, within: float) -> Detection:
        """Return which changes of the step a check of another day can decide, where ``within`` counts as the same."""
        allowance, known = self.days.between(STEP, CONFIDENCE)
        edge = math.log1p(within)
        return Detection(math.expm1(edge + allowance), allowance < edge, known, self.days.more_sessions)

    @property
    def days(self) -> Days:
        """What a study of another day is held against."""
        return Days(self.sessions, centred=True)


@dataclass(frozen=True)
class _History:
    """What a file holds besides the newest session."""

    earlier: tuple[Session, ...] = field(default=())
    level: int = 0


def environment_of(series: BlockSeries) -> JsonObject:
    """What a baseline's environment is made of."""
    return {**_machine_of(series.environment), "device": series.facts.device}


def _machine_of(environment: JsonObject) -> JsonObject:
    """The part of a baseline's environment that is known before anything runs."""
    found = {key: environment.get(key) for key in KEYS}
    return {**found, "memory_bytes": whole_gib(found["memory_bytes"])}


def environment_key(series: BlockSeries) -> str:
    """Twelve hex digits: the name of the environment's folder."""
    return hashlib.sha256(json.dumps(environment_of(series), sort_keys=True).encode()).hexdigest()[:12]


def path_of(folder: Path, series: BlockSeries) -> Path:
    """Where the baseline of that arm lies; InputError for a name that would lead elsewhere."""
    return folder / environment_key(series) / _file_name(folder, series.scenario, series.arm)


def _file_name(folder: Path, scenario: str, arm: str) -> str:
    return check_folder_name(f"{scenario}--{arm}.json", f"{folder}: baseline")


def save(folder: Path, series: BlockSeries, *, anew: bool = False) -> Path:
    """Add ``series`` to the baseline of this arm in its environment as its newest session; the file's path.

    ``anew``: it is of another state of the code, with another speed: the sessions before say only what days differ by.
    A session of the same hours is replaced. Lists stay on a line: diffs are read.
    """
    path = path_of(folder, series)
    history = _after(path, series, anew)
    figures = {**asdict(series), "facts": series.facts.to_json()}
    content = {"schema": BASELINE_SCHEMA, "environment_key": environment_key(series), **figures}
    content |= {"level": history.level, "earlier": [asdict(one) for one in history.earlier]}
    lines = [f" {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in content.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def _after(path: Path, series: BlockSeries, anew: bool) -> _History:
    """What stays of the file at ``path`` once ``series`` is its newest session; InputError for a damaged one.

    Its sessions took days to collect, and it is the user's to say that they are lost.
    """
    if not path.exists():
        return _History()
    kept = read(path)
    level = kept.level + 1 if anew else kept.level
    earlier = [one for one in kept.sessions if one.level != level or apart(one.created_utc, series.created_utc)]
    return _History(tuple(earlier[-(KEPT_SESSIONS - 1) :]), level)


def read(path: Path) -> Baseline:
    """The baseline at ``path``; InputError where it is none."""
    from pydantic import TypeAdapter, ValidationError

    try:
        content = read_json(path)
        schema = content["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a baseline ({error}); {MEND}") from error
    if schema != BASELINE_SCHEMA:
        raise InputError(f"{path}: schema {schema!r}; this version reads schema {BASELINE_SCHEMA}; {MEND}")
    known = {one.name for one in fields(BlockSeries)}
    try:
        series = TypeAdapter(BlockSeries).validate_python({key: content[key] for key in content if key in known})
        history = TypeAdapter(_History).validate_python(
            {"earlier": content.get("earlier", ()), "level": content.get("level", 0)}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; {MEND}") from error
    for name in dict.fromkeys([STEP, *series.part_ms]):
        if not series.part_ms.get(name):
            raise InputError(f"{path}: part_ms.{name}: no times; {MEND}")
    for where, times in _times(series, history):
        if odd := [one for one in times if one and not LEAST_MS <= one <= MOST_MS]:
            raise InputError(f"{path}: {where}: {odd[0]} ms is no time; {MEND}")
    return Baseline(path, str(content.get("environment_key")), series, history.earlier, history.level)


def _times(series: BlockSeries, history: _History) -> Iterator[tuple[str, list[float]]]:
    """All milliseconds of a baseline, by where they stand in its file; 0 stands for what took no time."""
    yield from ((f"part_ms.{part}", times) for part, times in series.part_ms.items())
    yield "startup_ms", series.startup_ms
    for place, one in enumerate(history.earlier):
        yield f"earlier.{place}.ms", [*one.ms.values()]


def every(folder: Path) -> Iterator[Baseline]:
    """All baselines under ``folder``, by environment and name."""
    for path in sorted(folder.glob("*/*.json")):
        yield read(path)


def whole_gib(amount: Json) -> Json:
    """Bytes of memory rounded to GiB: a few pages more or less come with every kernel."""
    return round(amount / 2**30) * 2**30 if isinstance(amount, int) else amount


def find(folder: Path, series: BlockSeries, command: str = SAVE) -> Baseline:
    """Return the baseline that ``series`` may be compared with.

    Raises NoBaselineError where there is none: it names ``command``, which keeps one.
    """
    path = path_of(folder, series)
    if path.is_file():
        return read(path)
    raise _missing(folder, series.scenario, series.arm, environment_of(series), command)


def check_kept(folder: Path, scenario: str, arm: str, environment: JsonObject, command: str = SAVE) -> None:
    """Raise NoBaselineError where no baseline of this arm is of ``environment``, before anything is measured.

    The device is known only after a run: :func:`find` compares it.
    """
    here = _machine_of(environment)
    if not any(_machine_of(one.series.environment) == here for one in _of_arm(folder, scenario, arm)):
        raise _missing(folder, scenario, arm, here, command)


def _of_arm(folder: Path, scenario: str, arm: str) -> list[Baseline]:
    """The baselines of that arm in every environment."""
    name = _file_name(folder, scenario, arm)
    return [read(path) for path in sorted(folder.glob("*/*.json")) if path.name == name]


def _missing(folder: Path, scenario: str, arm: str, here: JsonObject, command: str) -> NoBaselineError:
    others = _of_arm(folder, scenario, arm)
    if not others:
        return NoBaselineError(f"{folder}: no baseline of {scenario}, {arm}; keep one: {command}")
    there = environment_of(others[0].series)
    differs = [f"{key} {there[key]!r}, here {here[key]!r}" for key in here if here[key] != there.get(key)]
    return NoBaselineError(
        f"{folder}: the baseline of {scenario}, {arm} is of another environment ({'; '.join(differs)}): "
        f"never compared; keep one of this environment: {command}"
    )
