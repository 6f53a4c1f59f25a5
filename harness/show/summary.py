"""Builds summary.json, the machine-readable summary of the results contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.explain.exposure import Dose
from harness.judge.comparisons import Figure
from harness.judge.controls import DataPath
from harness.judge.cost import PredictedCost
from harness.judge.probes.results import NO_RESULTS, ProbeResults
from harness.judge.report_types import (
    ArmAdvice,
    ArmReport,
    Comparison,
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
from harness.show.tables import doubt_json, estimate_json, finite, plain_json, record_json
from harness.show.text.doubts import GAPS, confound_lines, doubt_text, probe_problem_lines, problem_lines
from harness.show.text.findings import device_finding, host_finding
from harness.show.text.verdicts import mfu_reason, missing_text, reason, undecided_because
from harness.show.words import probes_named
from trainer.json_types import Json

SUMMARY_SCHEMA = 2  # 1 has no doubts and no figures with units; all of its keys are in 2


def summary(
    report: StudyReport,
    screen: FirstScreen,
    found: ProbeResults = NO_RESULTS,
    unread: Sequence[str] = (),
    cost: PredictedCost | None = None,
) -> dict[str, Json]:
    """Return summary.json. An unmeasured figure is null, with its reason. ``unread``: unreadable files of probes."""
    study = report.study
    optional: dict[str, Sequence[Json]] = {
        "data_paths": [_data_path(path) for path in report.data_paths],
        "learned": [record_json(record) for record in report.learned],
        "uses": [record_json(use) for use in report.uses],
        "claims": [
            {**record_json(claim), "kind": {**record_json(claim.kind), "text": claim_text(claim)}}
            for claim in report.claims
        ],
    }
    return {
        "schema": SUMMARY_SCHEMA,
        **_fields(study, "scenario question status"),
        "problems": problem_lines(report.problems),
        **_fields(study, "interleave blocks"),
        "arms": {arm.name: _arm(arm) for arm in report.arms},
        "comparisons": [
            {**_comparison(comparison), "headline": headline.text}
            for comparison, headline in zip(report.comparisons, screen.each, strict=True)
        ],
        **({} if screen.card is None else {"card": record_json(screen.card)}),
        "lone_arms": [] if report.comparisons else [headline.text for headline in screen.headlines],
        "advice": [_advice(advice) for advice in report.advice],
        **{name: records for name, records in optional.items() if records},
        **({"learning": learning_json(report.learning)} if report.learning is not None else {}),
        **({"cost": cost_json(cost)} if cost is not None else {}),
        "emulated": report.emulated,
        "environment": dict(report.environment),
        "probe_costs": [
            {
                **dict(zip(("probe", "against"), probes_named(cost), strict=True)),
                "share": estimate_json(cost.share),
                "without_ms": finite(cost.step_ms),
            }
            for cost in report.probe_costs
        ],
        "doubts": [doubt_json(doubt) for doubt in study_doubts(report)],
        "probe_problems": [*probe_problem_lines(report.probe_problems), *unread],
        "host": [record_json(load) | {"findings": [*map(host_finding, load.findings)]} for load in found.loads],
        "devices": [
            record_json(device) | {"findings": [*map(device_finding, device.findings)]} for device in found.devices
        ],
        "operators": {
            operators.arm: {
                role.role: [record_json(operator) for operator in role.operators[:OPERATORS_RECORDED]]
                for role in operators.operators.roles
            }
            for operators in found.profiles
        },
    }


def _fields(record: object, names: str, key: str = "{}") -> dict[str, Json]:
    """Return ``record``'s attributes ``names`` (separated by spaces). ``key``: format of each key: ``step_{}``."""
    return {key.format(name): plain_json(getattr(record, name)) for name in names.split()}


def _in_ms(records: Sequence[Any]) -> list[Json]:
    return [{**record_json(record), "unit": "ms"} for record in records]


