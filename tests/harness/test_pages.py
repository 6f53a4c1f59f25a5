"""Whole pages as a user reads them, compared with tests/harness/__snapshots__; ``make snapshots`` writes them anew.

What differs from machine to machine is filtered: folders, and times of day.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from harness.commands.doctor import conclusion, lines_of
from harness.machine.check import fail, ok, warn
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.synthetic import Arm, build, write

HELP = [words.split() for words in (
    "", "run", "report", "trace", "schema", "whatif", "audit", "regress", "compare", "baseline save", "baseline check",
    "baseline list", "doctor", "data", "data pretokenize", "data verify", "data export", "data import", "data formats",
)]  # fmt: skip


def page(text: str, folder: Path) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+(\+00:00|Z)", "<time>", text.replace(str(folder), "<folder>"))


def study(folder: Path, factor: float = 1.0, seed: int = 0, isolated: bool = False) -> str:
    """Two arms and their controls; everything takes ``factor`` as long. ``isolated``: the candidate's loader too."""
    compute = {"h2d": 0.1, "forward": 9.0 * factor, "backward": 17.0 * factor, "optimizer": 3.0 * factor, "sync": 0.6}
    text = Arm("text", tokenize=9.0, compute=compute, declared={"data.path": "text-padded"})
    tokens = Arm("tokens", tokenize=0.0, compute=compute, declared={"data.path": "tokens-padded"})
    arms = [text, tokens, *text.controls("a-a", "ideal-data", "data-only")]
    if isolated:
        arms += tokens.controls("data-only")
    write(StudyFolder(folder), *build(arms, [("text", "tokens")], blocks=7, seed=seed, noise={"day": 0.002}))
    return str(folder)


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help(words: list[str], snapshot: SnapshotAssertion) -> None:
    done = harness(*words, "--help", COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == snapshot


@pytest.mark.parametrize("name", ["quickstart", "pretokenization", "guard"])
def test_a_plan(name: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    done = harness("run", f"scenarios/{name}.yaml", "--plan", "--repeats", "2", "--out", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert page(done.stdout, tmp_path) == snapshot


def test_the_report_of_a_study(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    done = harness("report", study(tmp_path, isolated=True))
    assert done.returncode == 0, done.stderr
    assert page(done.stdout, tmp_path) == snapshot(name="printed")
    assert page((tmp_path / "summary.md").read_text(), tmp_path) == snapshot(name="summary.md")
    drawn = re.compile(r"<(svg|style|script)\b.*?</\1>", re.DOTALL)  # pictures, and what is ours in assets/
    html = re.sub(r"'sha256-[^']+'", "<hash>", drawn.sub("", (tmp_path / "summary.html").read_text()))
    assert page(html, tmp_path) == snapshot(name="summary.html")


@pytest.mark.parametrize(("factor", "code"), [(1.5, 3), (1.0, 4)])
def test_two_studies_compared(factor: float, code: int, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    done = harness("compare", study(tmp_path / "a"), study(tmp_path / "b", factor, seed=1))
    assert (done.returncode, done.stderr) == (code, "")
    assert page(done.stdout, tmp_path) == snapshot


def test_the_screen_of_doctor(snapshot: SnapshotAssertion) -> None:
    checks = [
        ok("python", "3.11.7 on Linux"),
        warn("quota", "1.5 of 2 CPUs: the kernel stops every thread for a part of each 100 ms", "ask for whole CPUs"),
        fail("cache", "/none/cache cannot be made: Permission denied", "another folder: export HARNESS_CACHE=DIR"),
    ]
    assert "\n".join([*(line for check in checks for line in lines_of(check)), conclusion(checks)]) == snapshot
