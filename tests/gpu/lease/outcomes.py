"""A pytest plugin that writes the outcome of each test to a file at once: a kill keeps those that had ended.

    pytest -p tests.gpu.lease.outcomes --outcomes FILE

The first line holds how many tests there are, each other line one test: its name, outcome, seconds and problem.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="file of the outcomes")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--outcomes")) is not None:
        config.pluginmanager.register(_Outcomes(path), "lease-outcomes")


class _Outcomes:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write({"tests": len(session.items)})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"test": report.nodeid, "outcome": FAILED, "seconds": 0.0, "problem": first_line(report)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test ends with its call; a set-up or tear-down counts where it does not pass. Seconds are with set-up."""
        self._seconds[report.nodeid] += report.duration
        if report.when == "call" or not report.passed:
            problem = first_line(report) if report.failed else ""
            row = {
                "test": report.nodeid,
                "outcome": report.outcome,
                "seconds": self._seconds[report.nodeid],
                "problem": problem,
            }
            self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def first_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the first line of what a test raised; of a file that cannot be imported, the last line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (str(report.longrepr).strip().splitlines()[-1:] if crash is None else crash.message.splitlines()) or [""]
    return str(lines[0])[:300]
