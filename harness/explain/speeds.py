"""Compares arms by speed, by what their steps count, and by right answers of multiple-choice questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from harness.explain.ledger import Blocks, RepetitionTotals, RunLedger
from harness.explain.policy import CONFIDENCE
from harness.explain.statistics import Estimate, Likeness, from_blocks, paired_logs, wilson
from harness.study.run_data import RunData

Counted = Literal["tokens", "trained_tokens"]
COUNTED: tuple[Counted, ...] = ("tokens", "trained_tokens")
# What a repetition did, and the time or steps it took for that.
Rate = Callable[[RepetitionTotals], tuple[float, float] | None]


def per_second(amount: float | None, repetition: RepetitionTotals) -> tuple[float, float] | None:
    """``amount`` of a repetition as a rate; None where it was not counted."""
    return None if amount is None else (amount, repetition.wall_ns / 1e9)


def trained_tokens_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.trained_tokens, repetition)


def tokens_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.tokens, repetition)


def steps_per_s(repetition: RepetitionTotals) -> tuple[float, float] | None:
    return per_second(repetition.steps, repetition)


# What "faster" means, best first: a trainer that does not count tokens is compared by what it does count.
MEASURES: tuple[tuple[str, Rate], ...] = (
    ("trained tokens/s", trained_tokens_per_s),
    ("tokens/s", tokens_per_s),
    ("steps/s", steps_per_s),
)


def speed(
    baseline: Blocks,
    candidate: Blocks,
    rate: Rate,
    confidence: float = CONFIDENCE,
    alike: Likeness | None = None,
) -> Estimate | None:
    """How many times as fast ``candidate`` is by ``rate``; None where a measured repetition does not have that rate."""
    logs = speed_logs(baseline, candidate, rate)
    return None if logs is None else from_blocks(logs, confidence, alike)


def speed_logs(baseline: Blocks, candidate: Blocks, rate: Rate) -> list[float] | None:
    """The logarithm of that in each block that has both, in their order."""
    base, other = rates_of(baseline, rate), rates_of(candidate, rate)
    if base is None or other is None:
        return None
    by_repetition = {block: alternated(baseline[block], candidate[block]) for block in set(base) & set(other)}
    return paired_logs(base, other, by_repetition)


def alternated(first: RunLedger, second: RunLedger) -> bool:
    """True if repetition k of both ran side by side in time."""
    return first.by_repetition and second.by_repetition and first.record.session == second.record.session


def rates_of(blocks: Blocks, rate: Rate) -> dict[int, dict[int, tuple[float, float]]] | None:
    """{block: {repetition: rate}}; None where any lacks it: a ratio never mixes repetitions with and without."""
    found: dict[int, dict[int, tuple[float, float]]] = {}
    for block, run in blocks.items():
        for repetition, totals in run.repetitions.items():
            value = rate(totals)
            if value is None:
                return None
            found.setdefault(block, {})[repetition] = value
    return found


def per_step_of(blocks: Blocks, name: Counted) -> float | None:
    """Positions or trained tokens per measured step; None where a run did not count them."""
    totals: list[float | None] = [getattr(run, name) for run in blocks.values()]
    if any(total is None for total in totals) or not totals:
        return None
    return sum(total or 0.0 for total in totals) / sum(len(run.step_ms) for run in blocks.values())


@dataclass(frozen=True)
class ChoicePass:
    """Shares of ``questions`` answered right after ``step``; NaN of a diverged model, None where not known."""

    step: int
    questions: int | None
    acc: float | None
    acc_norm: float | None
    acc_bytes: float | None
    acc_tokens: float | None


@dataclass(frozen=True)
class RightShare:
    """The median of runs' shares of right answers, with the 95 % interval (Wilson) of one such share."""

    share: float
    ci_low: float
    ci_high: float


def choice_passes(run: RunData) -> tuple[ChoicePass, ...]:
    """The passes of one run, by step; those of a diverged one too."""
    if run.evaluations is None:
        return ()
    names = ("step", "questions", "acc", "acc_norm", "acc_bytes", "acc_tokens")
    rows = zip(*(run.evaluations.column(name).to_pylist() for name in names), strict=True)
    return tuple(ChoicePass(*row) for row in rows if row[1] is not None)


def right_share(passes: Sequence[ChoicePass], name: str) -> RightShare | None:
    """Of each run's last pass the share ``name``; None where it is not known of all, or a run diverged."""
    values = [getattr(one, name) for one in passes]
    if not values or any(one is None or not math.isfinite(one) for one in values):
        return None
    questions = min(one.questions or 0 for one in passes)
    middle = float(median(values))
    return RightShare(middle, *wilson(round(middle * questions), questions)) if questions else None
