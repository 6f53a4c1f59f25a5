"""Python interface of the commands: run a scenario, load a study, read its verdicts, ledger and tables.

study = harness.load("results/quickstart")  # its newest study
study.verdicts[0].ratio, study.verdicts[0].verdict
study.ledger[0].phase_ms
study.table("steps").to_pandas().groupby(["arm", "block"]).wall_ns.median()
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.explain.wall import StepPart
from harness.judge.doubts import Doubt
from harness.judge.report_types import ArmReport, Comparison, StudyReport
from harness.study.contract import RUN_COLUMNS
from harness.study.store import COLUMNS, StudyFolder, find_study
from harness.study.tables import make_table, with_run
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

TableName = Literal["steps", "spans", "samples", "evaluations"]


@dataclass(frozen=True)
class ComparisonVerdict:
    """Result of one comparison of a study (:attr:`LoadedStudy.verdicts`)."""

    baseline: str
    candidate: str
    measure: str  # quantity of ``ratio``: trained tokens/s, tokens/s or steps/s
    ratio: float | None  # speed candidate / baseline, median with 95 % interval; None: too noisy to see 2x (``cause``)
    ci_low: float | None
    ci_high: float | None
    noise_floor: float | None  # fraction
    verdict: Literal["gain", "loss", "none", "undecided"]
    cause: Doubt | None = None  # for "undecided": the obstacle, and what would settle it
    doubts: tuple[Doubt, ...] = ()  # ordered by precedence; includes those that bar nothing


@dataclass(frozen=True)
class ArmLedger:
    """Mean measured step of one arm or control in ms, by phase and by stage of the data work."""

    arm: str
    control: str | None  # kind of control; None for an arm itself
    blocks: int
    steps: int  # measured steps over all blocks
    mean_step_ms: float
    phase_ms: Mapping[str, float]  # sums to ``mean_step_ms``
    exposed_ms: Mapping[str, float]  # data work by stage that steps wait for; empty if not measured
    hidden_ms: Mapping[str, float]  # data work by stage that runs beside the steps; empty if not measured
    contended_ms: float | None  # waits for a core; None: not measured
    # Parts of a program's step by its clock, including waits for a core. Empty for other arms.
    parts: tuple[StepPart, ...] = ()
    doubts: tuple[Doubt, ...] = ()  # by precedence


@dataclass(frozen=True)
class LoadedStudy:
    """A study, opened by :func:`load`. As the result of a notebook's cell, it shows the first screen of its report.

    Its attributes raise InputError if files are missing or damaged.
    """

    path: Path

    @cached_property
    def verdicts(self) -> tuple[ComparisonVerdict, ...]:
        """Verdict of each measured comparison. Empty for a study of one program, where ``ledger`` has the figures."""
        return tuple(_verdict(comparison) for comparison in self._report.compared)

    @cached_property
    def ledger(self) -> tuple[ArmLedger, ...]:
        """Time of a step by part, for each arm and control that has measured steps."""
        return tuple(_ledger(arm, step_ms) for arm in self._report.arms if (step_ms := arm.totals.mean_step_ms))

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """All reasons to doubt a figure of this study, the most important first, with their remedies."""
        from harness.judge.study import study_doubts

        return study_doubts(self._report)

    @cached_property
    def _report(self) -> StudyReport:
        from harness.show.build import report_of

        folder = StudyFolder(self.path)
        return report_of(folder, folder.read_study(), list(folder.runs()))[0]

    def _repr_html_(self) -> str:
        from harness.show import markdown
        from harness.show.build import fragment
        from harness.show.first_screen import first_screen
        from harness.show.tables import safe

        screen = markdown.opening(self._report.study.scenario, first_screen(self._report))
        return fragment(f"{screen}\nStudy: {safe(str(self.path))}\n")

    def table(self, name: TableName = "steps") -> pa.Table:
        """Return one table with the rows of all finished runs: ``arm``, ``block``, and the columns of ``harness schema
        --columns``. Raises InputError for an unknown ``name``.
        """
        import pyarrow as pa

        if name not in COLUMNS:
            raise InputError(f"table {name!r}: allowed: {', '.join(COLUMNS)}")
        StudyFolder(self.path).read_study()  # Raises InputError if the folder has no study.
        tables = []
        for run in StudyFolder(self.path).runs():
            table: pa.Table | None = getattr(run, name)
            if table is None or run.record.status != "done":
                continue
            assert run.folder is not None
            tables.append(with_run(run.folder / f"{name}.parquet", table))
        if tables:
            return pa.concat_tables(tables)
        return make_table((*RUN_COLUMNS, *COLUMNS[name]), {})


def load(path: str | Path) -> LoadedStudy:
    """Open the study in the folder ``path``, or the newest study below it. Raises InputError without a study."""
    folder = StudyFolder(find_study(Path(path)))
    folder.read_study()
    return LoadedStudy(folder.path)


def run(scenario: str | Path, *, out: str | Path = "results", sets: Sequence[str] = ()) -> LoadedStudy:
    """Run a scenario (a file or the name of one) into a new study under ``out``, build its report, and open it.

    ``sets``: ``key=value`` texts, as for ``--set``. Raises InputError if the scenario cannot run. If some runs fail,
    the study is returned nevertheless, and its report names them.
    """
    from harness.launch.study import run_study
    from harness.launch.tracking.tracked_study import tracked
    from harness.scenario.load import load_scenario
    from harness.scenario.plan import make_plan
    from harness.show.build import build_report

    plan = make_plan(load_scenario(scenario, list(sets)), str(scenario))
    outcome = run_study(plan, Path(out), sys.argv[:1], str(scenario))
    build = partial(build_report, outcome.folder)
    with tracked(outcome.folder, build):
        build()
    return load(outcome.folder)


def _ledger(arm: ArmReport, mean_step_ms: float) -> ArmLedger:
    totals = arm.totals
    return ArmLedger(
        arm.name,
        arm.control,
        arm.blocks,
        totals.steps,
        mean_step_ms,
        totals.phase_ms,
        totals.exposed_ms,
        totals.hidden_ms,
        totals.contended_ms,
        arm.parts,
        arm.doubts,
    )


def _verdict(one: Comparison) -> ComparisonVerdict:
    from harness.judge.study import comparison_doubts

    measured = one.measured
    ratio = measured.figure
    return ComparisonVerdict(
        one.baseline,
        one.candidate,
        measured.measure,
        None if ratio is None else ratio.median,
        None if ratio is None else ratio.ci_low,
        None if ratio is None else ratio.ci_high,
        None if ratio is None else measured.noise_floor,
        measured.verdict,
        measured.cause,
        comparison_doubts(one),
    )
