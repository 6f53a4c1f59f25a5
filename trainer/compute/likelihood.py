"""Computes the log-likelihood of endings after their contexts under a causal model, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from trainer.compute.scores import Beat


class EndingRow(NamedTuple):
    """One ending of a question after its context, as token ids.

    The last ``scored`` ids are the ending, whose likelihood is computed.
    """

    ids: NDArray[np.int64]
    scored: int


def log_likelihoods(
    rows: Sequence[EndingRow],
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device,
    most_ids: int,
    beat: Beat,
) -> list[float]:
    """Return the sum of the log-probabilities (natural) of each row's scored tokens, in the order of ``rows``.

    ``logits_of``: returns the logits of the next ids for ids of shape (rows, positions). Rows of similar length form a
    batch of at most ``most_ids`` positions with padding, and at least one row. Padding follows a row, so a causal model
    does not see it. Sums stay on the device until the end.
    """
    import torch

    order, sums = [], []
    for group in _groups(rows, most_ids):
        order += group
        chosen = [rows[number] for number in group]
        # The last token of a row is only a target.
        ids = np.zeros((len(chosen), max(len(ending.ids) for ending in chosen) - 1), dtype=np.int64)
        for place, ending in enumerate(chosen):
            ids[place, : len(ending.ids) - 1] = ending.ids[:-1]
        row = np.concatenate([np.full(ending.scored, place) for place, ending in enumerate(chosen)])
        position = np.concatenate(
            [np.arange(len(ending.ids) - 1 - ending.scored, len(ending.ids) - 1) for ending in chosen]
        )
        nth = np.concatenate([np.arange(ending.scored) for ending in chosen])
        target = np.concatenate([ending.ids[len(ending.ids) - ending.scored :] for ending in chosen])
        inputs, rows_at, positions, places, targets = (
            torch.from_numpy(array).to(device) for array in (ids, row, position, nth, target)
        )
        picked = logits_of(inputs)[rows_at, positions].float()
        losses = torch.nn.functional.cross_entropy(picked, targets, reduction="none")
        # Each value gets its own place instead of an atomic addition, so the sum is the same each time, on a GPU too.
        table = torch.zeros((len(chosen), max(ending.scored for ending in chosen)), dtype=torch.float64, device=device)
        table[rows_at, places] = -losses.double()
        sums.append(table.sum(dim=1))
        beat()
    likelihoods = [0.0] * len(rows)
    for number, value in zip(order, torch.cat(sums).tolist(), strict=True):
        likelihoods[number] = value
    return likelihoods


def _groups(rows: Sequence[EndingRow], most_ids: int) -> Iterator[list[int]]:
    """Yield batches as lists of row numbers, longest rows first, so that the batch with the most memory comes first.

    A batch has at most ``most_ids`` positions with padding, and at least one row.
    """
    group: list[int] = []
    for number in sorted(range(len(rows)), key=lambda number: -len(rows[number].ids)):
        if group and (len(group) + 1) * (len(rows[group[0]].ids) - 1) > most_ids:
            yield group
            group = []
        group.append(number)
    if group:
        yield group
