"""The table of arms: what its figures count is said where a reader could take them for something else."""

from __future__ import annotations

from typing import get_args

from harness.judge.study import analyse
from harness.show import numbers
from harness.show.names import ArmNames
from tests.harness.synthetic import Arm, build
from trainer.devices.estimates import Convention


def page(*trained: int) -> str:
    """Of arms that train on so many of 1,000 positions in each step."""
    facts = {"flops_per_token": 1e6, "peak_flops_per_s": 1e12}
    shown = [Arm(f"arm-{one}", tokens=1000, trained=one, facts=facts) for one in trained]
    record, runs = build(shown, blocks=3)
    return numbers.arms(analyse(record, runs).arms, ArmNames([arm.name for arm in shown]))


def test_model_flops_of_padding_are_said_to_be_counted() -> None:
    """An arm that trains on a quarter of its positions has the MFU of one that trains on all."""
    assert "They are those of all positions, padding included, of which 25 % to 98 % are trained on." in page(250, 980)
    assert "padding included, of which 25 % are trained on." in page(250)
    assert "padding" not in page(980)


def test_the_page_states_the_formula_of_every_count_of_flops() -> None:
    assert set(numbers.CONVENTIONS) == set(get_args(Convention))
