"""Every class of a dose must come out of a loop whose truth is known: simulated on paper, with noise and workers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.exposure import Curve, Dose, dose, parse_control
from harness.explain.ledger import RunLedger, measure
from harness.scenario.model import Scenario
from harness.scenario.plan import make_plan
from harness.show.dose import dose_line, dose_reason
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS, arrow_schema
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import RunData
from tests.examples import examples
from tests.harness.explain.by_hand import span

MS = 1_000_000
DOSES = (1, 2, 4)


@dataclass(frozen=True)
class Pipeline:
    """A training loop on paper: costs per batch in milliseconds, before noise."""

    tokenize: float = 2.0
    read: float = 0.2
    pack: float = 0.3
    compute: float = 20.0
    workers: int = 0
    prefetch: int = 2
    takes_cores: float = 0.0  # ms by which 1 ms of a worker's work lengthens the compute
    noise: float = 0.01  # standard deviation of the log of each duration
    long_documents: float = 0.0  # share of batches of which tokenizing takes 5 times as long
    steps: int = 34  # 24 of them measured: a whole number of rounds of 1 to 4 workers

    def run(self, arm: str, block: int, seed: int) -> RunLedger:
        """One run, as the launcher's tables would tell it."""
        generator = np.random.default_rng([seed, block])
        day = generator.normal(0, 0.1)  # shared by all arms of a block: pairing must cancel it
        luck = np.random.default_rng([seed, block, *arm.encode()])
        scale = np.exp(day + luck.normal(0, self.noise / 4) + luck.normal(0, self.noise, (self.steps, 4)))
        long = 1 + 4 * (generator.random(self.steps) < self.long_documents)  # the same documents for every dose
        busy = self.read + self.tokenize + self.pack
        compute = (self.compute + self.takes_cores * busy * (self.workers > 0)) * scale[:, 3] * MS
        costs = np.array([self.read, self.tokenize, self.pack]) * scale[:, :3] * MS
        costs[:, 1] *= long
        rows: dict[str, list[Any]] = {name: [] for name, _ in STEP_COLUMNS}
        now, received, free = 0, [], [0] * max(1, self.workers)
        spans: list[dict[str, Any]] = []
        for batch in range(self.steps):
            ahead = batch - self.workers * self.prefetch
            clock = now if not self.workers else max(free[batch % self.workers], received[ahead] if ahead >= 0 else 0)
            role = "loader-0" if self.workers else "main"
            for stage, cost in zip(("read", "tokenize", "pack"), costs[batch], strict=True):
                spans.append(span(role, stage, clock, clock + round(cost), batch))
                clock += round(cost)
            free[batch % len(free)] = clock
            start, now = now, max(now, clock)
            received.append(now)
            spans.append(span("main", "fetch", start, now, batch))
            values = {"step": batch, "turn": 0, "warmup": batch < 10, "start_ns": start, "fetch_ns": now - start}
            spans.append(span("main", "forward", now, now + round(compute[batch])))
            now += round(compute[batch])
            values |= {"wall_ns": now - start, "forward_ns": round(compute[batch])}
            for name, value in values.items():
                rows[name].append(value)
        table = {name: values or [None] * self.steps for name, values in rows.items()}
        config = {"data": {"workers": self.workers, "prefetch": self.prefetch}}
        recorded = pa.Table.from_pylist(spans, schema=arrow_schema(SPAN_COLUMNS))
        return ledger(arm, block, pa.table(table, schema=arrow_schema(STEP_COLUMNS)), recorded, config)

    def blocks(self, arm: str, blocks: int, seed: int) -> dict[int, RunLedger]:
        return {block: self.run(arm, block, seed) for block in range(blocks)}

    def dosed(self, what: str = "tokenize", blocks: int = 5, seed: int = 1) -> Dose:
        """The whole experiment: the arm and its three dose controls."""
        arms = {k: replace(self, **{what: getattr(self, what) * (1 + k)}) for k in DOSES}
        runs = {k: arm.blocks(f"dose-{k}", blocks, seed) for k, arm in arms.items()}
        return dose(self.blocks("text", blocks, seed), runs, what, self.workers)


