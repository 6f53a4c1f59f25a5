"""Analyse a whole study: from its tables to one tree of frozen records for the report and every other reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from harness.explain.bounds import mean_shares
from harness.explain.causes import SAMPLED, busy_cores, slow_causes
from harness.explain.exposure import release, work_out
from harness.explain.lead_use import Loading, loading_of
from harness.explain.ledger import (
    Blocks,
    Rate,
    RunLedger,
    arm_lead,
    epoch_steps,
    measure,
    part_over,
    speed,
    steps_per_s,
    tokens_per_s,
    trained_tokens_per_s,
    without_split,
)
from harness.explain.policy import MIN_BLOCKS
from harness.explain.ranks import GroupGain, RankSteps, group_gain, rank_steps, ranks_of, ranks_of_run
from harness.explain.replay.predict import Replays
from harness.explain.replay.recording import ReplayError
from harness.explain.statistics import Estimate, Likeness, estimate
from harness.explain.unusual_steps import ended_costs, long_steps, step_kinds, step_times
from harness.explain.wall import wall, without_waits
from harness.judge.advice import advise
from harness.judge.claims import JudgedClaim, RunUse, arm_use, judge, own_kind, use_of
from harness.judge.comparisons import Absent, Controls, Measured, Missing, alike_blocks, arm_floor, compare
from harness.judge.confounds import confounds, used_lead, useful_fraction
from harness.judge.controls import data_paths, probe_costs, scaling
from harness.judge.diagnosis import diagnose
from harness.judge.doubts import (
    Doubt,
    DoubtKind,
    RemedyKind,
    Unseen,
    barred,
    doubt,
    failures,
    in_order,
    probe_problems,
    study_problems,
    unseen,
)
from harness.judge.learning import learning
from harness.judge.losses import Learned, learned, loss_of
from harness.judge.policy import ENOUGH_BLOCKS, HORIZON_EPOCHS, HORIZON_TIMES
from harness.judge.predictions import declared_floor, explain, explain_arm, few_blocks_remedy
from harness.judge.probes.machine_load import device_health, differences
from harness.judge.report_types import (
    ArmAdvice,
    ArmExplained,
    ArmReport,
    ArmTotals,
    Comparison,
    ModelSpeed,
    NoMfu,
    NotCompared,
    StudyReport,
)
from harness.judge.verdicts import drift
from harness.judge.waits import stage_means, step_means
from harness.scenario.claims import CLAIMS, ClaimKind, ClaimName
from harness.study.contract import PHASES, PROFILED
from harness.study.records import ArmRecord, RunFacts, RunRecord, StudyRecord
from harness.study.run_data import RunData
from trainer.json_types import JsonObject


@dataclass(frozen=True)
class _Arms:
    """All runs of the study by arm, with their ledgers, their controls and what else a comparison of arms needs."""

    records: Mapping[str, Sequence[RunRecord]]  # records of all runs
    ledgers: Mapping[str, Blocks]  # ledgers of the runs with measured steps, by block
    runs: Mapping[str, Sequence[RunData]]  # runs of ``ledgers``, in the order of blocks
    ranks: Mapping[str, Mapping[int, RankSteps]]  # steps by arm and block, for a program with several ranks
    declared: Sequence[ArmRecord]  # arms of study.json
    controls: Controls
    blocks: int  # planned
    few_blocks: RemedyKind  # remedy for too few blocks

    def of(self, name: str) -> Blocks:
        return self.ledgers.get(name, {})

    def alike(self, name: str) -> Likeness | None:
        """Return the neighbouring blocks' similarity, which widens the arm's intervals; None without runs."""
        return alike_blocks(name, {arm.name: self.of(arm.name) for arm in self.declared}, self.controls)


def analyse(
    study: StudyRecord, runs: Sequence[RunData], while_whole: Callable[[RunData], None] = lambda _: None
) -> StudyReport:
    """Return the report on ``runs``, which may be only a part of the study's runs.

    ``while_whole``: function that is called with each run before its tables are dropped from memory."""
    arms = _by_arm(study, runs, while_whole)
    records = [record for group in arms.records.values() for record in group]
    uses = _uses(study, arms)  # also of A/A controls, because they limit the certainty of a claim
    plain = {arm.name for arm in arms.declared if arm.control is None}
    comparisons = tuple(_comparison(study, (pair.baseline, pair.candidate), arms) for pair in study.comparisons)
    advice = _advice(comparisons, arms, declared_floor(study))
    # A profiled run is not part of its arm's figures, because the profiler slows it.
    reports = tuple(_arm(arm, arms) for arm in arms.declared if arm.control != PROFILED)
    together = None if study.comparisons else group_gain(arms.ranks)
    group = None if together is None else known_gain(together, reports)
    exchange_ms = 0.0 if together is None else together.exchange_ms
    own = {entry.arm: entry for entry in reversed(advice)}
    reports = tuple(replace(arm, diagnoses=diagnose(arm, own.get(arm.name), group, exchange_ms)) for arm in reports)
    saving = {arm.name for arm in reports if any(diagnosis.kind == "checkpoint-bound" for diagnosis in arm.diagnoses)}
    return StudyReport(
        study=study,
        arms=reports,
        comparisons=comparisons,
        problems=study_problems(study, arms.declared, arms.records, arms.ledgers, arms.blocks),
        emulated=any(bool(record.facts.emulated) for record in records),
        environment=study.environment or next((r.environment for r in records if r.environment), {}),
        probe_costs=tuple(probe_costs(arms.declared, arms.ledgers, runs)),
        probe_problems=probe_problems(runs),
        advice=advice,
        step_times=step_times([run for group in arms.runs.values() for run in group], saving),
        learned=_learned(study, arms),
        uses=tuple(arm_use(name, [*by_block.values()]) for name, by_block in uses.items() if name in plain),
        claims=_claims(study, arms, uses),
        learning=learning(
            {arm.name: arms.runs.get(arm.name, ()) for arm in arms.declared}, study.comparisons, study.is_training
        ),
        group=group,
        data_paths=data_paths(
            study.scenario_text,
            [arm.name for arm in arms.declared if arm.control is None],
            arms.ledgers,
            arms.controls,
            lambda baseline, arm: _shown(_measured(study, (baseline, arm), arms)),
        ),
    )


def _uses(study: StudyRecord, arms: _Arms) -> dict[str, dict[int, RunUse]]:
    """Return the step shares and cores by arm and block (A/A controls too); empty if the scenario names no claims."""
    if not study.scenario_text.get("claims"):
        return {}
    return {
        arm.name: {block: use_of(run, ledger) for run in arms.runs[arm.name]
                   for block in [run.record.block] if (ledger := arms.of(arm.name).get(block)) is not None}
        for arm in arms.declared if arm.control in (None, "a-a") and arms.runs.get(arm.name)
    }  # fmt: skip


def _claims(study: StudyRecord, arms: _Arms, uses: Mapping[str, Mapping[int, RunUse]]) -> tuple[JudgedClaim, ...]:
    named = study.scenario_text.get("claims")
    judged = []
    for claim in named if isinstance(named, list) else []:
        if isinstance(claim, Mapping) and (kind := _claimed(claim)) is not None:
            names = claim["arms"] if isinstance(claim.get("arms"), list) else [claim.get("arm"), claim.get("baseline")]
            arm, name = str(names[0]), None if len(names) < 2 or names[1] is None else str(names[1])
            records = arms.records.get(arm, [])
            baseline_records = [] if name is None else arms.records.get(name, [])
            controls = [
                (str(control.of), control.name)
                for control in arms.declared
                if control.control == "a-a" and control.of in (arm, name)
            ]
            config = records[0].config if records else {}
            cores = records[0].facts.cores if records else None
            baseline_config = baseline_records[0].config if baseline_records else None
            judged.append(judge(kind, arm, name, uses, config, cores, baseline_config, controls))
    return tuple(judged)


def _claimed(one: JsonObject) -> ClaimName | ClaimKind | None:
    """Return which claim an entry of the scenario makes: the name of a predefined one, or the kind by its own bounds.

    None if its bounds are malformed, or if only a later version knows it."""
    if "figure" in one:
        return own_kind(one)
    name = one.get("claim")
    return name if name in CLAIMS else None


def _learned(study: StudyRecord, arms: _Arms) -> tuple[Learned, ...]:
    target = study.scenario_text.get("target_loss")
    if not isinstance(target, float | int) or isinstance(target, bool):
        return ()
    results = []
    for arm in arms.declared:
        if arm.control is None and (blocks := arms.of(arm.name)):
            totals = _totals(blocks)
            records = [run.record for run in blocks.values()]
            step_ms = None if totals.step_ms is None else totals.step_ms.median
            failed = sum(record.status == "failed" for record in arms.records.get(arm.name, ()))
            results.append(learned(arm.name, float(target), blocks, records, totals.tokens_per_step, step_ms, failed))
    return tuple(results)


def _by_arm(study: StudyRecord, runs: Sequence[RunData], while_whole: Callable[[RunData], None]) -> _Arms:
    records: dict[str, list[RunRecord]] = {}
    ledgers: dict[str, dict[int, RunLedger]] = {}
    measured: dict[str, list[RunData]] = {}
    ranks: dict[str, dict[int, RankSteps]] = {}
    for run in sorted(runs, key=lambda run: (run.record.arm, run.record.block)):
        records.setdefault(run.record.arm, []).append(run.record)
        work_out(run)
        ledger = measure(run)
        if ledger is not None and ledger.ranks > 1 and (together := ranks_of_run(run)) is not None:
            ledger = replace(ledger, data_costs_all_ms=together.data_costs_ms)
        if (steps := rank_steps(run)) is not None:
            ranks.setdefault(run.record.arm, {})[run.record.block] = steps
        while_whole(run)
        release(run)
        if ledger is not None:
            ledgers.setdefault(run.record.arm, {})[run.record.block] = ledger
            measured.setdefault(run.record.arm, []).append(run)
    for name, arm_runs in measured.items():
        if arm_runs[0].record.control is None and not _splits(arm_runs, ledgers[name]):
            ledgers[name] = {block: without_split(ledger) for block, ledger in ledgers[name].items()}
    declared = _arms(study, records)
    controls = {(arm.control, arm.of): ledgers.get(arm.name, {}) for arm in declared if arm.control and arm.of}
    blocks = study.blocks or len({record.block for group in records.values() for record in group})
    return _Arms(records, ledgers, measured, ranks, declared, Controls(controls), blocks, few_blocks_remedy(study))


def _splits(runs: Sequence[RunData], blocks: Blocks) -> bool:
    """Return True if the division of an arm's waits among stages is valid.

    The division is valid if no block was divided by replay, or if the unedited replay matches the runs."""
    if not any(ledger.split_by_replay for ledger in blocks.values()):
        return True
    try:
        return Replays(runs).validation.within_tolerance
    except ReplayError:
        return True  # for example because another block was split


def _advice(
    comparisons: Sequence[Comparison | NotCompared], arms: _Arms, allowance: float | None
) -> tuple[ArmAdvice, ...]:
    """Return the advice for each baseline, or for each arm if nothing is compared."""
    compared = [comparison for comparison in comparisons if isinstance(comparison, Comparison)]
    floors = {comparison.baseline: comparison.measured.noise_floor for comparison in compared}
    if not comparisons:
        plain = [arm.name for arm in arms.declared if arm.control is None and arms.runs.get(arm.name)]
        floors = {name: arm_floor(name, arms.ledgers, arms.controls, allowance) for name in plain}
    return tuple(
        advise(arm, arms.runs, arms.of, floor, arms.alike(arm), arms.few_blocks, _resolution(compared, arm))
        for arm, floor in floors.items()
    )


def _resolution(compared: Sequence[Comparison], baseline: str) -> float | None:
    """Return the smallest change (a fraction) that any comparison with ``baseline`` could have detected.

    None unless every comparison with it found no difference."""
    ratios = [comparison.measured for comparison in compared if comparison.baseline == baseline]
    if not ratios or any(measured.verdict != "none" for measured in ratios):
        return None
    return min((measured.resolution for measured in ratios if measured.resolution is not None), default=None)


def _measured(study: StudyRecord, names: tuple[str, str], arms: _Arms) -> Measured | Missing:
    """Return the comparison of the arms ``names`` (baseline, candidate); Missing, with the reason, if there is none.

    All parts of the report use it, so that their verdicts follow the same rules."""
    return compare(
        *names,
        {arm.name: arms.of(arm.name) for arm in arms.declared},
        arms.controls,
        comparisons=len(study.comparisons),
        allowance=declared_floor(study),
        few_blocks=arms.few_blocks,
    )


def _comparison(study: StudyRecord, names: tuple[str, str], arms: _Arms) -> Comparison | NotCompared:
    measured = _measured(study, names, arms)
    if isinstance(measured, Missing):
        return NotCompared(*names, replace(measured, failures=failures(names, arms.records)))
    by_name = {arm.name: arms.of(arm.name) for arm in arms.declared}
    base_runs, candidate_runs = (by_name[name] for name in names)
    cards = device_health({name: arms.runs.get(name, ()) for name in names})
    compared = Comparison(
        *names,
        measured=measured,
        drift=drift(base_runs, candidate_runs, measured.noise_floor, len(study.comparisons)),
        enough_steps=_enough_steps(base_runs, candidate_runs),
        scaling=scaling(names, (arms.runs.get(names[0], ()), arms.runs.get(names[1], ())), measured.tokens_ratio),
        explained=explain(study, names, measured, arms.runs, by_name, arms.controls),
        confounds=(
            *confounds(base_runs, candidate_runs, arms.records, names, arms.blocks, measured.losses, measured.repeated),
            *used_lead(measured.used_lead, measured.ratio.median - 1, names),
            *differences(cards, *names),
        ),
    )
    explained = compared.explained
    if (first := barred(measured.doubts, "prediction")) is not None:
        explained = replace(explained, predicted=Absent("doubted", doubt=first))
    return replace(compared, measured=without_doubted(measured), explained=explained)


def _shown(found: Measured | Missing) -> Measured | Missing:
    return found if isinstance(found, Missing) else without_doubted(found)


def without_doubted(m: Measured) -> Measured:
    """Return ``m`` without figures that a doubt bars. ``ratio`` stays: readers use ``figure``."""
    if (first := barred(m.doubts, "prediction")) is not None:
        m = replace(m, ceiling=None, from_waits=None, absent={**m.absent, "ceiling": Absent("doubted", doubt=first)})
    if barred(m.doubts, "ratio") is not None:
        m = replace(m, tokens_ratio=None, step_time=None, together=None)
    return m


def _arms(study: StudyRecord, records: Mapping[str, Sequence[RunRecord]]) -> list[ArmRecord]:
    """Return the study's arms in order, each followed by its controls. Arms known only from their runs come last."""
    arms = list(study.arms)
    names = {arm.name for arm in arms}
    for name, group in records.items():
        if name not in names:
            first = group[0]
            arms.append(ArmRecord(name, first.control, first.of, first.declared))
    plain = [arm for arm in arms if not arm.control]
    ordered = []
    for arm in plain:
        ordered += [arm, *(control for control in arms if control.control and control.of == arm.name)]
    return ordered + [arm for arm in arms if arm not in ordered]


