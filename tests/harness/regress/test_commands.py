"""``harness regress`` of a repository that merely uses the harness: its commands at a revision and as they are."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from harness.attach.command import environment_of
from harness.machine.environment import checkout_fingerprint
from harness.regress.run import UntilDecided
from harness.regress.states import State, at_states, find_states
from harness.scenario.commands import CommandScenario, plan_commands
from harness.study.records import ComparisonRecord
from harness.study.store import StudyFolder
from tests.commands import ROOT, harness
from tests.repositories import begin_repository, git
from trainer.errors import InputError

PLAIN = ROOT / "tests" / "harness" / "attach" / "programs" / "plain.py"


def make_repository(folder: Path) -> Path:
    """Somebody's repository: a training script in a folder of its own, and a scenario that runs it."""
    (folder / "code").mkdir(parents=True)
    shutil.copy(PLAIN, folder / "code" / "train.py")
    command = f"{sys.executable} train.py --steps 100000 --compute-ms 4"
    (folder / "code" / "speed.yaml").write_text(
        f"name: speed\nquestion: Is it slower?\ncommand: {command}\narms: {{loop: }}\nsteps: 20\n"
    )
    (folder / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    (folder / "code" / "train.pyc").write_bytes(b"1")
    begin_repository(folder)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "theirs")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that no test changes, on the branch trunk."""
    folder = make_repository(tmp_path_factory.mktemp("unchanged") / "theirs")
    git(folder, "branch", "-m", "trunk")
    return folder


def test_arms_of_two_states() -> None:
    scenario = CommandScenario(name="n", question="q", command="t", arms=dict.fromkeys("ab"), controls=["ideal-data"])
    base = State(Path("/base"), "1", Path("/base"), ("/base/src",))
    plan = at_states(plan_commands(scenario), base, State(Path("/head"), "2+changes", Path("/head")))
    assert [(arm.name, arm.folder, arm.code, arm.control, arm.path) for arm in plan.arms[:3]] == [
        ("a@base", "/base", "1", None, base.path), ("a@base+a-a", "/base", "1", "a-a", base.path),
        ("a@head", "/head", "2+changes", None, ()),
    ]  # fmt: skip
    assert plan.comparisons == (ComparisonRecord("a@base", "a@head"), ComparisonRecord("b@base", "b@head"))
    assert {block[0] for block in plan.blocks[:6]} == {arm.name for arm in plan.arms}


def test_what_a_state_holds_is_imported_before_what_lies_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/here/src")
    found = environment_of(Path("/raw"), ("/base/src", "/base/more"))["PYTHONPATH"].split(os.pathsep)
    assert found[1:] == ["/base/src", "/base/more", "/here/src"]  # behind the agent's


@pytest.mark.slow
def test_a_revision_is_unpacked_and_nothing_is_registered(unchanged, tmp_path, monkeypatch):
    monkeypatch.chdir(unchanged / "code")
    state, here = find_states("HEAD", ".", tmp_path)
    assert here.folder == unchanged / "code"
    assert state.label == git(unchanged, "rev-parse", "HEAD")[:12]
    assert state.folder == tmp_path / "base" / "code"  # as deep within as the present folder is
    assert (state.folder / "train.py").read_bytes() == PLAIN.read_bytes()
    assert len(git(unchanged, "worktree", "list").splitlines()) == 1
    with pytest.raises(InputError, match=r"^no-such: neither a folder nor a revision of the git repository at "):
        find_states("no-such", ".", tmp_path / "other")


@pytest.mark.slow
def test_an_edit_is_noticed_in_whatever_encoding(repository: Path) -> None:
    text, compiled = repository / "latin.txt", repository / "code" / "train.pyc"
    git(repository, "add", "-f", "code/train.pyc")
    before = checkout_fingerprint(repository)
    compiled.write_bytes(b"2")  # no edit, though it was committed
    assert checkout_fingerprint(repository / "code") == before
    text.write_bytes("caf\xe9s\n".encode("latin-1"))
    assert checkout_fingerprint(repository / "code") not in (before, "")
    assert checkout_fingerprint(repository.parent) == ""


@pytest.mark.slow
def test_a_working_copy_runs_beside_its_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UntilDecided, "__call__", lambda *_: True)  # one block
    script = repository / "code" / "train.py"
    script.write_text(script.read_text().replace("args.compute_ms / 1000", "2 * args.compute_ms / 1000"))
    done = harness("regress", "speed.yaml", "--base", "HEAD", "--budget", "10m", cwd=repository / "code")
    assert done.returncode == 4, done.stdout + done.stderr
    assert done.stdout.startswith("loop: undecided")
    assert git(repository, "status", "--porcelain", "--untracked-files=no") == " M code/train.py\n"
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    (path,) = (repository / "code" / "results" / "speed").iterdir()
    runs = {run.record.arm: run for run in StudyFolder(path).runs()}
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert {arm: run.record.environment["git_commit"] for arm, run in runs.items()} == {
        "loop@base": commit, "loop@base+a-a": commit, "loop@head": f"{commit}+changes"
    }  # fmt: skip
    page = (path / "regression.md").read_text()
    assert f" ms at {commit} and " in page or f" at {commit}" in done.stdout
    lasts = {
        arm: min(row["forward_ns"] for row in run.steps.to_pylist() if not row["warmup"])
        for arm, run in runs.items()
        if run.steps is not None
    }
    assert lasts["loop@head"] >= 8_000_000 > lasts["loop@base"]  # a sleep is never shorter


@pytest.mark.slow
def test_a_command_that_hangs_ends_with_the_budget(repository: Path) -> None:
    """It was waited for until limits.start_s, 15 minutes, whatever the budget."""
    script = repository / "code" / "train.py"
    script.write_text(f"import time; time.sleep(1000)\n{script.read_text()}")
    git(repository, "commit", "-qam", "both hang")
    script.write_text(f"{script.read_text()}# another state\n")
    done = harness("regress", "speed.yaml", "--base", "HEAD", "--budget", "4s", cwd=repository / "code")
    assert done.returncode == 4, done.stdout + done.stderr
    printed = " ".join((done.stdout + done.stderr).split())
    assert "4 s was spent before the first block ended, in the middle of the next: run loop@base/0" in printed
    assert "(main) is sleeping" in printed
    (path,) = (repository / "code" / "results" / "speed").iterdir()
    assert not list(path.glob("runs/*/0"))
    assert StudyFolder(path).read_study().blocks == 0


@pytest.mark.slow
def test_a_function_that_the_base_lacks_is_not_taken_from_the_head(repository, monkeypatch):
    """Where the present folder is on Python's path, its function ran in place of the base's."""
    (repository / "code" / "called.py").write_text("def train():\n    pass\n")
    (repository / "code" / "loop.yaml").write_text("name: loop\nquestion: q\nloop: called:train\narms: {loop: }\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(repository / "code")])
    done = harness("regress", "loop.yaml", "--base", "HEAD", cwd=repository / "code")
    assert done.returncode == 2
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert done.stderr.startswith(f"harness: {commit}: loop: called:train: no such module in ")
    assert f"so {repository}/code/called.py would run; give a state that has it" in done.stderr
    assert not (repository / "code" / "results").exists()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_command_needs_no_scenario(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UntilDecided, "__call__", lambda *_: True)  # one block
    words = ["--steps", "20", "--", sys.executable, "train.py", "--steps", "100000", "--compute-ms", "1"]
    done = harness("regress", "--base", "HEAD", *words, cwd=repository / "code")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "note: both sides are commit" in done.stderr  # nothing was changed
    (path,) = (repository / "code" / "results" / "regress").iterdir()
    study = StudyFolder(path)
    record = study.read_study()
    assert (record.scenario_text["steps"], record.status) == (20, "done")
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert {run.record.arm: run.record.environment["git_commit"] for run in study.runs()} == dict.fromkeys(
        ("script@base", "script@base+a-a", "script@head"), commit
    )


@pytest.mark.slow
def test_what_cannot_be_checked_is_a_line(unchanged: Path) -> None:
    program = ["--", "python", "train.py"]
    give = "give a command: harness regress --base main -- python train.py; or one SCENARIO"
    for words, line in (
        ([], f"{give}: harness init"),
        (["--base", "HEAD"], give),
        (["a.yaml", "b.yaml", "--base", "HEAD"], "or one SCENARIO"),
        (["--base", "HEAD", "--"], "give a command"),
        (program, "required: --base"),
        (["--base", "HEAD", "speed.yaml", *program], "speed.yaml: give a SCENARIO or a command"),
        (["--base", "HEAD", "--set", "steps=3", *program], "--set goes with a SCENARIO"),
        (["--base", "HEAD", "--arm", "loop", *program], "--arm does not go with commands"),
        (["--base", "HEAD", "--steps", "0", *program], "--steps 0: allowed: 1 to "),
        (["--base", "HEAD", "--steps", "3", "speed.yaml"], "--steps goes with a command"),
        (["--base", "no-such", *program], "; branches: trunk"),
    ):
        done = harness("regress", *words, cwd=unchanged / "code")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), words
        assert line in done.stderr
    assert not (unchanged / "code" / "results").exists()
