"""Analyse the probe recordings of a study, and narrow down how long a device worked where its brackets leave it open.

torch.profiler slows the host but not the kernels, so a profiled step's kernel time is valid for any step. SM activity
(GPM: share of time in which an SM held a warp, mean over all SMs) is a lower bound of the device's busy share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.explain.bounds import Bound
from harness.explain.probes.samples import StackReport, explain
from harness.explain.probes.torch_profile import TorchProfile, torch_profile
from harness.judge.policy import GPU_SAMPLES_MIN, PROFILED_STEP_RATIO_MAX
from harness.judge.probes.machine_load import DeviceHealth, HostLoad, device_health, host_load
from harness.judge.report_types import ArmReport, Comparison, NotCompared, StudyReport
from harness.judge.waits import Waits
from harness.study.run_data import RunData, TorchProfilerRecord

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ProfiledRun:
    """Run that ran under profilers, with their output."""

    run: RunData
    profiles: Sequence[pa.Table] = ()  # see harness.study.traces.kineto
    stacks: pa.Table | None = None  # see harness.study.traces.py_spy

    @property
    def arm(self) -> str:
        """Name of the arm that was profiled, not of its profiled control."""
        return self.run.record.of or self.run.record.arm


@dataclass(frozen=True)
class ProbeResults:
    """Results of all probes of one study; :func:`probe_results` makes it."""

    loads: Sequence[HostLoad] = ()
    devices: Sequence[DeviceHealth] = ()
    profiles: Sequence[TorchProfile] = ()
    stacks: Mapping[str, StackReport] = field(default_factory=dict)  # by arm


NO_RESULTS = ProbeResults()


def probe_results(runs: Sequence[RunData], profiled: Sequence[ProfiledRun]) -> ProbeResults:
    """Return the machine load in the finished runs of every arm without controls, and the profiles of ``profiled``."""
    measured: dict[str, list[RunData]] = {}
    for run in runs:
        if run.record.status == "done" and run.record.control is None:
            measured.setdefault(run.record.arm, []).append(run)
    profile_list = (
        torch_profile(source.arm, source.profiles, source.run.probes.torch_profiler or TorchProfilerRecord())
        for source in profiled
    )
    stacks = {
        source.arm: explain(source.stacks, source.run.spans, source.run.probes.py_spy)
        for source in profiled
        if source.stacks is not None and source.run.probes.py_spy is not None and source.run.spans is not None
    }
    profiles = tuple(profile for profile in profile_list if profile is not None)
    return ProbeResults(host_load(measured), device_health(measured), profiles, stacks)


def with_device_busy(
    report: StudyReport, profiles: Sequence[TorchProfile], cards: Sequence[DeviceHealth] = ()
) -> StudyReport:
    """Return ``report`` with the device's busy time where CUDA events left it unknown. The time comes from windows
    under the torch profiler (``profiles``); else SM activity (``cards``) gives a lower bound."""
    kernel_ms = {
        profile.arm: (profile.operators.device_ms if profile.launched_ms is None else profile.launched_ms)
        / profile.steps
        for profile in profiles
        if profile.operators.device_ms is not None and profile.steps and not profile.gaps
    }
    arms = tuple(_narrowed(arm, kernel_ms.get(arm.name), _sm_active(arm.name, cards)) for arm in report.arms)
    bounds = {arm.name: arm.totals.bounds for arm in arms}
    return replace(
        report, arms=arms, comparisons=tuple(_as_known(comparison, bounds) for comparison in report.comparisons)
    )


def _as_known(found: Comparison | NotCompared, bounds: Mapping[str, Mapping[Bound, int]]) -> Comparison | NotCompared:
    """Return ``found`` with what limits the steps of its arms: "device or launch" is replaced where a probe decided.

    ``bounds``: by arm, number of blocks by what limits their steps."""
    if isinstance(found, NotCompared):
        return found
    measured = found.measured

    def known(arm: str, own: Waits) -> Waits:
        return replace(own, bounds=bounds[arm]) if "device or launch" in own.bounds and bounds.get(arm) else own

    waits = known(found.baseline, measured.baseline_waits), known(found.candidate, measured.candidate_waits)
    return replace(found, measured=replace(measured, baseline_waits=waits[0], candidate_waits=waits[1]))


def _sm_active(arm: str, cards: Sequence[DeviceHealth]) -> float | None:
    """Return the SM activity (0 to 1) of the arm's only card; None with several, few samples or other processes."""
    arm_cards = [card for card in cards if card.arm == arm]
    if (
        len(arm_cards) != 1
        or arm_cards[0].other_processes != 0
        or arm_cards[0].taken - arm_cards[0].missed < GPU_SAMPLES_MIN
    ):
        return None
    share = arm_cards[0].sm_active
    return share if share is not None and 0 < share <= 1 else None


def _narrowed(arm: ArmReport, kernel_ms: float | None, sm_active: float | None) -> ArmReport:
    totals, wall_ms = arm.totals, sum(arm.totals.phase_ms.values())
    open_ms = totals.device_unknown_ms
    if totals.device_busy_ms is not None or not open_ms or not wall_ms:
        return arm
    most_ms = wall_ms - (totals.device_starved_ms or 0.0)  # With several streams, kernels may add up to more.
    shares = totals.bound_shares
    if (
        kernel_ms is not None
        and totals.p50_ms is not None
        and PROFILED_STEP_RATIO_MAX * totals.p50_ms < kernel_ms < most_ms
    ):
        # A few long steps raise the mean. A typical step does not contain the work of the profiled one.
        kernel_ms = None
    if kernel_ms is not None:
        busy_ms = min(kernel_ms, most_ms)
        if shares is not None:  # The rest of this time was waiting for launches.
            shares = replace(shares, launch=min(open_ms, most_ms - busy_ms) / wall_ms, open=0.0)
        totals = replace(totals, device_busy_ms=busy_ms, busy_from="profiled window")
    elif sm_active is not None and sm_active * wall_ms > most_ms - open_ms:  # Otherwise the events give a larger bound.
        least_ms = min(sm_active * wall_ms, most_ms)
        idle = (most_ms - least_ms) / wall_ms
        if shares is not None:  # The idle time is at most this share.
            shares = replace(shares, launch=min(shares.launch, idle), open=min(shares.open, idle))
        totals = replace(totals, busy_at_least_ms=least_ms)
    else:
        return arm
    bounds = totals.bounds if shares is None else {shares.bound: arm.blocks}
    return replace(arm, totals=replace(totals, bound_shares=shares, bounds=bounds))
