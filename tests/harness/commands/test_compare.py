"""harness compare and harness baseline on studies with a known truth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.synthetic import Arm, build, write


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The study that others are compared with: it is only read."""
    return made(tmp_path_factory.mktemp("before"))


def made(folder: Path, factor: float = 1.0, seed: int = 0, created_utc: str = "2025-01-01T00:00:00Z", **arm) -> str:
    """A study whose compute takes ``factor`` as long; returns its folder."""
    compute = {"h2d": 0.1, "forward": 9.0 * factor, "backward": 17.0 * factor, "optimizer": 3.0 * factor, "sync": 0.6}
    text = Arm("text", compute=compute, **arm)
    study, runs = build([text, *text.controls("a-a")], blocks=7, seed=seed, noise={"day": 0.002})
    write(StudyFolder(folder), replace(study, created_utc=created_utc), runs)
    return str(folder)


@pytest.mark.slow
def test_compare_decides_and_exits_accordingly(before: str, tmp_path: Path) -> None:
    slow = harness("compare", before, made(tmp_path / "b", 1.5, seed=1))
    assert slow.returncode == 3, slow.stderr
    assert "### Regression check: slower" in slow.stdout
    assert "different times" in slow.stdout
    day = harness("compare", before, made(tmp_path / "c", 1.1, seed=2), "--json")
    assert day.returncode == 4, day.stdout
    (contest,) = json.loads(day.stdout)["contests"]
    assert (contest["verdict"], contest["cause"]) == ("undecided", "day to day")
    same = harness("compare", before, made(tmp_path / "d", 1.0, seed=2), "--within", "30%")
    assert same.returncode == 0, same.stdout


def test_compare_refuses_another_machine_and_says_how_to_insist(before: str, tmp_path: Path) -> None:
    other = made(tmp_path / "b", 1.5, seed=1, environment={"cpu": "Another"})
    done = harness("compare", before, other)
    assert done.returncode == 4, done.stderr
    assert "not comparable: environment.cpu is Synthetic against Another" in done.stdout
    assert "--allow 'environment.cpu'" in done.stdout
    assert harness("compare", before, other, "--allow", "environment.cpu").returncode == 3
    assert harness("compare", before, other, "--undecided-exit", "0").returncode == 0


def test_compare_wants_arms_that_both_have(before: str, tmp_path: Path) -> None:
    write(StudyFolder(tmp_path / "b"), *build([Arm("other")], blocks=1))
    done = harness("compare", before, str(tmp_path / "b"))
    assert done.returncode == 2
    assert "no common arm" in done.stderr
    assert harness("compare", before, before, "--arm", "nothing").returncode == 2
    assert "no such file" in harness("compare", before, str(tmp_path / "none")).stderr


@pytest.mark.slow
def test_a_baseline_is_kept_listed_and_checked(before: str, tmp_path: Path) -> None:
    kept = str(tmp_path / "baselines")
    assert "no baseline under" in harness("baseline", "list", "--baselines", kept).stdout
    done = harness("baseline", "save", before, "--baselines", kept)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).name == "synthetic--text.json"
    assert done.stderr.count("note: ") == 1
    assert "2 more days" in done.stderr
    listed = harness("baseline", "list", "--baselines", kept).stdout
    assert "cpu Synthetic" in listed
    assert "synthetic, text:" in listed
    assert "7 blocks" in listed
    check = ("baseline", "check", "--baselines", kept)
    for itself in (harness(*check, before, "--json"), harness("compare", before, before, "--json")):
        assert itself.returncode == 0, itself.stdout
        (one,) = json.loads(itself.stdout)["contests"]
        assert (one["verdict"], one["same_study"]) == ("same", True)
    assert harness(*check, made(tmp_path / "b", 1.5, seed=1)).returncode == 3
    slower = made(tmp_path / "c", 1.2, seed=1)
    assert harness(*check, slower).returncode == 4  # one session does not say what a day may do
    for day, factor in enumerate((1.01, 0.99, 1.0)):
        later = made(tmp_path / f"day-{day}", factor, seed=5 + day, created_utc=f"2025-02-0{day + 1}T00:00:00Z")
        assert harness("baseline", "save", later, "--baselines", kept).returncode == 0
    assert "4 of 4 sessions of this speed" in harness("baseline", "list", "--baselines", kept).stdout
    assert harness(*check, slower).returncode == 3
    assert harness(*check, made(tmp_path / "same", 1.0, seed=2), "--within", "10%").returncode == 0
    assert harness("compare", before, slower, "--baselines", kept).returncode == 3
    assert harness("baseline", "save", slower, "--anew", "--baselines", kept).returncode == 0
    assert "1 of 5 sessions of this speed" in harness("baseline", "list", "--baselines", kept).stdout
    elsewhere = harness(*check, made(tmp_path / "d", 1.2, seed=3, environment={"cpu": "Another"}))
    assert elsewhere.returncode == 2
    assert "was measured in another environment (cpu 'Synthetic', here 'Another')" in elsewhere.stderr


def test_a_baseline_takes_blocks(tmp_path: Path) -> None:
    write(StudyFolder(tmp_path / "a"), *build([Arm("text")], blocks=2))
    done = harness("baseline", "save", str(tmp_path / "a"), "--baselines", str(tmp_path / "kept"))
    assert done.returncode == 2
    assert "text has 2 finished blocks; a baseline needs 3" in done.stderr
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("words", [["baseline"], ["baseline", "sve"], ["compare", "a"]])
def test_wrong_words_are_a_line(words: list[str]) -> None:
    done = harness(*words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