def _data_path(one: DataPath) -> Json:
    """Return an arm's data path as plain data; ``undecided`` of its ``steps`` is the kind of the barring doubt."""
    content = record_json(one)
    if one.steps is not None:
        content["steps"] = _fields(one.steps, "verdict resolution undecided of")
    return content


def _advice(found: ArmAdvice) -> Json:
    return {
        "arm": found.arm,
        "refused": None if found.refused is None else doubt_text(found.refused),
        "replay_error": None if found.refused is not None else finite(found.error),
        **_fields(found, "within_tolerance barred"),
        "doubts": [doubt_json(doubt) for doubt in found.doubts],
        "options": [
            {**_fields(option, "change cost speedup measured serial worth"), "barred": option.bar}
            for option in found.options
        ],
    }


def _arm(arm: ArmReport) -> Json:
    totals, explained, speed = arm.totals, arm.explained, arm.speed
    return {
        **_fields(arm, "control of blocks"),
        **_fields(totals, "steps tokens_per_s trained_tokens_per_s step_ms"),
        "step_mean_ms": finite(totals.mean_step_ms),
        **_fields(totals, "p50_ms p95_ms", "step_{}"),
        **_fields(totals, "useful_fraction"),
        "mfu": finite(speed.mfu),
        "mfu_reason": mfu_reason(speed.no_mfu),
        "mfu_of": speed.mfu_of or None,
        "flops_convention": speed.convention or None,
        **_fields(speed, "flops_per_s", "model_{}"),
        **_fields(speed, "device"),
        "used_lead": None if arm.lead_use is None else record_json(arm.lead_use),
        **({} if arm.skipped_steps is None else {"skipped_steps": arm.skipped_steps}),
        **({"slow_causes": [record_json(cause) for cause in arm.causes]} if arm.causes else {}),
        **({} if arm.tokenizer_proof is None else {"tokenizer_engine": arm.tokenizer_engine}),
        **_fields(totals, "ledger phase_ms exposed_ms hidden_ms work_ms during_wait_ms parallel_ms between_steps_ms"),
        **_fields(totals, "unsplit contended_ms device_busy_ms"),
        "device_busy_from": totals.busy_from,
        "device_busy_at_least_ms": finite(totals.busy_at_least_ms),
        **_fields(totals, "device_launch_bound_ms device_open_ms waited_range_ms launch_bound device_starved_ms"),
        "device_slack_ms": finite(totals.slack_ms),
        **_fields(totals, "starved_ms bound"),
        "bound_blocks": {str(name): blocks for name, blocks in totals.bounds.items()},
        "bound_shares": plain_json(totals.bound_shares),
        "blocking_calls": [asdict(call) for call in explained.syncs],
        "replay_error": finite(explained.replay_error),
        "replay_resampled_error": finite(explained.resampled_error),
        "critical_path_ms": {
            f"{link.kind}: {link.name}": spent.likely_ms for link, spent in explained.critical_path_ms.items()
        },
        "doses": [_dose(dose) for dose in explained.doses],
        "removals": [_fields(removal, "kind name saved_ms speedup") for removal in explained.removals],
        "ideal_predicted_ratio": estimate_json(explained.ideal_predicted),
        "emulation": speed.emulation,
        "loss": finite(totals.loss),
        "diverged_runs": totals.diverged,
        "against_arm_ratio": estimate_json(arm.against_arm),
        "parts": _in_ms(arm.parts),
        **(
            {}
            if arm.wall is None
            else {"wall": _fields(arm.wall, "steps step_ms") | {"program": _in_ms(arm.wall.program)}}
        ),
        **({"diagnoses": _in_ms(arm.diagnoses)} if arm.diagnoses else {}),
        "doubts": [doubt_json(doubt) for doubt in arm.doubts],
    }


