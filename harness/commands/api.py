"""For Python what the commands are for a shell: run a scenario, load a study, its verdicts and its tables.

study = harness.load("results/quickstart/20261122T101500Z-1a2b3c")
study.verdicts[0].ratio, study.verdicts[0].verdict
study.table("steps").to_pandas().groupby(["arm", "block"]).wall_ns.median()
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.analysis.report_types import Comparison
from harness.analysis.study import analyse
from harness.study.contract import RUN_COLUMNS
from harness.study.store import COLUMNS, StudyFolder
from harness.study.tables import make_table, with_run
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TableName = Literal["steps", "spans", "samples", "evaluations"]


@dataclass(frozen=True)
class ComparisonVerdict:
    """One comparison. ``ratio``: how many times as fast the candidate is, median over blocks, with a 95 % interval."""

    baseline: str
    candidate: str
    measure: str  # what ``ratio`` compares: trained tokens/s, tokens/s or steps/s
    ratio: float
    ci_low: float | None
    ci_high: float | None
    noise_floor: float | None  # fraction
    verdict: Literal["gain", "loss", "none", "undecided"]


@dataclass(frozen=True)
class LoadedStudy:
    """A study as it lies in its folder. Raises InputError, one line, for what is no study or damaged."""

    path: Path

    @cached_property
    def verdicts(self) -> tuple[ComparisonVerdict, ...]:
        """Of every comparison that was measured, by the present analysis."""
        folder = StudyFolder(self.path)
        report = analyse(folder.read_study(), list(folder.runs()))
        return tuple(_verdict(one) for one in report.compared)

    def table(self, name: TableName = "steps") -> pa.Table:
        """One table of all finished runs: ``arm``, ``block``, and the columns of `harness schema --columns`."""
        import pyarrow as pa

        if name not in COLUMNS:
            raise InputError(f"table {name!r}: allowed: {', '.join(COLUMNS)}")
        StudyFolder(self.path).read_study()  # one line where it is none
        found = []
        for run in StudyFolder(self.path).runs():
            table: pa.Table | None = getattr(run, name)
            if table is None or run.record.status != "done":
                continue
            assert run.folder is not None
            found.append(with_run(run.folder / f"{name}.parquet", table))
        if found:
            return pa.concat_tables(found)
        return make_table((*RUN_COLUMNS, *COLUMNS[name]), {})


def load(path: str | Path) -> LoadedStudy:
    """The study in the folder ``path``; InputError where there is none."""
    StudyFolder(Path(path)).read_study()
    return LoadedStudy(Path(path))


def run(scenario: str | Path, *, out: str | Path = "results", sets: Sequence[str] = ()) -> LoadedStudy:
    """Run a scenario (a file, or the name of a shipped one) into a new study under ``out``, with its report.

    ``sets``: ``key=value`` texts, as ``--set`` takes them. InputError where it cannot run; a study some of whose runs
    failed is returned all the same, and its report says which.
    """
    from harness.launch.study import run_study
    from harness.launch.tracking.tracked_study import tracked
    from harness.report.build import build_report
    from harness.scenario.load import load_scenario
    from harness.scenario.plan import make_plan

    plan = make_plan(load_scenario(scenario, list(sets)), str(scenario))
    outcome = run_study(plan, Path(out), sys.argv[:1], str(scenario))
    build = partial(build_report, outcome.folder)
    with tracked(outcome.folder, build):
        build()
    return load(outcome.folder)


def _verdict(one: Comparison) -> ComparisonVerdict:
    found = one.measured
    ratio = found.ratio
    return ComparisonVerdict(
        one.baseline,
        one.candidate,
        found.measure,
        ratio.median,
        ratio.ci_low,
        ratio.ci_high,
        found.noise_floor,
        found.verdict,
    )
