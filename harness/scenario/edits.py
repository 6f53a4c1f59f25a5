"""Parses what-if edits such as ``tokenize=0``, ``device=2x``, ``workers=4``, and refuses wrong ones in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.study.contract import STAGES
from trainer.errors import InputError

Array = NDArray[np.float64]
Sync = Literal["off", "late", "on"]
SYNCS: tuple[Sync, ...] = ("off", "late", "on")
COUNTS = {"workers": (0, 256), "prefetch": (1, 1024), "ranks": (1, 4096), "batch_size": (1, 65_536), "cores": (1, 4096)}
KEYS = (*STAGES, "device", *COUNTS, "sync")
STAGE_FORM = "0 (removed), a factor such as 0.5x, or a time per batch such as 3ms"
_NUMBER = r"(\d+\.?\d*|\.\d+)"
_MOST_MS = 60_000.0
_MOST_FACTOR = 1e6


class StageEdit(NamedTuple):
    """A change of one stage's durations: multiplied by ``factor``, or all set to ``ms`` milliseconds unless None."""

    factor: float = 1.0
    ms: float | None = None

    def apply(self, durations: Array) -> Array:
        """Return ``durations`` (ns) with this change."""
        return durations * self.factor if self.ms is None else np.full_like(durations, self.ms * 1e6)

    @property
    def removes(self) -> bool:
        return self.factor == 0 or self.ms == 0


UNCHANGED = StageEdit()


@dataclass(frozen=True)
class Edits:
    """The changes to a recorded run, parsed from ``KEY=VALUE`` texts; a field that is None stays as recorded."""

    stages: Mapping[str, StageEdit] = field(default_factory=dict)  # keys are names in STAGES
    device: float | None = None  # speedup factor
    workers: int | None = None
    prefetch: int | None = None
    ranks: int | None = None
    batch_size: int | None = None
    cores: int | None = None
    # Blocking on the gradient norm: as recorded, not at all, or on that of the previous step (compute.sync: late).
    sync: Sync = "on"
    # Parts of a step to remove: ("phase", host phase), ("kernel", its name) or ("cause", see harness.explain.replay).
    without: frozenset[tuple[str, str]] = frozenset()
    texts: tuple[str, ...] = ()  # the edits as given, for messages

    def __bool__(self) -> bool:
        return replace(self, texts=()) != Edits()

    def with_text(self, text: str) -> Edits:
        """Return these edits and ``text`` (``KEY=VALUE``), which replaces an earlier edit of the same key."""
        key = text.partition("=")[0].strip()
        return parse_edits([*(earlier for earlier in self.texts if earlier.partition("=")[0].strip() != key), text])


def parse_edits(texts: Iterable[str]) -> Edits:
    """Parse ``KEY=VALUE`` texts. Raises InputError for a wrong or repeated key, or a wrong value."""
    edits = Edits()
    given_keys: set[str] = set()
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise InputError(
                f"--set {text}: expected KEY=VALUE, such as tokenize=0 or device=2x; keys: {', '.join(KEYS)}"
            )
        if key not in KEYS:
            near = get_close_matches(key, KEYS, n=1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"--set {text}: unknown key {key!r}; {guess}keys: {', '.join(KEYS)}")
        if key in given_keys:
            raise InputError(f"--set {text}: {key} is given twice")
        given_keys.add(key)
        edits = replace(_parsed(edits, key, value, text), texts=(*edits.texts, f"{key}={value}"))
    return edits


def _parsed(edits: Edits, key: str, value: str, text: str) -> Edits:
    if key in STAGES:
        return replace(edits, stages={**edits.stages, key: _stage_change(value, text)})
    if key == "device":
        factor = _factor(value)
        if factor is None or factor == 0:
            raise InputError(f"--set {text}: device takes a speed factor such as 2x or 0.5x")
        return replace(edits, device=factor)
    if key == "sync":
        sync = next((choice for choice in SYNCS if choice == value), None)
        if sync is None:
            raise InputError(
                f"--set {text}: sync takes off (no blocking on the gradient norm), late (on that of the previous step) "
                "or on"
            )
        return replace(edits, sync=sync)
    low, high = COUNTS[key]
    if not re.fullmatch(r"\d{1,9}", value) or not low <= int(value) <= high:
        raise InputError(f"--set {text}: {key} takes a whole number from {low} to {high}")
    return replace(edits, **{key: int(value)})  # type: ignore[arg-type]  # the fields named in COUNTS are numbers


def _stage_change(value: str, text: str) -> StageEdit:
    if (factor := _factor(value)) is not None:
        return StageEdit(factor)
    matched = re.fullmatch(rf"{_NUMBER} ?ms", value)
    if matched and (milliseconds := float(matched[1])) <= _MOST_MS:
        return StageEdit(ms=milliseconds)
    if re.fullmatch(r"0+(\.0*)?", value):
        return StageEdit(0.0)
    raise InputError(f"--set {text}: {text.partition('=')[0].strip()} takes {STAGE_FORM}")


def _factor(value: str) -> float | None:
    matched = re.fullmatch(rf"{_NUMBER}x", value)
    if not matched or not math.isfinite(factor := float(matched[1])) or factor > _MOST_FACTOR:
        return None
    return factor
