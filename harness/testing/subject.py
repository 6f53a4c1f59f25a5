"""Judge an arm of a scenario in a test: against another arm, another state of the code or a kept baseline."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from harness.explain.policy import MIN_BLOCKS
from harness.regress import BASELINES
from harness.regress.across import compare_series
from harness.regress.decision import Limits, StateComparison, read_limit, read_seconds, read_share
from harness.regress.policy import ALTERNATED_WITHIN, APART_WITHIN
from harness.regress.series import STEP, BlockSeries, Rounds, rounds, series_of
from harness.study.contract import PHASES
from harness.study.records import ArmRecord
from harness.study.store import StudyFolder
from harness.testing import PROPERTY
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.regress.run import ComparisonPlan, RegressionResult
    from harness.scenario.commands import CommandScenario
    from harness.scenario.model import Scenario

BASELINE = "baseline"


@dataclass(frozen=True)
class Subject:
    """Arm of a scenario, made by the fixture ``scenario``. ``benchmark``: pytest-benchmark's fixture, if installed."""

    path: Path
    arm: str
    control: str | None
    sets: list[str]
    test: pytest.Item
    benchmark: Any

    @property
    def config(self) -> pytest.Config:
        return self.test.config

    def no_slower_than(
        self,
        other: str,
        within: str | None = None,
        budget: str = "10m",
        memory_within: str = "5%",
        startup_within: str = "20%",
    ) -> StateComparison:
        """Measure the arm and ``other``, and return the comparison. Fail the test if the arm is slower than allowed.

        ``other``: an arm of the same scenario, or "baseline": with ``--harness-base`` (a revision or a folder) the code
        there (the harness's if that state contains it, else the user's code that the scenario names); else the figures
        that ``--harness-save-baselines`` kept in this environment.

        ``within``: allowed increase of the step time, such as "2%"; None: 1 %, or 5 % against kept figures, as the
        machine drifts. ``memory_within``, ``startup_within``: the same for memory and start-up; "off": not checked.
        ``budget``: time limit. If the result is undecided then, the ini option ``harness_undecided`` says what to do:
        skip, fail or pass.
        """
        if self.benchmark is not None and not self.benchmark.enabled:
            self.benchmark._mode = "scenario"  # suppresses the benchmark's warning that it was not used
            pytest.skip("benchmarks are disabled (--benchmark-disable, or several processes): nothing is measured")
        if self.benchmark is not None:
            if self.benchmark._mode:
                pytest.fail("scenario: only one check per test (its rounds are the benchmark)", pytrace=False)
            self.benchmark._mode = "scenario"
        wrong = None
        try:
            return self._judge(other, within, budget, memory_within, startup_within)
        except (InputError, OSError) as error:
            wrong = str(error)
        pytest.fail(wrong, pytrace=False)

    def _judge(self, other: str, within: str | None, budget: str, memory: str, startup: str) -> StateComparison:
        from harness.scenario.commands import CommandScenario, open_scenario
        from harness.scenario.plan import variants

        base = self.config.getoption("--harness-base")
        scenario = open_scenario(self.path, self.sets)
        is_arm = not isinstance(scenario, CommandScenario) and other in {arm.name for arm in variants(scenario)}
        limits = Limits(
            read_share(within or (ALTERNATED_WITHIN if base or is_arm else APART_WITHIN), "within"),
            read_limit(memory, "memory_within"),
            read_limit(startup, "startup_within"),
        )
        budget_s = read_seconds(self.config.getoption("--harness-budget") or budget, "budget")
        if isinstance(scenario, CommandScenario):
            if other != BASELINE or self.control:
                raise InputError(
                    f'{self.path}: an arm that is a command is compared with "{BASELINE}" and without a control; '
                    "harness run compares arms"
                )
            if not base:
                raise InputError(
                    f'{self.path}: "{BASELINE}" of a command is a revision of its code, which is missing: '
                    f"{shlex.join(['pytest', self.test.nodeid, '--harness-base=main'])}"
                )
            return self._command(scenario, base, limits, budget_s)
        if is_arm:
            from harness.regress.run import between_arms

            asked = between_arms(scenario, str(self.path), other, self.arm, self.control)
            return self._comparison(asked, limits, budget_s)
        if other != BASELINE:
            raise InputError(f"{self.path}: unknown arm {other!r}; allowed: an arm, or {BASELINE!r}")
        if base:
            from harness.launch.code import holds_code
            from harness.regress.run import between_states, with_codes
            from harness.regress.states import is_of_user_code, run_user_states

            asked = between_states(scenario, str(self.path), [self.arm], self.control)
            if is_of_user_code(asked, base):
                return self._compared(lambda: run_user_states(asked, base, ".", *self._study(), limits, budget_s))
            head, directory = Path(__file__).parents[2], Path.cwd()
            repository = directory if holds_code(base, directory) is False else head  # with_codes() then refuses it
            asked, arms = with_codes(asked, base, str(head), repository)
            return self._comparison(asked, limits, budget_s, arms)
        return self._kept(scenario, limits, budget_s)

    def _command(self, scenario: CommandScenario, base: str, limits: Limits, budget_s: float) -> StateComparison:
        """Compare the arm's command at two states of its code: ``base`` and the current one. Return the comparison."""
        from harness.regress.run import unknown_arm
        from harness.regress.states import run_command_states
        from harness.scenario.commands import plan_commands

        plan = plan_commands(scenario)
        arms = {arm.name: arm for arm in plan.arms if arm.control is None}
        if self.arm not in arms:
            raise unknown_arm(str(self.path), self.arm, arms)
        plan = replace(plan, arms=(arms[self.arm],))
        return self._compared(lambda: run_command_states(plan, base, ".", *self._study(), limits, budget_s))

    def _study(self) -> tuple[Path, list[str], str]:
        """Return (folder for studies, command line of this test, scenario path), the facts for a new study's record."""
        return Path(self.config.getoption("--harness-out")), ["pytest", self.test.nodeid], str(self.path)

    def _comparison(
        self, asked: ComparisonPlan, limits: Limits, budget_s: float, arms: Mapping[str, ArmRecord] | None = None
    ) -> StateComparison:
        from harness.regress.run import run_comparisons

        return self._compared(lambda: run_comparisons(asked, *self._study(), limits, budget_s, arms))

    def _compared(self, run: Callable[[], RegressionResult]) -> StateComparison:
        from harness.regress import report as regression
        from harness.regress.text import sentence

        with self._shown():
            found = run()
        folder = StudyFolder(found.folder)
        regression.write(folder, found.comparisons)
        if found.status == "interrupted":
            raise KeyboardInterrupt
        if found.status == "failed":
            pytest.fail(f"{sentence(found.comparisons[0])} Some runs failed: see {folder.path}", pytrace=False)
        sides = folder.read_study().comparisons[0]
        baseline = _Row(sides.baseline, _step_ms(_rounds_of(folder, sides.baseline)))
        return self._end(found.comparisons[0], folder, sides.candidate, baseline)

    def _kept(self, scenario: Scenario, limits: Limits, budget_s: float) -> StateComparison:
        """Run the arm and compare it with the kept baseline; with ``--harness-save-baselines`` keep it instead, and
        skip.
        """
        from harness.launch.study import Sequential, run_study
        from harness.machine.environment import record_environment
        from harness.regress import baselines
        from harness.regress import report as regression
        from harness.regress.run import alone, records_of

        folder = Path(self.config.getoption("--harness-baselines"))
        saves = self.config.getoption("--harness-save-baselines")
        asked = alone(scenario, str(self.path), self.arm, self.control)
        name = asked.plan.arms[0].name
        if not saves:
            baselines.check_kept(folder, scenario.name, name, record_environment(), self._save_command)
        begun_s = time.monotonic()
        with self._shown():
            outcome = run_study(
                asked.plan,
                *self._study(),
                Sequential(
                    lambda _folder, _record, blocks: time.monotonic() - begun_s > budget_s * blocks / (blocks + 1),
                    records_of(asked),
                ),
            )
        if outcome.status == "interrupted":
            raise KeyboardInterrupt
        if outcome.status == "failed":
            pytest.fail(f"{self.path}: some runs failed, see {outcome.folder}", pytrace=False)
        study = StudyFolder(outcome.folder)
        series = series_of(study.read_study(), list(study.runs())).get(name)
        if series is None:
            raise InputError(f"{self.path}: no run of {name} finished; see {outcome.folder}")
        if saves:
            self._save(folder, series, limits)
        kept = baselines.find(folder, series, self._save_command)
        comparison = compare_series(kept.series, series, limits, days=kept.days).comparison
        regression.write(study, [comparison], alternated=False)
        row = _Row(f"{name} of {kept.series.created_utc}", kept.series.part_ms[STEP])
        return self._end(comparison, study, name, row)

    @property
    def _save_command(self) -> str:
        """Command line that keeps the baseline of this test, for messages."""
        folder = self.config.getoption("--harness-baselines")
        options = [] if folder == BASELINES else ["--harness-baselines", folder]
        return shlex.join(["pytest", self.test.nodeid, "--harness-save-baselines", *options])

    def _save(self, folder: Path, series: BlockSeries, limits: Limits) -> NoReturn:
        from harness.machine.environment import is_ignored
        from harness.regress import baselines
        from harness.regress.text import kept_note

        if len(series.blocks) < MIN_BLOCKS:
            raise InputError(f"{self.path}: {len(series.blocks)} finished blocks; a baseline needs {MIN_BLOCKS}")
        path = baselines.save(folder, series)
        commit = f"git add {'-f ' if is_ignored(path) else ''}{shlex.quote(str(path))}"
        self._note(f"kept as {path} ({commit}); {kept_note(baselines.read(path), limits.step)}")
        pytest.skip(f"kept as {path}")

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Show output on the terminal within the context, because a study takes minutes."""
        plugins = self.config.pluginmanager
        capture, reporter = plugins.getplugin("capturemanager"), plugins.getplugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.flush()
        with nullcontext() if capture is None else capture.global_and_fixture_disabled():
            yield

    def _note(self, text: str) -> None:
        """Add the line ``text`` to the results that pytest prints at the end."""
        self.test.user_properties.append((PROPERTY, text))

    def _end(self, comparison: StateComparison, folder: StudyFolder, arm: str, baseline: _Row) -> StateComparison:
        """Report to pytest-benchmark. Return ``comparison``, or skip or fail the test as its verdict demands."""
        from harness.regress.text import sentence

        message = f"{sentence(comparison)} Evidence: {folder.path}"
        self._note(message)
        self._report_to_benchmark(comparison, folder, arm, baseline)
        on_undecided = self.config.getini("harness_undecided") if comparison.verdict == "undecided" else "pass"
        if comparison.verdict == "slower" or on_undecided == "fail":
            pytest.fail(message, pytrace=False)
        if on_undecided == "skip":
            pytest.skip(message)
        return comparison

    def _report_to_benchmark(self, comparison: StateComparison, folder: StudyFolder, arm: str, baseline: _Row) -> None:
        """Add both sides as rounds (seconds per step), in a group of their own, if pytest-benchmark is there."""
        if self.benchmark is None:
            return
        from harness.regress.text import sentence

        arm_rounds = _rounds_of(folder, arm)
        # pytest-benchmark times functions and has no public way to import times measured elsewhere.
        if not arm_rounds or not baseline.step_ms:
            self.benchmark.has_error = True
            return
        self.benchmark.group = self.benchmark.group or self.test.nodeid
        name, full_name = self.benchmark.name, self.benchmark.fullname
        self.benchmark.name, self.benchmark.fullname = f"{name}[{baseline.name}]", f"{full_name}[{baseline.name}]"
        self.benchmark.extra_info = {"study": str(folder.path), "arm": baseline.name, "side": "baseline"}
        self._add_row(baseline.step_ms)
        self.benchmark.name, self.benchmark.fullname = name, full_name
        phases = {phase: fmean(found.mean_ms(phase) or 0.0 for found in arm_rounds) for phase in PHASES}
        self.benchmark.extra_info = {
            "study": str(folder.path),
            "arm": arm,
            "side": "candidate",
            "verdict": comparison.verdict,
            "sentence": sentence(comparison),
            "ledger_ms": phases,
            "environment": next(run.record.environment for run in folder.runs() if run.record.arm == arm),
            "emulated": comparison.emulated,
        }
        self._add_row(_step_ms(arm_rounds))

    def _add_row(self, step_ms: Sequence[float]) -> None:
        stats = self.benchmark._make_stats(1)
        for value in step_ms:
            stats.update(value / 1e3)


@dataclass(frozen=True)
class _Row:
    """Baseline of a comparison, as a row of pytest-benchmark: its name, and each round's step time (ms)."""

    name: str
    step_ms: Sequence[float]


def _rounds_of(folder: StudyFolder, arm: str) -> list[Rounds]:
    return [run_rounds for run in folder.runs() if run.record.arm == arm and (run_rounds := rounds(run)) is not None]


def _step_ms(found: Sequence[Rounds]) -> list[float]:
    return [float(value) for run_rounds in found for value in run_rounds.parts[STEP]]