def _comparison(c: Comparison | NotCompared) -> dict[str, Json]:
    """Return a comparison as plain data. If it was not measured, the same keys are there, with null or empty values."""
    if isinstance(c, NotCompared):
        missing = missing_text(c.missing)
        return {
            **dict.fromkeys(NULLS),
            **{name: [] for name in ("doses", "chain", "whatif", "confounds", "doubts")},
            "replay_licensed": True,
            "hidden_behind_ms": {},
            "verdict": "none",
            "decided": False,
            "judged": {"kind": "undecided", "cause": None, "resolution": None},
            "figures": {},
            "baseline": c.baseline,
            "candidate": c.candidate,
            "sentence": sentence(c),
            "undecided_because": missing,
            "reasons": {"measured": missing},
        }
    m, explained = c.measured, c.explained
    replayed = explained.predicted if isinstance(explained.predicted, PredictedRatio) else None
    return {
        **_fields(c, "baseline candidate"),
        **_fields(m, "isolated ceiling ideal", "{}_ratio"),
        "measured_ratio": estimate_json(m.figure),
        "measured_in": m.measure,
        **_fields(m, "tokens_ratio"),
        **_fields(m, "step_time", "{}_ratio"),
        "trained_tokens_per_step_ratio": finite(m.trained_per_step),
        "predicted_ratio": estimate_json(predicted_ratio(c)),
        "replay_error": None if replayed is None else finite(replayed.error),
        "replay_licensed": replayed is None or replayed.within_tolerance,
        "predicted_step_time_ratio": None if replayed is None else estimate_json(replayed.step_time),
        "doses": [_dose(dose) for dose in explained.doses],
        "chain": [{"name": link.name, "ratio": link.ratio, "words": link.text} for link in chain(c)],
        "whatif": [_whatif(whatif) for whatif in explained.whatifs],
        "hidden_behind_ms": dict(explained.hidden_behind_ms),
        "emulated": emulated_devices(c),
        "noise_floor": finite(m.noise_floor if m.figure is not None else None),
        "noise_floor_of": m.noise_floor_of,
        **_fields(m, "same_again", "{}_ratio"),
        **_fields(m, "in_total resolution"),
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


# Keys of a comparison that are null if nothing was measured.
NULLS = (
    "isolated_ratio", "ceiling_ratio", "ideal_ratio", "measured_ratio", "measured_in", "tokens_ratio",
    "step_time_ratio", "trained_tokens_per_step_ratio", "predicted_ratio", "replay_error", "predicted_step_time_ratio",
    "emulated", "noise_floor", "noise_floor_of", "same_again_ratio", "in_total", "resolution", "ratio_together",
    "comparisons_together",
)  # fmt: skip


def _records(c: Comparison) -> dict[str, Json]:
    """Return the parts of a comparison that schema 2 added: the verdict, the figures with units, and the doubts."""
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
            name: None if estimate is None else {"unit": f"ratio of {measure}", **(estimate_json(estimate) or {})}
            for name, (estimate, measure) in figures.items()
        },
        "doubts": [doubt_json(doubt) for doubt in comparison_doubts(c)],
    }


def _whatif(one: WhatIf) -> dict[str, Json]:
    """Return a what-if prediction as plain data. Its reasons are texts, as in earlier versions."""
    gaps = {name: None if (gap := getattr(one, name)) is None else GAPS[gap] for name in ("reason", "candidate_reason")}
    return {**asdict(one), **gaps, "doubts": [doubt_json(doubt) for doubt in one.doubts]}


def _reasons(c: Comparison) -> dict[str, str]:
    """Return {figure: reason} for each figure of a comparison that is null."""
    absent = dict(c.measured.absent)
    if not isinstance(c.explained.predicted, PredictedRatio):
        absent["predicted"] = c.explained.predicted
    order: tuple[Figure, ...] = ("isolated", "ideal", "ceiling", "predicted", "noise_floor")
    return {figure: reason(absent[figure]) for figure in order if figure in absent}


def _dose(dose: Dose) -> dict[str, Json]:
    """Return a slowdown injection as plain data, with the report's line (``words``) and the reason if undecided."""
    return {
        **_fields(dose, "arm what kind"),
        "words": dose_line(dose),
        "reason": dose_reason(dose),
        "points": [asdict(point) for point in dose.points],
        **_fields(dose, "slope local_slope waited_slope slack_ms blocks_needed"),
    }
