"""The report's section on what the probes cost and what went wrong with them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.probes.probe_cost import ProbeCost
from harness.analysis.statistics import Estimate
from harness.report.tables import NOT_MEASURED, number_cell, safe, table


def section(costs: Sequence[ProbeCost], problems: Sequence[str]) -> str:
    """Markdown; empty where nothing was calibrated and nothing went wrong."""
    parts = []
    if costs:
        header = ["probe", "added to", "cost, share of the step", "ms per step", "blocks"]
        rows = [
            [cost.probe, cost.against, _share(cost.share), number_cell(cost.cost_ms), str(cost.share.n)]
            for cost in costs
        ]
        parts.append(table(header, rows))
        parts.append(
            "Median [95 % interval] of the step time with the probe / without it, minus 1; both took turns in this "
            "study. A cost whose interval holds 0 cannot be told from none here, but may be as much as its upper end. "
            "*torch_profiler* and *py_spy* run beside no measured step: each arm has one more run for them. Their cost "
            "here is that of recording in the trainer's main process, without writing the profile; the profiled run "
            "also marks phases and looks into the loader workers."
        )
    if problems:
        parts.append("What the probes could not do:")
        parts.append("\n".join(f"- {safe(problem)}" for problem in problems))
    return "\n\n".join(["## Probes", *parts]) if parts else ""


def _share(share: Estimate) -> str:
    def percent(value: float) -> str:
        return f"{100 * value:+.2f} %"

    if share.ci_low is None or share.ci_high is None:
        return f"{percent(share.median)} {NOT_MEASURED}"
    return f"{percent(share.median)} [{percent(share.ci_low)}, {percent(share.ci_high)}]"
