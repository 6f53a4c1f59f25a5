"""The whole analysis of a study: its tables in, one tree of dataclasses out, for the report and every other reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.analysis.comparisons import (
    Blocks,
    Controls,
    Rate,
    commonest,
    compare,
    speed,
    stage_means,
    steps_per_s,
    tokens_per_s,
    trained_tokens_per_s,
)
from harness.analysis.confounds import confounds, useful_fraction
from harness.analysis.explain import explain, explain_arm
from harness.analysis.ledger import RunLedger, mean_over, measure
from harness.analysis.probes.device_health import device_health, differences
from harness.analysis.probes.probe_cost import probe_costs
from harness.analysis.report_types import ArmReport, StudyReport
from harness.analysis.statistics import MIN_BLOCKS, Estimate, estimate
from harness.analysis.whatif import whatifs
from harness.report.sentences import ASK_FOR, sentence
from harness.report.words import count
from harness.study.records import ArmRecord
from harness.study.store import PHASES, PROFILED, RunData, RunRecord, StudyRecord


def analyse(study: StudyRecord, runs: Sequence[RunData]) -> StudyReport:
    """Everything the tables of ``runs`` say about ``study``: any of its runs may be missing, failed or empty."""
    records: dict[str, list[RunRecord]] = {}
    ledgers: dict[str, dict[int, RunLedger]] = {}
    for run in sorted(runs, key=lambda run: (run.record.arm, run.record.block)):
        records.setdefault(run.record.arm, []).append(run.record)
        ledger = measure(run)
        if ledger is not None:
            ledgers.setdefault(run.record.arm, {})[run.record.block] = ledger
    declared = _arms(study, records)
    # An arm is looked into in a run of its own, which has nothing to say of how fast it is.
    arms = [_arm(arm, ledgers.get(arm.name, {})) for arm in declared if arm.control != PROFILED]
    for arm in arms:
        if arm.control and arm.of:
            own, whole = ledgers.get(arm.name, {}), ledgers.get(arm.of, {})
            arm.against_arm = speed(whole, own, steps_per_s)
    by_name: dict[str, Blocks] = {arm.name: ledgers.get(arm.name, {}) for arm in declared}
    controls = Controls(
        {(arm.control, arm.of): ledgers.get(arm.name, {}) for arm in declared if arm.control and arm.of}
    )
    blocks = study.blocks or len({record.block for group in records.values() for record in group})
    finished: dict[str, list[RunData]] = {}
    for run in sorted(runs, key=lambda run: run.record.block):
        if run.record.block in ledgers.get(run.record.arm, {}):
            finished.setdefault(run.record.arm, []).append(run)
    for arm in arms:
        explain_arm(arm, finished, by_name.get(arm.name, {}), controls)
    comparisons = []
    for pair in study.comparisons:
        names = (pair.baseline, pair.candidate)
        comparison = compare(*names, by_name, controls)
        if comparison.missing is not None:
            comparison.missing += _failures(names, records)
        else:
            comparison.confounds = confounds(by_name[names[0]], by_name[names[1]], records, names, blocks)
            cards = device_health({name: finished.get(name, ()) for name in names})
            comparison.confounds += differences(cards, *names)
            explain(comparison, finished, by_name, controls)
            comparison.whatifs = whatifs(study, comparison, finished)
        comparison.sentence = sentence(comparison)
        comparisons.append(comparison)
    everyone = [record for group in records.values() for record in group]
    return StudyReport(
        study=study,
        arms=arms,
        comparisons=comparisons,
        problems=_problems(study, declared, records, ledgers, blocks),
        emulated=any(bool(record.facts.get("emulated")) for record in everyone),
        environment=dict(study.environment or next((r.environment for r in everyone if r.environment), {})),
        probe_costs=probe_costs(declared, ledgers, runs),
        probe_problems=_probe_problems(runs),
    )


def _probe_problems(runs: Sequence[RunData]) -> list[str]:
    """What probes could not do, each once, with the runs that said so where not all did."""
    said: dict[str, list[str]] = {}
    for run in runs:
        for problem in dict.fromkeys(run.probes.problems):
            said.setdefault(problem, []).append(f"{run.record.arm}/{run.record.block}")
    return [
        problem if len(where) == len(runs) else f"{problem} ({', '.join(where[:3])}{', ...' if len(where) > 3 else ''})"
        for problem, where in said.items()
    ]


def _arms(study: StudyRecord, records: Mapping[str, Sequence[RunRecord]]) -> list[ArmRecord]:
    """The study's arms in its order, each followed by its controls; arms known only from their runs come last."""
    arms = list(study.arms)
    known = {arm.name for arm in arms}
    for name, group in records.items():
        if name not in known:
            first = group[0]
            arms.append(ArmRecord(name, first.control, first.of, first.declared))
    plain = [arm for arm in arms if not arm.control]
    ordered = []
    for arm in plain:
        ordered += [arm, *(one for one in arms if one.control and one.of == arm.name)]
    return ordered + [arm for arm in arms if arm not in ordered]


