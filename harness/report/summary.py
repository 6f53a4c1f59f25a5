"""summary.json: the results contract's machine-readable summary (section 5 of the design; extra keys are additions)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from harness.analysis.comparisons import Comparison
from harness.analysis.report_types import ArmReport, StudyReport
from harness.analysis.statistics import Estimate
from harness.report.evidence import NONE, ProbeResults
from harness.study.store import SCHEMA

TOP = 30  # operators of each role


def summary(report: StudyReport, found: ProbeResults = NONE) -> dict[str, Any]:
    """Plain data for JSON. What was not measured is null (never NaN, never 0), with its reason beside it."""
    return {
        "schema": SCHEMA,
        "scenario": report.study.scenario,
        "question": report.study.question,
        "status": report.study.status,
        "problems": report.problems,
        "interleave": report.study.interleave,
        "blocks": report.study.blocks,
        "arms": {arm.name: _arm(arm) for arm in report.arms},
        "comparisons": [_comparison(comparison) for comparison in report.comparisons],
        "emulated": report.emulated,
        "environment": report.environment,
        "probe_costs": [
            {
                "probe": cost.probe,
                "against": cost.against,
                "share": _estimate(cost.share),
                "without_ms": _finite(cost.step_ms),
            }
            for cost in report.probe_costs
        ],
        "probe_problems": [*report.probe_problems, *found.problems],
        "host": [_plain(load) for load in found.loads],
        "devices": [_plain(device) for device in found.devices],
        "operators": {
            one.arm: {
                role.role: [_plain(operator) for operator in role.operators[:TOP]] for role in one.operators.roles
            }
            for one in found.profiles
        },
    }


def _arm(arm: ArmReport) -> dict[str, Any]:
    return {
        "control": arm.control,
        "of": arm.of,
        "blocks": arm.blocks,
        "steps": arm.steps,
        "tokens_per_s": _estimate(arm.tokens_per_s),
        "trained_tokens_per_s": _estimate(arm.trained_tokens_per_s),
        "step_ms": _estimate(arm.step_ms),
        "step_p50_ms": _finite(arm.p50_ms),
        "step_p95_ms": _finite(arm.p95_ms),
        "useful_fraction": _finite(arm.useful_fraction),
        "mfu": _finite(arm.mfu),
        "mfu_reason": arm.mfu_reason if arm.mfu is None else None,
        "mfu_of": arm.mfu_of or None,
        "model_flops_per_s": _finite(arm.model_flops_per_s),
        "device": arm.device,
        "ledger": arm.ledger,
        "phase_ms": arm.phase_ms,
        "exposed_ms": arm.exposed_ms,
        "hidden_ms": arm.hidden_ms,
        "contended_ms": _finite(arm.contended_ms),
        "device_busy_ms": _finite(arm.device_busy_ms),
        "device_starved_ms": _finite(arm.device_starved_ms),
        "device_slack_ms": _finite(arm.slack_ms),
        "starved_ms": arm.starved_ms,
        "bound": arm.bound,
        "blocking_calls": [asdict(call) for call in arm.syncs],
        "replay_error": _finite(arm.replay_error),
        "replay_resampled_error": _finite(arm.resampled_error),
        "ideal_predicted_ratio": _estimate(arm.ideal_predicted),
        "emulation": arm.emulation,
        "loss": _finite(arm.loss),
        "against_arm_ratio": _estimate(arm.against_arm),
    }


def _comparison(c: Comparison) -> dict[str, Any]:
    return {
        "baseline": c.baseline,
        "candidate": c.candidate,
        "isolated_ratio": _estimate(c.isolated),
        "ceiling_ratio": _estimate(c.ceiling),
        "ideal_ratio": _estimate(c.ideal),
        "measured_ratio": _estimate(c.measured),
        "measured_in": c.measure or None,
        "tokens_ratio": _estimate(c.tokens_ratio),
        "step_time_ratio": _estimate(c.step_time),
        "trained_tokens_per_step_ratio": _finite(c.trained_per_step),
        "predicted_ratio": _estimate(c.predicted),
        "replay_error": _finite(c.validation),
        "replay_licensed": c.within_tolerance,
        "predicted_step_time_ratio": _estimate(c.predicted_step),
        "doses": [asdict(dose) for dose in c.doses],
        "chain": [asdict(link) for link in c.chain],
        "whatif": [asdict(whatif) for whatif in c.whatifs],
        "hidden_behind_ms": c.baseline_waits.hidden_behind if c.baseline_waits is not None else {},
        "emulated": c.emulated,
        "noise_floor": _finite(c.noise_floor),
        "noise_floor_of": c.noise_floor_of,
        "resolution": _finite(c.resolution),
        "verdict": c.verdict,
        "sentence": c.sentence,
        "confounds": c.confounds,
        "reasons": c.reasons if c.missing is None else {"measured": c.missing},
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {
        "median": _finite(estimate.median),
        "ci_low": _finite(estimate.ci_low),
        "ci_high": _finite(estimate.ci_high),
        "n": estimate.n,
    }


def _plain(one: Any) -> Any:
    """A dataclass as plain data; a number that is not finite is null."""
    if is_dataclass(one) and not isinstance(one, type):
        one = asdict(one)
    if isinstance(one, Mapping):
        return {str(key): _plain(value) for key, value in one.items()}
    if isinstance(one, list | tuple):
        return [_plain(value) for value in one]
    return _finite(one) if isinstance(one, float) else one


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
