"""Add a pytest fixture for regression checks: ``scenario(FILE, arm=...).no_slower_than(...)``.

Every pytest in the environment loads this module, so the rest is imported only when a test needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.regress import BASELINES
from harness.testing import PROPERTY

if TYPE_CHECKING:
    from harness.testing.subject import Subject

ON_UNDECIDED = ("skip", "fail", "pass")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("harness", "llm-training-harness: regression checks")
    group.addoption("--harness-base", metavar="REV|PATH", help='revision or folder to use as "baseline"')
    group.addoption("--harness-budget", metavar="TIME", help="limit of each check (90s, 10m), overrides the test's")
    group.addoption("--harness-out", metavar="DIR", default="results", help="where studies go (default: results)")
    group.addoption(
        "--harness-baselines", metavar="DIR", default=BASELINES,
        help='folder of the kept baselines, without --harness-base (default: %(default)s)',
    )  # fmt: skip
    group.addoption(
        "--harness-save-baselines", action="store_true", help='keep the figures as "baseline" instead of checking'
    )
    parser.addini("harness_undecided", f"result of an undecided check: {', '.join(ON_UNDECIDED)}", default="skip")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getini("harness_undecided")
    if chosen not in ON_UNDECIDED:
        raise pytest.UsageError(f"harness_undecided: {chosen!r}; allowed: {', '.join(ON_UNDECIDED)}")
    # The fixture requests pytest-benchmark's `benchmark`, so that --benchmark-only, --benchmark-skip and others see it.
    has_benchmark = config.pluginmanager.hasplugin("benchmark")
    config.pluginmanager.register(_WithBenchmark() if has_benchmark else _Without(), "harness-scenario")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each check's result: pytest itself shows no reason for a passed or skipped test."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    results = [
        f"{report.nodeid}: {value}"
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY and report.when == "call"
    ]
    if results:
        terminalreporter.section("harness")
        for line in results:
            terminalreporter.write_line(line)


class _WithBenchmark:
    @pytest.fixture
    def scenario(self, request: pytest.FixtureRequest, benchmark: Any) -> _Scenario:
        """Fixture for checks: ``scenario(FILE, arm=NAME, control=None).no_slower_than(OTHER, within="1%")``."""
        return _Scenario(request, benchmark)


class _Without:
    @pytest.fixture
    def scenario(self, request: pytest.FixtureRequest) -> _Scenario:
        """Fixture for checks: ``scenario(FILE, arm=NAME, control=None).no_slower_than(OTHER, within="1%")``."""
        return _Scenario(request, None)


class _Scenario:
    """Value of the ``scenario`` fixture: called with a scenario and an arm, it returns a :class:`Subject`."""

    def __init__(self, request: pytest.FixtureRequest, benchmark: Any) -> None:
        self._request = request
        self._benchmark = benchmark

    def __call__(
        self, path: str | Path, arm: str, control: str | None = None, sets: list[str] | None = None
    ) -> Subject:
        """Return the arm to check, under ``control``. ``path``: a file (or below pytest's root), or a shipped name."""
        from harness.testing.subject import Subject

        below_root = self._request.config.rootpath / path
        file = below_root if below_root.is_file() and not Path(path).exists() else Path(path)
        return Subject(file, arm, control, sets or [], self._request.node, self._benchmark)
