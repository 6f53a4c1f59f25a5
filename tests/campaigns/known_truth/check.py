"""Runs pipelines for real and compares ledger, verdict and replay with the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.explain.replay.predict import predict, unedited_error
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.scenario.edits import parse_edits
from harness.study.contract import CAUSES, STAGES
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests.campaigns.known_truth.machine import costs_of, pooled
from tests.campaigns.known_truth.pipelines import STEPS, Pipeline, draw
from tests.campaigns.known_truth.truth import Expected, Machine, expected
from tests.campaigns.known_truth.waited import SPOILED, allowance, mean_waited

WITHIN_SHARE, WITHIN_MS = 0.03, 0.3  # of a step, or this many milliseconds: whichever is more


@dataclass
class Row:
    """One pipeline. Milliseconds per step; errors are found - truth (times: in ms), or found / truth - 1 (replays)."""

    seed: int
    edit: str
    pipeline: Pipeline
    machine: Machine
    truth: Expected
    step_ms: float
    starved_ms: dict[str, float]
    hidden_ms: dict[str, float]
    exposed_ms: dict[str, float]
    allowed_ms: float
    worst_starved: tuple[str, float]
    worst_hidden: tuple[str, float]
    worst_exposed: tuple[str, float]
    true_ratio: float
    measured_ratio: float
    noise_floor: float | None
    verdict: str
    verdict_right: bool
    false_call: bool  # called a gain or a loss although next to none is declared
    ceiling_high: float | None  # upper end of the ceiling's interval of the pipeline as it was
    unedited: list[float]  # per run, in the order recorded
    resampled: list[float]  # per run, from the durations of measured steps alone, as predictions are made
    edited: float
    edited_allowed: float  # that it may be off because runs waited for cores
    waited: float  # share of their steps that runs waited for a core: of the pipeline, or of its control, the more
    waited_edited: float  # ... or of the pipeline with the edit, which verdict and prediction rest on, too

    @property
    def left_open(self) -> bool:
        """Undecided though the true ratio lies outside the noise floor and 3 %."""
        return self.verdict == "undecided" and abs(self.true_ratio - 1) > max(self.noise_floor or 0.0, WITHIN_SHARE)

    @property
    def data_gain(self) -> bool:
        """A gain by less data work, which is all that a ceiling is of."""
        return self.verdict == "gain" and not self.edit.startswith(("device=", "sync="))

    @property
    def above_ceiling(self) -> bool:
        return self.data_gain and self.measured_ratio > (self.ceiling_high or math.inf)

    @property
    def ledger_right(self) -> bool:
        worst = (self.worst_starved, self.worst_hidden, self.worst_exposed)
        return all(abs(error) <= self.allowed_ms for _, error in worst)


def check(study: StudyFolder, seeds: list[int], steps: int = STEPS) -> list[Row]:
    """One row per pipeline of a finished study, whose runs have ``steps`` measured steps."""
    runs = list(study.runs())
    report = analyse(study.read_study(), runs)
    controls = {seed: costs_of(_runs_of(runs, f"p{seed}+a-a"), draw(seed)[0]) for seed in seeds}
    whole = pooled(controls.values())
    return [_row(seed, report, runs, controls[seed].machine(whole), steps) for seed in seeds]


def _row(seed: int, report: StudyReport, runs: list[RunData], machine: Machine, steps: int) -> Row:
    pipeline, edit = draw(seed)
    own = _runs_of(runs, f"p{seed}")
    waited = max(mean_waited(own), mean_waited(_runs_of(runs, f"p{seed}+a-a")))
    waited_other = mean_waited(_runs_of(runs, f"p{seed}-edited"))
    waited_edited = max(waited, waited_other)
    longer = allowance(waited_edited) / (1 - allowance(waited_edited))  # than without waiting
    truth, edited_truth = (expected(one, machine, steps, len(own)) for one in (pipeline, pipeline.edited(edit)))
    arm, other = report.arm(f"p{seed}"), report.arm(f"p{seed}-edited")
    comparison = next(c for c in report.compared if c.baseline == f"p{seed}")
    assert arm is not None
    assert arm.totals.step_ms is not None
    assert other is not None
    assert other.totals.step_ms is not None
    assert comparison.measured.step_time is not None
    starved = {cause: arm.totals.starved_ms.get(cause, 0.0) - truth.starved.get(cause, 0.0) for cause in CAUSES}
    hidden = {stage: arm.totals.hidden_ms.get(stage, 0.0) - truth.hidden.get(stage, 0.0) for stage in STAGES[:3]}
    exposed = {stage: arm.totals.exposed_ms.get(stage, 0.0) - truth.exposed[stage] for stage in STAGES}
    ratio = truth.step / edited_truth.step
    floor = comparison.measured.noise_floor or 0.0
    together = comparison.measured.together
    if together is not None and together.ci_low is not None and together.ci_high is not None:
        floor = max(floor, (together.ci_high - together.ci_low) / 2)  # many pipelines are compared in one study
    verdict = comparison.measured.verdict
    # Outside the noise floor and the verdict's interval (and what the truth itself is known to) it must be called, by
    # its right name; inside, never by the wrong one.
    outside = abs(ratio - 1) > max(floor, WITHIN_SHARE) + longer
    direction = "gain" if ratio > 1 else "loss"
    called = verdict in ("gain", "loss")
    unseen = verdict == "none" or comparison.measured.undecided == "too coarse"
    right = verdict == direction or (unseen and not outside)
    if verdict == "undecided" and waited_edited > SPOILED:
        right = (
            True  # blocks that waited for cores, each for another time, may leave anything open: only not name it wrong
        )
    if abs(ratio - 1) <= longer:
        right = True  # that the runs waited for cores makes as much of a difference
    if called and abs(ratio - 1) <= 0.1 * abs(comparison.measured.step_time.median - 1):
        right = True  # next to nothing is declared: neither name is wrong, and it is listed by itself
    false_call = called and abs(ratio - 1) <= 0.1 * abs(comparison.measured.step_time.median - 1)
    predicted = predict(own, parse_edits([edit]))
    late_ms, other_late_ms = (
        allowance(share) * side.totals.step_ms.median for share, side in ((waited, arm), (waited_other, other))
    )
    return Row(
        seed=seed,
        edit=edit,
        pipeline=pipeline,
        machine=machine,
        truth=truth,
        step_ms=arm.totals.step_ms.median,
        starved_ms=dict(arm.totals.starved_ms),
        hidden_ms=dict(arm.totals.hidden_ms),
        exposed_ms=dict(arm.totals.exposed_ms),
        allowed_ms=max(WITHIN_SHARE * truth.step, WITHIN_MS) + allowance(waited) * arm.totals.step_ms.median,
        worst_starved=max(starved.items(), key=lambda one: abs(one[1])),
        worst_hidden=max(hidden.items(), key=lambda one: abs(one[1])),
        worst_exposed=max(exposed.items(), key=lambda one: abs(one[1])),
        true_ratio=ratio,
        measured_ratio=comparison.measured.step_time.median,
        noise_floor=comparison.measured.noise_floor,
        verdict=verdict,
        verdict_right=right,
        false_call=false_call,
        ceiling_high=None if comparison.measured.ceiling is None else comparison.measured.ceiling.ci_high,
        unedited=[unedited_error(run) for run in own],
        resampled=list(predicted.validation.resampled.values()),
        edited=predicted.step_ms.median / other.totals.step_ms.median - 1,
        edited_allowed=(late_ms + other_late_ms) / (other.totals.step_ms.median - other_late_ms),
        waited=waited,
        waited_edited=waited_edited,
    )


def _runs_of(runs: list[RunData], arm: str) -> list[RunData]:
    return [run for run in runs if run.record.arm == arm]
