"""Count the padding positions of some batches, from CPU tensors only, so that no device has to wait.

Padding: ``attention_mask`` is 0, or without a mask, a run of equal tokens at the end or start of a row that are
labelled -100 or, without labels, are the commonest such token. Tokens of a prompt (label -100, but different) are not
padding. Every batch counts where commands take turns and are compared by tokens.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from _harness_agent import batches, boundaries, guard, phases
from _harness_agent.events import PADDED
from torch import Tensor

FIRST_BATCHES = 8  # batches counted in a row, before one in EVERY
EVERY = 32
MISSES = 4  # batches that do not show their padding, before the search ends
MAX_POSITIONS = 1 << 17  # counted positions of a batch, unless every batch is counted
LEAST_RUN = 2  # minimum equal tokens at the end of a row
IGNORED = -100  # label of a position without a loss
IDS = ("input_ids", "ids", "tokens")


due = 1  # number of the next counted batch
_missed = 0


def forget() -> None:
    global due, _missed
    due, _missed = 1, 0


def batch_arrived(batch: Any) -> None:
    """Append a PADDED event if this batch is ``due``. After MISSES unrecognizable batches, look no more."""
    global due, _missed
    try:
        exact, arrived = boundaries.measuring.alternates, batches.state.arrived
        if batches.state.unknown:  # the batch may be for evaluation
            return
        due = arrived + (1 if exact or arrived < FIRST_BATCHES else EVERY)
        counts = _count(batch, sys.maxsize if exact else MAX_POSITIONS)
        if counts is not None:
            phases.state.events.append((PADDED, *counts, int(exact)))
        else:
            _missed += 1
            if _missed >= MISSES:
                due = sys.maxsize
    except Exception as error:
        guard.part_failed("padding", error)
        due = sys.maxsize


def _count(batch: Any, most: int) -> tuple[int, int, int] | None:
    """Return (positions, padding, positions in columns of padding only) of ``most`` positions; None if unclear."""
    ids, mask, labels = _parts(batch)
    grid = next((tensor for tensor in (ids, mask) if tensor is not None), None)
    if grid is None:
        return None
    width = int(grid.shape[1])
    rows = max(1, min(int(grid.shape[0]), most // max(width, 1)))
    if mask is not None:
        padding = mask.numpy()[:rows] == 0
    elif ids is not None:
        padding = _runs(ids.numpy()[:rows], None if labels is None else labels.numpy()[:rows])
    positions = rows * width
    return positions, int(padding.sum()), int(padding.all(axis=0).sum()) * rows


def _parts(batch: Any) -> tuple[Any, Any, Any]:
    """Return (ids, mask, labels) of a batch, integer CPU tensors of two dimensions; None if missing or ambiguous."""
    if hasattr(batch, "keys") and hasattr(batch, "__getitem__"):
        names = list(batch.keys())
        ids = next((batch[name] for name in IDS if name in names), None)
        mask, labels = (batch[name] if name in names else None for name in ("attention_mask", "labels"))
        ids, mask, labels = (tensor if _is_grid(tensor) else None for tensor in (ids, mask, labels))
        return ids, mask, labels if ids is not None and labels is not None and labels.shape == ids.shape else None
    if not isinstance(batch, (list, tuple)) or not 2 <= len(batch) <= 4 or not all(map(_is_grid, batch)):
        return None, None, None
    ids, *rest = batch
    if any(tensor.shape != ids.shape for tensor in rest):
        return None, None, None
    mask = next((tensor for tensor in rest if _is_mask(tensor)), None)
    labels = next((tensor for tensor in rest if tensor is not mask and bool((tensor.numpy() == IGNORED).any())), None)
    return (ids, mask, labels) if mask is not None or labels is not None else (None, None, None)


def _is_grid(one: Any) -> bool:
    return (
        type(one) is Tensor
        and one.is_cpu
        and one.ndim == 2
        and one.layout is torch.strided
        and not one.is_nested
        and not one.is_floating_point()
        and not one.is_complex()
        and one.numel() > 0
    )


def _is_mask(one: Tensor) -> bool:
    """Return True if ``one`` may be an attention mask: zeros and ones, with at most one change per row."""
    values = one.numpy()
    if values.min() < 0 or values.max() != 1:
        return False
    return bool((values[:, 1:] != values[:, :-1]).sum(axis=1).max(initial=0) <= 1)


def _runs(ids: Any, labels: Any) -> Any:
    """Return a mask of LEAST_RUN or more equal ids at an end of a row: labelled IGNORED, or else the commonest."""
    padding = ids != ids  # all False
    for step in (-1, 1):
        first = ids[:, -1:] if step < 0 else ids[:, :1]
        equal = ids == first
        if labels is None:
            equal &= ids == _commonest(first.ravel().tolist())
        else:
            equal &= labels == IGNORED
        run = equal[:, ::step].cumprod(axis=1)[:, ::step].astype(bool)
        run[run.sum(axis=1) < LEAST_RUN] = False
        padding |= run
    return padding


def _commonest(values: list[int]) -> int:
    return max(values, key=values.count)
