"""Reads what profilers left in the folders of a study's runs, and what was predicted for the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.judge.controls import is_probe_control
from harness.judge.cost import PredictedCost
from harness.judge.probes.results import ProfiledRun
from harness.launch.budget import read_cost
from harness.show.timeline.sources import Sources, read_sources
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from trainer.errors import InputError


@dataclass(frozen=True)
class RecordedFiles:
    """What was read. ``names``: the files of each profiled arm, as paths relative to the report."""

    profiled: Sequence[ProfiledRun] = ()
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sources: Mapping[tuple[str, int], Sources] = field(default_factory=dict)  # for the timeline, by arm and block
    problems: Sequence[str] = ()  # files that could not be read, a line each
    cost: PredictedCost | None = None  # what was predicted and spent, where there was a budget


NO_FILES = RecordedFiles()


def read_recorded(study: StudyFolder, runs: Sequence[RunData]) -> RecordedFiles:
    """The profiles and stacks of ``runs``, and cost.json; a file that cannot be read is reported as a problem."""
    profiled: list[ProfiledRun] = []
    names: dict[str, Sequence[str]] = {}
    found: dict[tuple[str, int], Sources] = {}
    problems: list[str] = []
    for run in runs:
        closing = run.probes.torch_profiler is not None  # after the measured steps of this run
        if run.folder is None or not (closing or is_probe_control(run.record.control)):
            continue
        sources = read_sources(run)
        profiler = run.probes.torch_profiler
        windows = () if profiler is None else profiler.windows
        if sources.operators is None and sources.stacks is None and not sources.problems and not windows:
            continue
        profiled.append(ProfiledRun(run, sources.profiles, sources.stacks))
        found[run.record.arm, run.record.block] = sources
        names[profiled[-1].arm] = [str(path.relative_to(study.path)) for path in sorted(run.folder.iterdir())]
        problems.extend(sources.problems)
    cost = None
    try:
        cost = read_cost(study.path)
    except InputError as error:
        problems.append(str(error))
    return RecordedFiles(profiled, names, found, problems, cost)
