"""Takes how long a device worked in phases that its events leave open from the kernels of the arm's profiled run.

The brackets of the ledger leave that open (``harness.analysis.launches``). torch.profiler slows the host, not the
kernels: the time of those of a profiled step is that of any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.probes.torch_profile import TorchProfile
from harness.analysis.report_types import ArmReport, StudyReport


def with_profiled_busy(report: StudyReport, profiles: Sequence[TorchProfile]) -> StudyReport:
    """``report`` with the busy time and the bound of arms whose busy time is open and whose kernels were seen."""
    kernel_ms = {
        one.arm: one.operators.device_ms / one.steps
        for one in profiles
        if one.operators.device_ms is not None and one.steps and not one.gaps
    }
    return replace(report, arms=tuple(_known(arm, kernel_ms.get(arm.name)) for arm in report.arms))


def _known(arm: ArmReport, kernel_ms: float | None) -> ArmReport:
    totals, wall_ms = arm.totals, sum(arm.totals.phase_ms.values())
    open_ms = totals.device_unknown_ms
    if kernel_ms is None or totals.device_busy_ms is not None or not open_ms or not wall_ms:
        return arm
    most_ms = wall_ms - (totals.device_starved_ms or 0.0)  # kernels of several streams may add up to more
    busy_ms = min(kernel_ms, most_ms)
    bound_shares = totals.bound_shares
    if bound_shares is not None:
        # What was no work in there was waiting for launches, wherever it lay.
        bound_shares = replace(bound_shares, launch=min(open_ms, most_ms - busy_ms) / wall_ms, open=0.0)
    known = replace(
        totals,
        device_busy_ms=busy_ms,
        busy_from="profiled window",
        bound_shares=bound_shares,
        bounds=totals.bounds if bound_shares is None else {bound_shares.bound: arm.blocks},
    )
    return replace(arm, totals=known)
