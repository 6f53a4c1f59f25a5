"""Steps that live off batches which lay ready: declared leads and rates are found again, and steady loops give none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.lead_use import Leads, MadeBatches, UsedLead, falls_by, lead_use, leads_of, pace_ns, used_up_ns
from harness.explain.ledger import measure
from harness.explain.spans import Stretches
from harness.judge.study import analyse
from harness.regress.decision import Limits
from harness.regress.gate import comparisons
from harness.regress.text import sentence as regression_sentence
from harness.show.sentences import sentence
from harness.show.text.doubts import confound_lines, problem_lines
from harness.study.records import ArmRecord, ComparisonRecord, StudyRecord
from harness.study.run_data import RunData
from tests.harness.explain.replay import oracle

Costs = Callable[[int], float]


@dataclass(frozen=True)
class Loop:
    """A loop and its workers, in ms: what making a batch takes its worker, and what a step takes without its wait."""

    workers: int
    prefetch: int
    making: Costs
    consuming: Costs
    start: float = 0.0  # when the loop begins; its workers begin at 0
    between: float = 0.2  # two batches of a worker

    def run(self, steps: int) -> tuple[MadeBatches, np.ndarray]:
        """What is recorded of so many steps, and when each began; the last one is when they ended."""
        began, ready, received, taken = (np.zeros(steps) for _ in range(4))
        now = self.start
        for b in range(steps):
            asked = received[b - self.workers * self.prefetch] if b >= self.workers * self.prefetch else 0.0
            free = ready[b - self.workers] + self.between if b >= self.workers else 0.0
            began[b] = max(free, asked)
            ready[b] = began[b] + self.making(b)
            taken[b] = now
            received[b] = max(now, ready[b])
            now = received[b] + self.consuming(b)
        return MadeBatches(began, ready, received, taken, ready > taken), np.append(taken, now)

    def share(self, first: int, last: int) -> float:
        """What the analysis finds that steps ``first`` to ``last`` used up, as a share of their time."""
        made, starts = self.run(last)
        leads = leads_of(made, self.workers, self.prefetch)
        used = used_up_ns(Leads(leads.lead[first:], leads.idle[first:]), self.workers)
        return used / (starts[last] - starts[first])


def always(cost: float) -> Costs:
    return lambda _batch: cost


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (2, 4), (3, 3), (4, 8)])
def test_what_is_used_up_is_by_how_much_the_steps_were_too_fast(workers: int, prefetch: int) -> None:
    """A queue that was full as the loop began, and a loop that consumes 5 % faster than the workers make."""
    going_on = 20.0
    loop = Loop(workers, prefetch, always(going_on * workers - 0.2), always(19.0), start=10_000)
    first = workers * prefetch + 1
    share = loop.share(first, first + 4 * workers)
    assert share == pytest.approx(going_on / 19.0 - 1, rel=0.02)


def test_lead_that_runs_out_is_no_more_than_there_was() -> None:
    loop = Loop(1, 8, always(19.8), always(15.0), start=10_000)
    made, starts = loop.run(200)
    leads = leads_of(made, 1, 8)
    used = used_up_ns(Leads(leads.lead[10:], leads.idle[10:]), 1)
    short = 190 * 20.0 - (starts[200] - starts[10])
    assert used == pytest.approx(leads.lead[10])
    # Besides, the step before the first wait is not as long as those that wait: at most one wait of 5 ms.
    assert used == pytest.approx(short, abs=5)


@given(
    workers=st.integers(1, 6),
    prefetch=st.integers(1, 5),
    making=st.floats(1, 200),
    consuming=st.floats(0.1, 200),
    cycles=st.integers(2, 12),
    more=st.integers(0, 5),
)
def test_steady_loops_of_any_costs_use_up_next_to_nothing(
    workers: int, prefetch: int, making: float, consuming: float, cycles: int, more: int
) -> None:
    loop = Loop(workers, prefetch, always(making), always(consuming))  # cold: nothing lies ready as it begins
    first = 40 + 4 * workers * prefetch
    assert loop.share(first, first + cycles * workers + more) < 0.01


@pytest.mark.parametrize("consuming", [5.0, 25.0])  # always waiting, never
def test_bursts_and_jitter_and_a_full_queue_use_up_next_to_nothing(consuming: float) -> None:
    """Workers in phase, whose batches vary by a third; windows that are no whole number of cycles."""
    draw = np.random.default_rng(3)
    making, steps = draw.lognormal(np.log(60), 0.3, 4000), consuming * draw.uniform(0.8, 1.2, 4000)
    loop = Loop(3, 3, lambda b: float(making[b]), lambda b: float(steps[b]))
    made, starts = loop.run(4000)
    leads = leads_of(made, 3, 3)
    found = {
        k: UsedLead(used, starts[at + 10] - starts[at])
        for k, at in enumerate(range(100, 3900, 20))
        if (used := used_up_ns(Leads(leads.lead[at : at + 10], leads.idle[at : at + 10]), 3)) is not None
    }
    use = lead_use([found])
    assert not use.is_worth_saying


@pytest.mark.parametrize(("pause", "every"), [(0.0, 10), (500.0, 10), (0.0, 20)])  # 20: no turn has the slow batch
@pytest.mark.parametrize("slow_ms", [250.0, 4.0])
def test_a_slow_batch_that_comes_every_so_often_is_no_lead(slow_ms: float, pause: float, every: int) -> None:
    """Steps were said to be 46 % faster than they can go on being, where they were 4 % slower. The steps between
    repetitions are never those with the slow batch: they fill the queue again. ``pause``: in which loop and worker are
    suspended, between repetitions."""
    loop = Loop(1, 16, lambda b: slow_ms if b % 20 == 7 else 4.0, always(15.0), between=0.0)
    made, starts = loop.run(400)
    turns = range(20, 380, every)
    if pause:
        late = pause * np.searchsorted(starts[list(turns)], np.stack(made[:4]), side="right")
        made = MadeBatches(*(np.stack(made[:4]) + late), awaited=made.awaited)
        starts = starts + pause * np.searchsorted(starts[list(turns)], starts, side="right")
    leads = leads_of(made, 1, 16)
    at = starts[list(turns)]
    ns = [(1e6 * one).astype(np.int64) for one in ((at - pause, at) if pause else (np.zeros(0), np.zeros(0)))]
    in_ns = MadeBatches(*(1e6 * np.stack(made[:4])), awaited=made.awaited)
    pace = pace_ns(in_ns, leads_of(in_ns, 1, 16), 1, Stretches(*ns)) / 1e6
    assert pace == pytest.approx(4.0 + (slow_ms - 4.0) / 20, rel=0.02)
    found = {}
    for k, first in enumerate(turns[:20]):
        used = used_up_ns(Leads(leads.lead[first + 2 : first + 10], leads.idle[first + 2 : first + 10]), 1)
        found[k] = UsedLead(used, starts[first + 10] - pause - starts[first + 2], pace_ns=pace * 8)
    use = lead_use([found])
    assert not use.is_worth_saying


def test_an_epoch_s_end_uses_up_nothing() -> None:
    """Workers that have no more to make stand still, and what lies ready is used up: they could have gone on."""
    loop = Loop(2, 4, always(20.0), always(15.0), start=10_000)
    made, _ = loop.run(40)
    late = 400.0  # all batches from the 24th on are begun when the 23rd was received, by new workers
    moved = [np.where(np.arange(40) >= 24, column + late, column) for column in made]
    again = MadeBatches(*moved[:4], awaited=made.awaited)
    leads = leads_of(again, 2, 4)
    used = used_up_ns(Leads(leads.lead[8:30], leads.idle[8:30]), 2)
    assert used <= 0


def test_batches_of_which_nothing_is_known_give_nothing() -> None:
    made, _ = Loop(2, 2, always(20.0), always(5.0)).run(30)
    made.ready[:] = np.nan
    assert used_up_ns(leads_of(made, 2, 2), 2) is None
    assert falls_by(leads_of(made, 2, 2), made.taken, 2) == 0
    assert used_up_ns(Leads(np.zeros(2), np.zeros(2)), 2) is None  # one cycle
    assert lead_use([]) is None
    assert lead_use([{0: UsedLead(1.0, 10.0), 1: UsedLead(1.0, 10.0)}]) is None  # two repetitions have no interval


LIVING = oracle.Truth(
    read=0.0, tokenize=59.7, pack=0.0, spread=0.0, workers=3, prefetch=4, handover=0.2, receive=0.1, jitter=0.0,
    gap=0.0, asynchronous=False,
    host={"h2d": 0.0, "forward": 10.0, "backward": 8.5, "optimizer": 0.0, "sync": 0.0, "log": 0.0}, warmup=0,
    steps=20, lead=2_000.0,
)  # fmt: skip
PACE_MS = (59.7 + 0.1) / 3  # of making, what a worker does between two batches included


ON_DEVICE = LIVING.having(
    asynchronous=True, host={"h2d": 0.1, "forward": 0.2, "backward": 0.2, "optimizer": 0.1, "sync": 0.05, "log": 0.0},
    device={"h2d": 0.1, "forward": 8.0, "backward": 8.0, "norm": 1.0, "optimizer": 1.0}, latency=0.0,
)  # fmt: skip


@pytest.mark.parametrize("truth", [LIVING, ON_DEVICE], ids=["host", "device"])
def test_a_run_s_tables_show_what_it_used_up(truth: oracle.Truth) -> None:
    run = oracle.run(truth)
    ledger = measure(run)
    (use,) = ledger.used_leads.values()
    assert oracle.step_ms(run) < 0.95 * PACE_MS, "it lives off its lead"
    assert oracle.step_ms(run) * (1 + use.used_ns / use.wall_ns) == pytest.approx(PACE_MS, rel=0.01)


@pytest.mark.parametrize(
    "truth",
    [
        LIVING.having(warmup=400),  # it is used up
        LIVING.having(tokenize=40.0),  # never short
        LIVING.having(workers=0),
        oracle.Truth(workers=2, prefetch=2, tokenize=40.0, warmup=60),
        oracle.Truth(workers=2, prefetch=2, tokenize=4.0, warmup=20),
    ],
)
def test_runs_in_their_steady_state_use_up_next_to_nothing(truth: oracle.Truth) -> None:
    ledger = measure(oracle.run(truth))
    assert all(one.used_ns < 0.01 * one.wall_ns for one in ledger.used_leads.values())


def study(arms: dict[str, oracle.Truth]) -> tuple[StudyRecord, list[RunData]]:
    """Three blocks of each arm, and of an A/A control of the first one."""
    base = next(iter(arms))
    controls = {f"{base}+a-a": arms[base]}
    runs = []
    for name, truth in {**arms, **controls}.items():
        for block in range(3):
            run = oracle.run(truth.having(seed=block), arm=name, block=block)
            control = {"control": "a-a", "of": base} if name in controls else {}
            record = replace(run.record, interleave="runs", **control)
            runs.append(RunData(record, run.steps, run.spans, None))
    records = [ArmRecord(name) for name in arms] + [ArmRecord(f"{base}+a-a", "a-a", base)]
    pairs = [ComparisonRecord(base, name) for name in arms if name != base]
    made = StudyRecord("lead", "q?", "done", blocks=3, arms=records, comparisons=pairs, interleave="runs")
    return made, runs


Made = tuple[StudyRecord, list[RunData]]


@pytest.fixture(scope="module")
def living() -> Made:
    """``slower`` makes its batches 3 % slower: as long as both live off their lead, they are equally fast."""
    return study({"a": LIVING, "slower": LIVING.having(tokenize=61.5)})


@pytest.fixture(scope="module")
def steady() -> Made:
    cold = LIVING.having(lead=0.0, warmup=4)  # nothing lies ready as it begins
    return study({"a": cold, "slower": cold.having(tokenize=61.5)})


def test_a_report_says_it_of_the_arm_and_decides_nothing_that_it_may_hide(living: Made) -> None:
    report = analyse(*living)
    lines = [line for line in problem_lines(report.problems) if "prefetched" in line]
    assert len(lines) == 2, "of each arm, and not again of the A/A control"
    assert lines[0].startswith("a: its measured steps were ")
    assert "warmup_steps" in lines[0]
    assert report.arms[0].lead_use.share == pytest.approx(0.07, abs=0.01)
    (compared,) = report.compared
    assert compared.measured.undecided == "lead"
    assert "faster than later steps" in sentence(compared)
    assert [one.kind for one in compared.confounds] == ["lead"]
    assert "prefetched batches" in confound_lines(compared.confounds)[0]


def test_a_regression_check_calls_nothing_the_same_that_lead_may_hide(living: Made, steady: Made) -> None:
    limits = Limits(step=0.05, memory=None, startup=None)
    (hidden,) = comparisons(*living, limits)
    assert hidden.verdict == "undecided"
    assert "prefetched batches" in regression_sentence(hidden)
    (plain,) = comparisons(*steady, limits)
    assert plain.used_lead is None
    assert plain.verdict == "same"


def test_a_report_of_steady_arms_says_nothing_and_decides(steady: Made) -> None:
    report = analyse(*steady)
    assert not [line for line in problem_lines(report.problems) if "prefetched" in line]
    (compared,) = report.compared
    assert compared.measured.verdict == "loss"
    assert not compared.confounds


def sequence(*leads: Sequence[float]) -> float:
    """What the cycles of these leads, of a loop of 20 ms a cycle, used up in the last one."""
    flat = np.array([one for cycle in leads for one in cycle], dtype=np.float64)
    workers = len(leads[0])
    taken = np.arange(len(flat)) * 20.0 / workers
    return falls_by(Leads(flat, np.zeros(len(flat))), taken, workers)


@pytest.mark.parametrize(
    ("leads", "share"),
    [
        (([10], [9]), 0.05),
        (([50, 0, 0, 0, 0, 0], [10, 0, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0]), 0.05),  # the last cycle counts
        (([10], [9], [9], [7]), 0.05),  # of one worker some more batches do
        (([10, 20], [9, 19]), 0.05),
        (([10, 0], [9, 0]), 0.025),  # a worker that is waited for, and one that is not yet
        (([0, 5], [0, 5]), 0.0),  # a burst
        (([9], [10]), 0.0),  # it grows
        (([10],), 0.0),  # one cycle
    ],
)
def test_how_fast_lead_falls(leads: tuple[list[float], ...], share: float) -> None:
    assert sequence(*leads) == pytest.approx(share)


def test_workers_that_idle_can_make_more() -> None:
    taken = np.arange(4) * 20.0
    assert falls_by(Leads(np.array([30.0, 30, 30, 25]), np.array([0.0, 0, 0, 6])), taken, 1) == 0
    assert falls_by(Leads(np.array([30.0, 30, 30, 25]), np.array([0.0, 0, 0, 2])), taken, 1) == pytest.approx(0.05)


def test_what_a_worker_gained_while_the_run_stood_still_hides_no_fall() -> None:
    leads, taken = Leads(np.array([10.0, 10, 9, 40]), np.zeros(4)), np.arange(4) * 10.0
    assert falls_by(leads, taken, 2) == 0
    assert falls_by(leads, taken, 2, np.array([False, False, False, True])) == pytest.approx(0.05)
    assert falls_by(leads, taken, 2, np.array([False, False, True, True])) == np.inf
