"""Plans of two sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.regress.run import alone, between_arms, between_states
from harness.scenario.load import load_scenario
from harness.scenario.model import Scenario
from trainer.errors import InputError

TEXT = """
name: tiny
question: Which?
base: {data.batch_size: 2}
arms: {text: {data.path: text-padded}, tokens: {data.path: tokens-padded}}
controls: [a-a, data-only]
repeats: 3
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT)
    return load_scenario(path)


def test_two_states_of_each_arm_and_the_control_of_the_first(scenario: Scenario) -> None:
    asked = between_states(scenario, "tiny.yaml", [], None)
    names = ["text@base", "text@base+a-a", "text@head", "tokens@base", "tokens@base+a-a", "tokens@head"]
    assert [arm.name for arm in asked.plan.arms] == names
    assert [(pair.baseline, pair.candidate) for pair in asked.plan.comparisons] == [
        ("text@base", "text@head"), ("tokens@base", "tokens@head"),
    ]  # fmt: skip
    assert asked.names["tokens@base+a-a"] == "tokens"
    assert len({arm.config.model_dump_json() for arm in asked.plan.arms[:3]}) == 1


def test_sides_of_a_contest_stay_neighbours_in_ever_other_orders(scenario: Scenario) -> None:
    blocks = between_states(scenario, "tiny.yaml", [], None).plan.blocks
    for names in blocks:
        assert {name.split("@")[0] for name in names[:3]} in ({"text"}, {"tokens"})
    text = [tuple(name for name in names if name.startswith("text")) for names in blocks[:60]]
    assert {text.count(order) for order in text} == {10}  # each of the six orders
    assert len(set(text[:6])) == 6
    assert 150 < len(blocks) < 400  # hours of the shortest blocks


def test_an_arm_against_another_under_a_control(scenario: Scenario) -> None:
    asked = between_arms(scenario, "tiny.yaml", "text", "tokens", "data-only")
    assert [arm.name for arm in asked.plan.arms] == ["text+data-only", "text+data-only+a-a", "tokens+data-only"]
    assert [arm.control for arm in asked.plan.arms] == [None, "a-a", None]
    assert all(arm.config.compute.work == "none" for arm in asked.plan.arms)


def test_an_arm_alone_for_the_scenarios_own_blocks(scenario: Scenario) -> None:
    asked = alone(scenario, "tiny.yaml", "text")
    assert [arm.name for arm in asked.plan.arms] == ["text", "text+a-a"]
    assert [sorted(names) for names in asked.plan.blocks] == [["text", "text+a-a"]] * 3


def test_what_cannot_be_asked(scenario: Scenario) -> None:
    with pytest.raises(InputError, match=r"tiny.yaml: arms: no arm 'txt'; did you mean 'text'\?"):
        between_arms(scenario, "tiny.yaml", "txt", "tokens")
    with pytest.raises(InputError, match="control 'dose': allowed: data-only, ideal-data"):
        between_states(scenario, "tiny.yaml", [], "dose")
    with pytest.raises(InputError, match="no arm matches"):
        between_states(scenario, "tiny.yaml", ["nothing"], None)
