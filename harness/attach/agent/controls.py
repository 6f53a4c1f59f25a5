"""Serves batches otherwise where the settings ask for a ``control``, once the program takes its turns.

``ideal-data``: the first batches over and over, so that no step waits for data. ``data-only``: the program gets
no batch any more; they are made and thrown away, one a step. ``dose-data-2``: each batch is made twice more. A batch
that may be an evaluation's is served as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from _harness_agent import boundaries, gate, record

KEPT = 8  # batches of each source
DOSE = "dose-data-"

_kept: dict[int, list[Any]] = {}
_served: dict[int, int] = {}


def forget() -> None:
    """In a forked child: nothing has been served."""
    _kept.clear()
    _served.clear()


def kept(source: int) -> Any:
    """A batch of ``source`` that was served before, as it was then; None where it has to be made."""
    batches = _kept.get(source, ())
    if record.settings.get("control") != "ideal-data" or len(batches) < KEPT or boundaries.state.doubtful:
        return None
    number = _served[source] = _served.get(source, -1) + 1
    return _again(batches[number % KEPT])


def times_more() -> int:
    """How many times more often than the program asks for it each batch is made, in whichever process makes it."""
    control = str(record.settings.get("control") or "")
    return int(control.removeprefix(DOSE)) if control.startswith(DOSE) and not boundaries.state.doubtful else 0


def thrown_away(source: int, batch: Any) -> bool:
    """Whether this new batch is made for nobody, which ends the step; keeps it for later where that is asked for."""
    if boundaries.state.doubtful:
        return False
    control = record.settings.get("control")
    if control == "ideal-data" and len(_kept.setdefault(source, [])) < KEPT:
        _kept[source].append(_again(batch))
    if control != "data-only" or not gate.open_now() or gate.state.over:
        return False
    boundaries.close_step()
    return True


def _again(batch: Any) -> Any:
    """The same tensors in containers of their own: a program may take things out of its batch, or put them in."""
    if isinstance(batch, tuple):
        members = [_again(one) for one in batch]
        return type(batch)(*members) if hasattr(batch, "_fields") else tuple(members)
    if isinstance(batch, list):
        return [_again(one) for one in batch]
    if type(batch) is dict:
        return {name: _again(one) for name, one in batch.items()}
    if isinstance(batch, Mapping):
        return copy.copy(batch)
    if hasattr(batch, "numel") or not hasattr(batch, "__dict__"):
        return batch
    again = copy.copy(batch)
    for name, one in vars(batch).items():
        object.__setattr__(again, name, _again(one))  # of a frozen dataclass, too
    return again