def ledger(
    arm: str, block: int, steps: pa.Table, spans: pa.Table | None = None, config: dict[str, Any] | None = None
) -> RunLedger:
    record = RunRecord(arm, block, "done", of=None if arm == "text" else "text", config=config or {})
    found = measure(RunData(record, steps, spans, None))
    assert found is not None
    return found


def made(arm: str, block: int, **columns: float) -> RunLedger:
    """A run of four equal steps with these columns, in milliseconds."""
    values = {name: [None] * 4 for name, _ in STEP_COLUMNS} | {"warmup": [False] * 4, "turn": [0] * 4}
    values |= {f"{name}_ns": [round(value * MS)] * 4 for name, value in columns.items()}
    return ledger(arm, block, pa.table(values, schema=arrow_schema(STEP_COLUMNS)))


def curve(columns: Callable[[int, int], dict[str, float]], blocks: int = 4) -> dict[int, dict[int, RunLedger]]:
    """{k: {block: run}} with the columns that ``columns(k, block)`` says."""
    return {k: {b: made("text" if k == 0 else "dose", b, **columns(k, b)) for b in range(blocks)} for k in (0, *DOSES)}


def judged(runs: dict[int, dict[int, RunLedger]], what: str = "tokenize", workers: int = 1) -> Dose:
    return dose(runs[0], {k: blocks for k, blocks in runs.items() if k}, what, workers)


