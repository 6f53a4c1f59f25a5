"""Puts each arm's data path alone (its data-only control) beside its training, both against one arm's.

A sample is one row of a batch: ``data.sequence_length`` positions, padding included. A scenario asks for this by
``isolated_baseline``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.explain.ledger import Blocks, RepetitionTotals, RunLedger, mean_over
from harness.explain.speeds import Rate, rates_of, speed, tokens_per_s, trained_tokens_per_s
from harness.explain.statistics import Estimate, estimate
from harness.judge.comparisons import Controls, Measured, Missing, waited_over
from harness.judge.verdicts import Judged
from harness.scenario.overrides import lookup, lookup_number
from trainer.json_types import JsonObject


@dataclass(frozen=True)
class DataPath:
    """One arm's data path. None: not measured. Ratios say how many times as fast as ``baseline``, above 1 is faster."""

    arm: str
    baseline: str
    sample_ms: Estimate | None = None  # alone; None also of a source of the user's own, whose rows nobody knows
    tokens_per_s: Estimate | None = None  # alone, padding included
    trained_tokens_per_s: Estimate | None = None  # alone
    times: Estimate | None = None  # alone: in positions per second
    loop_ms: float | None = None  # alone: of a step, what is not fetching its batch
    step_ms: Estimate | None = None  # in training
    waited_ms: float | None = None  # in training: what data work costs a step
    mean_step_ms: float | None = None  # mean step in training, including ``waited_ms``
    training_times: Estimate | None = None
    measure: str = ""  # what ``training_times`` counts
    step_time: Estimate | None = None  # step time in training: baseline / arm
    steps: Judged | None = None  # verdict on ``step_time``, by the same rules as every comparison of the study


# Compares an arm with a baseline, (baseline, arm), as the study compares its arms.
Compare = Callable[[str, str], Measured | Missing]


def data_paths(
    scenario: JsonObject, arms: Sequence[str], ledgers: Mapping[str, Blocks], controls: Controls, compared: Compare
) -> tuple[DataPath, ...]:
    """One for each of ``arms`` (no controls), where ``scenario`` has an ``isolated_baseline``."""
    named = scenario.get("isolated_baseline")
    if not isinstance(named, str):
        return ()
    return tuple(_path(arm, _baseline_of(arm, named, arms), ledgers, controls, compared) for arm in arms)


def _baseline_of(arm: str, named: str, arms: Sequence[str]) -> str:
    """The arm ``named`` at the matrix point of ``arm``; itself where it names a point."""
    _, at, point = arm.partition("@")
    same = f"{named}{at}{point}"
    return same if same in arms else named


def _path(arm: str, baseline: str, ledgers: Mapping[str, Blocks], controls: Controls, compared: Compare) -> DataPath:
    alone, training = controls.get("data-only", arm), ledgers.get(arm, {})
    found = compared(baseline, arm)
    measured = None if isinstance(found, Missing) else found
    return DataPath(
        arm=arm,
        baseline=baseline,
        sample_ms=_per_block(alone, _sample_ms(alone)),
        tokens_per_s=_per_block(alone, tokens_per_s),
        trained_tokens_per_s=_per_block(alone, trained_tokens_per_s),
        times=speed(controls.get("data-only", baseline), alone, tokens_per_s),
        loop_ms=mean_over(list(alone.values()), _loop_ms),
        step_ms=_per_block(training, lambda one: (one.wall_ns / 1e6, float(one.steps))),
        waited_ms=waited_over(list(training.values())),
        mean_step_ms=mean_over(list(training.values()), lambda run: run.mean_step_ms),
        training_times=None if measured is None else measured.ratio,
        measure="" if measured is None else measured.measure,
        step_time=None if measured is None else measured.step_time,
        steps=None if measured is None else measured.steps,
    )


def _per_block(blocks: Blocks, rate: Rate | None) -> Estimate | None:
    values = None if rate is None else rates_of(blocks, rate)
    return None if values is None else estimate(values)


def _sample_ms(alone: Blocks) -> Rate | None:
    """Milliseconds per row: what a row holds, the run's configuration says."""
    config = next((run.record.config for run in alone.values()), {})
    length = lookup_number(config, "data.sequence_length", 0)
    if not length or lookup(config, "data.source") is not None:
        return None

    def rate(repetition: RepetitionTotals) -> tuple[float, float] | None:
        return None if not repetition.tokens else (repetition.wall_ns / 1e6, repetition.tokens / length)

    return rate


def _loop_ms(run: RunLedger) -> float | None:
    fetch = run.phase_ms.get("fetch")
    return None if fetch is None else run.mean_step_ms - fetch
