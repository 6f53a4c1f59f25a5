"""Shortens the names of arms by their common parts, and names the change of a comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from harness.judge.comparisons import Absent, Missing
from harness.judge.confounds import Confound
from harness.judge.report_types import Comparison, NotCompared
from harness.scenario.overrides import flatten
from harness.show.policy import NAME_FITS, NAME_LONGEST
from harness.show.words import capitalised
from harness.study.records import COMMAND, StudyRecord

_PARTS = re.compile(r"[^-._ ]+[-._ ]*|[-._ ]+")


class ArmNames:
    """Short names of a study's arms, made once per report. ``names``: full names of the arms that are no controls."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(dict.fromkeys(names))

    def short(self, name: str) -> str:
        """Return the unique short name of an arm; an unknown name is returned unchanged."""
        return self._short.get(name, name)

    def pair(self, candidate: str, baseline: str) -> str:
        """Return a comparison's label ``tokens vs text``; in a matrix with shared settings: ``tokens vs text, bs4``."""
        (first, _, point), (second, _, other_point) = (
            self.short(name).partition(" ") for name in (candidate, baseline)
        )
        if point and point == other_point:
            return f"{first} vs {second}, {point}"
        return f"{self.short(candidate)} vs {self.short(baseline)}"

    def apart(self, one: str, other: str) -> str:
        """Return the part of ``one`` that differs from ``other`` (``tokens``); the whole short name if none does."""
        return self._compared(one, other)[1]

    def _compared(self, one: str, other: str) -> tuple[str, str, str, str]:
        """Return (common beginning, rest of ``one``, rest of ``other``, common end); whole names if a rest is empty."""
        one_parts, other_parts = (_PARTS.findall(self.short(name)) for name in (one, other))
        common_start = _shared(one_parts, other_parts)
        common_end = _shared(one_parts[common_start:][::-1], other_parts[common_start:][::-1])
        differing = ["".join(parts[common_start : len(parts) - common_end]) for parts in (one_parts, other_parts)]
        (first, gap), (second, other_gap) = ((word := text.rstrip("-._ "), text[len(word) :]) for text in differing)
        if not first or not second or gap != other_gap:
            return "", self.short(one), self.short(other), ""
        return "".join(one_parts[:common_start]), first, second, gap + "".join(one_parts[len(one_parts) - common_end :])

    def shorten(self, c: Comparison | NotCompared) -> Comparison | NotCompared:
        """Return a copy of ``c`` with short arm names, for sentences about it."""
        pair = {"baseline": self.short(c.baseline), "candidate": self.short(c.candidate)}
        if isinstance(c, NotCompared):
            return replace(c, **pair, missing=self._missing(c.missing))
        return self.shorten_compared(c)

    def shorten_compared(self, c: Comparison) -> Comparison:
        """Return a copy of ``c`` with short arm names, as :meth:`shorten` for comparisons that were measured."""
        m, predicted = c.measured, c.explained.predicted
        return replace(
            c,
            baseline=self.short(c.baseline),
            candidate=self.short(c.candidate),
            measured=replace(
                m,
                noise_floor_of=None if m.noise_floor_of is None else self.short(m.noise_floor_of),
                absent={figure: self._absent(entry) for figure, entry in m.absent.items()},
                losses=replace(m.losses, diverged=tuple(map(self.short, m.losses.diverged))),
            ),
            explained=replace(
                c.explained, predicted=self._absent(predicted) if isinstance(predicted, Absent) else predicted
            ),
            confounds=tuple(map(self._confound, c.confounds)),
        )

    def _absent(self, one: Absent) -> Absent:
        return replace(one, arms=tuple(map(self.short, one.arms)))

    def _missing(self, one: Missing) -> Missing:
        failures = tuple(replace(failed, arm=self.short(failed.arm)) for failed in one.failures)
        return replace(one, arms=tuple(map(self.short, one.arms)), failures=failures)

    def _confound(self, one: Confound) -> Confound:
        first, second = map(self.short, one.names)
        return replace(one, names=(first, second), key=self.short(one.key))

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Pairs (short, full) that explain short names; of a matrix, pairs (abbreviation, key) and shared settings."""
        if self._short == self._by_point and self._matrix is not None:
            shared = [("all arms", pair) for pair in self._matrix.shared]
            return [*((brief.rstrip("="), key) for key, brief in self._matrix.brief.items()), *shared]
        return [(short, name) for name, short in self._short.items() if short != name]

    @cached_property
    def _short(self) -> dict[str, str]:
        if all(len(name) <= NAME_FITS for name in self._names):
            return {name: name for name in self._names}
        if all(len(short) <= NAME_LONGEST for short in self._by_point.values()):
            return self._by_point
        shortened = [middle_out(name) for name in _without_shared(list(self._by_point.values()))]
        if len(set(shortened)) < len(shortened) or not all(shortened):
            shortened = [f"arm {number}" for number in range(1, len(self._names) + 1)]
        return dict(zip(self._names, shortened, strict=True))

    @cached_property
    def _matrix(self) -> _Matrix | None:
        return _matrix(self._names)

    @cached_property
    def _by_point(self) -> dict[str, str]:
        matrix = self._matrix
        return {name: name if matrix is None else matrix.short(name) for name in self._names}


@dataclass(frozen=True)
class _Matrix:
    """Names of the arms of a matrix."""

    brief: Mapping[str, str]  # abbreviation of each varying key
    shared: tuple[str, ...]  # ``key=value`` settings that all arms have

    def short(self, name: str) -> str:
        arm, pairs = _split(name)
        return " ".join([arm, *(f"{self.brief[key]}{value}" for key, value in pairs.items() if key in self.brief)])


def _shared(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Return the number of leading parts that both names have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


def _split(name: str) -> tuple[str, dict[str, str]]:
    """Return the arm and the settings of a name of the form ``arm@key=value,key=value``; {} without settings."""
    arm, _, settings = name.partition("@")
    pairs = [pair.partition("=") for pair in settings.split(",")] if settings else []
    return arm, {key: value for key, _, value in pairs}


def without_point(name: str) -> str:
    """Return the name of an arm without its matrix settings: ``arm`` for ``arm@key=value``."""
    return _split(name)[0]


def _matrix(names: Sequence[str]) -> _Matrix | None:
    """Return the matrix whose points the arms are; None if a name has no settings (``arm@key=value``)."""
    points = [_split(name)[1] for name in names]
    if not points or not all(points):
        return None
    values = {key: {entry.get(key) for entry in points} for point in points for key in point}
    varied = [key for key, distinct in values.items() if len(distinct) > 1]
    initials = {key: "".join(word[0] for word in re.split(r"[._-]", key) if word) for key in varied}
    clear = len(set(initials.values())) == len(varied)
    brief = initials if clear else {key: f"{key}=" for key in varied}
    return _Matrix(brief, tuple(f"{key}={value}" for key, value in points[0].items() if key not in varied))


def _without_shared(names: Sequence[str]) -> list[str]:
    """Return names without their common beginning and end; unchanged if all fit in :data:`NAME_FITS`."""
    if len(names) < 2 or all(len(name) <= NAME_FITS for name in names):
        return list(names)
    parts = [_PARTS.findall(name) for name in names]
    common_start = min(_shared(parts[0], pieces) for pieces in parts)
    tails = [pieces[common_start:] for pieces in parts]
    common_end = min(_shared(tails[0][::-1], pieces[::-1]) for pieces in tails)
    return ["".join(pieces[: len(pieces) - common_end]).strip("-._ ") for pieces in tails]


def middle_out(name: str) -> str:
    """Return ``name`` with … for its middle if over :data:`NAME_LONGEST`: names of arms mostly differ at the ends."""
    half = (NAME_LONGEST - 1) // 2
    return name if len(name) <= NAME_LONGEST else f"{name[:half]}…{name[-half:]}"


_MISSING = object()
_SOURCES = {("text", "tokens"): "pretokenizing", ("tokens", "text"): "tokenizing on the fly"}
_PACKINGS = {
    ("padded", "stream"): "packing",
    ("padded", "mmap"): "packing out of a memory map",
    ("stream", "mmap"): "packing out of a memory map",
    ("stream", "padded"): "padding",
    ("mmap", "padded"): "padding",
    ("mmap", "stream"): "packing out of token lists",
}
_NOTHING = (None, 0, False, "", _MISSING)


def change(study: StudyRecord, baseline: str, candidate: str) -> str | None:
    """Return the only setting that differs, the candidate's value first; None if the arm's name is clearer."""
    configs = [_config(study, name) for name in (baseline, candidate)]
    keys = dict.fromkeys(key for config in configs for key in config if key != "seed")
    differs = {key: pair for key in keys if (pair := [config.get(key, _MISSING) for config in configs])[0] != pair[1]}
    if len(differs) != 1:
        return None
    ((key, (before, after)),) = differs.items()
    if key == COMMAND:
        return _command(str(before), str(after))
    if key.startswith(f"{COMMAND}.") and None not in (before, after) and _MISSING not in (before, after):
        return f"{key.partition('.')[2]} {after} instead of {before}"
    if key == "data.path":
        return _data_path(str(before), str(after))
    if key == "data.workers" and _MISSING not in (before, after):
        return f"{after} loader worker{'' if after == 1 else 's'} instead of {before}"
    if isinstance(after, bool) or after is None or before in _NOTHING or after is _MISSING:
        return None  # A bare "true" is less clear than the arm's name.
    return f"{key.rpartition('.')[2].replace('_', ' ')} {after} instead of {before}"


def _config(study: StudyRecord, name: str) -> Mapping[str, Any]:
    arm = next((arm for arm in study.arms if arm.name == name), None)
    return {} if arm is None else {**flatten(arm.config), **flatten(arm.declared)}


def _command(before: str, after: str) -> str:
    """Return the words in which two commands differ, with their option: ``--workers 4 instead of --workers 0``."""
    first, second = before.split(), after.split()
    start = _shared(first, second)
    end = _shared(first[start:][::-1], second[start:][::-1])
    values = [parts[start] for parts in (first, second) if start < len(parts) - end]
    if (
        start
        and first[start - 1].startswith("-")
        and values
        and not any(argument.startswith("-") for argument in values)
    ):
        start -= 1  # Include the option that these values belong to.
    removed, added = (" ".join(parts[start : len(parts) - end]) for parts in (first, second))
    if not added:
        return f"without {removed}"
    return f"{added} instead of {removed}" if removed else f"with {added}"


def _data_path(before: str, after: str) -> str | None:
    (source, _, packing), (other_source, _, other_packing) = before.partition("-"), after.partition("-")
    parts = []
    if source != other_source:
        parts.append(_SOURCES.get((source, other_source), ""))
    if packing != other_packing:
        parts.append(_PACKINGS.get((packing, other_packing), ""))
    return capitalised(" and ".join(parts)) if all(parts) else None
