"""Says how well several ranks scale: efficiency, and how far the loss had come after the same tokens and the same time.

efficiency      ratio of tokens/s / ratio of ranks (1: each rank trains as fast as one alone)
loss            mean over the last tenth of the tokens that every arm of the comparison trained on
time to a loss  of training alone (steps, without the pauses between repetitions), until the mean loss of a tenth of
                all tokens is for the first time no higher than the higher of the two arms' losses above
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.ledger import column
from harness.analysis.statistics import Estimate
from harness.study.run_data import RunData

Float = NDArray[np.float64]
WINDOW = 0.1  # of the tokens: a loss is the mean over so many


@dataclass(frozen=True)
class LossCurve:
    """Mean losses over a tenth of the tokens: after how many tokens, after how many seconds of steps."""

    tokens: Float
    seconds: Float
    loss: Float


@dataclass(frozen=True)
class Scaling:
    """Two arms with different numbers of ranks. Losses and times: (baseline, candidate), means over blocks."""

    baseline: str
    candidate: str
    ranks: tuple[int, int]
    speedup: Estimate  # of tokens/s
    weak: bool  # the global batch grew with the ranks
    losses: tuple[float, float] | None = None
    target: float | None = None
    seconds: tuple[float, float] | None = None

    @property
    def efficiency(self) -> float:
        """The share of its speed that each rank keeps."""
        return self.speedup.median * self.ranks[0] / self.ranks[1]


def scaling(
    names: tuple[str, str], runs: tuple[Sequence[RunData], Sequence[RunData]], speedup: Estimate | None
) -> Scaling | None:
    """How ``names`` scale; None where both have as many ranks, or their speeds were not compared."""
    ranks = tuple(max((run.record.facts.ranks or 1 for run in arm), default=1) for arm in runs)
    attached = any(run.record.facts.attached is not None for arm in runs for run in arm)
    if speedup is None or ranks[0] == ranks[1] or attached:
        return None
    curves = [{run.record.block: one for run in arm if (one := _steps(run)) is not None} for arm in runs]
    shared = sorted(set(curves[0]) & set(curves[1]))
    steps = [(curves[0][block], curves[1][block]) for block in shared]
    per_step = [float(np.mean([pair[side][0].mean() for pair in steps])) for side in (0, 1)] if steps else [1.0, 1.0]
    found = Scaling(*names, (ranks[0], ranks[1]), speedup, weak=per_step[1] > 1.5 * per_step[0])
    blocks = [both for pair in steps if (both := _curves(*pair)) is not None]
    if not blocks:
        return found
    reached = []
    for both in blocks:
        ends = [float(one.loss[-1]) for one in both]
        reached.append((*ends, max(ends), *(float(one.seconds[np.argmax(one.loss <= max(ends))]) for one in both)))
    losses, target, seconds = np.split(np.mean(reached, axis=0), (2, 3))
    return replace(
        found,
        losses=(float(losses[0]), float(losses[1])),
        target=float(target[0]),
        seconds=(float(seconds[0]), float(seconds[1])),
    )


def _steps(run: RunData) -> tuple[Float, Float, Float] | None:
    """Tokens, seconds and loss of every step, warm-up steps included: they train too. None where one is not known."""
    if run.record.status != "done":
        return None
    table = run.step_columns(["tokens", "wall_ns", "loss"])
    if table is None or not len(table):
        return None
    tokens, wall, loss = (column(table, name) for name in ("tokens", "wall_ns", "loss"))
    if np.isnan(tokens).any() or np.isnan(wall).any() or not np.isfinite(loss).all():
        return None
    return tokens, wall / 1e9, loss


def _curves(one: tuple[Float, Float, Float], other: tuple[Float, Float, Float]) -> tuple[LossCurve, LossCurve] | None:
    """Both curves up to the tokens that both trained on."""
    most = min(one[0].sum(), other[0].sum())
    found = [_curve(*steps, most) for steps in (one, other)]
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _curve(tokens: Float, seconds: Float, loss: Float, most: float) -> LossCurve | None:
    reached = np.cumsum(tokens)
    until = int(np.searchsorted(reached, most, side="right"))
    width = max(1, round(WINDOW * most / tokens.mean()))
    if until < width:
        return None
    sums = np.concatenate([[0.0], np.cumsum(loss[:until])])
    means = (sums[width:] - sums[:-width]) / width
    return LossCurve(reached[width - 1 : until], np.cumsum(seconds)[width - 1 : until], means)
