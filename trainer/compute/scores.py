"""Scores a torch model, which stays unchanged: loss on held-out batches, and log-likelihood of endings."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.batch import IGNORED, Batch

if TYPE_CHECKING:
    import torch


Beat = Callable[[], None]


class Scores(NamedTuple):
    """Result of a pass: mean ``loss`` over ``tokens`` labels; ``accuracy`` (0 to 1) for a masked LM, else None."""

    loss: float
    accuracy: float | None
    tokens: int


def validate(
    model: torch.nn.Module,
    batches: Sequence[Batch],
    score: Callable[[Batch], tuple[Any, Any]],
    to_device: Callable[[Batch], Batch],
    masked: bool,
    beat: Beat,
) -> Scores:
    """Run ``model`` over ``batches`` and return its scores: the mean loss over labels, and if ``masked`` the accuracy.

    ``score(batch)`` returns the mean loss, and the logits or None.
    """
    import torch

    losses, right, counts = [], [], []
    with evaluating(model):
        for batch in batches:
            if batch.trained_tokens:
                on_device = to_device(batch)
                loss, logits = score(on_device)
                losses.append(loss.detach())
                counts.append(batch.trained_tokens)
                if masked and logits is not None:
                    right.append(_right(logits, on_device.labels))
            beat()
        tokens = sum(counts)
        means = torch.stack(losses).double().tolist()  # a single transfer for all of them
        hits = sum(torch.stack(right).tolist()) if right else None
    loss = math.fsum(mean * count for mean, count in zip(means, counts, strict=True)) / tokens
    return Scores(loss, None if hits is None else hits / tokens, tokens)


def _right(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the number of correct predictions (argmax equals the label, which is not ignored) as a scalar tensor."""
    right: torch.Tensor = ((logits.argmax(dim=-1) == labels) & (labels != IGNORED)).sum()
    return right


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Context that keeps ``model`` in eval() without gradients, and restores each submodule and the random states."""
    import torch

    training = [part for part in model.modules() if part.training]
    with untouched_randomness(), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            for module in training:  # Parts are restored one by one, because some may be frozen in eval().
                module.training = True


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Context whose end restores the random states of torch (also of its devices), numpy and ``random``."""
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):  # type: ignore[no-untyped-call]
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


class EndingRow(NamedTuple):
    """One ending of a question after its context, as token ids. The last ``scored`` ids are the ending."""

    ids: NDArray[np.int64]
    scored: int


def log_likelihoods(
    rows: Sequence[EndingRow],
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device,
    most_ids: int,
    beat: Beat,
) -> list[float]:
    """Return each row's sum of log-probabilities (natural) of its scored tokens, in the order of ``rows``.

    Rows of similar length form a batch of at most ``most_ids`` positions, and at least one row.
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
    """Yield batches of row numbers, longest rows first, of at most ``most_ids`` positions but at least one row."""
    group: list[int] = []
    for number in sorted(range(len(rows)), key=lambda number: -len(rows[number].ids)):
        if group and (len(group) + 1) * (len(rows[group[0]].ids) - 1) > most_ids:
            yield group
            group = []
        group.append(number)
    if group:
        yield group
