"""Reads what a run's probes recorded beside the results contract's tables, for the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.explain.probes.samples import process_roles
from harness.study.probes_json import ProbesRecord
from harness.study.run_data import RunData
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
