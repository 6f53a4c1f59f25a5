"""Explains arms and comparisons beyond their ledgers, by spans, slowdown injections and replays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from harness.explain.dose import Dose, dose, parse_control
from harness.explain.dose_curves import What
from harness.explain.ledger import Blocks
from harness.explain.overlap import SyncCall, mean_hidden_behind, sync_audit
from harness.explain.replay.predict import Replays, replace_data
from harness.explain.replay.prediction import Prediction
from harness.explain.replay.refusals import ReplayError
from harness.explain.speeds import speed, steps_per_s
from harness.explain.statistics import Estimate, Likeness, from_blocks
from harness.judge.comparisons import Absent, Controls, Measured, ideal_speed
from harness.judge.policy import SAME_TOKENS_WITHIN
from harness.judge.predictions import whatifs
from harness.judge.report_types import ArmExplained, Explained, PredictedRatio
from harness.judge.unseen import unseen
from harness.judge.unsteady import uneven_speed, uneven_waits
from harness.scenario.edits import parse_edits
from harness.scenario.overrides import differing
from harness.study.contract import STAGES
from harness.study.records import StudyRecord
from harness.study.run_data import RunData

Runs = Mapping[str, Sequence[RunData]]  # finished runs by arm
# What may differ between two arms for one's data path to be replayed under the other's steps: nothing that computes.
REPLAYABLE = (
    "data.path", "data.access", "data.workers", "data.prefetch", "data.shuffle", "data.inject", "data.extra_",
    "data.transport", "data.global_order",
    "data.tokenizer.engine", "data.tokenizer.prove",  # the ids are the same
)  # fmt: skip


def explain_arm(
    arm: str, runs: Runs, ledgers: Blocks, controls: Controls, alike: Likeness | None = None
) -> ArmExplained:
    """The blocking calls of an arm, and its replays: as it ran, and without data work.

    ``alike``: how alike neighbouring blocks are, which widens the interval of its ideal-data control.
    """
    own = runs.get(arm, ())
    if not own:
        return ArmExplained()
    syncs = tuple(_mean_syncs([sync_audit(run) for run in own]))
    ideal = ideal_speed(arm, ledgers, controls, alike)
    uneven = uneven_waits([*ledgers.values()])
    measured = ArmExplained(
        syncs,
        ideal_measured=None if isinstance(ideal, Absent) else ideal,
        no_ideal=ideal if isinstance(ideal, Absent) else None,
        measured_in_blocks=None
        if isinstance(ideal, Absent)
        else uneven_speed(uneven, _by_block(ledgers, controls.get("ideal-data", arm))),
        doses=_doses(arm, ledgers, controls),
    )
    hidden = unseen(own)
    if hidden is not None and hidden.reason is not None:
        return measured  # what nobody saw may be the wait for data
    try:
        replays = Replays(own)
    except ReplayError:
        return measured  # of another trainer, without the spans that a replay needs
    without = replays.predict(parse_edits([f"{stage}=0" for stage in STAGES]))
    return replace(
        measured,
        replay_error=without.validation.median,
        resampled_error=without.validation.resampled_median,
        within_tolerance=without.validation.within_tolerance,
        ideal_predicted=without.over_blocks(without.gain),
        predicted_in_blocks=uneven_speed(
            uneven,
            {block: without.unedited_ms[block] / ms for block, ms in without.block_ms.items() if block in ledgers},
        ),
        removals=replays.removals(),
        receiving=replays.receiving,
        critical_path_ms=replays.critical_path_ms(),
    )


def _by_block(ledgers: Blocks, control: Blocks) -> dict[int, float]:
    """How many times as fast the steps of ``control`` are, by block."""
    found = {block: speed({block: one}, control, steps_per_s) for block, one in ledgers.items()}
    return {block: one.median for block, one in found.items() if one is not None}


def explain(
    study: StudyRecord,
    names: tuple[str, str],
    measured: Measured,
    runs: Runs,
    arms: Mapping[str, Blocks],
    controls: Controls,
) -> Explained:
    """Explain the comparison ``names``: what hid the baseline's data work, its slowdown injections, and replays."""
    baseline, candidate = names
    ledgers = [*arms[baseline].values(), *arms[candidate].values()]
    devices = [str(run.record.facts.device) for run in ledgers if run.record.facts.emulated]
    return Explained(
        hidden_behind_ms=mean_hidden_behind(runs[baseline]) if runs.get(baseline) else {},
        doses=_doses(baseline, arms[baseline], controls),
        predicted=_predicted(names, measured, runs, arms),
        emulated=tuple(dict.fromkeys(devices)),
        whatifs=whatifs(study, names, runs),
    )


