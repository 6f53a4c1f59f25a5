"""Explain arms and comparisons by replays, spans and slowdown injections, and decide what a replay may predict.

Refused: arms with too much unrecorded time (:func:`refusal`), and changes that depend on what the recording does not
show (:func:`bar_of`). Advice, ``harness whatif`` and the scenario's table report :func:`edit_doubts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from harness.explain.causes import reads_cheap_rows, slow_causes
from harness.explain.exposure import Dose, SyncCall, What, dose, mean_hidden_behind, parse_control, sync_audit
from harness.explain.ledger import Blocks, measure, per_step_of, speed, steps_per_s
from harness.explain.policy import HANDOVER_TIMES_MAX, MIN_BLOCKS, REPLAY_ERROR_MAX
from harness.explain.replay.predict import Replays, replace_data
from harness.explain.replay.prediction import Prediction
from harness.explain.replay.recording import ReplayError
from harness.explain.replay.whatif import validation_arms
from harness.explain.spans import spans_of
from harness.explain.statistics import Estimate, Likeness, estimate, from_blocks
from harness.judge.comparisons import Absent, Controls, Measured, alike_blocks, arm_floor, ideal_speed
from harness.judge.doubts import Bar, Claim, Doubt, RemedyKind, barred, doubt, in_order, unseen
from harness.judge.policy import ADVISED_GAIN_MIN, AS_GOOD_WITHIN, ENOUGH_BLOCKS, RESTART_SHARE_MAX, SAME_TOKENS_WITHIN
from harness.judge.report_types import ArmExplained, Explained, PredictedRatio, WhatIf
from harness.judge.verdicts import is_useless
from harness.judge.waits import uneven_speed, uneven_waits
from harness.scenario.edits import Edits, parse_edits
from harness.scenario.overrides import differing, edit_texts
from harness.study.contract import STAGES
from harness.study.records import COMMAND, StudyRecord
from harness.study.run_data import RunData
from trainer.json_types import objects


def few_blocks_remedy(study: StudyRecord) -> RemedyKind:
    """Return "finish the study" if it gives enough blocks and can resume (read_resumable), else "more blocks"."""
    resumable = study.scenario_file and not any(COMMAND in arm.declared or arm.code is not None for arm in study.arms)
    unfinished = study.status != "done" and study.blocks >= MIN_BLOCKS
    return "finish the study" if resumable and unfinished and not study.is_training else "more blocks"


def declared_floor(study: StudyRecord) -> float | None:
    """Return the noise floor that the scenario declares, as a fraction; None without a valid one."""
    declared = study.scenario_text.get("noise_floor")
    return declared if isinstance(declared, float) and 0 < declared < 1 else None


def refusal(runs: Sequence[RunData]) -> Doubt | None:
    """Return the doubt for which ``runs`` of one arm support no prediction; None if a replay supports one."""
    hidden = unseen(runs)
    if hidden is None:
        return None
    recorded = all(run.has_spans and len(spans_of(run).kernels) for run in runs)
    return barred(hidden.doubts(runs[0].record.arm, recorded=recorded), "prediction")


def loader_doubts(runs: Sequence[RunData], replays: Replays) -> Iterator[Doubt]:
    """Yield the doubts about predicting other loader settings by a replay of ``runs``."""
    arm = runs[0].record.arm
    if not all(run.record.facts.has_loader for run in runs):
        yield doubt("no loader", arm)
    if replays.unequal:
        yield doubt("no items" if all(run.record.facts.gave_no_items(1) for run in runs) else "unequal", arm)
    if reads_cheap_rows(slow_causes([run.record.facts for run in runs])):
        yield doubt("row by row", arm)
    if (slow := replays.slow_worker) is not None:
        yield doubt("slow worker", arm, share=slow.factor, where=str(slow.number))
    if (hidden := unseen(runs)) is not None and hidden.sampling > RESTART_SHARE_MAX:
        yield doubt("sampler", arm, share=hidden.sampling)
    if hidden is not None and hidden.restarting > RESTART_SHARE_MAX:
        yield doubt("restarts", arm, share=hidden.restarting)


def bar_of(edits: Edits, runs: Sequence[RunData], replays: Replays) -> Bar | None:
    """Return why ``runs`` cannot be predicted under the loader settings in ``edits``; None if they can."""
    claims: list[Claim] = ["workers"] if edits.workers is not None and edits.workers != replays.workers else []
    claims += ["prefetch"] if edits.prefetch is not None else []
    doubts = [*loader_doubts(runs, replays)] if claims else []
    bar = next((first for claim in claims if (first := barred(doubts, claim)) is not None), None)
    return None if bar is None else cast(Bar, bar.kind)


def prediction_doubts(unedited: Prediction, arm: str, few_blocks: RemedyKind = "more blocks") -> Iterator[Doubt]:
    """Yield doubts about predicted changes: an ``unedited`` replay that is off, or too few blocks."""
    if not unedited.validation.within_tolerance:
        yield doubt("replay off", arm, share=unedited.validation.typical)
    if unedited.interval_from != "blocks":
        yield doubt("too few blocks", arm, blocks=ENOUGH_BLOCKS, remedy=few_blocks)


def serial_speedup(replays: Replays, found: Prediction) -> float | None:
    """Return the speed-up by the edits in ``found`` if workers' waits off a core (disk, network, lock) cannot overlap.

    A step then lasts at least as long as all stages of its batch wait off a core, but no longer than the measured step.
    None if the edits neither add a worker nor remove tokenizing from several workers. None, too, if the step is hardly
    longer than in the usual replay, which lets workers wait at the same time.
    """
    removed = [name for name, edit in found.edits.stages.items() if edit.removes]
    more_workers = found.edits.workers is not None and found.edits.workers > replays.workers
    if not more_workers and not ("tokenize" in removed and replays.busy_workers > 1):
        return None
    step_ms = found.step_ms.median
    slowest_ms = min(max(step_ms, replays.off_core_ms(without=removed)), found.measured_ms.median)
    return found.speedup.median * step_ms / slowest_ms if slowest_ms > step_ms * (1 + AS_GOOD_WITHIN) else None


def with_any_handover(replays: Replays, found: Prediction) -> Prediction:
    """Return ``found``; if it predicts loader workers for runs that had none, with wider intervals. The cost of handing
    over a worker's batch is then unknown. The intervals cover 0 to :data:`HANDOVER_TIMES_MAX` x the usual cost."""
    if replays.workers or not found.edits.workers or "transfer" in found.edits.stages:
        return found
    costs_ms = (0.0, HANDOVER_TIMES_MAX * replays.usual_handover_ms)
    predictions = [replays.predict(found.edits.with_text(f"transfer={cost_ms:.6f}ms")) for cost_ms in costs_ms]
    return replace(
        found,
        step_ms=_covering(found.step_ms, [prediction.step_ms for prediction in predictions]),
        speedup=_covering(found.speedup, [prediction.speedup for prediction in predictions]),
    )


