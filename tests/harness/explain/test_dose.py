"""Every class of a dose must come out of a loop whose truth is known: simulated on paper, with noise and workers."""

from __future__ import annotations

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
    return measure(RunData(record, steps, spans, None))


def made(arm: str, block: int, **columns: float) -> RunLedger:
    """A run of four equal steps with these columns, in milliseconds."""
    values = {name: [None] * 4 for name, _ in STEP_COLUMNS} | {"warmup": [False] * 4, "turn": [0] * 4}
    values |= {f"{name}_ns": [round(value * MS)] * 4 for name, value in columns.items()}
    return ledger(arm, block, pa.table(values, schema=arrow_schema(STEP_COLUMNS)))


def curve(columns: Callable[[int, int], dict[str, float]], blocks: int = 4) -> dict[int, dict[int, RunLedger]]:
    """{k: {block: run}} with the columns that ``columns(k, block)`` says."""
    return {k: {b: made("text" if k == 0 else "dose", b, **columns(k, b)) for b in range(blocks)} for k in (0, *DOSES)}


FULL = {"wall": (20.0, 1.0), "exposed_tokenize": (1.0, 1.0), "hidden_tokenize": (0.0, 0.0), "forward": (5.0, 0.0)}


def growing(
    columns: dict[str, tuple[float, float]], scatter: float = 0.0, blocks: int = 4
) -> dict[int, dict[int, RunLedger]]:
    """Runs with these columns, in ms: at k = 0, and by how much they grow with k; blocks ``scatter`` in wall time."""
    return curve(
        lambda k, block: {
            name: start + slope * k + scatter * block * k * (name == "wall") for name, (start, slope) in columns.items()
        },
        blocks,
    )


def judged(runs: dict[int, dict[int, RunLedger]], what: str = "tokenize", workers: int = 1) -> Dose:
    return dose(runs[0], {k: blocks for k, blocks in runs.items() if k}, what, workers)


# Pipeline; its class, the slope of its step (None: it bends), and what is said of it.
LOOPS: dict[str, tuple[Pipeline, str, float | None, str]] = {
    "inline": (Pipeline(), "exposed", 1.0, "tokenize of text is exposed: 1 ms more of it costs"),
    "divided among workers": (
        Pipeline(workers=4, tokenize=200.0), "exposed", 1.0,
        "tokenize of text (the work of 4 workers, divided by 4) is exposed: 1 ms more of it",
    ),
    "a worker that keeps up": (
        Pipeline(workers=1), "hidden", 0.0, "tokenize of text is hidden: 1 ms more of it costs"
    ),
    # A step that gets as much longer as there is more work, and waits for none of it, has lost its cores.
    "as long as if exposed": (Pipeline(workers=1, tokenize=10, compute=40, takes_cores=1.0), "contended", 1.0, ""),
    "hidden work that takes cores": (
        Pipeline(workers=3, tokenize=3.0, takes_cores=0.5 / 3), "contended", 0.5, "hidden, it takes cores from the step"
    ),
    # The loader has 20 ms per batch and worker; read and pack take 0.5 of them, so slack = 20 - 0.5 - own.
    "slack of 11.5 ms": (
        Pipeline(workers=2, tokenize=16.0, read=0.4, pack=0.6), "kink", None, "slack that is used up at about 1"
    ),
    # Nothing of it is waited for, and any more would be: the adversary of who looks at one of both only.
    "exactly at the slack": (
        Pipeline(workers=1, tokenize=19.5, prefetch=4), "kink", None, "just fits into the slack (it takes "
    ),
    "noise": (
        Pipeline(tokenize=0.05, compute=300.0, noise=0.05), "undecided", None, "even 1000 blocks would not decide"
    ),
}  # fmt: skip
SLACK_MS = {"slack of 11.5 ms": 11.5, "exactly at the slack": 0.0}