class TestKnownTruth:
    def test_inline_on_a_synchronous_device_is_exposed(self) -> None:
        found = Pipeline().dosed()
        assert found.kind == "exposed"
        assert found.slope is not None
        assert found.slope.median == pytest.approx(1, abs=0.1)
        assert "tokenize of text is exposed: 1 ms more of it costs" in dose_line(found)
        assert "today" not in dose_line(found)

    def test_work_of_several_workers_says_that_it_was_divided(self) -> None:
        """1 ms more for each batch costs the step a quarter of that: four workers do it side by side."""
        found = Pipeline(workers=4, tokenize=160.0).dosed()
        assert found.kind == "exposed"
        assert "tokenize of text (the work of 4 workers, divided by 4) is exposed: 1 ms more of it" in dose_line(found)
        assert "tokenize of text is hidden" in dose_line(Pipeline(workers=1).dosed())

    def test_a_worker_that_keeps_up_hides_it(self) -> None:
        found = Pipeline(workers=1).dosed()
        assert found.kind == "hidden"
        assert found.slope is not None
        assert found.slope.median == pytest.approx(0, abs=0.1)
        assert dose_line(found).startswith("tokenize of text is hidden: 1 ms more of it costs")

    @pytest.mark.parametrize("workers", [1, 2, 4])
    def test_workers_that_cannot_keep_up_expose_it_whatever_their_number(self, workers: int) -> None:
        found = Pipeline(workers=workers, tokenize=50.0 * workers).dosed()
        assert found.kind == "exposed"
        assert found.slope is not None
        assert found.slope.median == pytest.approx(1, abs=0.05)
        # 50 ms of work every 20 ms of compute: a part of it is hidden, and any more is not
        assert "though today" in dose_line(found)

    @pytest.mark.parametrize(("workers", "takes_cores"), [(2, 0.5), (1, 0.9), (1, 1.0), (2, 1.2)])
    def test_it_is_contended_whatever_its_slope(self, workers: int, takes_cores: float) -> None:
        """A step that gets as much longer as there is more work, and waits for none of it, has lost its cores."""
        found = Pipeline(workers=workers, tokenize=10, compute=40, takes_cores=takes_cores).dosed()
        assert found.kind == "contended", dose_line(found)

    @pytest.mark.parametrize("workers", [1, 3])
    def test_hidden_work_that_takes_cores_is_contended(self, workers: int) -> None:
        found = Pipeline(workers=workers, tokenize=3.0, takes_cores=0.5 / workers).dosed()
        assert found.kind == "contended"
        assert found.slope is not None
        assert found.waited_slope is not None
        assert found.slope.median == pytest.approx(0.5, abs=0.1)
        assert found.waited_slope.median == pytest.approx(0, abs=0.02)
        assert "hidden, it takes cores from the step" in dose_line(found)

    def test_half_of_every_batch_waited_for_is_partly_exposed(self) -> None:
        def half(k: int, block: int) -> dict[str, float]:
            work = 2.0 * (1 + k)
            return {"wall": 20 + work / 2 + 0.01 * block * k, "exposed_tokenize": work / 2, "hidden_tokenize": work / 2}

        found = judged(curve(half))
        assert found.kind == "partial"
        assert dose_line(found).startswith("tokenize of text is partly exposed: 1 ms more of it costs 0.5")
        assert "0.50 ms by waiting" in dose_line(found)

    @pytest.mark.parametrize("workers", [1, 2])
    @pytest.mark.parametrize(("own", "slack"), [(8.0, 11.5), (5.0, 14.5)])
    def test_slack_that_the_doses_use_up_is_a_kink(self, workers: int, own: float, slack: float) -> None:
        """The loader has 20 ms per batch and worker; read and pack take 0.5 of them, so slack = 20 - 0.5 - own."""
        found = Pipeline(workers=workers, tokenize=own * workers, read=0.2 * workers, pack=0.3 * workers).dosed()
        assert found.kind == "kink"
        assert found.slack_ms is not None
        assert found.slack_ms.median == pytest.approx(slack, abs=1.0)
        assert "slack that is used up at about 1" in dose_line(found)

    def test_data_time_exactly_at_the_slack(self) -> None:
        """Nothing of it is waited for, and any more would be: the adversary of who looks at one of both only."""
        found = Pipeline(workers=1, tokenize=19.5, prefetch=4).dosed()
        assert found.kind == "kink"
        assert found.slack_ms is not None
        assert found.slack_ms.median == pytest.approx(0, abs=1.0)
        assert re.match(r"tokenize of text just fits into the slack \(it takes (19|20|21)", dose_line(found))

    def test_long_documents_that_a_short_queue_cannot_hide(self) -> None:
        """In steps with a long document the worker is late, in the others it is not: in sum the curve bends."""
        found = Pipeline(workers=1, tokenize=4.0, prefetch=1, long_documents=0.2).dosed()
        assert found.kind in ("kink", "partial")
        assert found.slope is not None
        assert 0.1 < found.slope.median < 0.9

    def test_one_millisecond_in_a_noisy_step_of_300_is_undecided(self) -> None:
        found = Pipeline(tokenize=0.05, compute=300.0, noise=0.05).dosed()
        assert found.kind == "undecided"
        assert found.blocks_needed is None
        assert "even 1000 blocks would not decide" in dose_line(found)

    @pytest.mark.slow
    @pytest.mark.nightly
    def test_so_many_more_blocks_do_decide(self) -> None:
        loop = Pipeline(tokenize=0.6, noise=0.03)
        few = loop.dosed(blocks=4, seed=3)
        assert few.kind == "undecided"
        assert few.blocks_needed is not None
        assert f"about {few.blocks_needed - 4} more blocks would decide" in dose_line(few)
        assert loop.dosed(blocks=2 * few.blocks_needed, seed=3).kind == "exposed"

    def test_two_blocks_have_no_interval(self) -> None:
        found = Pipeline().dosed(blocks=2)
        assert (found.kind, found.blocks_needed) == ("undecided", None)
        assert found.slope is not None
        assert found.slope.ci_low is None
        assert dose_line(found).endswith("fewer than 3 blocks give no interval")

    @pytest.mark.slow
    @examples(40)
    @given(
        workers=st.integers(0, 4),
        tokenize=st.floats(1.0, 40.0),
        compute=st.floats(5.0, 60.0),
        prefetch=st.integers(2, 4),
        seed=st.integers(0, 1000),
    )
    def test_any_loop_gets_the_class_that_its_arithmetic_says(
        self, workers: int, tokenize: float, compute: float, prefetch: int, seed: int
    ) -> None:
        """Step = compute + work inline, max(compute, work / workers) otherwise; the margins keep off the borders."""
        loop = Pipeline(tokenize, 0.0, 0.0, compute, workers, prefetch, noise=0.005, steps=70)
        found = loop.dosed(seed=seed)
        if workers == 0:
            assert found.kind == "exposed"
            return
        own = tokenize / workers
        if own > 1.1 * compute:
            assert found.kind == "exposed" if own - compute > 0.25 * own else found.kind in ("exposed", "kink")
        elif 5 * own < 0.9 * compute:
            assert found.kind == "hidden" or (found.kind == "undecided" and 4 * own < 0.05 * compute)
        elif own < 0.9 * compute < 1.1 * compute < 3 * own:  # k = 2 is beyond the slack: the last slope is 1
            assert found.kind == "kink"
            assert found.slack_ms is not None
            # an hour with a slow machine stretches it too; the day's factor has a standard deviation of 10 %
            assert found.slack_ms.median == pytest.approx(compute - own, rel=0.3, abs=0.1 * compute)