def _covering(likely: Estimate, others: Sequence[Estimate]) -> Estimate:
    lows, highs = (
        [interval.ci_low for interval in (likely, *others)],
        [interval.ci_high for interval in (likely, *others)],
    )
    return replace(
        likely,
        ci_low=None if None in lows else min(low for low in lows if low is not None),
        ci_high=None if None in highs else max(high for high in highs if high is not None),
    )


def is_serial(serial: float | None, least: float) -> bool:
    """True if the speed-up ``serial`` (from :func:`serial_speedup`) hardly gains anything; False if it is None.

    Hardly: at most the fraction ``least``, or :data:`REPLAY_ERROR_MAX` if that is larger."""
    return serial is not None and serial - 1 <= max(least, REPLAY_ERROR_MAX)


def clears(speedup: Estimate, least: float) -> bool:
    """Return True if the interval of ``speedup`` is above 1, and its median exceeds 1 by more than ``least``."""
    return speedup.ci_low is not None and speedup.ci_low > 1 and speedup.median - 1 > least


def contradicts(predicted: Estimate, serial: float | None, measured: Estimate | None, least: float) -> bool:
    """Return True if an arm's measurement contradicts the prediction: neither interval includes the other's median.

    ``serial`` (:func:`serial_speedup`) extends the predicted range. False without both intervals. ``least``: fraction
    by which measurements of the same program may differ."""
    if measured is None or None in (measured.ci_low, measured.ci_high, predicted.ci_low, predicted.ci_high):
        return False
    if (measured.ci_low or 0) <= predicted.median <= (measured.ci_high or math.inf):
        return False
    low = min(predicted.ci_low or 0.0, serial or math.inf)
    return not low / (1 + least) <= measured.median <= (predicted.ci_high or math.inf) * (1 + least)


