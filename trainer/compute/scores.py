"""Scores a torch model on held-out batches, without changes to the model or the random states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.data.batch import IGNORED, Batch

if TYPE_CHECKING:
    import torch

Beat = Callable[[], None]


class Scores(NamedTuple):
    """Result of one evaluation pass. ``loss``: mean over ``tokens`` labels.

    ``accuracy``: share of labels predicted right (0 to 1); None without a masked-LM objective.
    """

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
    """Run ``model`` over ``batches`` and return its scores.

    ``score(batch)`` returns the mean loss, and the logits or None. ``masked``: labels are those of their own position
    (masked LM). Accuracy is then the share of labels with the largest logit. Losses stay on the device until the end of
    the pass. Their mean is over labels: a batch with fewer of them counts less.
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
    """Return the number of correct predictions (argmax equals the label at the same position) as a scalar tensor.

    Ignored labels are not counted.
    """
    right: torch.Tensor = ((logits.argmax(dim=-1) == labels) & (labels != IGNORED)).sum()
    return right


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Context that keeps ``model`` in eval() without gradients.

    Its end restores the mode of each submodule and the random states.
    """
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
    import random

    import numpy as np
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):  # type: ignore[no-untyped-call]
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
