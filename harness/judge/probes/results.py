"""Analyses what the probes of a study recorded: the machine, operators, memory and stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.explain.probes.samples import StackReport, explain
from harness.explain.probes.torch_profile import TorchProfile, torch_profile
from harness.judge.probes.device_health import DeviceHealth, device_health
from harness.judge.probes.host_load import HostLoad, host_load
from harness.study.probes_json import TorchProfilerRecord
from harness.study.run_data import RunData

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ProfiledRun:
    """A run with what its profilers left in its folder."""

    run: RunData
    profiles: Sequence[pa.Table] = ()  # see harness.study.traces.profiles
    stacks: pa.Table | None = None  # see harness.study.traces.py_spy

    @property
    def arm(self) -> str:
        """The arm that was profiled."""
        return self.run.record.of or self.run.record.arm


@dataclass(frozen=True)
class ProbeResults:
    """What probes recorded of the arms of one study."""

    loads: Sequence[HostLoad] = ()
    devices: Sequence[DeviceHealth] = ()
    profiles: Sequence[TorchProfile] = ()
    stacks: Mapping[str, StackReport] = field(default_factory=dict)  # by arm


NO_RESULTS = ProbeResults()


def probe_results(runs: Sequence[RunData], profiled: Sequence[ProfiledRun]) -> ProbeResults:
    """The machine during the finished runs of every arm that is no control, and what profilers saw in ``profiled``."""
    measured: dict[str, list[RunData]] = {}
    for run in runs:
        if run.record.status == "done" and run.record.control is None:
            measured.setdefault(run.record.arm, []).append(run)
    found = (
        torch_profile(one.arm, one.profiles, one.run.probes.torch_profiler or TorchProfilerRecord()) for one in profiled
    )
    stacks = {
        one.arm: explain(one.stacks, one.run.spans, one.run.probes.py_spy)
        for one in profiled
        if one.stacks is not None and one.run.probes.py_spy is not None and one.run.spans is not None
    }
    profiles = tuple(profile for profile in found if profile is not None)
    return ProbeResults(host_load(measured), device_health(measured), profiles, stacks)
