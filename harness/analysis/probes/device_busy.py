"""Takes how long a device worked in phases that its events leave open from what else was recorded of it.

The brackets of the ledger leave that open (``harness.analysis.launches``). Two others know more. torch.profiler slows
the host, not the kernels: the time of those of a profiled step is that of any. SM activity (GPM: the share of time in
which an SM held a warp, a mean over all SMs) is the least share of time in which the device worked, as a kernel may run
on a few SMs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.probes.device_health import DeviceHealth
from harness.analysis.probes.torch_profile import TorchProfile
from harness.analysis.report_types import ArmReport, StudyReport

LEAST_SAMPLES = 3  # of a card: fewer are no mean


def with_device_busy(
    report: StudyReport, profiles: Sequence[TorchProfile], cards: Sequence[DeviceHealth] = ()
) -> StudyReport:
    """``report`` with the busy time, or the least of it, and the bound of arms whose busy time is open."""
    kernel_ms = {
        one.arm: one.operators.device_ms / one.steps
        for one in profiles
        if one.operators.device_ms is not None and one.steps and not one.gaps
    }
    profiled = [_known(arm, kernel_ms.get(arm.name)) for arm in report.arms]
    return replace(report, arms=tuple(_at_least(arm, _sm_active(arm.name, cards)) for arm in profiled))


def _sm_active(arm: str, cards: Sequence[DeviceHealth]) -> float | None:
    """Of the one card of ``arm``; None of several, and where others' kernels may be in it."""
    own = [card for card in cards if card.arm == arm]
    if len(own) != 1 or own[0].other_processes or own[0].taken - own[0].missed < LEAST_SAMPLES:
        return None
    share = own[0].sm_active
    return share if share is not None and 0 < share <= 1 else None


def _at_least(arm: ArmReport, sm_active: float | None) -> ArmReport:
    totals, wall_ms = arm.totals, sum(arm.totals.phase_ms.values())
    open_ms = totals.device_unknown_ms
    if sm_active is None or totals.device_busy_ms is not None or not open_ms or not wall_ms:
        return arm
    most_ms = wall_ms - (totals.device_starved_ms or 0.0)
    least_ms = min(sm_active * wall_ms, most_ms)
    if least_ms <= most_ms - open_ms:
        return arm  # the events know more
    bound_shares = totals.bound_shares
    if bound_shares is not None:
        idle = (most_ms - least_ms) / wall_ms  # at most, wherever it lay
        launch, left = min(bound_shares.launch, idle), min(bound_shares.open, idle)
        bound_shares = replace(bound_shares, launch=launch, open=left)
    narrower = replace(
        totals,
        busy_at_least_ms=least_ms,
        bound_shares=bound_shares,
        bounds=totals.bounds if bound_shares is None else {bound_shares.bound: arm.blocks},
    )
    return replace(arm, totals=narrower)


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
