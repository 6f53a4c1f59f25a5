"""Scenarios of commands: their arms, and what is said of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.scenario.commands import CommandPlan, CommandScenario, open_scenario, plan_commands
from harness.scenario.load import load_scenario
from harness.scenario.model import Scenario
from harness.study.records import ComparisonRecord
from trainer.errors import InputError

HEAD = "name: n\nquestion: q\n"


def planned(folder: Path, text: str, *sets: str) -> CommandPlan:
    file = folder / "s.yaml"
    file.write_text(HEAD + text + "\n")
    scenario = open_scenario(file, sets)
    assert isinstance(scenario, CommandScenario)
    return plan_commands(scenario)


def test_words_of_the_command_are_replaced_and_a_null_goes(tmp_path: Path) -> None:
    text = """
command: python 'my train.py' --workers {workers} --run={name}-{workers} {compile}
base: {name: a b, compile: null}
arms: {inline: {workers: 0}, two: {workers: 2, compile: --compile}, old: {command: python old.py}}
"""
    programs = {arm.name: arm.program for arm in planned(tmp_path, text).arms}
    assert programs == {
        "inline": ("python", "my train.py", "--workers", "0", "--run=a b-0"),
        "two": ("python", "my train.py", "--workers", "2", "--run=a b-2", "--compile"),
        "old": ("python", "old.py"),
    }


def test_arms_matrix_controls_and_comparisons(tmp_path: Path) -> None:
    text = """
command: t {w} {b}
arms: {none: {w: 0}, two: {w: 2}}
matrix: {b: [4, 8]}
controls: [a-a, ideal-data]
repeats: 3
"""
    plan = planned(tmp_path, text, "repeats=2")
    assert plan.comparisons == (ComparisonRecord("none@b=4", "two@b=4"), ComparisonRecord("none@b=8", "two@b=8"))
    assert [arm.name for arm in plan.arms if arm.control == "a-a"] == ["none@b=4+a-a", "none@b=8+a-a"]
    assert [arm.name for arm in plan.arms if arm.control == "ideal-data"] == [
        "none@b=4+ideal-data", "two@b=4+ideal-data", "none@b=8+ideal-data", "two@b=8+ideal-data"
    ]  # fmt: skip
    assert len(plan.blocks) == 2
    assert all(sorted(order) == sorted(arm.name for arm in plan.arms) for order in plan.blocks)
    assert plan.arms[0].declared == {"command": {"w": 0, "b": 4}}


def test_a_function_is_called_with_the_values_that_are_not_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('it is only looked for')")
    text = """
loop: mine:train
base: {steps: 9, name: a b}
arms: {one: , other: {workers: 2, name: null, fast: true}, command: {command: "t {fast}", fast: false}}
"""
    arms = {arm.name: arm for arm in planned(tmp_path, text).arms}
    assert arms["one"].text == "mine:train(steps=9, name='a b')"
    assert arms["other"].program[-2:] == ("mine:train", '{"steps": 9, "workers": 2, "fast": true}')
    assert arms["other"].declared == {"command": {"fast": True, "name": None, "workers": 2}}
    assert arms["command"].program == ("t", "false")


@pytest.mark.parametrize("key", ["command", "loop"])
def test_what_takes_no_commands_says_who_does(tmp_path: Path, key: str) -> None:
    """doctor, data and harness.run() said that the key is unknown, and each value of the arms besides."""
    (tmp_path / "s.yaml").write_text(HEAD + f"{key}: t:x\narms: {{a: {{w: 1}}}}\n")
    with pytest.raises(InputError) as error:
        load_scenario(tmp_path / "s.yaml")
    line = f"s.yaml:3: {key}: its arms are your own programs, which this command does not support; use harness run"
    assert line in str(error.value)


def test_another_scenario_is_of_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(HEAD + "arms: {a: }\n")
    scenario = open_scenario(tmp_path / "s.yaml", ["data.batch_size=3"], repeats=7)
    assert isinstance(scenario, Scenario)
    assert (scenario.repeats, scenario.base["data"]) == (7, {"batch_size": 3})


@pytest.mark.parametrize(("text", "lines"), [
    ("command: t {w}\narms: {a: }", ["s.yaml:3: command: {w}: arm a has no such value; values: none"]),
    ("command: t\narms: {a: {w: 1}}", ["s.yaml:4: arms.a.w: add {w} to the command"]),
    ("command: t\nbase: {w: 1}\narms: {a: }", ["s.yaml:4: base.w: add {w} to the command"]),
    ("command: t 'x\narms: {a: }", ["s.yaml:3: command: no closing quotation"]),
    ("command: t {w}\narms: {a: {w: 1}}\nmatrix: {w: [2]}",
     ["s.yaml:4: arms.a.w: the matrix also sets w; remove it from one of them"]),
    ("command: t\nloop: tests:x\narms: {a: }", ["s.yaml:4: loop: give a command or a loop, not both"]),
    ("loop: t\narms: {a: }", ["s.yaml:3: loop: give MODULE:FUNCTION, such as mydata:make"]),
    ("loop: no_such.mod:f\narms: {a: }", ["s.yaml:3: loop: no_such.mod:f: no module no_such.mod in "]),
    ("command: t\narms: {a: {loop: x}}", ["s.yaml:4: arms.a.loop: give MODULE:FUNCTION"]),
    ("loop: null\narms: {a: }\ncommand: null", ["s.yaml:5: command: give a command"]),
    ("command: t\narms: {a: }\nsteps: 0", ["s.yaml:5: steps: must be greater than or equal to 1; got 0"]),
    ("command: t\narms: {a: }\ncompare: [{baseline: a, candidate: b}]", ["compare[0].candidate: no arm 'b'; arms: a"]),
    ("command: t\narms: {a: }\ncontrols: [doses]\nrepeat: 2",
     ["must be 'a-a', 'ideal-data', 'data-only' or 'dose'", "repeat: unknown key; did you mean 'repeats'?"]),
])  # fmt: skip
def test_a_mistake_is_a_line(tmp_path: Path, text: str, lines: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        planned(tmp_path, text)
    said = [str(caught.value), *caught.value.others]
    assert len(said) == len(lines), said
    assert all(wanted in line for wanted, line in zip(lines, said, strict=True)), said
