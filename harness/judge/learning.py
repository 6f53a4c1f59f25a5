"""Compare what the arms of a study learned: training and held-out losses by step, and evaluation time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import StepLosses
from harness.explain.spans import column
from harness.explain.statistics import wilson
from harness.scenario.overrides import lookup
from harness.study.records import ComparisonRecord
from harness.study.run_data import RunData

CURVE_POINTS_MAX = 2_000  # maximum number of points per curve
Curve = tuple[tuple[int, float], ...]  # (step, loss), ascending


@dataclass(frozen=True)
class ChoicePass:
    """One pass over multiple-choice questions after ``step``: share of right answers (0 to 1) by four rules. The answer
    is the likeliest ending: by its log-likelihood in all (``acc``), or per character, byte or token (the others)."""

    step: int
    questions: int | None
    acc: float | None  # like the other three: NaN if the model diverged, None if unknown
    acc_norm: float | None
    acc_bytes: float | None
    acc_tokens: float | None


@dataclass(frozen=True)
class RightShare:
    """Share of correct answers (0 to 1): median over runs, with the 95 % interval (Wilson) of one run's share."""

    share: float
    ci_low: float
    ci_high: float


def choice_passes(run: RunData) -> tuple[ChoicePass, ...]:
    """Return the multiple-choice passes of one run by step, including those of a diverged model; empty without any."""
    if run.evaluations is None:
        return ()
    names = ("step", "questions", "acc", "acc_norm", "acc_bytes", "acc_tokens")
    rows = zip(*(run.evaluations.column(name).to_pylist() for name in names), strict=True)
    return tuple(ChoicePass(*row) for row in rows if row[1] is not None)


def right_share(passes: Sequence[ChoicePass], name: str) -> RightShare | None:
    """Return the median of share ``name`` ("acc") over one pass per run; None if any is unknown or diverged."""
    values = [getattr(entry, name) for entry in passes]
    if not values or any(share is None or not math.isfinite(share) for share in values):
        return None
    questions = min(entry.questions or 0 for entry in passes)
    middle = float(median(values))
    return RightShare(middle, *wilson(round(middle * questions), questions)) if questions else None


@dataclass(frozen=True)
class RunCurves:
    """Losses of one run by step, and its evaluations on held-out documents and multiple-choice questions."""

    block: int
    training: Curve  # thinned to :data:`CURVE_POINTS_MAX` points
    validation: Curve  # every pass, even of a diverged model
    accuracy: float | None  # accuracy of the last pass, for a masked-LM objective
    evaluate_s: float  # seconds of all passes
    steps_s: float  # seconds of all steps, including warm-up steps
    workers: int  # number of loader workers
    labels: tuple[object, ...] = ()  # facts that identify the labels of its last pass; None: unknown
    choices: tuple[ChoicePass, ...] = ()  # every pass over multiple-choice questions
    questions: tuple[object, ...] = ()  # facts that identify these questions


@dataclass(frozen=True)
class ArmCurves:
    """Loss curves of the evaluated runs of one arm, in the order of blocks; one if the blocks are one training."""

    arm: str
    runs: tuple[RunCurves, ...]

    @property
    def final_loss(self) -> float | None:
        """Median over blocks of the last validation loss; NaN if one is not finite, None if no block was evaluated."""
        last = [run.validation[-1][1] for run in self.runs if run.validation]
        if not last:
            return None
        return median(last) if all(map(math.isfinite, last)) else math.nan

    @property
    def perplexity(self) -> float | None:
        """Exponential of the final loss; None if the loss is not finite or the result overflows a float."""
        final = self.final_loss
        return math.exp(final) if final is not None and final < 700 else None  # math.exp overflows at 709.

    @property
    def answers(self) -> tuple[ChoicePass, ...]:
        """Last multiple-choice pass of each run that has one."""
        return tuple(run.choices[-1] for run in self.runs if run.choices)

    @property
    def accuracy(self) -> float | None:
        accuracies = [run.accuracy for run in self.runs if run.accuracy is not None]
        return median(accuracies) if accuracies else None

    @property
    def final_steps(self) -> tuple[int, ...]:
        """Numbers of trained steps after which the last evaluation passes ran, ascending, without duplicates."""
        return tuple(sorted({run.validation[-1][0] + 1 for run in self.runs if run.validation}))

    @property
    def passes(self) -> int:
        """Number of passes over held-out documents, all runs together."""
        return sum(len(run.validation) for run in self.runs)

    @property
    def choice_passes(self) -> int:
        return sum(len(run.choices) for run in self.runs)

    @property
    def evaluate_s(self) -> float:
        return sum(run.evaluate_s for run in self.runs)

    @property
    def share(self) -> float:
        """Share of evaluation passes in the total time of steps and passes, 0 to 1."""
        return self.evaluate_s / (self.evaluate_s + sum(run.steps_s for run in self.runs))