@dataclass(frozen=True)
class StudyRuns:
    """Runs of a study by arm, controls included, with the noise floors and controls that judge predictions."""

    study: StudyRecord
    runs: Mapping[str, Sequence[RunData]]

    def blocks(self, arm: str) -> Blocks:
        """Return the ledgers of an arm's measured runs by block; empty without any."""
        ledgers = ((run.record.block, measure(run)) for run in self.runs.get(arm, ()))
        return {block: ledger for block, ledger in ledgers if ledger is not None}

    @property
    def all_blocks(self) -> Mapping[str, Blocks]:
        """Ledgers of every arm, by arm and block."""
        return {name: self.blocks(name) for name in self.runs}

    @property
    def controls(self) -> Controls:
        """Measured runs of the controls of every arm."""
        first = {name: runs[0].record for name, runs in self.runs.items() if runs}
        return Controls(
            {
                (record.control, record.of): self.blocks(name)
                for name, record in first.items()
                if record.control and record.of
            }
        )

    def floor(self, arm: str) -> float | None:
        """Return the noise floor of an arm as a fraction; None if neither a control nor the scenario gives it."""
        return arm_floor(arm, self.all_blocks, self.controls, declared_floor(self.study))

    def alike(self, arm: str) -> Likeness | None:
        """Return the neighbouring blocks' similarity, which widens the arm's intervals; None without runs."""
        return alike_blocks(arm, self.all_blocks, self.controls)

    def tried_by(self, arm: str, edits: Edits) -> Sequence[str]:
        """Return the arms that are already ``arm`` with the changes ``edits``."""
        return validation_arms([run.record for runs in self.runs.values() for run in runs], arm, edits)


def tried_speed(own: Blocks, other: Blocks, alike: Likeness | None) -> Estimate | None:
    """Return the measured speed-up from ``own`` to ``other``; None with other tokens per step or no useful interval."""
    positions = [per_step_of(blocks, "tokens") for blocks in (own, other)]
    if None not in positions and abs((positions[1] or 0.0) / (positions[0] or 1.0) - 1) > SAME_TOKENS_WITHIN:
        return None
    speedup = speed(own, other, steps_per_s, alike=alike)
    return None if speedup is None or is_useless(speedup) else speedup


def edit_doubts(among: StudyRuns, arm: str, replays: Replays, found: Prediction) -> tuple[Doubt, ...]:
    """Return all doubts about the prediction ``found`` for ``arm``, most important first. ``among``: all runs of the
    study, for noise floors and for arms that already have the change. ``replays``: of ``arm``."""
    doubts = [*prediction_doubts(found, arm, few_blocks_remedy(among.study)), *loader_doubts(among.runs[arm], replays)]
    gain_min = max(among.floor(arm) or 0.0, found.validation.typical, ADVISED_GAIN_MIN)
    edit_names, serial = ", ".join(found.edits.texts), serial_speedup(replays, found)
    if clears(found.speedup, gain_min) and is_serial(serial, gain_min):
        doubts.append(doubt("serial", arm, where=edit_names))
    for tried_arm in among.tried_by(arm, found.edits):
        measured = tried_speed(among.blocks(arm), among.blocks(tried_arm), among.alike(arm))
        if contradicts(found.speedup, serial, measured, gain_min):
            doubts.append(doubt("contradicted", arm, where=edit_names))
    return in_order(doubts)


def whatifs(study: StudyRecord, names: tuple[str, str], runs: Mapping[str, Sequence[RunData]]) -> tuple[WhatIf, ...]:
    """Return the comparison of two arms unedited, then under each what-if edit of the scenario; empty without any."""
    edit_list = [parse_edits(edit_texts(edits)) for edits in objects(study.scenario_text.get("whatif"))]
    among = StudyRuns(study, runs)
    return tuple(_whatif(among, names, edits) for edits in (Edits(), *edit_list)) if edit_list else ()


