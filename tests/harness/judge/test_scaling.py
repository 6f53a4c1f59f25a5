"""Two arms whose loss is a known function of the tokens: what scaling says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from harness.explain.statistics import Estimate, from_blocks
from harness.judge.controls import Scaling, scaling
from harness.show.names import ArmNames
from harness.show.ranks import scaling_lines
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import RunData

SPEEDUP = from_blocks([0.5, 0.5, 0.5])


def run(
    arm: str,
    ranks: int | None,
    tokens: int,
    steps: int,
    wall_ms: float,
    losses: Sequence[float] | None = None,
    threads: int | None = None,
) -> RunData:
    """Its loss falls from 5 by one for each 1,000 tokens that all ranks trained on."""
    trained = np.cumsum(np.full(steps, tokens))
    table = pa.table(
        {
            "tokens": pa.array([tokens] * steps),
            "wall_ns": pa.array([round(wall_ms * 1e6)] * steps),
            "loss": pa.array(5 - trained / 1000 if losses is None else losses),
        }
    )
    facts = RunFacts(ranks=ranks, threads=threads, cores=2)
    return RunData(RunRecord(arm, 0, "done", facts=facts), table, None, None)


def said(one: RunData, other: RunData, speedup: Estimate | None = SPEEDUP) -> str:
    names = one.record.arm, other.record.arm
    found = scaling(names, ([one], [other]), speedup)
    comparison = SimpleNamespace(scaling=found)
    (line,) = scaling_lines([comparison], ArmNames([*names]))  # type: ignore[list-item]
    return line.text


def found(one: RunData, other: RunData) -> Scaling:
    result = scaling((one.record.arm, other.record.arm), ([one], [other]), SPEEDUP)
    assert result is not None
    return result


def test_weak_scaling_grows_the_global_batch_and_strong_scaling_keeps_it() -> None:
    """Twice the tokens in each step, each of which takes a quarter longer: the same loss in 62.5 % of the time."""
    weak = found(run("one", None, 10, 200, 100.0), run("weak", 2, 20, 200, 125.0))
    assert weak.ranks == (1, 2)
    assert weak.weak
    assert weak.efficiency == pytest.approx(np.exp(0.5) / 2)
    assert weak.losses == pytest.approx((3.1, 3.1), abs=0.02)  # the mean over the last 200 of 2,000 tokens
    assert weak.target == pytest.approx(3.1, abs=0.02)
    assert weak.seconds == pytest.approx((20.0, 12.5), rel=0.02)
    strong = found(run("one", None, 20, 100, 100.0), run("strong", 2, 20, 100, 60.0))
    assert not strong.weak
    assert strong.losses[0] == strong.losses[1]  # type: ignore[index]
    assert strong.seconds == pytest.approx((10.0, 6.0))
    # A batch that grows by a quarter with the ranks is not the same batch.
    assert found(run("four", 4, 40, 50, 1), run("five", 5, 50, 50, 1)).weak is True
    assert found(run("one", None, 10, 50, 1), run("two", 2, 40, 50, 1)).weak is None


def test_a_loss_that_is_nan_makes_no_batch_the_same() -> None:
    nan = [5.0] * 49 + [np.nan]
    text = said(run("one", None, 10, 50, 1), run("two", 2, 20, 50, 1, nan))
    assert "(weak: the global batch grows)" in text
    assert "loss" not in text


def test_losses_that_only_scatter_are_reached_by_chance() -> None:
    """Nothing is learned in either: which comes first to the higher end is luck."""
    generator = np.random.default_rng(1)
    flat = [list(3 + 0.3 * generator.standard_normal(100)) for _ in range(2)]
    text = said(run("one", None, 20, 100, 100.0, flat[0]), run("two", 2, 20, 100, 60.0, flat[1]))
    assert "Training loss after the same tokens: " in text
    assert " s of steps" not in text


def test_an_efficiency_is_beside_what_it_counts() -> None:
    one, two = run("one", None, 20, 100, 100.0, threads=2), run("two", 2, 20, 100, 60.0, threads=1)
    text = said(one, two, from_blocks([0.0, 0.1, -0.1, 0.05]))
    assert "efficiency 51 % (" in text
    assert "The efficiency counts ranks: they compute in 2 threads, one in 2." in text
    shared = said(one, run("two", 2, 20, 100, 60.0, threads=2), from_blocks([1.0, 1.01, 1.02]))
    assert "That is more than the ranks can give: the arms differ in something else." in shared
    assert "The ranks compute in 4 threads on 2 cores." in shared


def test_an_efficiency_of_arms_that_differ_in_more_than_ranks_says_so() -> None:
    """Pretokenized, two ranks were 98 % as efficient as one that tokenizes; with the same data path it was 77 %."""
    own = {"data": {"path": "text-padded", "batch_size": 4}, "evaluation": {"batches": 8}, "launch": None}
    ranks = {"torchrun": {"nproc": 2}, "parallel": "ddp"}
    alone = run("one", None, 20, 100, 100.0)
    alone = RunData(replace(alone.record, config=own), alone.steps, None, None)

    def two(path: str, speedup: float = 0.0) -> str:
        config = {"data": {"path": path, "batch_size": 2}, "evaluation": {"batches": 16}, "launch": ranks}
        found = run("two", 2, 20, 100, 60.0)
        other = RunData(replace(found.record, config=config), found.steps, None, None)
        return said(alone, other, from_blocks([speedup, speedup + 0.01, speedup - 0.01]))

    assert "differ" not in two("text-padded")
    assert "The arms differ in data.path as well: this is not the efficiency of the ranks alone." in two(
        "tokens-padded"
    )
    text = two("tokens-padded", 1.0)
    assert "ranks alone, which is more than the ranks can give." in text
    assert "something else" not in text


def test_fewer_ranks_than_the_baseline_are_no_efficiency_above_one() -> None:
    """Two ranks train 1.6 times as fast as one: the same said of either as the baseline."""
    one, two = run("one", None, 10, 200, 100.0), run("two", 2, 20, 200, 125.0)
    grown = said(one, two, from_blocks([0.47, 0.46, 0.48]))
    shrunk = said(two, one, from_blocks([-0.47, -0.46, -0.48]))
    assert "Scaling of two (weak: the global batch grows): 1.600x the tokens/s" in grown
    assert grown == shrunk


def test_arms_of_as_many_ranks_do_not_scale() -> None:
    assert scaling(("one", "two"), ([run("one", None, 20, 10, 1)], [run("two", None, 20, 10, 1)]), SPEEDUP) is None
    assert scaling(("one", "two"), ([run("one", None, 20, 10, 1)], [run("two", 2, 20, 10, 1)]), None) is None