@dataclass(frozen=True)
class LossDifference:
    """Earliest step, and of equals the lowest block, at which the losses of baseline and candidate differ."""

    of: Literal["training", "validation"]
    block: int
    step: int
    baseline: float
    candidate: float
    largest: float  # relative, over all common steps of all blocks at which both are finite


@dataclass(frozen=True)
class CurvesCompared:
    """Comparison of two arms' losses at their common steps: how many there are, and where they first differ."""

    baseline: str
    candidate: str
    blocks: int
    training: int  # number of compared training losses
    validation: int
    difference: LossDifference | None  # None: all are equal floats, or NaN in both
    not_finite: int = 0  # number of compared losses that are NaN or infinite in either arm
    alone: tuple[int, int] = (0, 0)  # numbers of losses at steps that the other arm lacks, (baseline, candidate)


@dataclass(frozen=True)
class Learning:
    """Loss curves of every evaluated arm, and the agreement of compared arms; :func:`learning` makes it."""

    arms: tuple[ArmCurves, ...]
    compared: tuple[CurvesCompared, ...]

    @property
    def other_labels(self) -> bool:
        """True if arms were evaluated on different labels, so that a lower loss does not mean a better model."""
        return self._differ([(run.block, run.labels) for arm in self.arms for run in arm.runs])

    @property
    def other_questions(self) -> bool:
        """True if arms were asked different multiple-choice questions, or in a different way."""
        return self._differ([(run.block, run.questions) for arm in self.arms for run in arm.runs if run.choices])

    @staticmethod
    def _differ(runs: Sequence[tuple[int, tuple[object, ...]]]) -> bool:
        by_block: dict[int, list[tuple[object, ...]]] = {}
        for block, facts in runs:
            by_block.setdefault(block, []).append(facts)
        parts = [zip(*group, strict=True) for group in by_block.values()]
        return any(len({value for value in values if value is not None}) > 1 for part in parts for values in part)


def learning(
    runs: Mapping[str, Sequence[RunData]], comparisons: Sequence[ComparisonRecord], one_training: bool = False
) -> Learning | None:
    """Return the curves of the evaluated arms, and their comparisons; None if no arm was evaluated.

    ``one_training``: True if the blocks of an arm are parts of one training, which then has one curve."""
    evaluated = {name: [run for run in group if _passes(run) or choice_passes(run)] for name, group in runs.items()}
    arms = tuple(
        ArmCurves(name, (_joined([*map(_curves, runs[name])]),) if one_training else tuple(map(_curves, group)))
        for name, group in evaluated.items()
        if group
    )
    pairs = [
        (comparison, evaluated.get(comparison.baseline), evaluated.get(comparison.candidate))
        for comparison in comparisons
    ]
    compared = tuple(
        _compared(comparison, base_runs, candidate_runs)
        for comparison, base_runs, candidate_runs in pairs
        if base_runs and candidate_runs
    )
    return Learning(arms, compared) if arms else None


def _passes(run: RunData) -> Curve:
    """Return the validation losses of a run by step, including those of a diverged model; empty without any."""
    if run.evaluations is None:
        return ()
    rows = zip(*(run.evaluations.column(name).to_pylist() for name in ("step", "loss")), strict=True)
    return tuple((step, loss) for step, loss in rows if loss is not None)


def _joined(parts: Sequence[RunCurves]) -> RunCurves:
    """Return parts of one training as one run. The last value of a step repeated after a failure counts."""
    accuracies = [part.accuracy for part in parts if part.validation]
    return RunCurves(
        parts[0].block,
        tuple(sorted(dict(point for part in parts for point in part.training).items())),
        tuple(sorted(dict(point for part in parts for point in part.validation).items())),
        accuracies[-1] if accuracies else None,
        sum(part.evaluate_s for part in parts),
        sum(part.steps_s for part in parts),
        parts[-1].workers,
        choices=tuple(sorted({choice.step: choice for part in parts for choice in part.choices}.values(), key=_step)),
    )


