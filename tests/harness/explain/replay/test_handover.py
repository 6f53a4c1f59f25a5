"""Which hand-overs a pause of the run crosses."""

from __future__ import annotations

import numpy as np
import pytest

from harness.explain.replay.batches import crosses


@pytest.mark.parametrize("pauses", [[], [(10, 20)], [(10, 20), (40, 50), (90, 95)]])
def test_a_pause_between_start_and_end_is_found(pauses: list[tuple[int, int]]) -> None:
    generator = np.random.default_rng(0)
    starts = generator.integers(0, 100, 500).astype(np.float64)
    ends = starts + generator.integers(0, 30, 500)
    expected = np.zeros(len(starts), dtype=np.bool_)
    for since, until in pauses:
        expected |= (starts < until) & (ends > since)
    assert (crosses(starts, ends, pauses) == expected).all()


def test_a_million_hand_overs_and_many_pauses_take_no_square_of_time() -> None:
    """Comparing each with each pause would need 80 GB at once, or hours."""
    starts = np.arange(1_000_000, dtype=np.float64)
    pauses = [(at, at + 1) for at in range(0, 1_000_000, 10)]
    assert crosses(starts, starts + 1, pauses).sum() == len(pauses)
