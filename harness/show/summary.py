"""Makes summary.json: the results contract's machine-readable summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from harness.explain.bounds import BoundShares
from harness.explain.exposure import Dose
from harness.explain.wall import Wall
from harness.judge.claims import JudgedClaim
from harness.judge.comparisons import Figure
from harness.judge.controls import DataPath
from harness.judge.cost import PredictedCost
from harness.judge.probes.results import NO_RESULTS, ProbeResults
from harness.judge.report_types import (
    ArmAdvice,
    ArmReport,
    Comparison,
    Diagnosis,
    NotCompared,
    PredictedRatio,
    StudyReport,
    WhatIf,
)
from harness.judge.study import comparison_doubts, study_doubts
from harness.show.chain import chain
from harness.show.cost import cost_json
from harness.show.dose import dose_line, dose_reason
from harness.show.first_screen import FirstScreen
from harness.show.learning import learning_json
from harness.show.numbers import claim_text
from harness.show.policy import OPERATORS_RECORDED
from harness.show.sentences import emulated_devices, predicted_ratio, sentence
from harness.show.tables import doubt_json, estimate_json, finite, record_json
from harness.show.text.doubts import GAPS, confound_lines, doubt_text, probe_problem_lines, problem_lines
from harness.show.text.findings import device_finding, host_finding
from harness.show.text.verdicts import mfu_reason, missing_text, reason, undecided_because
from harness.show.words import probes_named
from trainer.json_types import Json, JsonObject

SUMMARY_SCHEMA = 2  # 1 has no doubts and no figures with units; all of its keys are in 2


def summary(
    report: StudyReport,
    screen: FirstScreen,
    found: ProbeResults = NO_RESULTS,
    unread: Sequence[str] = (),
    cost: PredictedCost | None = None,
) -> dict[str, Json]:
    """Plain data for JSON. What was not measured is null (never NaN, never 0), with its reason beside it.

    ``unread``: files of probes that could not be read, a line each. ``cost``: where something was predicted.
    """
    return {
        "schema": SUMMARY_SCHEMA,
        "scenario": report.study.scenario,
        "question": report.study.question,
        "status": report.study.status,
        "problems": problem_lines(report.problems),
        "interleave": report.study.interleave,
        "blocks": report.study.blocks,
        "arms": {arm.name: _arm(arm) for arm in report.arms},
        "comparisons": [
            {**_comparison(one), "headline": headline.text}
            for one, headline in zip(report.comparisons, screen.each, strict=True)
        ],
        **({} if screen.card is None else {"card": record_json(screen.card)}),
        "lone_arms": [] if report.comparisons else [headline.text for headline in screen.headlines],
        "advice": [_advice(one) for one in report.advice],
        **({"data_paths": [_data_path(one) for one in report.data_paths]} if report.data_paths else {}),
        **({"learned": [record_json(one) for one in report.learned]} if report.learned else {}),
        **({"uses": [record_json(one) for one in report.uses]} if report.uses else {}),
        **({"claims": [_claim(one) for one in report.claims]} if report.claims else {}),
        **({"learning": learning_json(report.learning)} if report.learning is not None else {}),
        **({"cost": cost_json(cost)} if cost is not None else {}),
        "emulated": report.emulated,
        "environment": dict(report.environment),
        "probe_costs": [
            {
                "probe": probe,
                "against": against,
                "share": estimate_json(cost.share),
                "without_ms": finite(cost.step_ms),
            }
            for cost in report.probe_costs
            for probe, against in [probes_named(cost)]
        ],
        "doubts": [doubt_json(one) for one in study_doubts(report)],
        "probe_problems": [*probe_problem_lines(report.probe_problems), *unread],
        "host": [record_json(load) | {"findings": [*map(host_finding, load.findings)]} for load in found.loads],
        "devices": [
            record_json(device) | {"findings": [*map(device_finding, device.findings)]} for device in found.devices
        ],
        "operators": {
            one.arm: {
                role.role: [record_json(operator) for operator in role.operators[:OPERATORS_RECORDED]]
                for role in one.operators.roles
            }
            for one in found.profiles
        },
    }


def _data_path(one: DataPath) -> Json:
    """With the cause of an undecided verdict as its kind, under the key of earlier versions."""
    found = record_json(one)
    if one.steps is not None:
        own = record_json(one.steps)
        steps = {"verdict": own["verdict"], "resolution": own["resolution"], "undecided": one.steps.undecided}
        found["steps"] = {**steps, "of": own["of"]}
    return found


def _claim(one: JudgedClaim) -> Json:
    found = record_json(one)
    return {**found, "kind": {**record_json(one.kind), "text": claim_text(one)}}


def _advice(found: ArmAdvice) -> Json:
    return {
        "arm": found.arm,
        "refused": None if found.refused is None else doubt_text(found.refused),
        "replay_error": None if found.refused is not None else finite(found.error),
        "within_tolerance": found.within_tolerance,
        "barred": found.barred,
        "doubts": [doubt_json(one) for one in found.doubts],
        "options": [
            {
                "change": one.change,
                "cost": one.cost,
                "speedup": estimate_json(one.speedup),
                "measured": estimate_json(one.measured),
                "serial": finite(one.serial),
                "worth": one.worth,
                "barred": one.bar,
            }
            for one in found.options
        ],
    }


def _arm(arm: ArmReport) -> Json:
    totals, explained, speed = arm.totals, arm.explained, arm.speed
    return {
        "control": arm.control,
        "of": arm.of,
        "blocks": arm.blocks,
        "steps": totals.steps,
        "tokens_per_s": estimate_json(totals.tokens_per_s),
        "trained_tokens_per_s": estimate_json(totals.trained_tokens_per_s),
        "step_ms": estimate_json(totals.step_ms),
        "step_mean_ms": finite(totals.mean_step_ms),
        "step_p50_ms": finite(totals.p50_ms),
        "step_p95_ms": finite(totals.p95_ms),
        "useful_fraction": finite(totals.useful_fraction),
        "mfu": finite(speed.mfu),
        "mfu_reason": mfu_reason(speed.no_mfu),
        "mfu_of": speed.mfu_of or None,
        "flops_convention": speed.convention or None,
        "model_flops_per_s": finite(speed.flops_per_s),
        "device": speed.device,
        "used_lead": None if arm.lead_use is None else record_json(arm.lead_use),
        **({} if arm.skipped_steps is None else {"skipped_steps": arm.skipped_steps}),
        **({"slow_causes": [record_json(one) for one in arm.causes]} if arm.causes else {}),
        **({} if arm.tokenizer_proof is None else {"tokenizer_engine": arm.tokenizer_engine}),
        "ledger": dict(totals.ledger),
        "phase_ms": dict(totals.phase_ms),
        "exposed_ms": dict(totals.exposed_ms),
        "hidden_ms": dict(totals.hidden_ms),
        "work_ms": dict(totals.work_ms),
        "during_wait_ms": dict(totals.during_wait_ms),
        "parallel_ms": dict(totals.parallel_ms),
        "between_steps_ms": dict(totals.between_steps_ms),
        "unsplit": totals.unsplit,
        "contended_ms": finite(totals.contended_ms),
        "device_busy_ms": finite(totals.device_busy_ms),
        "device_busy_from": totals.busy_from,
        "device_busy_at_least_ms": finite(totals.busy_at_least_ms),
        "device_launch_bound_ms": finite(totals.device_launch_bound_ms),
        "device_open_ms": finite(totals.device_open_ms),
        "waited_range_ms": None if totals.waited_range_ms is None else list(totals.waited_range_ms),
        "launch_bound": dict(totals.launch_bound),
        "device_starved_ms": finite(totals.device_starved_ms),
        "device_slack_ms": finite(totals.slack_ms),
        "starved_ms": dict(totals.starved_ms),
        "bound": totals.bound,
        "bound_blocks": {str(name): blocks for name, blocks in totals.bounds.items()},
        "bound_shares": _bound_shares(totals.bound_shares),
        "blocking_calls": [asdict(call) for call in explained.syncs],
        "replay_error": finite(explained.replay_error),
        "replay_resampled_error": finite(explained.resampled_error),
        "critical_path_ms": {
            f"{link.kind}: {link.name}": spent.likely_ms for link, spent in explained.critical_path_ms.items()
        },
        "doses": [_dose(dose) for dose in explained.doses],
        "removals": [
            {
                "kind": one.kind,
                "name": one.name,
                "saved_ms": estimate_json(one.saved_ms),
                "speedup": estimate_json(one.speedup),
            }
            for one in explained.removals
        ],
        "ideal_predicted_ratio": estimate_json(explained.ideal_predicted),
        "emulation": speed.emulation,
        "loss": finite(totals.loss),
        "diverged_runs": totals.diverged,
        "against_arm_ratio": estimate_json(arm.against_arm),
        "parts": [{**record_json(one), "ms": estimate_json(one.ms), "unit": "ms"} for one in arm.parts],
        **({} if arm.wall is None else {"wall": _wall(arm.wall)}),
        **({"diagnoses": [_diagnosis(one) for one in arm.diagnoses]} if arm.diagnoses else {}),
        "doubts": [doubt_json(one) for one in arm.doubts],
    }


def _wall(one: Wall) -> JsonObject:
    """The clock that the parts of a step sum to, and the parts of the whole program."""
    program = [{**record_json(part), "unit": "ms"} for part in one.program]
    return {"steps": one.steps, "step_ms": estimate_json(one.step_ms), "program": program}


def _diagnosis(one: Diagnosis) -> JsonObject:
    figures = {"ms": estimate_json(one.ms), "saving": estimate_json(one.saving)}
    return {**record_json(one), **figures, "unit": "ms"}


def _bound_shares(shares: BoundShares | None) -> JsonObject | None:
    return None if shares is None else {name: finite(value) for name, value in asdict(shares).items()}


def _comparison(c: Comparison | NotCompared) -> dict[str, Json]:
    if isinstance(c, NotCompared):
        return {
            **_NOTHING,
            "baseline": c.baseline,
            "candidate": c.candidate,
            "sentence": sentence(c),
            "undecided_because": missing_text(c.missing),
            "reasons": {"measured": missing_text(c.missing)},
        }
    m, explained = c.measured, c.explained
    replayed = explained.predicted if isinstance(explained.predicted, PredictedRatio) else None
    return {
        "baseline": c.baseline,
        "candidate": c.candidate,
        "isolated_ratio": estimate_json(m.isolated),
        "ceiling_ratio": estimate_json(m.ceiling),
        "ideal_ratio": estimate_json(m.ideal),
        "measured_ratio": estimate_json(m.figure),
        "measured_in": m.measure,
        "tokens_ratio": estimate_json(m.tokens_ratio),
        "step_time_ratio": estimate_json(m.step_time),
        "trained_tokens_per_step_ratio": finite(m.trained_per_step),
        "predicted_ratio": estimate_json(predicted_ratio(c)),
        "replay_error": None if replayed is None else finite(replayed.error),
        "replay_licensed": replayed is None or replayed.within_tolerance,
        "predicted_step_time_ratio": None if replayed is None else estimate_json(replayed.step_time),
        "doses": [_dose(dose) for dose in explained.doses],
        "chain": [{"name": link.name, "ratio": link.ratio, "words": link.text} for link in chain(c)],
        "whatif": [_whatif(one) for one in explained.whatifs],
        "hidden_behind_ms": dict(explained.hidden_behind_ms),
        "emulated": emulated_devices(c),
        "noise_floor": finite(m.noise_floor if m.figure is not None else None),
        "noise_floor_of": m.noise_floor_of,
        "same_again_ratio": estimate_json(m.same_again),
        "in_total": None if m.in_total is None else record_json(m.in_total),
        "resolution": finite(m.resolution),
        "ratio_together": estimate_json(m.together),
        "comparisons_together": m.comparisons,
        "verdict": m.verdict,
        "decided": m.undecided is None,
        "undecided_because": undecided_because(m),
        "sentence": sentence(c),
        "confounds": confound_lines(c.confounds),
        "reasons": _reasons(c),
        **_records(c),
    }


def _records(c: Comparison) -> dict[str, Json]:
    """The verdict, its figures and its doubts as records, since schema 2."""
    m = c.measured
    figures = {
        "measured": (m.figure, m.measure),
        "step_time": (None if m.figure is None else m.step_time, "steps/s"),
        "ceiling": (m.ceiling, "steps/s"),
        "ideal": (m.ideal, "steps/s"),
        "isolated": (m.isolated, "tokens/s"),
        "same_again": (m.same_again, m.measure),
    }
    return {
        "judged": {
            "kind": m.verdict,
            "cause": None if m.cause is None else doubt_json(m.cause),
            "resolution": finite(m.resolution),
        },
        "figures": {
            name: None if one is None else {"unit": f"ratio of {measure}", **(estimate_json(one) or {})}
            for name, (one, measure) in figures.items()
        },
        "doubts": [doubt_json(one) for one in comparison_doubts(c)],
    }


# A comparison of which nothing was measured, with every key of one that was.
_NOTHING: JsonObject = {
    "baseline": None,
    "candidate": None,
    "isolated_ratio": None,
    "ceiling_ratio": None,
    "ideal_ratio": None,
    "measured_ratio": None,
    "measured_in": None,
    "tokens_ratio": None,
    "step_time_ratio": None,
    "trained_tokens_per_step_ratio": None,
    "predicted_ratio": None,
    "replay_error": None,
    "replay_licensed": True,
    "predicted_step_time_ratio": None,
    "doses": [],
    "chain": [],
    "whatif": [],
    "hidden_behind_ms": {},
    "emulated": None,
    "noise_floor": None,
    "noise_floor_of": None,
    "same_again_ratio": None,
    "in_total": None,
    "resolution": None,
    "ratio_together": None,
    "comparisons_together": None,
    "verdict": "none",
    "decided": False,
    "undecided_because": None,
    "sentence": "",
    "confounds": [],
    "reasons": {},
    "judged": {"kind": "undecided", "cause": None, "resolution": None},
    "figures": {},
    "doubts": [],
}


def _whatif(one: WhatIf) -> dict[str, Json]:
    """With its reasons as texts, which earlier versions wrote."""
    why = {name: None if (gap := getattr(one, name)) is None else GAPS[gap] for name in ("reason", "candidate_reason")}
    return {**asdict(one), **why, "doubts": [doubt_json(doubt) for doubt in one.doubts]}


def _reasons(c: Comparison) -> dict[str, str]:
    """By figure that is null: why."""
    absent = dict(c.measured.absent)
    if not isinstance(c.explained.predicted, PredictedRatio):
        absent["predicted"] = c.explained.predicted
    order: tuple[Figure, ...] = ("isolated", "ideal", "ceiling", "predicted", "noise_floor")
    return {figure: reason(absent[figure]) for figure in order if figure in absent}


def _dose(dose: Dose) -> dict[str, Json]:
    """With the reason and the line that the page shows; without what only the line needs."""
    return {
        "arm": dose.arm,
        "what": dose.what,
        "kind": dose.kind,
        "words": dose_line(dose),
        "reason": dose_reason(dose),
        "points": [asdict(point) for point in dose.points],
        "slope": estimate_json(dose.slope),
        "local_slope": estimate_json(dose.local_slope),
        "waited_slope": estimate_json(dose.waited_slope),
        "slack_ms": estimate_json(dose.slack_ms),
        "blocks_needed": dose.blocks_needed,
    }
