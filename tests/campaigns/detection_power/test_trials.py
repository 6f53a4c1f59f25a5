"""The trials themselves, on blocks whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.campaigns.detection_power.trials import BASE, LEVELS, TWIN, Block, arm_of, plain_gate, successive, trials


def blocks(count: int, spread: float, drift: float = 0.0) -> list[Block]:
    generator = np.random.default_rng(7)
    made = []
    for _ in range(count):
        logs = {arm_of(level): math.log1p(level / 100) + generator.normal(0, spread) for level in LEVELS}
        logs[TWIN] = generator.normal(0, spread)
        day = math.exp(generator.normal(0, drift))
        means = {name: 0.01 * day * math.exp(log) for name, log in {**logs, BASE: 0.0}.items()}
        made.append(Block(False, logs, logs, logs, logs, means, {arm_of(level): float(level) for level in LEVELS}))
    return made


def test_trials_share_no_block_and_find_what_is_there() -> None:
    found = trials(blocks(180, spread=0.004), most=9)
    assert len(found) == 20 * len(LEVELS)
    outcomes = {level: [one.outcome for one in found if one.level == level] for level in LEVELS}
    assert outcomes[0].count("slower") == 0
    assert outcomes[5].count("slower") == 20
    assert outcomes[3].count("slower") >= 18
    assert all(one.blocks in (4, 6, 9) for one in found)


def test_the_plain_gate_cries_wolf_when_the_machine_drifts() -> None:
    calm, drifting = (plain_gate(blocks(200, 0.002, drift)) for drift in (0.0, 0.05))
    assert calm[0].apart == 0
    assert drifting[0].apart > 0.2
    assert drifting[0].beside == 0
    assert next(row for row in drifting if row.level == 5).apart < 0.9


@pytest.mark.nightly
@pytest.mark.slow
def test_longer_trials_follow_one_another_until_the_blocks_end() -> None:
    made = blocks(180, spread=0.012)
    for level in LEVELS:
        ours = [one for one in successive(made, most=21) if one.level == level]
        assert sum(one.blocks for one in ours) <= 180
        assert all(one.outcome != "undecided" or one.blocks == 21 for one in ours)
    assert len([one for one in successive(made, most=21) if one.level == 10]) >= 30
    assert {one.blocks for one in successive(made[:20], most=21)} == set()