def _whatif(among: StudyRuns, names: tuple[str, str], edits: Edits) -> WhatIf:
    written = ", ".join(edits.texts)
    base_name, other_name = names
    try:
        base, doubts = _predicted(among, base_name, edits)
    except ReplayError as error:
        return WhatIf(written, reason=error.gap)
    if base is None:
        return WhatIf(written, doubts=doubts)
    whatif = WhatIf(
        written,
        base.over_blocks(base.step_ms),
        waits_ms=sum(base.waits_ms.values()),
        measured_ms=step_ms_of(among.runs[other_name]) if other_name in among.tried_by(base_name, edits) else None,
        doubts=doubts,
    )
    try:
        other, other_doubts = _predicted(among, other_name, edits)
    except ReplayError as error:
        return replace(whatif, candidate_reason=error.gap)
    whatif = replace(whatif, doubts=in_order([*doubts, *other_doubts]))
    if other is None:
        return whatif
    return replace(whatif, candidate_ms=other.over_blocks(other.step_ms), ratio=_ratio(base, other))


def _predicted(among: StudyRuns, arm: str, edits: Edits) -> tuple[Prediction | None, tuple[Doubt, ...]]:
    """Return an arm's prediction (None if a doubt bars it) and doubts. Raises ReplayError if it has no replay."""
    arm_runs = among.runs.get(arm, ())
    if arm_runs and (reason := refusal(arm_runs)) is not None:
        return None, (reason,)
    replays = Replays(arm_runs)
    if bar_of(edits, arm_runs, replays) is not None:
        return None, in_order(loader_doubts(arm_runs, replays))
    prediction = with_any_handover(replays, replays.predict(edits))
    return prediction, edit_doubts(among, arm, replays, prediction)


def step_ms_of(runs: Sequence[RunData]) -> Estimate | None:
    """Return an arm's step time in ms: median over blocks of each run's mean, with interval; None if unmeasured."""
    ledgers = [ledger for run in runs if (ledger := measure(run)) is not None]
    return estimate({block_ledger.record.block: {0: (block_ledger.mean_step_ms, 1.0)} for block_ledger in ledgers})


def _ratio(base: Prediction, other: Prediction) -> Estimate | None:
    shared = sorted(set(base.block_ms) & set(other.block_ms))
    return from_blocks([math.log(base.block_ms[block] / other.block_ms[block]) for block in shared])


Runs = Mapping[str, Sequence[RunData]]  # finished runs by arm
# Keys in which two arms may differ if one's data path is replayed under the other's steps. None affects compute.
REPLAYABLE = (
    "data.path", "data.access", "data.workers", "data.prefetch", "data.shuffle", "data.inject", "data.extra_",
    "data.transport", "data.global_order",
    "data.tokenizer.engine", "data.tokenizer.prove",  # the ids are equal
)  # fmt: skip


def explain_arm(
    arm: str, runs: Runs, ledgers: Blocks, controls: Controls, alike: Likeness | None = None
) -> ArmExplained:
    """Return what explains an arm's step time: calls that block, slowdown injections, and replays.

    Slowdown injection: the same work done several times. The replays are unedited and without data work. Replays are
    missing if time that no timer explains is too long, or if the runs lack spans. ``ledgers``: by block. ``alike``:
    similarity of neighbouring blocks, which widens the interval of the ideal-data control.
    """
    arm_runs = runs.get(arm, ())
    if not arm_runs:
        return ArmExplained()
    syncs = tuple(_mean_syncs([sync_audit(run) for run in arm_runs]))
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
    hidden = unseen(arm_runs)
    if hidden is not None and hidden.reason is not None:
        return measured  # Unseen time may be the wait for data.
    try:
        replays = Replays(arm_runs)
    except ReplayError:
        return measured  # recorded by another trainer, without the spans that a replay needs
    no_data_work = replays.predict(parse_edits([f"{stage}=0" for stage in STAGES]))
    return replace(
        measured,
        replay_error=no_data_work.validation.median,
        resampled_error=no_data_work.validation.resampled_median,
        within_tolerance=no_data_work.validation.within_tolerance,
        ideal_predicted=no_data_work.over_blocks(no_data_work.gain),
        predicted_in_blocks=uneven_speed(
            uneven,
            {
                block: no_data_work.unedited_ms[block] / ms
                for block, ms in no_data_work.block_ms.items()
                if block in ledgers
            },
        ),
        removals=replays.removals(),
        critical_path_ms=replays.critical_path_ms(),
    )


