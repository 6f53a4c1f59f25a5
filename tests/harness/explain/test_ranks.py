"""What ranks of one program gain together: only what the record shows that they wait for one another."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from harness.explain.ranks import RankSteps, group_gain, rank_steps
from harness.study.contract import SPAN_COLUMNS, arrow_schema
from harness.study.run_data import RunData
from tests.harness.synthetic import MS, NOISE, Arm, build

FACTS = {"attached": "fetch: DataLoader without workers; backward", "ranks": 2}
COMPUTE = {"forward": 9.0, "backward": 17.0}


def run(arm: Arm) -> RunData:
    (found,) = build([arm], blocks=1, noise=dict.fromkeys(NOISE, 0.0))[1]
    return found


def steps(arm: Arm) -> RankSteps:
    return rank_steps(run(arm))


def with_spans(one: RunData, changed: list[dict[str, Any]]) -> RunData:
    columns = {name: [span[name] for span in changed] for name, _ in SPAN_COLUMNS}
    return RunData(one.record, one.steps, pa.table(columns, schema=arrow_schema(SPAN_COLUMNS)), one.samples)


def spans(one: RunData) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = one.spans.to_pylist()
    return found


def test_a_rank_waits_where_it_has_no_core_outside_of_its_fetches() -> None:
    found = steps(Arm("rank", tokenize=4.0, compute=COMPUTE, off_core={"fetch": 4.0, "backward": 2.5}, facts=FACTS))
    assert found.off_core.tolist() == [pytest.approx(2.5 * MS, abs=100)] * len(found.step)


def test_a_phase_within_another_one_counts_once_and_a_fetch_within_one_not_at_all() -> None:
    one = run(Arm("rank", compute=COMPUTE, off_core={"backward": 2.5}, facts=FACTS))
    inner = [
        {
            **span,
            "name": name,
            "start_ns": span["start_ns"] + since,
            "end_ns": span["start_ns"] + since + MS,
            "cpu_ns": 0,
        }
        for span in spans(one)
        if span["name"] == "backward"
        for name, since in (("log", 0), ("fetch", 2 * MS))
    ]
    found = rank_steps(with_spans(one, [*spans(one), *inner]))
    assert found.off_core.tolist() == [pytest.approx(1.5 * MS, abs=100)] * len(found.step)  # the fetch is 1 ms of it


def test_where_nobody_measured_cores_nothing_is_known_of_waits() -> None:
    one = run(Arm("rank", compute=COMPUTE, facts=FACTS))
    assert rank_steps(one) is not None
    assert rank_steps(with_spans(one, [{**span, "cpu_ns": None} for span in spans(one)])) is None


@pytest.mark.parametrize(("third_waits", "gain"), [(6.0, 36.0 / 30.0), (0.0, 1.0)])
def test_all_are_faster_only_if_every_rank_can_do_without(third_waits: float, gain: float) -> None:
    """Rank 0 fetches for 6 ms more than the others, of which one waits so long; the third one waits, or computes."""
    longer = {**COMPUTE, "backward": 17.0 + 6.0}
    data = {"read": 0.0, "pack": 0.0}
    ranks = {
        "rank-0": Arm("rank-0", tokenize=10.0, compute=COMPUTE, facts=FACTS, **data),
        "rank-1": Arm("rank-1", tokenize=4.0, compute=longer, off_core={"backward": 6.0}, facts=FACTS, **data),
        "rank-2": Arm("rank-2", tokenize=4.0, compute=longer, off_core={"backward": third_waits}, facts=FACTS, **data),
    }
    found = group_gain({name: {0: steps(arm)} for name, arm in ranks.items()})
    assert found.slowest == "rank-0"
    assert found.slowest_alike.median == pytest.approx(gain, rel=0.001)
    assert found.without_data.median == pytest.approx(36.0 / (36.0 - (10.0 if third_waits else 4.0)), rel=0.001)


def test_what_a_rank_does_without_a_core_outside_of_its_backward_pass_may_be_its_own() -> None:
    """Rank 1 uploads something in its optimizer while rank 0 fetches: who waits for whom there is not known."""
    compute = {**COMPUTE, "optimizer": 1.0}
    uploads = {**compute, "optimizer": 7.0}
    data = {"read": 0.0, "pack": 0.0}
    ranks = {
        "rank-0": Arm("rank-0", tokenize=10.0, compute=compute, facts=FACTS, **data),
        "rank-1": Arm("rank-1", tokenize=4.0, compute=uploads, off_core={"optimizer": 6.0}, facts=FACTS, **data),
    }
    found = group_gain({name: {0: steps(arm)} for name, arm in ranks.items()})
    assert found.slowest_alike.median == pytest.approx(1.0, abs=0.001)
    assert found.slowest_alike.ci_high == pytest.approx(37.0 / 31.0, rel=0.005)