def _step(one: ChoicePass) -> int:
    return one.step


def _curves(run: RunData) -> RunCurves:
    times = run.step_columns(["wall_ns"])
    accuracy, labels, lasted, choices = None, None, np.zeros(1), choice_passes(run)
    if run.evaluations is not None and len(run.evaluations):
        rows = run.evaluations.select(["accuracy", "tokens", "questions"]).to_pylist()
        if of_documents := [row for row in rows if row["questions"] is None]:
            accuracy, labels = of_documents[-1]["accuracy"], of_documents[-1]["tokens"]
        lasted = column(run.evaluations, "end_ns") - column(run.evaluations, "start_ns")
    steps, losses = StepLosses(run).by_step()
    thinned = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), CURVE_POINTS_MAX)).astype(np.int64))
    return RunCurves(
        run.record.block,
        tuple(zip(steps[thinned].tolist(), losses[thinned].tolist(), strict=True)) if len(steps) else (),
        _passes(run),
        accuracy,
        float(lasted.sum()) / 1e9,
        0.0 if times is None else float(np.nansum(column(times, "wall_ns"))) / 1e9,
        run.record.facts.workers or 0,
        (
            labels,
            run.record.facts.vocab_size,
            run.record.facts.tokenizer_fingerprint,
            run.record.facts.corpus_fingerprint,
            lookup(run.record.config, "model.objective"),
            lookup(run.record.config, "evaluation.source"),
            json.dumps(lookup(run.record.config, "evaluation.corpus"), sort_keys=True),
        ),
        choices,
        (
            choices[-1].questions if choices else None,
            run.record.facts.questions_fingerprint,
            lookup(run.record.config, "evaluation.multiple_choice.prompt"),
        ),
    )


def _compared(pair: ComparisonRecord, ours: Sequence[RunData], theirs: Sequence[RunData]) -> CurvesCompared:
    blocks = training = validation = not_finite = ours_alone = theirs_alone = 0
    differences: list[LossDifference] = []
    their_runs = {run.record.block: run for run in theirs}
    for run in ours:
        if (their_run := their_runs.get(run.record.block)) is None:
            continue
        blocks += 1
        for kind, base, candidate in _pairs(run, their_run):
            steps, base_losses, candidate_losses = _at_common_steps(base, candidate)
            training += len(steps) * (kind == "training")
            validation += len(steps) * (kind == "validation")
            ours_alone += len(base[0]) - len(steps)
            theirs_alone += len(candidate[0]) - len(steps)
            finite = np.isfinite(base_losses) & np.isfinite(candidate_losses)
            not_finite += int((~finite).sum())
            if len(
                differing := np.flatnonzero(
                    (base_losses != candidate_losses) & ~(np.isnan(base_losses) & np.isnan(candidate_losses))
                )
            ):
                position = int(differing[0])
                size = np.maximum(np.abs(base_losses[finite]), np.finfo(np.float64).tiny)
                largest = float((np.abs(candidate_losses - base_losses)[finite] / size).max(initial=0.0))
                differences.append(
                    LossDifference(
                        kind,
                        run.record.block,
                        int(steps[position]),
                        float(base_losses[position]),
                        float(candidate_losses[position]),
                        largest,
                    )
                )
    first = min(differences, key=lambda difference: (difference.step, difference.block), default=None)
    if first is not None:
        largest = max(difference.largest for difference in differences)
        first = LossDifference(first.of, first.block, first.step, first.baseline, first.candidate, largest)
    unmatched = ours_alone, theirs_alone
    return CurvesCompared(pair.baseline, pair.candidate, blocks, training, validation, first, not_finite, unmatched)


_Losses = tuple[NDArray[np.int64], NDArray[np.float64]]


def _pairs(ours: RunData, theirs: RunData) -> Iterator[tuple[Literal["training", "validation"], _Losses, _Losses]]:
    yield "training", StepLosses(ours).recorded(), StepLosses(theirs).recorded()
    yield "validation", _arrays(_passes(ours)), _arrays(_passes(theirs))


def _arrays(curve: Curve) -> _Losses:
    return np.array([step for step, _ in curve], np.int64), np.array([loss for _, loss in curve])


def _at_common_steps(
    ours: _Losses, theirs: _Losses
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    steps, our_index, their_index = np.intersect1d(ours[0], theirs[0], return_indices=True)
    return steps, ours[1][our_index], theirs[1][their_index]