class TestKnownTruth:
    @pytest.mark.parametrize("name", LOOPS)
    def test_a_loop_gets_the_class_of_its_arithmetic(self, name: str) -> None:
        loop, kind, slope, said = LOOPS[name]
        found = loop.dosed()
        assert found.kind == kind, dose_line(found)
        assert said in dose_line(found)
        # 50 ms of work every 20 ms of compute: a part of it is hidden, and any more is not
        assert ("though today" in dose_line(found)) == (name == "divided among workers")
        if slope is not None:
            assert found.slope.median == pytest.approx(slope, abs=0.1)
        if kind == "contended":
            assert found.waited_slope.median == pytest.approx(0, abs=0.1)
        if name in SLACK_MS:
            assert found.slack_ms.median == pytest.approx(SLACK_MS[name], abs=1.0)

    @pytest.mark.slow
    @pytest.mark.nightly
    def test_long_documents_that_a_short_queue_cannot_hide(self) -> None:
        """In steps with a long document the worker is late, in the others it is not: in sum the curve bends."""
        found = Pipeline(workers=1, tokenize=4.0, prefetch=1, long_documents=0.2).dosed()
        assert found.kind in ("kink", "partial")
        assert 0.1 < found.slope.median < 0.9

    @pytest.mark.slow
    @pytest.mark.nightly
    def test_so_many_more_blocks_do_decide(self) -> None:
        loop = Pipeline(tokenize=0.6, noise=0.03)
        few = loop.dosed(blocks=4, seed=3)
        assert few.kind == "undecided"
        assert f"about {few.blocks_needed - 4} more blocks would decide" in dose_line(few)
        assert loop.dosed(blocks=2 * few.blocks_needed, seed=3).kind == "exposed"

    def test_two_blocks_have_no_interval(self) -> None:
        found = Pipeline().dosed(blocks=2)
        assert (found.kind, found.blocks_needed) == ("undecided", None)
        assert found.slope.ci_low is None
        assert dose_line(found).endswith("fewer than 3 blocks give no interval")

    @pytest.mark.slow
    @pytest.mark.nightly
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
            # an hour with a slow machine stretches it too; the day's factor has a standard deviation of 10 %
            assert found.slack_ms.median == pytest.approx(compute - own, rel=0.3, abs=0.1 * compute)


class TestDevice:
    def test_busy_time_counts_where_a_device_tells(self) -> None:
        """Half of the added device time overlaps with waiting for data."""
        columns = {"wall": (40.0, 5.0), "device_busy": (30.0, 10.0), "forward": (0.2, 0.0)}
        found = judged(growing(columns, scatter=0.01), "device", workers=4)
        assert found.kind == "partial"
        assert found.slope.median == pytest.approx(0.5, abs=0.01)
        assert [point.work_ms for point in found.points] == [30, 40, 50, 70]
        assert "device time of text is partly exposed" in dose_line(found)

    def test_without_a_device_the_forward_phase_counts(self) -> None:
        runs = growing({"wall": (10.0, 10.0), "forward": (10.0, 10.0)}, scatter=0.001)
        found = judged(runs, "device", workers=0)
        assert (found.kind, found.waited_slope) == ("exposed", None)
        # On an asynchronous device that phase only launches.
        first = runs[0][0]
        runs[0][0] = replace(first, record=replace(first.record, facts=RunFacts(asynchronous=True)))
        assert dose_reason(judged(runs, "device")) == "its work was not measured"

    def test_a_loop_that_waits_for_data_hides_slower_kernels(self) -> None:
        assert judged(growing({"wall": (50.0, 0.0), "device_busy": (10.0, 4.0)}, 0.001), "device").kind == "hidden"


class TestNothingToFit:
    def test_reasons(self) -> None:
        runs = growing(FULL)
        cases = {
            "no finished run with a dose": {0: runs[0], 1: {}, 2: {}, 4: {}},
            "no finished run of the arm itself": {**runs, 0: {}},
            "no block in which k = 0 and 1 all finished": {0: {0: runs[0][0]}, 1: {1: runs[1][1]}},
            "the doses added no work (1.00 ms per step without, 1.00 ms with the largest)": dict.fromkeys(
                runs, runs[0]
            ),
        }
        for reason, given_runs in cases.items():
            found = judged(given_runs)
            assert dose_reason(found) == reason
            assert (found.arm, found.kind, found.slope) == ("text", "undecided", None)
        assert dose_reason(judged(runs, "read")) == "its work was not measured"
        said = "the slowdown injection (dose) of tokenize of text shows nothing: no finished run of the arm itself"
        assert dose_line(judged({**runs, 0: {}})) == said

    def test_a_lost_dose_is_left_out_and_named(self) -> None:
        found = judged({**growing(FULL, scatter=0.001), 4: {}})
        assert found.kind == "exposed"
        assert [point.k for point in found.points] == [0, 1, 2]
        assert dose_line(found).endswith("; k = 4 did not finish")

    def test_only_blocks_with_every_dose_count(self) -> None:
        runs = growing(FULL, blocks=5)
        del runs[2][1], runs[0][4]
        found = judged(runs)
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


@examples(15)
@given(st.lists(BLOCK, min_size=3, max_size=6), st.floats(0.5, 20), st.floats(0, 50), st.floats(0.5, 3))
def test_the_unit_and_a_constant_part_leave_the_slope_and_a_slower_step_multiplies_it(
    blocks: list[tuple[float, float, float]], times: float, shift: float, slower: float
) -> None:
    plain = line(blocks).slope
    for other, factor in (
        (line(blocks, times=times), 1.0), (line(blocks, shift=shift), 1.0), (line(blocks, slower=slower), slower),
    ):  # fmt: skip
        assert other.slope.median == pytest.approx(factor * plain.median, abs=1e-4)
        assert other.slope.ci_low == pytest.approx(factor * (plain.ci_low or 0.0), abs=1e-3 * factor)
        assert other.slope.ci_high == pytest.approx(factor * (plain.ci_high or 0.0), abs=1e-3 * factor)


@examples(15)
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
