"""Steps of two kinds are told from steps that only scatter, are skewed, or have a rare slow tail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.explain.unusual_steps import step_kinds

Float = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Float]
MOST_FALSE = 0.01
STUDIES = 150  # of each distribution and number of blocks
ONE_KIND: dict[str, Draw] = {
    "normal": lambda g, n: np.maximum(g.normal(30, 3, n), 1),
    "wide normal": lambda g, n: np.maximum(g.normal(30, 9, n), 3),
    "lognormal": lambda g, n: g.lognormal(3.4, 0.3, n),
    "wide lognormal": lambda g, n: g.lognormal(3.4, 1.0, n),
    "gamma": lambda g, n: g.gamma(2, 15, n),
    "skewed gamma": lambda g, n: g.gamma(0.5, 60, n),
    "wait now and then": lambda g, n: 20 + g.exponential(20, n),
    "uniform": lambda g, n: g.uniform(10, 60, n),
    "rare slow tail": lambda g, n: np.where(g.random(n) < 0.05, 120, 30) * g.lognormal(0, 0.03, n),
    "heavy tail": lambda g, n: 20 * (1 + g.pareto(1.2, n)),
}


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)
# blocks, steps of one, and how blocks scatter, of which few may look like two kinds by chance
DRAWN = [
    (1, 80, 0.0), (5, 16, 0.2),
    *(pytest.param(*one, marks=AT_NIGHT) for one in ((4, 20, 0.0), (5, 60, 0.0), (1, 80, 0.2), (5, 60, 0.2))),
]  # fmt: skip


@pytest.mark.parametrize(("blocks", "steps", "day"), DRAWN)
def test_steps_of_one_kind_are_hardly_ever_called_two(blocks: int, steps: int, day: float) -> None:
    g = np.random.default_rng([blocks, steps, round(10 * day)])
    found = [
        name
        for name, draw in ONE_KIND.items()
        for _ in range(STUDIES)
        if step_kinds([draw(g, steps) * np.exp(g.normal(0, day)) for _ in range(blocks)]) is not None
    ]
    assert len(found) <= MOST_FALSE * STUDIES * len(ONE_KIND), found


def two(g: np.random.Generator, slow: NDArray[np.bool_], scatter: float, slow_ms: float) -> Float:
    return np.where(slow, slow_ms, 20.0) * g.lognormal(0, scatter, len(slow))


@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize(
    ("every", "slow_ms", "scatter"), [(2, 60.0, 0.1), (2, 30.0, 0.04), (5, 60.0, 0.1), (2, 600.0, 0.2)]
)
def test_two_kinds_within_blocks_are_found(blocks: int, every: int, slow_ms: float, scatter: float) -> None:
    for seed in range(5):
        g = np.random.default_rng(seed)
        kinds = step_kinds([two(g, np.arange(80) % every == 0, scatter, slow_ms) for _ in range(blocks)])
        assert (kinds.of, kinds.runs, kinds.slow_runs) == (80 * blocks, blocks, None)
        assert kinds.slow_share == pytest.approx(1 / every, abs=0.03)
        assert kinds.fast_ms == pytest.approx(20.0, rel=0.1)
        assert kinds.slow_ms == pytest.approx(slow_ms, rel=0.1)


@pytest.mark.parametrize("slow_blocks", [{1, 3}, {0, 2, 4}])
def test_two_kinds_of_blocks_are_found(slow_blocks: set[int]) -> None:
    g = np.random.default_rng(1)
    kinds = step_kinds([two(g, np.full(20, block in slow_blocks), 0.05, 60.0) for block in range(5)])
    assert (kinds.runs, kinds.slow_runs) == (5, len(slow_blocks))
    assert kinds.slow_share == pytest.approx(len(slow_blocks) / 5)
    assert kinds.like_mean < 0.05


def test_rare_long_steps_are_a_part_of_their_own() -> None:
    """Five of twelve steps take 13 ms, six 85 and one 512: the mean of the latter seven is 146, and no step's time."""
    cycle = [512.0, 85.0] + 5 * [13.0, 85.0]
    kinds = step_kinds([np.array(10 * cycle)])
    assert kinds.fast_ms == pytest.approx(13.0)
    assert (kinds.slow_share, kinds.slow_ms) == (pytest.approx(6 / 12), pytest.approx(85.0))
    assert (kinds.longest_share, kinds.longest_ms) == (pytest.approx(1 / 12), pytest.approx(512.0))
    assert kinds.above_share == pytest.approx(7 / 12)


def test_of_many_steps_some_say_as_much() -> None:
    """Every second of 120,000 steps is slow: every second of them would all be fast, or all slow."""
    g = np.random.default_rng(1)
    kinds = step_kinds([two(g, np.arange(60_000) % 2 == 0, 0.1, 60.0) for _ in range(2)])
    assert kinds.of == 120_000
    assert kinds.slow_share == pytest.approx(0.5, abs=0.01)
    assert (kinds.fast_ms, kinds.slow_ms) == (pytest.approx(20.0, rel=0.01), pytest.approx(60.0, rel=0.01))


def test_one_block_that_is_slow_is_no_kind() -> None:
    """Another day, another machine: one witness."""
    g = np.random.default_rng(1)
    assert step_kinds([two(g, np.full(20, block == 1), 0.05, 60.0) for block in range(5)]) is None


def test_few_steps_are_of_no_kind() -> None:
    assert step_kinds([]) is None
    assert step_kinds([np.array([20.0, 60.0] * 20)]) is None
    assert step_kinds([np.full(100, 20.0)]) is None
