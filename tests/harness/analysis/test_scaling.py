"""Two arms whose loss is a known function of the tokens: what scaling says of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from harness.analysis.scaling import scaling
from harness.analysis.statistics import from_blocks
from harness.study.records import RunRecord
from harness.study.run_data import RunData
from harness.study.run_facts import RunFacts

SPEEDUP = from_blocks([0.5, 0.5, 0.5])


def run(arm: str, ranks: int | None, tokens: int, steps: int, wall_ms: float) -> RunData:
    """Its loss falls from 5 by one for each 1,000 tokens that all ranks trained on."""
    trained = np.cumsum(np.full(steps, tokens))
    table = pa.table(
        {
            "tokens": pa.array([tokens] * steps),
            "wall_ns": pa.array([round(wall_ms * 1e6)] * steps),
            "loss": pa.array(5 - trained / 1000),
        }
    )
    return RunData(RunRecord(arm, 0, "done", facts=RunFacts(ranks=ranks)), table, None, None)


def test_weak_scaling() -> None:
    """Twice the tokens in each step, each of which takes a quarter longer: the same loss in 62.5 % of the time."""
    found = scaling(("one", "weak"), ([run("one", None, 10, 200, 100.0)], [run("weak", 2, 20, 200, 125.0)]), SPEEDUP)
    assert found is not None
    assert found.ranks == (1, 2)
    assert found.weak
    assert found.efficiency == pytest.approx(np.exp(0.5) / 2)
    assert found.losses == pytest.approx((3.1, 3.1), abs=0.02)  # the mean over the last 200 of 2,000 tokens
    assert found.target == pytest.approx(3.1, abs=0.02)
    assert found.seconds == pytest.approx((20.0, 12.5), rel=0.02)


def test_strong_scaling_has_the_same_global_batch() -> None:
    found = scaling(("one", "strong"), ([run("one", None, 20, 100, 100.0)], [run("strong", 2, 20, 100, 60.0)]), SPEEDUP)
    assert found is not None
    assert not found.weak
    assert found.losses is not None
    assert found.losses[0] == found.losses[1]
    assert found.seconds == pytest.approx((10.0, 6.0))


def test_arms_of_as_many_ranks_do_not_scale() -> None:
    assert scaling(("one", "two"), ([run("one", None, 20, 10, 1)], [run("two", None, 20, 10, 1)]), SPEEDUP) is None
    assert scaling(("one", "two"), ([run("one", None, 20, 10, 1)], [run("two", 2, 20, 10, 1)]), None) is None
