"""What the probes recorded beside the steps, read and worked out: the machine, operators, memory and stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.analysis.probes.device_health import DeviceHealth, device_health
from harness.analysis.probes.host_load import HostLoad, host_load
from harness.analysis.probes.probe_cost import is_probe_control
from harness.analysis.probes.stacks import StackReport, explain
from harness.analysis.probes.torch_profile import TorchProfile, torch_profile
from harness.study.probes_json import TorchProfilerRecord
from harness.study.store import RunData, StudyFolder
from harness.timeline.sources import Sources, read_sources


@dataclass(frozen=True)
class ProbeResults:
    """Of arms by name; ``files``: what a profiled run left, as paths relative to the report."""

    loads: Sequence[HostLoad] = ()
    devices: Sequence[DeviceHealth] = ()
    profiles: Sequence[TorchProfile] = ()
    stacks: dict[str, StackReport] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    sources: dict[tuple[str, int], Sources] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # files that could not be read, a line each


NONE = ProbeResults()


def gather(study: StudyFolder, runs: Sequence[RunData]) -> ProbeResults:
    """Everything that the runs' probes left in ``study``; a file that cannot be read is a problem that is said."""
    measured: dict[str, list[RunData]] = {}
    for run in runs:
        if run.record.status == "done" and run.record.control is None:
            measured.setdefault(run.record.arm, []).append(run)
    profiles: list[TorchProfile] = []
    evidence = ProbeResults(host_load(measured), device_health(measured), profiles)
    for run in runs:
        if run.folder is None or not is_probe_control(run.record.control):
            continue
        sources = read_sources(run)
        arm, probes = run.record.of or run.record.arm, run.probes
        profiled = probes.torch_profiler or TorchProfilerRecord()
        if sources.operators is None and sources.stacks is None and not sources.problems and not profiled.windows:
            continue
        evidence.sources[run.record.arm, run.record.block] = sources
        evidence.files[arm] = [str(path.relative_to(study.path)) for path in sorted(run.folder.iterdir())]
        evidence.problems.extend(sources.problems)
        profile = torch_profile(arm, sources.profiles, profiled)
        if profile is not None:
            profiles.append(profile)
        if sources.stacks is not None and probes.py_spy is not None and run.spans is not None:
            evidence.stacks[arm] = explain(sources.stacks, run.spans, probes.py_spy)
    return evidence