class TestDevice:
    def test_busy_time_counts_where_a_device_tells(self) -> None:
        """Half of the added device time overlaps with waiting for data."""

        def columns(k: int, block: int) -> dict[str, float]:
            return {"wall": 40 + 5 * k + 0.01 * block * k, "device_busy": 30 + 10 * k, "forward": 0.2}

        found = judged(curve(columns), "device", workers=4)
        assert found.kind == "partial"
        assert found.slope is not None
        assert found.slope.median == pytest.approx(0.5, abs=0.01)
        assert [point.work_ms for point in found.points] == [30, 40, 50, 70]
        assert "device time of text is partly exposed" in dose_line(found)

    def test_without_a_device_the_forward_phase_counts(self) -> None:
        loop = Pipeline(compute=10.0)
        found = loop.dosed("compute")  # the simulated step spends all its compute in the forward phase
        wrong = dose(loop.blocks("text", 5, 1), {1: loop.blocks("dose-1", 5, 1)}, "device", 0)
        assert wrong.slope is None
        assert "added no work" in dose_line(wrong)
        assert dose_reason(found) == "its work was not measured"  # compute is no stage
        runs = {k: replace(loop, compute=10.0 * (1 + k)).blocks("text", 5, 1) for k in (0, *DOSES)}
        found = judged(runs, "device", workers=0)
        assert (found.kind, found.waited_slope) == ("exposed", None)

    def test_launching_is_no_device_time(self) -> None:
        runs = curve(lambda k, _: {"wall": 40.0 + k, "forward": 1.0 + k})
        first = runs[0][0]
        runs[0][0] = replace(first, record=replace(first.record, facts=RunFacts(asynchronous=True)))
        assert dose_reason(judged(runs, "device")) == "its work was not measured"

    def test_a_loop_that_waits_for_data_hides_slower_kernels(self) -> None:
        found = judged(curve(lambda k, block: {"wall": 50.0 + 0.1 * block, "device_busy": 10.0 + 4 * k}), "device")
        assert found.kind == "hidden"


class TestNothingToFit:
    FULL = staticmethod(
        lambda k, _: {"wall": 20.0 + k, "exposed_tokenize": 1.0 + k, "hidden_tokenize": 0.0, "forward": 5.0}
    )

    def test_reasons(self) -> None:
        runs = curve(self.FULL)
        without = {0: runs[0], 1: {}, 2: {}, 4: {}}
        assert dose_reason(judged(without)) == "no finished run with a dose"
        assert dose_reason(judged({**runs, 0: {}})) == "no finished run of the arm itself"
        assert (
            dose_reason(judged({0: {0: runs[0][0]}, 1: {1: runs[1][1]}}))
            == "no block in which k = 0 and 1 all finished"
        )
        assert dose_reason(judged(runs, "read")) == "its work was not measured"
        assert dose_reason(judged(dict.fromkeys(runs, runs[0]))) == (
            "the doses added no work (1.00 ms per step without, 1.00 ms with the largest)"
        )

    def test_it_says_whose_dose_it_is(self) -> None:
        runs = curve(self.FULL)
        found = judged({**runs, 0: {}})
        assert (found.arm, found.kind, found.slope, found.points) == ("text", "undecided", None, ())
        assert (
            dose_line(found)
            == "the slowdown injection (dose) of tokenize of text shows nothing: no finished run of the arm itself"
        )

    def test_a_lost_dose_is_left_out_and_named(self) -> None:
        runs = curve(lambda k, block: {**self.FULL(k, block), "wall": 20.0 + k + 0.001 * block * k})
        found = judged({**runs, 4: {}})
        assert found.kind == "exposed"
        assert [point.k for point in found.points] == [0, 1, 2]
        assert dose_line(found).endswith("; k = 4 did not finish")

    def test_only_blocks_with_every_dose_count(self) -> None:
        runs = curve(self.FULL, blocks=5)
        del runs[2][1], runs[0][4]
        found = judged(runs)
        assert found.slope is not None
        assert found.slope.n == 3