def _by_block(ledgers: Blocks, control: Blocks) -> dict[int, float]:
    """Return how many times as fast as ``ledgers`` the steps of ``control`` are, by block."""
    speeds = {block: speed({block: ledger}, control, steps_per_s) for block, ledger in ledgers.items()}
    return {block: speedup.median for block, speedup in speeds.items() if speedup is not None}


def explain(
    study: StudyRecord,
    names: tuple[str, str],
    measured: Measured,
    runs: Runs,
    arms: Mapping[str, Blocks],
    controls: Controls,
) -> Explained:
    """Return what explains the comparison ``names`` (baseline, candidate), see :class:`Explained`. The explanation has
    hidden data work, slowdown injections, and a replay of the baseline with the candidate's loader. Hidden: no step
    waited for this work. Slowdown injection: the same work done several times."""
    baseline, candidate = names
    ledgers = [*arms[baseline].values(), *arms[candidate].values()]
    devices = [str(run.record.facts.device) for run in ledgers if run.record.facts.emulated]
    return Explained(
        hidden_behind_ms=mean_hidden_behind(runs[baseline]) if runs.get(baseline) else {},
        doses=_doses(baseline, arms[baseline], controls),
        predicted=_data_replaced(names, measured, runs, arms),
        emulated=tuple(dict.fromkeys(devices)),
        whatifs=whatifs(study, names, runs),
    )


def _doses(baseline: str, blocks: Blocks, controls: Controls) -> tuple[Dose, ...]:
    by_slowdown: dict[What, dict[int, Blocks]] = {}
    for (control, arm), dosed in controls.by.items():
        parsed = parse_control(control)
        if arm == baseline and parsed is not None:
            by_slowdown.setdefault(parsed[0], {})[parsed[1]] = dosed
    workers = max(((run.record.facts.workers or 0) for run in blocks.values()), default=0)
    return tuple(dose(blocks, doses, slowed, workers) for slowed, doses in by_slowdown.items())


def _data_replaced(
    names: tuple[str, str], measured: Measured, runs: Runs, arms: Mapping[str, Blocks]
) -> PredictedRatio | Absent:
    """Return the speed ratio candidate / baseline that a replay predicts, in the unit of ``measured``, or Absent.

    The replay takes the baseline's steps, and the loader's times from the candidate's data-only control."""
    baseline, candidate = names
    if (reason := _not_replayable(names, runs)) is not None:
        return reason
    data_only = [
        run
        for group in runs.values()
        for run in group
        if (run.record.control, run.record.of) == ("data-only", candidate)
    ]
    if not data_only:
        return Absent("no data-only control", (candidate,))
    try:
        replayed = replace_data(runs[baseline], data_only)
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
    blocking = [key for key in differs if key != "seed" and not key.startswith(REPLAYABLE)]
    return Absent("more than the data path differs", detail=blocking[0]) if blocking else None


def _in_measure(
    names: tuple[str, str], measured: Measured, found: Prediction, arms: Mapping[str, Blocks]
) -> Estimate | None:
    """Return the predicted speed ratio in the unit of ``measured``, such as tokens per second. Median over blocks of
    the speed-up of steps x the ratio of tokens per step (candidate / baseline). None without a common block."""
    name: Literal["trained_tokens", "tokens"] | None = None
    if measured.measure != "steps/s":
        name = "trained_tokens" if measured.measure == "trained tokens/s" else "tokens"
    per_step = measured.trained_per_step if name == "trained_tokens" else measured.positions_per_step
    if name is None or per_step is None or abs(per_step - 1) <= SAME_TOKENS_WITHIN:
        return found.over_blocks(found.speedup)
    base_blocks, candidate_blocks, logs = arms[names[0]], arms[names[1]], []
    for block in sorted(set(found.block_ms) & set(base_blocks) & set(candidate_blocks)):
        base_run, other_run = base_blocks[block], candidate_blocks[block]
        first, second = getattr(base_run, name), getattr(other_run, name)
        if first and second:
            tokens = second / len(other_run.step_ms) / (first / len(base_run.step_ms))
            logs.append(math.log(base_run.mean_step_ms / found.block_ms[block] * tokens))
    return from_blocks(logs)


def _mean_syncs(found: Sequence[Sequence[SyncCall]]) -> list[SyncCall]:
    """Return one entry per call site: means over runs. ``found``: the calls of each run."""
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
