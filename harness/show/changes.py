"""Says what a comparison changed in parts a person would use: "Pretokenizing", "2 loader workers instead of 0"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from harness.scenario.overrides import flatten
from harness.show.words import capitalised
from harness.study.records import COMMAND, StudyRecord

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
    """The one thing that the candidate does otherwise; None where it is not one thing, or not known."""
    configs = [_config(study, name) for name in (baseline, candidate)]
    keys = [key for one in configs for key in one if key != "seed"]
    differs = {key: tuple(one.get(key, _MISSING) for one in configs) for key in dict.fromkeys(keys)}
    changed = {key: pair for key, pair in differs.items() if pair[0] != pair[1]}
    if len(changed) != 1:
        return None
    ((key, (before, after)),) = changed.items()
    if key == COMMAND:
        return _command(str(before), str(after))
    if key.startswith(f"{COMMAND}.") and None not in (before, after) and _MISSING not in (before, after):
        return f"{key.partition('.')[2]} {after} instead of {before}"
    if key == "data.path":
        return _data_path(str(before), str(after))
    if key == "data.workers" and _MISSING not in (before, after):
        return f"{after} loader worker{'' if after == 1 else 's'} instead of {before}"
    if isinstance(after, bool) or after is None or before in _NOTHING or after is _MISSING:
        return None  # a bare "true" says less than the arm's name
    return f"{key.rpartition('.')[2].replace('_', ' ')} {after} instead of {before}"


def _config(study: StudyRecord, name: str) -> Mapping[str, Any]:
    arm = next((arm for arm in study.arms if arm.name == name), None)
    return {} if arm is None else {**flatten(arm.config), **flatten(arm.declared)}


def _command(before: str, after: str) -> str:
    """The words in which two commands differ, with the option that they belong to."""
    first, second = before.split(), after.split()
    start = _alike(first, second)
    end = _alike(first[start:][::-1], second[start:][::-1])
    values = [parts[start] for parts in (first, second) if start < len(parts) - end]
    if start and first[start - 1].startswith("-") and values and not any(one.startswith("-") for one in values):
        start -= 1  # the option whose value they are
    removed, added = (" ".join(parts[start : len(parts) - end]) for parts in (first, second))
    if not added:
        return f"without {removed}"
    return f"{added} instead of {removed}" if removed else f"with {added}"


def _alike(first: Sequence[str], second: Sequence[str]) -> int:
    """How many words they begin with alike."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _data_path(before: str, after: str) -> str | None:
    (source, _, packing), (other_source, _, other_packing) = before.partition("-"), after.partition("-")
    parts = []
    if source != other_source:
        parts.append(_SOURCES.get((source, other_source), ""))
    if packing != other_packing:
        parts.append(_PACKINGS.get((packing, other_packing), ""))
    return capitalised(" and ".join(parts)) if all(parts) else None
