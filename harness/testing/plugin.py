"""Adds a pytest fixture for regression checks: ``scenario(FILE, arm=...).no_slower_than(...)``.

Works with and without pytest-benchmark. Every pytest of the environment loads this module, so everything but pytest is
imported when a test asks for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.testing.subject import Subject

ON_UNDECIDED = ("skip", "fail", "pass")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("harness", "llm-training-harness: regression checks")
    group.addoption("--harness-base", metavar="REV|PATH", help='the state of the code that "baseline" means')
    group.addoption("--harness-budget", metavar="TIME", help="for each check, instead of the test's own (90s, 10m)")
    group.addoption("--harness-out", metavar="DIR", default="results", help="where studies go (default: results)")
    group.addoption(
        "--harness-baselines", metavar="DIR", default="results/baselines",
        help='where "baseline" is looked for without --harness-base (default: results/baselines)',
    )  # fmt: skip
    group.addoption(
        "--harness-save-baselines", action="store_true", help='keep what is measured as "baseline" instead of checking'
    )
    parser.addini("harness_undecided", f"what an undecided check does: {', '.join(ON_UNDECIDED)}", default="skip")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getini("harness_undecided")
    if chosen not in ON_UNDECIDED:
        raise pytest.UsageError(f"harness_undecided: {chosen!r}; allowed: {', '.join(ON_UNDECIDED)}")
    # With pytest-benchmark the fixture asks for its `benchmark`, so that --benchmark-only, -skip and the rest see it.
    has_benchmark = config.pluginmanager.hasplugin("benchmark")
    config.pluginmanager.register(_WithBenchmark() if has_benchmark else _Without(), "harness-scenario")


class _WithBenchmark:
    @pytest.fixture
    def scenario(self, request: pytest.FixtureRequest, benchmark: Any) -> _Scenario:
        """``scenario(FILE, arm=NAME, control=None).no_slower_than(OTHER, within="1%")``."""
        return _Scenario(request, benchmark)


class _Without:
    @pytest.fixture
    def scenario(self, request: pytest.FixtureRequest) -> _Scenario:
        """``scenario(FILE, arm=NAME, control=None).no_slower_than(OTHER, within="1%")``."""
        return _Scenario(request, None)


class _Scenario:
    """What the fixture gives: called with a scenario file and an arm, it yields something to judge."""

    def __init__(self, request: pytest.FixtureRequest, benchmark: Any) -> None:
        self._request = request
        self._benchmark = benchmark

    def __call__(
        self, path: str | Path, arm: str, control: str | None = None, sets: list[str] | None = None
    ) -> Subject:
        """``sets``: overrides as of ``harness run --set``. Relative paths: from here or from pytest's root."""
        from harness.testing.subject import Subject

        config = self._request.config
        file = Path(path)
        if not file.is_absolute() and not file.exists():
            file = config.rootpath / file
        return Subject(file, arm, control, sets or [], config, self._request.node.nodeid, self._benchmark)
