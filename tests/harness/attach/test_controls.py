"""The agent's controls: what a program is given again is as it was, whatever the program did to it."""

from __future__ import annotations

import sys
from collections import namedtuple
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from tests.harness.attach.running import agent_module


@pytest.fixture
def controls(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    batches = SimpleNamespace(state=SimpleNamespace(unknown=0))
    agent = SimpleNamespace(batches=batches, boundaries=None, gate=None, record=None)
    monkeypatch.setitem(sys.modules, "_harness_agent", agent)
    return agent_module("controls")


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    more: list[Any]


class Plain:
    def __init__(self, x: torch.Tensor) -> None:
        self.x: torch.Tensor | None = x


Pair = namedtuple("Pair", "x y")


def test_what_a_program_does_to_its_batch_is_not_done_to_the_next_one(controls: ModuleType) -> None:
    x = torch.ones(2)
    kept: Any = ({"x": x, "list": [x]}, Frozen(x, [x]), Plain(x), Pair(x, [x]))
    given = controls._again(kept)
    mapping, frozen, plain, pair = given
    del mapping["x"]
    mapping["list"].clear()
    frozen.more.clear()
    plain.x = None
    pair.y.clear()
    again = controls._again(kept)
    assert again[0]["x"] is x
    assert again[0]["list"] == [x]
    assert (again[1].x, again[1].more, again[2].x) == (x, [x], x)
    assert type(again[3]) is Pair
    assert again[3].y == [x]


@pytest.mark.parametrize(("control", "times"), [(None, 0), ("ideal-data", 0), ("dose-data-1", 1), ("dose-data-4", 4)])
def test_how_often_more_a_batch_is_made(controls: ModuleType, control: str | None, times: int) -> None:
    controls.record = SimpleNamespace(settings={"control": control})
    assert controls.times_more() == times


@pytest.mark.parametrize("control", ["ideal-data", "data-only", "dose-data-2"])
def test_a_batch_that_may_be_an_evaluations_is_served_as_it_is(controls: ModuleType, control: str) -> None:
    controls.record = SimpleNamespace(settings={"control": control})
    controls.batches.state.unknown = 1
    assert controls.times_more() == 0
    for number in range(2 * controls.KEPT):
        assert not controls.thrown_away(1, [number])
    controls.batches.state.unknown = 0
    assert controls.kept(1) is None