def _arm(arm: ArmRecord, arms: _Arms) -> ArmReport:
    name, control, parent = arm.name, arm.control, arm.of
    blocks = arms.of(name)
    totals = _totals(blocks) if blocks else ArmTotals()
    facts = next(iter(blocks.values())).record.facts if blocks else RunFacts()
    likeness = arms.alike(parent or name)
    hidden = unseen(arms.runs.get(name, ()))
    explained = ArmExplained() if control else explain_arm(name, arms.runs, blocks, arms.controls, likeness)
    idle = min((run.idle_workers for run in blocks.values()), default=0)
    ranks_here = max(1, sum(name in arms.ranks for name in arms.runs)) if (facts.ranks or 1) > 1 else 1
    causes = slow_causes([run.record.facts for run in arms.runs.get(name, ())])
    parts = None if totals.p50_ms is None else wall(arms.runs[name], blocks, totals.p50_ms)
    # Loader workers, or the demand of all other threads and child processes.
    helpers = max(facts.workers or 0, busy_cores(causes))
    busy = (facts.threads or 1) + helpers
    return ArmReport(
        name=name,
        control=control,
        of=parent,
        declared=dict(arm.declared),
        blocks=len(blocks),
        totals=totals,
        speed=_model_speed(control, totals, facts) if blocks else _NO_RUN,
        lead_use=arm_lead(blocks),
        explained=explained,
        against_arm=speed(arms.of(parent), blocks, steps_per_s, alike=likeness) if control and parent else None,
        attached=facts.attached,
        step_ends=facts.step_ends,
        unseen=hidden,
        wall=parts,
        doubts=arm_doubts(name, totals, hidden, explained, blocks, arms.few_blocks),
        causes=causes if parts is None else without_waits(causes, parts, totals.phase_ms),
        optimizer_steps=sum(
            run.step_count for run in arms.runs.get(name, ()) if run.record.facts.skipped_steps is not None
        ),
        skipped_steps=_skipped_steps(arms.runs.get(name, ())),
        ranks=ranks_of(arms.runs.get(name, ())),
        tokenizer_engine=facts.tokenizer_engine,
        tokenizer_proof=facts.tokenizer_proof,
        copies=_copies(blocks),
        workers=facts.workers or 0,
        loading=Loading() if facts.attached is None else loading_of(arms.runs[name]),
        ended={} if facts.attached is None else ended_costs(arms.runs[name]),
        iterable=bool(facts.iterable),
        free_cores=None if facts.cores is None else max(0, int(facts.cores / ranks_here - 1 - helpers)),
        crowded=facts.cores is not None and busy * ranks_here > facts.cores,
        spare_threads=max(0, (facts.threads or 1) - max(1, (facts.cores or 1) // ranks_here)),
        sampled=any(row["kind"] == SAMPLED for run in arms.runs.get(name, ()) for row in run.record.facts.causes or ()),
        idle_workers=idle,
        epoch_steps=epoch_steps(blocks),
        gave_no_items=idle > 0 and all(run.record.facts.gave_no_items(idle) for run in blocks.values()),
    )


def known_gain(group: GroupGain, arms: Iterable[ArmReport]) -> GroupGain | None:
    """Return ``group``; None if a doubt other than "ranks" bars a prediction for one of the ranks ``arms``."""
    doubts = [entry for arm in arms if arm.unseen is not None for entry in arm.unseen.doubts() if entry.kind != "ranks"]
    return None if barred(doubts, "prediction") else group


def _copies(blocks: Blocks) -> int:
    """Return how many workers built the same batches, the maximum over runs; 0 if all workers built different ones."""
    copies = max((run.record.facts.copies or 0 for run in blocks.values()), default=0)
    return copies if copies > 1 else 0


def _skipped_steps(runs: Sequence[RunData]) -> int | None:
    counts = [skipped for run in runs if (skipped := run.record.facts.skipped_steps) is not None]
    return sum(counts) if counts else None


ONLY_CONVENTION = "palm"  # used before runs recorded their convention
_NO_RUN = ModelSpeed(no_mfu=NoMfu("no run"))


def _totals(blocks: Blocks) -> ArmTotals:
    runs = list(blocks.values())
    steps = np.concatenate([run.step_ms for run in runs])
    wall, typical_ms = float(steps.mean()), float(np.median(steps))
    tokens = [run.tokens for run in runs if run.tokens is not None]
    phase_ms = stage_means(runs, "phase_ms")
    open_busy = any(run.device_busy_ms is None for run in runs)
    return ArmTotals(
        steps=len(steps),
        tokens_per_s=_over_repetitions(runs, tokens_per_s),
        trained_tokens_per_s=_over_repetitions(runs, trained_tokens_per_s),
        step_ms=_over_repetitions(runs, lambda run: (run.wall_ns / 1e6, float(run.steps))),
        p50_ms=typical_ms,
        p95_ms=float(np.percentile(steps, 95)),
        long_steps=long_steps(steps, np.concatenate([run.longest for run in runs]), PHASES, typical_ms),
        step_kinds=step_kinds([run.step_ms for run in runs]),
        useful_fraction=useful_fraction(blocks),
        tokens_per_step=sum(tokens) / len(steps) if len(tokens) == len(runs) else None,
        ledger={phase: phase_ms[phase] / wall for phase in PHASES if phase in phase_ms},
        phase_ms=phase_ms,
        **vars(step_means(runs)),
        work_ms=stage_means(runs, "work_ms"),
        during_wait_ms=stage_means(runs, "during_wait_ms"),
        unsplit=next((run.unsplit for run in runs if run.unsplit and not run.exposed_ms), None),
        device_busy_ms=None if open_busy else part_over(runs, lambda run: run.device_busy_ms),
        device_launch_bound_ms=part_over(runs, lambda run: run.device_launch_bound_ms),
        device_open_ms=part_over(runs, lambda run: run.device_open_ms),
        launch_bound=_launch_bound(runs),
        device_starved_ms=part_over(runs, lambda run: run.device_starved_ms),
        bound_shares=mean_shares([run.bound_shares for run in runs if run.bound_shares is not None]),
        loss=loss_of(runs),
        diverged=sum(run.diverged for run in runs),
    )


def _launch_bound(runs: Sequence[RunLedger]) -> dict[str, float]:
    """Return {kind of device work: share of all measured steps in which it was launch-bound}.

    Launch-bound: the device ends when the host ends launching, so the device may have waited for launches."""
    names = dict.fromkeys(name for run in runs for name in run.launch_bound)
    steps = sum(len(run.step_ms) for run in runs)
    return {name: sum(run.launch_bound.get(name, 0.0) * len(run.step_ms) for run in runs) / steps for name in names}


def _model_speed(control: str | None, totals: ArmTotals, facts: RunFacts) -> ModelSpeed:
    """Return FLOP/s by the trainer's count, and MFU (by the device profile's peak) or why it is missing."""
    device = facts.device
    result = ModelSpeed(device, facts.emulation, no_mfu=NoMfu("no profile", device, facts.profile_reason or ""))
    if control == "data-only":
        return replace(result, no_mfu=NoMfu("no compute"))
    flops, peak = facts.flops_per_token, facts.peak_flops_per_s
    if flops is None:
        return replace(result, no_mfu=NoMfu("no flops"))
    result = replace(result, convention=facts.flops_convention or ONLY_CONVENTION)
    if totals.tokens_per_s is None:
        return result
    flops_per_s = float(flops) * totals.tokens_per_s.median
    if not peak:
        return replace(result, flops_per_s=flops_per_s)
    source = str(facts.peak_source or facts.profile)
    all_ranks = float(peak) * (facts.ranks or 1)  # tokens/s cover all ranks.
    return replace(result, flops_per_s=flops_per_s, mfu=flops_per_s / all_ranks, mfu_of=source, no_mfu=None)


def _over_repetitions(runs: Iterable[RunLedger], value: Rate) -> Estimate | None:
    values: dict[int, dict[int, tuple[float, float]]] = {}
    for run in runs:
        rates = {number: value(totals) for number, totals in run.repetitions.items()}
        values[run.record.block] = {number: rate for number, rate in rates.items() if rate is not None}
    return estimate(values)


def arm_doubts(
    arm: str,
    totals: ArmTotals,
    hidden: Unseen | None,
    explained: ArmExplained,
    blocks: Blocks,
    few_blocks: RemedyKind = "more blocks",
) -> tuple[Doubt, ...]:
    """Return an arm's doubts, most important first. ``hidden``: unexplained time of an attached program."""
    entries = [*hidden.doubts(arm)] if hidden is not None else []
    attached = hidden is not None
    if 0 < len(blocks) < MIN_BLOCKS:  # For an attached program, blocks are parts of its one run.
        entries.append(
            doubt("too few blocks", arm, blocks=ENOUGH_BLOCKS, remedy="more steps" if attached else few_blocks)
        )
    if explained.replay_error is not None and not explained.within_tolerance:
        entries.append(doubt("replay off", arm, share=explained.replay_error))
    entries += [doubt("diverged", arm, share=totals.diverged / len(blocks))] if totals.diverged else []
    entries += [doubt("uneven", arm)] if totals.uneven is not None else []
    if totals.step_kinds is not None:
        entries.append(doubt("step kinds", arm, share=totals.step_kinds.above_share))
    if totals.long_steps is not None:
        entries.append(doubt("rare long steps", arm, share=totals.long_steps.steps / totals.long_steps.of))
    use = arm_lead(blocks)
    if use is not None and use.is_worth_saying:
        sliced = any(run.record.interleave == "slices" for run in blocks.values())
        remedy: RemedyKind = "more --warmup steps" if attached else "longer slices" if sliced else "more warm-up steps"
        entries.append(doubt("used lead", arm, share=use.share, remedy=remedy))
    compiled = sum(bool(run.record.facts.measured_compilations) for run in blocks.values())
    entries += [doubt("compiled", arm, share=compiled / len(blocks))] if compiled else []
    return in_order(entries)


def _enough_steps(base: Blocks, other: Blocks) -> int:
    """Return how many steps per block would show the lasting cost if costs change: :data:`HORIZON_EPOCHS` epochs.

    At least :data:`HORIZON_TIMES` x the measured steps, also if the length of an epoch is unknown."""
    measured = min(len(run.step_ms) for blocks in (base, other) for run in blocks.values())
    epochs = [epoch for blocks in (base, other) if (epoch := epoch_steps(blocks)) is not None]
    return math.ceil(max(HORIZON_EPOCHS * max(epochs, default=0.0), HORIZON_TIMES * measured))


def comparison_doubts(c: Comparison) -> tuple[Doubt, ...]:
    """Return all doubts about a comparison, most important first: those of its verdict, and others.

    The others: one for each undeclared difference of the arms, ceilings that disagree, and drift."""
    m = c.measured
    entries = [*m.doubts]
    for confound in c.confounds:
        if confound.kind not in ("diverged", "losses", "repeated data", "lead"):  # included in the verdict's own doubts
            kind = cast(DoubtKind, confound.kind)
            entries.append(doubt(kind, *(name for name in confound.names if name), where=confound.key))
    if m.ceilings is not None:
        entries.append(doubt("ceilings apart", c.baseline, share=m.ceilings[1] / m.ceilings[0] - 1))
    if c.drift is not None:
        entries.append(doubt("drift", c.candidate, share=c.drift.median - 1, steps=c.enough_steps))
    return in_order(entries)


def study_doubts(report: StudyReport) -> tuple[Doubt, ...]:
    """Return every doubt about a figure of ``report``, most important first, without duplicates."""
    return in_order(
        [
            *(entry for arm in report.arms for entry in arm.doubts),
            *(entry for c in report.compared for entry in comparison_doubts(c)),
            *(entry for advice in report.advice for entry in advice.doubts),
            *(doubt("probe problem", *problem.runs) for problem in report.probe_problems),
            *(doubt("profiled", arm.name) for arm in report.study.arms if arm.control == PROFILED),
        ]
    )