BLOCK = st.tuples(st.floats(0.1, 5), st.floats(-0.5, 2), st.floats(20, 100))


def line(blocks: list[tuple[float, float, float]], times: float = 1, slower: float = 1, shift: float = 0) -> Dose:
    """Blocks of (work, slope, base); work and step ``times`` as long, step time alone ``slower`` and shifted."""

    def columns(k: int, block: int) -> dict[str, float]:
        work, slope, base = blocks[block]
        work *= 1 + k
        return {
            "wall": times * (slower * (base + slope * work) + shift),
            "hidden_tokenize": times * work,
            "exposed_tokenize": 0.0,
        }

    return judged(curve(columns, len(blocks)))


@pytest.mark.slow
@examples(40)
@given(st.lists(BLOCK, min_size=3, max_size=6), st.floats(0.5, 20), st.floats(0, 50))
def test_neither_the_unit_nor_a_constant_part_of_the_step_changes_the_slope(
    blocks: list[tuple[float, float, float]], times: float, shift: float
) -> None:
    plain = line(blocks)
    for other in (line(blocks, times=times), line(blocks, shift=shift)):
        assert other.slope is not None
        assert plain.slope is not None
        assert other.slope.median == pytest.approx(plain.slope.median, abs=1e-4)
        assert other.slope.ci_low == pytest.approx(plain.slope.ci_low, abs=1e-3)
        assert other.slope.ci_high == pytest.approx(plain.slope.ci_high, abs=1e-3)


@pytest.mark.slow
@examples(40)
@given(st.lists(BLOCK, min_size=3, max_size=6), st.floats(0.5, 3))
def test_a_step_that_pays_so_many_times_more_has_so_many_times_the_slope(
    blocks: list[tuple[float, float, float]], slower: float
) -> None:
    plain, other = line(blocks), line(blocks, slower=slower)
    assert plain.slope is not None
    assert other.slope is not None
    assert other.slope.median == pytest.approx(slower * plain.slope.median, abs=1e-4)


@examples(40)
@given(st.lists(BLOCK, min_size=3, max_size=6), st.randoms())
def test_the_order_of_blocks_and_doses_does_not_matter(blocks: list[tuple[float, float, float]], random: Any) -> None:
    def columns(k: int, block: int) -> dict[str, float]:
        work, slope, base = blocks[block]
        return {"wall": base + slope * work * k, "hidden_tokenize": work * (1 + k), "exposed_tokenize": 0.0}

    runs = curve(columns, len(blocks))
    shuffled = {
        k: dict(random.sample(list(runs[k].items()), len(blocks))) for k in random.sample(list(runs), len(runs))
    }
    assert judged(runs) == judged(shuffled)


def test_the_plan_and_the_analysis_use_the_same_names() -> None:
    scenario = {"name": "x", "question": "q", "arms": {"a": None}, "controls": ["dose"]}
    made = make_plan(Scenario.model_validate(scenario | {"dose": ["tokenize", "read", "device"]}), "x.yaml")
    found = [parse_control(arm.control) for arm in made.arms if arm.control is not None]
    assert found == [(what, k) for what in ("tokenize", "read", "device") for k in DOSES]
    assert [parse_control(name) for name in ("a-a", None, "dose-pack-1", "dose-read-0")] == [None] * 4


def test_slack_beyond_which_a_millisecond_costs_two_is_not_said_to_be_less_than_nothing() -> None:
    """One of two workers makes the slow batches: 5 ms more are hidden, and each further one costs the step 2."""
    curve = Curve((0, 1, 2, 4), (), work=(5.0, 10.0, 15.0, 25.0), step=(20.0, 20.0, 30.0, 50.0))
    assert curve.absorbed == pytest.approx(5)
