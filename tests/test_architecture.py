"""The arrows of the house, read from the imports themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# package -> packages of harness it may import (besides the shared ones below, and the trainer).
ALLOWED = {
    "analysis": {"analysis"},
    "machine": set(),
    "traces": set(),
    "probes": {"probes"},
    "report": {"report", "analysis"},
    "launch": {"launch", "probes", "analysis", "plan", "scenario", "contest"},
}
# Rooms without a side of their own: the contract, facts of this machine, and reading what profilers wrote.
SHARED = {"results", "environment", "overrides", "machine", "traces"}
CLOCKS_AND_FILES = {"time", "datetime", "os", "pathlib", "io", "subprocess", "socket", "shutil", "tempfile"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found
    return found


def test_the_trainer_knows_nothing_of_the_harness() -> None:
    for path in files("trainer"):
        assert not any(name.split(".")[0] == "harness" for name in imports(path)), path


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_within_the_harness_run_one_way(package: str) -> None:
    for path in files(f"harness/{package}"):
        used = {name.split(".")[1] for name in imports(path) if name.startswith("harness.")}
        assert used <= ALLOWED[package] | SHARED, path


def test_analysis_touches_no_clock_and_no_file() -> None:
    for path in files("harness/analysis"):
        assert not {name.split(".")[0] for name in imports(path)} & CLOCKS_AND_FILES, path
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not any(isinstance(call, ast.Name) and call.id == "open" for call in calls), path
