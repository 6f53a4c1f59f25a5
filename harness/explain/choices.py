"""What runs answered of multiple-choice questions (``evaluation.multiple_choice``), pass by pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.explain.probes.stacks import wilson
from harness.study.run_data import RunData


@dataclass(frozen=True)
class ChoicePass:
    """Shares of ``questions`` answered right after step ``step``; NaN of a diverged model, None where not known.

    ``questions``: None in an llm.c log, which does not say how many there were.

    Their columns in evaluations.parquet have the same names, see harness.study.column_reference.
    """

    step: int
    questions: int | None
    acc: float | None
    acc_norm: float | None
    acc_bytes: float | None
    acc_tokens: float | None


@dataclass(frozen=True)
class RightShare:
    """The median of runs' shares of right answers, with the 95 % interval of one such share (Wilson's).

    The interval is of questions as independent draws: how far another draw of as many would be off.
    """

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
