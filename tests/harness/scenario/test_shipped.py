"""What is shipped is found by its name, wherever the command is started; a file of the user's comes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.scenario.load import PUBLISHED, SCENARIOS, SWEEPS, load_scenario, shipped
from harness.scenario.plan import make_plan
from tests.commands import harness
from trainer.errors import InputError


def test_every_shipped_file_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = shipped(SCENARIOS)
    assert {"quickstart", "pretokenization", "guard"} <= set(names)
    for name, path in names.items():
        assert load_scenario(name) == load_scenario(path)
    listed = harness("list")
    assert listed.returncode == 0
    for name in (*names, *shipped(SWEEPS), *shipped(PUBLISHED)):
        assert f"\n  {name} " in listed.stdout
    audit = harness("audit", "founding-gh200")
    assert audit.stdout == harness("audit", str(PUBLISHED / "founding-gh200.yaml")).stdout


def test_a_file_of_the_users_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text("name: mine\nquestion: mine?\narms: {one: {}}\n")
    assert load_scenario("quickstart").name == "mine"


def test_a_name_is_first_that_of_a_file_in_this_folder(tmp_path: Path) -> None:
    """Its suffix may be left out; a folder of that name is in no way of it."""
    text = "name: mine\nquestion: mine?\narms: {one: {}}\n"
    for name in ("mine", "quickstart"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.yaml").write_text(text)
        done = harness("run", name, "--plan", "--json", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, f"{name}: the file {name}.yaml of this folder\n")
        assert list(json.loads(done.stdout)["arms"]) == ["one"]
    (tmp_path / "quickstart.yaml").unlink()
    shipped_one = harness("run", "quickstart", "--plan", "--json", cwd=tmp_path)
    assert (shipped_one.returncode, shipped_one.stderr) == (0, "")
    assert list(json.loads(shipped_one.stdout)["arms"]) != ["one"]
    (tmp_path / "mine.yaml").unlink()
    assert harness("run", "mine", "--plan", cwd=tmp_path).stderr.startswith("harness: mine: is a directory")


def test_a_name_that_is_neither_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"^quickstrt: no such file; did you mean 'quickstart'\? shipped: at-the-slack, "
    ):
        load_scenario("quickstrt")


@pytest.mark.parametrize(("name", "rows"), [
    ("precision", 128),
    ("precision-gpu", 128),
    ("batch-size", 128),
    ("hyperparameters", 128),
    ("masked-lm", 128),
    ("scaling", 32),
    ("scaling-slurm", 32),
])  # fmt: skip
def test_a_comparison_of_what_is_learned_evaluates_every_arm_on_as_many_rows(name: str, rows: int) -> None:
    """Else the arms' validation losses are of other labels, and the report says that they do not compare."""
    for arm in make_plan(load_scenario(name), name).arms:
        assert arm.config.evaluation is not None, arm.name
        assert arm.config.evaluation.batches * arm.config.data.batch_size == rows, arm.name
