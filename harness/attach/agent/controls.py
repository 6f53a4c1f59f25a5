"""Change how batches are served if the settings name a ``control``, once the program takes its turns.

    ideal-data    serve the first batches again and again, so that no step waits for data
    data-only     make batches and drop them, one per step; the program gets none
    dose-data-2   make each batch two more times

A batch that may be for evaluation is served unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from _harness_agent import batches, boundaries, gate, record

KEPT = 8  # batches kept per source
DOSE = "dose-data-"

_kept: dict[int, list[Any]] = {}
_served: dict[int, int] = {}


def forget() -> None:
    _kept.clear()
    _served.clear()


def kept(source: int) -> Any:
    """Return a copy of the next kept batch of dataset ``source`` (id) under "ideal-data"; None until KEPT are kept."""
    served = _kept.get(source, ())
    if record.settings.get("control") != "ideal-data" or len(served) < KEPT or batches.state.unknown:
        return None
    number = _served[source] = _served.get(source, -1) + 1
    return _again(served[number % KEPT])


def times_more() -> int:
    """Return how many additional times each batch is made: N under the control "dose-data-N", else 0."""
    control = str(record.settings.get("control") or "")
    return int(control.removeprefix(DOSE)) if control.startswith(DOSE) and not batches.state.unknown else 0


def thrown_away(source: int, batch: Any) -> bool:
    """Return True if "data-only" discards ``batch``, which ends the step. Under "ideal-data", keep the first ones."""
    if batches.state.unknown:
        return False
    control = record.settings.get("control")
    if control == "ideal-data" and len(_kept.setdefault(source, [])) < KEPT:
        _kept[source].append(_again(batch))
    if control != "data-only" or not gate.open_now() or gate.state.over:
        return False
    boundaries.close_step()
    return True


def _again(batch: Any) -> Any:
    """Return a copy of ``batch``: new containers (which the program may change) with the same tensors, not copied."""
    if isinstance(batch, tuple):
        members = [_again(member) for member in batch]
        return type(batch)(*members) if hasattr(batch, "_fields") else tuple(members)
    if isinstance(batch, list):
        return [_again(member) for member in batch]
    if type(batch) is dict:
        return {name: _again(member) for name, member in batch.items()}
    if isinstance(batch, Mapping):
        return copy.copy(batch)
    if hasattr(batch, "numel") or not hasattr(batch, "__dict__"):
        return batch
    again = copy.copy(batch)
    for name, value in vars(batch).items():
        object.__setattr__(again, name, _again(value))  # works on a frozen dataclass, too
    return again