def _arm(arm: ArmRecord, blocks: Blocks) -> ArmReport:
    report = ArmReport(arm.name, arm.control, arm.of, dict(arm.declared), blocks=len(blocks))
    runs = list(blocks.values())
    if not runs:
        report.mfu_reason = "no finished run"
        return report
    steps = np.concatenate([run.step_ms for run in runs])
    report.steps = len(steps)
    report.tokens_per_s = _over_turns(runs, tokens_per_s)
    report.trained_tokens_per_s = _over_turns(runs, trained_tokens_per_s)
    report.step_ms = _over_turns(runs, lambda turn: (turn.wall_ns / 1e6, float(turn.steps)))
    report.p50_ms, report.p95_ms = (float(np.percentile(steps, q)) for q in (50, 95))
    report.useful_fraction = useful_fraction(blocks)
    tokens = [run.tokens for run in runs if run.tokens is not None]
    report.tokens_per_step = sum(tokens) / len(steps) if len(tokens) == len(runs) else None
    report.phase_ms = stage_means(runs, "phase_ms")
    wall = float(steps.mean())
    report.ledger = {phase: report.phase_ms[phase] / wall for phase in PHASES if phase in report.phase_ms}
    report.exposed_ms = stage_means(runs, "exposed_ms")
    report.hidden_ms = stage_means(runs, "hidden_ms")
    report.contended_ms = mean_over(runs, lambda run: run.contended_ms)
    report.device_busy_ms = mean_over(runs, lambda run: run.device_busy_ms)
    report.device_starved_ms = mean_over(runs, lambda run: run.device_starved_ms)
    report.slack_ms = mean_over(runs, lambda run: run.device_slack_ms)
    report.starved_ms = stage_means(runs, "starved_ms")
    report.bound = commonest(run.bound for run in runs)
    losses = [run.loss for run in runs if run.loss is not None]
    report.loss = float(np.median(losses)) if losses else None
    _add_device(report, runs[0].record.facts)
    return report


def _add_device(report: ArmReport, facts: Mapping[str, Any]) -> None:
    """Model FLOP/s from the trainer's own count; the share of a peak (MFU) needs a device profile, never a guess."""
    device = facts.get("device")
    report.device = None if device is None else str(device)
    report.emulation = facts.get("emulation")
    report.mfu_reason = facts.get("profile_reason") or f"no device profile for {report.device or 'an unnamed device'}"
    if report.control == "data-only":
        report.mfu_reason = "this control computes nothing"
        return
    flops = facts.get("flops_per_token")
    if flops is None:
        report.mfu_reason = "the FLOPs per token are unknown, or no model is computed"
    elif report.tokens_per_s is not None:
        report.model_flops_per_s = float(flops) * report.tokens_per_s.median
        if peak := facts.get("peak_flops_per_s"):
            report.mfu = report.model_flops_per_s / float(peak)
            report.mfu_of = str(facts.get("peak_source") or facts.get("profile"))


def _over_turns(runs: Iterable[RunLedger], value: Rate) -> Estimate | None:
    values: dict[int, dict[int, tuple[float, float]]] = {}
    for run in runs:
        found = {turn: value(totals) for turn, totals in run.turns.items()}
        values[run.record.block] = {turn: one for turn, one in found.items() if one is not None}
    return estimate(values)


def _failures(names: Iterable[str], records: Mapping[str, Sequence[RunRecord]]) -> str:
    """``; gone: failed (killed by signal 9)``: the first failure of each arm, or nothing."""
    text = ""
    for name in names:
        bad = [record for record in records.get(name, ()) if record.status != "done"]
        if bad:
            text += f"; {name}: {_ending(bad[0])}"
    return text


def _ending(record: RunRecord) -> str:
    """``failed (killed by signal 9)``: how a run ended, in one line."""
    code = "reason unknown" if record.exit_code is None else f"exit code {record.exit_code}"
    return f"{record.status} ({record.error.splitlines()[0] if record.error else code})"


def _problems(
    study: StudyRecord,
    arms: Sequence[ArmRecord],
    records: Mapping[str, Sequence[RunRecord]],
    ledgers: Mapping[str, Blocks],
    blocks: int,
) -> list[str]:
    found = []
    profiled = {arm.name for arm in arms if arm.control == PROFILED}
    looked_into = [record for name in profiled for record in records.get(name, ())]
    planned = (len(arms) - len(profiled)) * blocks + len(profiled)
    finished = sum(len(group) for group in ledgers.values()) + sum(r.status == "done" for r in looked_into)
    if not finished:
        found.append("No run has finished: there is nothing to report yet")
    elif finished < planned:
        found.append(f"Partial study: {finished} of {count(planned, 'run')} finished")
    if study.status != "done":
        found.append(f"The study's status is {study.status}")
    endings: dict[str, list[int]] = {}  # one line for all blocks of an arm that ended alike
    for name, group in records.items():
        for record in group:
            if record.status != "done":
                endings.setdefault(f"{name}: {_ending(record)}", []).append(record.block)
            elif name not in profiled and record.block not in ledgers.get(name, {}):
                endings.setdefault(f"{name}: done, but without a measured step in its tables", []).append(record.block)
    found += [f"{what}, block{'s' * (len(where) > 1)} {', '.join(map(str, where))}" for what, where in endings.items()]
    if finished and blocks < MIN_BLOCKS:
        found.append(
            f"Only {count(blocks, 'block')}: fewer than {MIN_BLOCKS} give no interval, so nothing can be decided; "
            f"repeat with --repeats {ASK_FOR}"
        )
    return found
