"""Losses of two arms: when they differ, what explains that, and data that one arm trains again."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from harness.explain.ledger import RunLedger, StepLosses, measure
from harness.explain.statistics import Estimate
from harness.judge import policy
from harness.judge.losses import Losses, compare_losses, loss_of, repeated_data
from harness.judge.study import analyse
from harness.judge.verdicts import judge
from harness.show.first_screen import first_screen
from harness.study.contract import STEP_COLUMNS, arrow_schema
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import RunData
from tests.harness.synthetic import Arm, build
from tests.ledgers import ledger


def ledgers(losses: list[float | None], *, diverged: bool = False) -> dict[int, RunLedger]:
    record = RunRecord("x", 0, "done")
    return {
        block: ledger(record, loss=loss, diverged=diverged, losses=at_steps(dict.fromkeys(range(10), loss)))
        for block, loss in enumerate(losses)
    }


def at_steps(losses: dict[int, float | None]) -> StepLosses:
    return StepLosses(
        RunData(RunRecord("x", 0, "done"), pa.table({"step": [*losses], "loss": [*losses.values()]}), None, None)
    )


def learning(workers: int, block: int) -> RunLedger:
    """A run that learns as every other does, whose repetitions of five steps begin with its workers' warm-up steps."""
    repetition = workers * 2 + 1 + 5
    steps = range(4 * repetition)
    columns = {
        "step": list(steps),
        "turn": [step // repetition for step in steps],
        "warmup": [step % repetition < workers * 2 + 1 for step in steps],
        "wall_ns": [1_000_000] * len(steps),
        "loss": [2.0 + block / 100 + 4 * math.exp(-step / 20) for step in steps],
    }
    table = pa.table(
        {name: columns.get(name) or [None] * len(steps) for name, _ in STEP_COLUMNS}, schema=arrow_schema(STEP_COLUMNS)
    )
    return measure(RunData(RunRecord("x", block, "done"), table, None, None))


def test_losses_are_compared_at_the_same_training_steps_however_many_were_warm_up() -> None:
    """The same training, bit by bit: the arm with workers has trained more steps when its last ones are measured."""
    inline, two = ({block: learning(workers, block) for block in range(4)} for workers in (0, 2))
    last = [run[0].loss for run in (inline, two)]
    assert last[0] > 1.2 * last[1]  # of other steps: so was "the arms do not train the same" said
    found = compare_losses(("inline", "two"), inline, two, {})
    assert (found.differ, found.baseline) == (False, found.candidate)
    unlike = {block: replace(run, losses=at_steps({0: 6.0, 4: 9.0, 50: 2.0})) for block, run in two.items()}
    found = compare_losses(("inline", "unlike"), inline, unlike, {})  # step 50 is only in the one
    assert found.differ
    assert found.candidate == 7.5
    apart = {block: replace(run, losses=at_steps({99: 9.0})) for block, run in two.items()}
    assert not compare_losses(("inline", "apart"), inline, apart, {}).differ  # no step that both trained


@pytest.mark.parametrize(
    ("theirs", "control", "differ"),
    [
        ([6.0, 6.1, 5.9], [6.0, 6.1, 5.9], False),
        ([6.5, 6.6, 6.4], [6.0, 6.1, 5.9], True),
        ([6.05, 6.15, 5.95], [6.0, 6.1, 5.9], False),  # under 1 %
        ([6.5, 6.6, 6.4], [6.9, 5.4, 6.8], False),  # the same once more differs as much
        ([6.5, 5.4, 7.9], [6.0, 6.9, 5.1], False),  # blocks scatter, those of the control too
        ([6.5, 5.4, 7.9], [6.0, 6.1, 5.9], True),  # ... and those of the control do not
        ([6.0, 6.1, 9.9], [6.0, 6.1, 5.9], False),  # one block alone may be chance: it is told
        ([6.5, 8.9, 11.2], [6.0, 6.1, 5.9], True),  # they do, but each of them learned less, and the control nothing
        ([6.5, 7.9, 7.2], [6.0, 6.9, 5.9], False),
        ([6.5, 8.9, 11.2], [6.0, 6.9, 5.9], True),  # far beyond what the control does
        ([6.5, None, 6.4], [6.0, 6.1, 5.9], False),  # two blocks are too few
        ([8.0, 10.1, 12.0], [6.0, 6.1, 5.9], True),  # what trains badly scatters as well
        ([6.0, 10.1, 12.0], [6.0, 6.1, 5.9], True),  # ... and may do so in some blocks alone
    ],
)
def test_losses_differ_where_blocks_control_and_rounding_do_not_explain_it(theirs, control, differ) -> None:
    found = compare_losses(("a", "b"), ledgers([6.0, 6.1, 5.9]), ledgers(theirs), ledgers(control))
    assert (found.differ, found.unlike, found.diverged) == (differ, differ, ())


def test_a_loss_that_is_not_finite_is_not_dropped_and_an_unmeasured_one_says_nothing() -> None:
    finite, lost = ledgers([6.0, 6.1, 5.9]), ledgers([5.0, None, 5.1])
    lost[1] = replace(lost[1], diverged=True)
    assert loss_of(list(lost.values())) is None
    assert loss_of(list(ledgers([5.0, None, 5.2]).values())) == 5.1  # not measured
    assert compare_losses(("a", "b"), finite, lost, finite) == Losses(6.0, None, ("b",))
    assert compare_losses(("a", "b"), finite, ledgers([9.0] * 3, diverged=True), finite).candidate == 9.0
    assert compare_losses(("a", "b"), ledgers([None] * 3), ledgers([6.0] * 3), {}) == Losses(None, 6.0)


def test_other_losses_in_some_blocks_bar_a_gain_and_are_said_of_these() -> None:
    """The median block learned as much, and two of five next to nothing."""
    base = ledgers([3.8, 3.7, 3.9, 3.8, 3.8])
    found = compare_losses(("a", "b"), base, ledgers([3.8, 6.0, 3.9, 6.2, 3.8]), base)
    assert (found.some_blocks, found.baseline, found.candidate) == ((2, 5), pytest.approx(3.75), pytest.approx(6.1))
    verdict = judge(Estimate(1.24, 1.22, 1.26, 5), 0.01, found)
    assert (verdict.verdict, verdict.undecided) == ("undecided", "other loss")
    assert compare_losses(("a", "b"), base, base, base).some_blocks is None


@pytest.mark.parametrize(
    ("theirs", "tokens", "verdict"),
    [
        (3.5, 2.0, "gain"),
        (2.9, 2.0, "gain"),
        (2.6, 2.0, "undecided"),
        (3.88, 2.0, "gain"),  # of other documents
        (4.5, 2.0, "undecided"),  # twice the tokens a step lower a loss
        (4.5, 0.5, "gain"),
        (3.5, 0.5, "undecided"),
        (3.5, 1.02, "undecided"),
        (30.8, 0.5, "undecided"),
        (1.2, 2.0, "undecided"),
    ],
)
def test_other_tokens_a_step_do_not_explain_any_loss(theirs: float, tokens: float, verdict: str) -> None:
    alike = [3.8, 3.8, 3.8]
    found = compare_losses(("a", "b"), ledgers(alike), ledgers([theirs] * 3), ledgers(alike), tokens_ratio=tokens)
    assert found.differ
    assert judge(Estimate(1.95, 1.93, 1.97, 5), 0.01, found).verdict == verdict


def repeating(*counts: tuple[int, ...] | None) -> dict[int, RunLedger]:
    """Runs without a loss that repeated so many of their first 1, 2, 4, ... rows."""
    records = [RunRecord("x", block, "done", facts=RunFacts(repeated_rows=one)) for block, one in enumerate(counts)]
    return {block: ledger(record) for block, record in enumerate(records)}


NEW, FOUR_TIMES = (0,) * 8, (0, 0, 0, 4, 12, 24, 48, 96)  # of 128 rows, 4 in a batch


def test_an_arm_that_trains_each_batch_four_times_gets_no_verdict() -> None:
    base = repeating(NEW, NEW, NEW)
    found = repeated_data(base, repeating(*[FOUR_TIMES] * 3))
    assert found == (0.0, 0.75)
    for ratio in (Estimate(1.56, 1.5, 1.6, 5), Estimate(0.6, 0.58, 0.62, 5)):
        judged = judge(ratio, 0.01, repeated=found)
        assert (judged.verdict, judged.undecided) == ("undecided", "repeated data")
    assert judge(Estimate(1.56, 1.5, 1.6, 5), 0.01, repeated=repeated_data(base, base)).verdict == "gain"


def test_rows_are_compared_among_as_many_of_both_arms() -> None:
    """An arm of larger batches reaches the second epoch of a small corpus in the same steps."""
    small, large = (0,) * 7, (*(0,) * 7, 64, 192)
    assert repeated_data(repeating(small), repeating(large)) is None
    assert repeated_data(repeating(large), repeating((0,) * 9)) == (0.75, 0.0)
    assert repeated_data(repeating(None), repeating(FOUR_TIMES)) is None  # its loss shows what it learned
    few = policy.ROWS_COMPARED_MIN.bit_length() - 1
    assert repeated_data(repeating(NEW[:few]), repeating(FOUR_TIMES[:few])) is None
    assert repeated_data(repeating(NEW[: few + 1]), repeating(FOUR_TIMES[: few + 1])) is not None
    within = int(policy.REPEATED_ROWS_WITHIN * 128)
    assert repeated_data(repeating(NEW), repeating((*NEW[1:], within))) is None
    assert repeated_data(repeating(NEW), repeating((*NEW[1:], within + 1))) is not None


def test_a_page_names_the_rows_that_one_arm_repeats() -> None:
    arms = [Arm("base", facts={"repeated_rows": NEW}), Arm("fast", tokenize=0.0, facts={"repeated_rows": FOUR_TIMES})]
    report = analyse(*build([*arms, *arms[0].controls("a-a")], [("base", "fast")], spans=False))
    (line,) = [line for line in first_screen(report).beware if "repeated" in line]
    assert "0 % of the training rows of base are repeats, 75 % of those of fast" in line
    assert report.compared[0].measured.undecided == "repeated data"
