"""Reads what profilers left in the folders of a study's runs, and what was predicted for the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.explain.probes.samples import process_roles
from harness.judge.controls import is_probe_control
from harness.judge.cost import BUDGET_SCHEMA, COST, PredictedCost
from harness.judge.probes.results import ProfiledRun
from harness.study.records import read_record
from harness.study.run_data import ProbesRecord, RunData
from harness.study.store import StudyFolder
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

STACKS = "stacks.trace.json.gz"
FILE = "file"  # column: the profile that a row comes from


@dataclass(frozen=True)
class Sources:
    """Tables of ``harness.study.traces`` (None: the probe did not run), and the run's probes.json."""

    operators: pa.Table | None = None  # harness.study.traces.kineto: one table, or several with a column FILE
    stacks: pa.Table | None = None  # harness.study.traces.py_spy
    probes: ProbesRecord = field(default_factory=ProbesRecord)
    problems: Sequence[str] = ()  # a line for each file that could not be read
    profiles: Sequence[pa.Table] = ()  # the parts of ``operators``; each counts its ids from the start


NO_SOURCES = Sources()


def read_sources(run: RunData) -> Sources:
    """Read the files in the run's folder."""
    if run.folder is None:
        return NO_SOURCES
    import pyarrow as pa

    from harness.study.traces.py_spy import read_stacks

    facts = run.probes.py_spy
    tables, problems = run.profiles()
    stacks = None
    if facts is not None and (run.folder / STACKS).exists():
        try:
            stacks = read_stacks(run.folder / STACKS, facts, roles(run))
        except InputError as error:
            problems.append(str(error))
    numbered = [table.append_column(FILE, pa.array([i] * len(table), pa.int64())) for i, table in enumerate(tables)]
    return Sources(pa.concat_tables(numbered) if numbered else None, stacks, run.probes, tuple(problems), tables)


def roles(run: RunData) -> dict[int, str]:
    """Return the roles of the run's processes (main, loader-K) by process id."""
    return process_roles(run.span_batches(["pid", "role"]))


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
        cost = read_record(study.path / COST, PredictedCost, BUDGET_SCHEMA)
    except InputError as error:
        problems.append(str(error))
    return RecordedFiles(profiled, names, found, problems, cost)