def _doses(baseline: str, blocks: Blocks, controls: Controls) -> tuple[Dose, ...]:
    by_what: dict[What, dict[int, Blocks]] = {}
    for (control, arm), dosed in controls.by.items():
        found = parse_control(control)
        if arm == baseline and found is not None:
            by_what.setdefault(found[0], {})[found[1]] = dosed
    workers = max(((run.record.facts.workers or 0) for run in blocks.values()), default=0)
    return tuple(dose(blocks, doses, what, workers) for what, doses in by_what.items())


def _predicted(
    names: tuple[str, str], measured: Measured, runs: Runs, arms: Mapping[str, Blocks]
) -> PredictedRatio | Absent:
    """The baseline's steps with the loader of the candidate's data-only control: known before anyone trains it."""
    baseline, candidate = names
    if (why := _not_replayable(names, runs)) is not None:
        return why
    alone = [
        run
        for found in runs.values()
        for run in found
        if (run.record.control, run.record.of) == ("data-only", candidate)
    ]
    if not alone:
        return Absent("no data-only control", (candidate,))
    try:
        replayed = replace_data(runs[baseline], alone)
    except ReplayError as error:
        return Absent("replay refused", detail=error.gap)
    return PredictedRatio(
        ratio=_in_measure(names, measured, replayed, arms),
        step_time=replayed.over_blocks(replayed.speedup),
        error=replayed.validation.typical,
        within_tolerance=replayed.validation.within_tolerance,
    )


def _not_replayable(names: tuple[str, str], runs: Runs) -> Absent | None:
    first, second = (runs.get(arm, ()) for arm in names)
    if not first or not second:
        return Absent("no tables")
    differs = differing(first[0].record.config, second[0].record.config)
    other = [key for key in differs if key != "seed" and not key.startswith(REPLAYABLE)]
    return Absent("more than the data path differs", detail=other[0]) if other else None


def _in_measure(
    names: tuple[str, str], measured: Measured, found: Prediction, arms: Mapping[str, Blocks]
) -> Estimate | None:
    """The predicted speed-up in what the comparison measures: block by block times the tokens that a step has."""
    name: Literal["trained_tokens", "tokens"] | None = None
    if measured.measure != "steps/s":
        name = "trained_tokens" if measured.measure == "trained tokens/s" else "tokens"
    per_step = measured.trained_per_step if name == "trained_tokens" else measured.positions_per_step
    if name is None or per_step is None or abs(per_step - 1) <= SAME_TOKENS_WITHIN:
        return found.over_blocks(found.speedup)
    base, other, logs = arms[names[0]], arms[names[1]], []
    for block in sorted(set(found.block_ms) & set(base) & set(other)):
        ours, theirs = base[block], other[block]
        first, second = getattr(ours, name), getattr(theirs, name)
        if first and second:
            tokens = second / len(theirs.step_ms) / (first / len(ours.step_ms))
            logs.append(math.log(ours.mean_step_ms / found.block_ms[block] * tokens))
    return from_blocks(logs)


def _mean_syncs(found: Sequence[Sequence[SyncCall]]) -> list[SyncCall]:
    """One line per call site: means over runs."""
    by_site: dict[str, list[SyncCall]] = {}
    for calls in found:
        for call in calls:
            by_site.setdefault(call.site, []).append(call)
    runs = max(1, len(found))

    def mean(values: Sequence[float]) -> float:
        return sum(values) / runs

    return [
        SyncCall(
            site=site,
            calls_per_step=mean([call.calls_per_step for call in calls]),
            blocked_ms=None
            if any(call.blocked_ms is None for call in calls)
            else mean([call.blocked_ms or 0.0 for call in calls]),
            hid_ms=mean([call.hid_ms for call in calls]),
            hid_behind={
                name: mean([call.hid_behind.get(name, 0.0) for call in calls])
                for name in dict.fromkeys(name for call in calls for name in call.hid_behind)
            },
            idle_ms=mean([call.idle_ms for call in calls]),
        )
        for site, calls in by_site.items()
    ]
