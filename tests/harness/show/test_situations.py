"""Situations in which a sentence of the product once was false, or misled: each of a study whose truth is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from harness.explain.bounds import agreed
from harness.explain.ledger import measure
from harness.explain.statistics import Estimate
from harness.judge.report_types import Comparison, StudyReport
from harness.judge.study import analyse, comparison_doubts
from harness.judge.verdicts import judge
from harness.judge.waits import bounds_of
from harness.show import numbers, plots, terminal
from harness.show.chain import chain
from harness.show.first_screen import HEADER, first_screen
from harness.show.markdown import how_to_read, opening
from harness.show.names import ArmNames
from harness.show.sentences import sentence
from harness.show.summary import summary
from harness.show.tables import ratio_cell
from harness.show.text.verdicts import finding
from harness.show.words import interval
from harness.study.contract import STEP_COLUMNS, arrow_schema
from harness.study.records import COMMAND, ArmRecord, RunRecord
from harness.study.run_data import RunData
from tests.harness.show.studies import analysed, built
from tests.harness.synthetic import NOISE, Arm, judged, page_of

EXACT = dict.fromkeys(NOISE, 0.0)
Edit = Callable[[RunData], RunData]
ATTACHED = {"attached": "forward: Sequential; backward; optimizer: AdamW", "step_ends": "the update of AdamW"}


def study(*arms: Arm, edit: Edit | None = None, **how: Any) -> StudyReport:
    """The first arm against the others, replayed only with ``spans=True``. ``edit`` returns what it leaves alone."""
    how = {"noise": EXACT, "spans": False, **how}
    if edit is None:
        return analysed(*arms, **how)
    record, runs = built(*arms, **how)
    return analyse(record, [edit(run) for run in runs])


def lines(report: StudyReport) -> str:
    return " ".join(one.text for one in first_screen(report).headlines)


def steps_of(run: RunData, change: Callable[[dict[str, list[Any]]], None]) -> RunData:
    """``run`` with its table of steps changed."""
    columns = run.steps.to_pydict()
    change(columns)
    return RunData(run.record, pa.table(columns, schema=arrow_schema(STEP_COLUMNS)), run.spans, run.samples)


def longer(ms: Callable[[RunRecord, int, dict[str, list[Any]]], float], phase: str = "other") -> Edit:
    """An edit of a study: each row of a run's table takes ``ms(record, row, columns)`` longer, in ``phase``."""

    def edit(run: RunData) -> RunData:
        columns = run.steps.to_pydict()
        more = [round(1e6 * ms(run.record, row, columns)) for row in range(len(columns["step"]))]

        def change(columns: dict[str, list[Any]]) -> None:
            for name in ("wall_ns", f"{phase}_ns"):
                columns[name] = [ns + extra for ns, extra in zip(columns[name], more, strict=True)]

        return steps_of(run, change) if any(more) else run

    return edit


@cache
def slow_disk(names: str, late_ms: tuple[float, ...], controls: str = "") -> StudyReport:
    """``late_ms``: what tokenizing takes, by block."""
    runs: list[RunData] = []
    for block, tokenize in enumerate(late_ms):
        arms = [Arm(name, tokenize=tokenize) for name in names.split()]
        arms += arms[0].controls(*controls.split())
        record, found = built(*arms, noise=EXACT, blocks=len(late_ms), steps=2, repetitions=1)
        runs += [run for run in found if run.record.block == block]
    return analyse(record, runs)


@pytest.mark.parametrize(
    ("late_ms", "said"),
    [
        # The mean is 10.5 ms and the median 0.6: no block waits for the one, and not all for the other.
        ((0.3, 25.0, 0.3, 25.0, 0.3), "25.3 ms of each 55.0 ms step in 2 of 5 blocks and 0.60 ms in the others"),
        # Three kinds: the others are not as their mean either.
        ((30.0, 30.0, 8.0, 0.3, 0.3), "30.3 ms of each 60.0 ms step in 2 of 5 blocks and 0.60 ms to 8.30 ms in the"),
        # All wait, for about as long as one another, in two groups by chance: what is said of all holds of each.
        ((25.0, 25.4, 27.0, 27.2), ""),
    ],
)
def test_a_wait_of_some_blocks_is_said_of_these(late_ms: tuple[float, ...], said: str) -> None:
    two, alone = slow_disk("text tokens", late_ms), slow_disk("text", late_ms)
    for text in (sentence(two.compared[0]), lines(two), lines(alone)):
        assert (said in text) if said else ("in the others" not in text)


def test_a_gain_of_some_blocks_is_said_of_these() -> None:
    some, half = (0.3, 25.0, 0.3, 25.0, 0.3), (25.0, 0.3, 25.0, 0.3)
    in_blocks = "1.851x as fast in those 2 blocks and 1.020x in the others"
    assert "in the median block would be 1.020x as fast" in sentence(slow_disk("text tokens", some).compared[0])
    alone = lines(slow_disk("text", some, "ideal-data"))
    assert f"(ideal-data) it is {in_blocks} (median block: 1.020x, " in alone
    assert f"Without any data work it would be {in_blocks} (median block: 1.020x, " in alone
    assert "text, halfway between these blocks and the others, would be 1.3" in sentence(
        slow_disk("text tokens", half).compared[0]
    )
    assert f"it would be {in_blocks}, by replay." in lines(slow_disk("text", half))


def test_blocks_that_differ_in_what_bounds_them_have_no_bound_together() -> None:
    ledger = measure(built(Arm("text"), blocks=1)[1][0])
    device, host = (replace(ledger, device_starved_ms=starved, device_room_ms=37.0) for starved in (0.1, 10.0))
    assert agreed(bounds_of([device, device])) == "device"
    runs = [device, host, device, host, device]
    assert agreed(bounds_of(runs)) is None
    (c,) = study(Arm("text"), Arm("tokens")).compared
    waits = replace(c.measured.baseline_waits, bounds=bounds_of(runs))
    links = {one.name: one.text for one in chain(replace(c, measured=replace(c.measured, baseline_waits=waits)))}
    assert links["ceiling"].endswith(
        "; blocks differ in what bounds their steps: device-bound in 3 of 5 and host-bound in 2 of 5"
    )


@pytest.mark.parametrize(
    ("attached", "unseen", "words"),
    [
        ("", 0.09, "Its data loading was not timed; 2.67 ms of a step, blocked outside of all phases, may be the wait"),
        ("", 0.0, "Its data loading was not timed."),
        ("fetch: DataLoader without workers; ", 0.09, "It hardly waits for data (0.00 ms, or up to 2.67 ms outside "),
        ("fetch: DataLoader without workers; ", 0.0, "It hardly waits for data (0.00 ms)."),
    ],
)
def test_data_that_comes_in_a_way_that_was_not_timed_is_not_said_to_come_at_once(
    attached: str, unseen: float, words: str
) -> None:
    facts = {**ATTACHED, "attached": attached + ATTACHED["attached"], "unseen_share": unseen}
    free = {"read": 0.0, "tokenize": 0.0, "pack": 0.0}
    assert words in lines(study(Arm("script", facts=facts, **free)))
    (c,) = study(Arm("script", facts=facts, **free), Arm("other", facts=facts)).compared
    assert ("The wait of script for data was not measured" in sentence(c)) == (not attached)


@pytest.mark.parametrize(
    ("facts", "doubt"), [({"waiting_share": 0.37}, "no core"), ({"unseen_share": 0.3, "waiting_share": 0.0}, "blocked")]
)
def test_what_a_doubt_bars_stands_nowhere(facts: dict[str, float], doubt: str) -> None:
    """The first screen had no ceiling, and the page, the pictures and summary.json had one."""
    both = {**ATTACHED, "attached": "fetch: DataLoader without workers; " + ATTACHED["attached"]}
    arms = [Arm(name, facts={**both, **facts}) for name in ("script", "other")]
    (kept,) = study(*(replace(one, facts=both) for one in arms)).compared
    assert kept.measured.ceiling is not None
    report = study(*arms, spans=True)
    (c,) = report.compared
    assert doubt in [one.kind for one in c.measured.doubts]
    assert (c.measured.ceiling, c.measured.from_waits) == (None, None)
    assert all(link.ratio is None for link in chain(c) if link.name in ("ceiling", "predicted"))
    (found,) = summary(report, first_screen(report))["comparisons"]
    assert (found["ceiling_ratio"], found["predicted_ratio"], found["figures"]["ceiling"]) == (None, None, None)


def test_a_measurement_that_saw_nothing_has_no_figure_anywhere() -> None:
    report = study(Arm("text"), Arm("tokens", tokenize=0.0), noise={"block": 0.9}, blocks=4, steps=4)
    (c,) = report.compared
    assert "too noisy" in [one.kind for one in c.measured.doubts]
    assert (c.measured.figure, c.measured.step_time, c.measured.tokens_ratio, c.measured.together) == (None,) * 4
    assert not [link for link in chain(c) if link.name in ("measured", "trained tokens") and link.ratio is not None]


@pytest.mark.parametrize(
    ("used_lead", "words"), [((0.0, 0.015), "between 8.9 % slower and 0.2 %"), ((0.015, 0.0), "7.4 % slower and 1.7 %")]
)
def test_what_may_lie_behind_steps_that_lived_off_ready_batches_is_in_both_ends(
    used_lead: tuple[float, float], words: str
) -> None:
    lopsided = Estimate(0.958, 0.926, 1.002, 5)
    report = judged(study(Arm("text"), Arm("tokens")), lopsided, 0.001, used_lead=used_lead)
    assert words in finding(report.compared[0].measured)


@pytest.mark.parametrize("blocks", [1, 2])
def test_replicates_of_one_run_are_no_interval(blocks: int) -> None:
    report = study(Arm("text", tokenize=5.0), blocks=blocks, noise={}, spans=True)
    (arm,) = report.arms
    assert (arm.explained.ideal_predicted.ci_low, arm.explained.ideal_predicted.ci_high) == (None, None)
    assert "x as fast, by replay." in lines(report)
    (row,) = (line for line in page_of(report).splitlines() if line.startswith("| text | pretokenizing |"))
    assert "[no interval]" in row


def test_a_step_in_twenty_that_lasts_a_second_is_told_from_the_others() -> None:
    """Each block has one, so the median over blocks is a mean of both kinds."""
    saving = longer(lambda _, row, __: 1000.0 * (row == 7), "checkpoint")
    assert lines(study(Arm("text"), edit=saving, steps=20, repetitions=1)).startswith(
        "text: 81.0 ms a step on average, typically 31.0 ms (5 of 100 steps take 1,030 ms, mostly in checkpoint)."
    )
    assert lines(study(Arm("text"), steps=20, repetitions=1)).startswith("text: 31.0 ms a step. ")


def test_that_workers_repeat_a_dataset_is_said_only_where_their_batches_were_seen_to_be_equal() -> None:
    facts = {"iterable": True}
    arms = [Arm(f"workers-{n}", tokenize=9.0, workers=min(n, 1), facts={**facts, "workers": n}) for n in (0, 2)]
    seen = [arms[0], replace(arms[1], facts={**arms[1].facts, "copies": 2})]
    said = "2 of the 2 loader workers of workers-2 made the same batches, so each document is trained on 2 times."
    (line,) = first_screen(study(*seen)).headlines
    assert said in line.support
    assert said in lines(study(seen[1]))
    for copies in (None, 1):  # not compared; each worker with batches of its own
        own = replace(arms[1], facts={**arms[1].facts, "copies": copies})
        report = study(own)
        assert report.arms[0].copies == 0
        assert "made the same batches" not in lines(report)


def drifting(times: float, **how: Any) -> Comparison:
    """The candidate's steps last ``times`` as long in its last repetition, and half of that in the middle."""

    def slow(record: RunRecord, row: int, columns: dict[str, list[Any]]) -> float:
        return columns["turn"][row] / 2 * (times - 1) * 31 if record.arm == "tokens" else 0.0

    (c,) = study(Arm("text"), Arm("tokens"), edit=longer(slow, "backward"), **how).compared
    return c


def test_a_candidate_that_slows_down_in_its_runs_is_said_to() -> None:
    c = drifting(1.12)
    assert c.drift.median == pytest.approx(1.12, abs=0.002)
    report = study(Arm("text"), Arm("tokens"))
    said = (
        "Compared with text, its steps got 12 % slower from the beginning of a run to its end, so later steps may "
        "differ. To see where that ends, repeat with more steps a block: about 48 (steps: 48; exec: --steps 48)."
    )
    assert said in lines(replace(report, comparisons=(c,)))
    assert "in the last repetition" not in lines(report)
    assert drifting(1.02).drift is None  # not worth a word
    assert drifting(1.12, blocks=2).drift is None
    assert drifting(1.12, repetitions=1).drift is None


def test_a_checkpoint_within_the_first_repetition_is_no_drift() -> None:
    saving = longer(lambda record, row, _: 300.0 * (record.arm == "tokens" and row == 1))
    report = study(Arm("text"), Arm("tokens"), edit=saving, steps=10)
    assert report.compared[0].drift is None
    assert "in the last repetition" not in lines(report)


def saves(*rows: int, ms: float = 1500.0, arm: str = "quick", blocks: Container[int] = range(99)) -> Edit:
    """An edit of a study: ``arm`` takes ``ms`` longer in these rows of the table of each of ``blocks``."""
    return longer(lambda record, row, _: ms * (record.arm == arm and record.block in blocks and row in rows))


def two_unmeasured(*rows: int, ms: float = 1500.0) -> Edit:
    """Each turn of 41 steps begins with two that are not measured, in place of one; "quick" saves in ``rows``."""

    def mark(columns: dict[str, list[Any]]) -> None:
        for row in (1, 42, 83):
            columns["warmup"][row] = True

    return lambda run: steps_of(saves(*rows, ms=ms)(run), mark)


def quicker(edit: Edit | None, **how: Any) -> StudyReport:
    slow = Arm("slow", tokenize=3.0)
    return study(slow, Arm("quick", tokenize=1.0), *slow.controls("a-a"), edit=edit, steps=40, **how)


SLOW, QUICK = 33.02, 31.02  # ms a step
OF = "of 2,400 steps of the candidate"


@pytest.mark.parametrize(
    ("edit", "blocks", "verdict", "ratio", "said"),
    [
        # Two of twenty blocks hold a step of 6 s among 120 of 31 ms: the median block is faster, all of them are not.
        (saves(50, ms=6000.0, blocks={3, 14}), 20, "undecided", 2400 * SLOW / (2400 * QUICK + 2 * 6000),
         f"2 {OF} take 6,030 ms, in 2 of 20 blocks, and by total time the candidate"),
        (saves(50, ms=6000.0, arm="slow", blocks={3, 14}), 20, "gain", (2400 * SLOW + 2 * 6000) / (2400 * QUICK),
         "2 of 2,400 steps of the baseline take 6,030 ms"),
        # One may be an accident, nor is it more than that where another block holds a step of 120 ms.
        (saves(50, ms=9000.0, blocks={1}), 20, "gain", 2400 * SLOW / (2400 * QUICK + 9000),
         f"1 {OF} takes 9,030 ms, in 1 of 20 blocks"),
        (lambda run: saves(60, ms=90.0, blocks={7})(saves(50, ms=9000.0, blocks={1})(run)), 20, "gain",
         2400 * SLOW / (2400 * QUICK + 9090), f"2 {OF} take 121 ms to 9,030 ms, in 2 of 20 blocks"),
        # In four of twenty blocks each step of the candidate takes half as long again: none is long for its run.
        (saves(*range(123), ms=15.5, blocks={2, 7, 11, 16}), 20, "undecided",
         2400 * SLOW / (2400 * QUICK + 480 * 15.5), "as fast, as the candidate is slower in 4 of 20 blocks"),
        # Each block holds as many: their median over blocks does as well.
        (saves(50), 5, "loss", None, ""),
        (lambda run: saves(50, arm=run.record.arm)(run), 5, "gain", None, ""),
        # No figure holds these: 39 measured steps a turn, two before them that are not, and there the candidate saves.
        (two_unmeasured(42, 83, ms=600.0), 5, "undecided", 119 * SLOW / (119 * QUICK + 2 * 600),
         "all of these begin a repetition and are in no other figure"),
        # The first step of a turn may be long as the run was suspended until then; the first of all begins a program.
        (two_unmeasured(41, 82, ms=600.0), 5, "gain", None, ""),
        (saves(0, ms=60000.0), 5, "gain", None, ""),
    ],
)  # fmt: skip
def test_long_steps_that_no_median_shows_are_told_and_may_outweigh_a_gain(
    edit: Edit, blocks: int, verdict: str, ratio: float | None, said: str
) -> None:
    report = quicker(edit, blocks=blocks)
    measured = report.compared[0].measured
    assert (measured.verdict, measured.undecided) == (verdict, "long steps" if verdict == "undecided" else None)
    if ratio is None:
        assert measured.in_total is None
    else:
        assert measured.in_total.ratio == pytest.approx(ratio, rel=0.005)
        assert f"by total time the candidate is {measured.in_total.ratio:.3f}x as fast" in lines(report)
        assert said in lines(report)
        assert said in sentence(report.compared[0])


def test_steps_whose_times_may_differ_are_not_called_the_same() -> None:
    slow = Arm("slow", tokens=2048, trained=1900)
    report = study(slow, Arm("quick", tokens=2048, trained=2500), *slow.controls("a-a"))
    (c,) = report.compared
    for found, said in (
        (Estimate(0.907, 0.857, 1.004, 5), "The change in step time is undecided (0.907x as fast"),
        (Estimate(0.999, 0.985, 1.004, 5), "Step time shows no difference above 1.5 % (0.999x as fast"),
        (Estimate(0.907, 0.857, 0.98, 5), "Steps take 10 % more time (0.907x as fast"),
    ):
        assert said in sentence(replace(c, measured=replace(c.measured, step_time=found, steps=judge(found, 0.01))))
    steps = c.measured.steps
    assert steps.of is not None  # The sentence shows the interval that was judged.
    assert interval(steps.of) in sentence(c)


def microseconds(name: str, tokenize: float = 0.001, **more: Any) -> Arm:
    """A step of 26 us: the 20 us that the synthetic loop spends outside of phases, and 3 us of computing."""
    return Arm(name, read=0.0005, tokenize=tokenize, pack=0.0005, compute={"forward": 0.003}, **more)


def test_steps_that_get_longer_within_the_only_turn_of_each_block_are_named() -> None:
    report = quicker(longer(lambda record, row, _: 0.15 * row * (record.arm == "quick")), repetitions=1)
    assert "its steps got 9.2 % slower from the beginning of a run to its end" in lines(report)
    (remedy,) = [doubt.remedy for doubt in comparison_doubts(report.compared[0]) if doubt.kind == "drift"]
    assert remedy.steps == 4 * 40


@pytest.mark.parametrize(
    ("config", "declared", "facts", "words"),
    [
        ([{}], {}, {}, "each block sees the documents\n  in another order"),
        ([{"data": {"shuffle": False}}], {}, {}, "each block sees the same\n  documents in the same order"),
        ([{}, {"data": {"shuffle": False}}], {}, {}, "where they are shuffled,"),
        ([{"data": {"source": "own:rows"}}], {}, {}, "a data source that\n  seeds itself"),
        ([{}], {}, ATTACHED, "they are consecutive parts of\n  one run"),
        ([{}], {COMMAND: "python train.py"}, ATTACHED, "a program that\n  seeds itself"),
    ],
)
def test_blocks_are_said_to_see_what_they_see(
    config: list[dict[str, Any]], declared: dict[str, Any], facts: dict[str, Any], words: str
) -> None:
    report = study(Arm("text", facts=facts))
    arms = [ArmRecord(f"arm-{place}", declared=declared, config=one) for place, one in enumerate(config)]
    assert words in how_to_read(replace(report, study=replace(report.study, arms=arms)))


@pytest.mark.parametrize(
    ("ceiling", "cell"),
    [
        (Estimate(1.009, 0.880, 1.176, 5), "1.009x unclear"),  # whatever the median
        (Estimate(1.05, 0.99, 1.09, 5), "1.050x unclear"),
        (Estimate(1.05, 1.02, 1.09, 5), "1.050x"),
        (Estimate(1.001, 0.998, 1.004, 5), "1.001x"),  # "1.001x" says as much
        (Estimate(1.05, None, None, 1), "1.050x"),
    ],
)
def test_a_figure_that_may_as_well_be_none_is_marked(ceiling: Estimate, cell: str) -> None:
    report = study(Arm("text", tokenize=5.0), Arm("tokens"))
    found = tuple(replace(c, measured=replace(c.measured, ceiling=ceiling)) for c in report.compared)
    assert first_screen(replace(report, comparisons=found)).rows[0][HEADER.index("could gain")] == cell


def test_assumptions_that_come_to_the_same_are_no_interval_of_one_block() -> None:
    assert ratio_cell(Estimate(1.001, 1.001, 1.001, 1)) == "1.001x [no interval]"
    assert ratio_cell(Estimate(1.001, 1.0, 1.003, 1)) == "1.001x [1.000–1.003]"
    assert ratio_cell(Estimate(1.001, None, None, 2)) == "1.001x [no interval]"
    assert ratio_cell(Estimate(1.001, 1.001, 1.001, 5)) == "1.001x [1.001–1.001]"


@pytest.mark.parametrize(
    ("facts", "persistent", "unseen"),
    [({"epoch_ends": 0}, False, True), ({"epoch_ends": 3, "restarting_share": 0.2}, False, False),
     ({"epoch_ends": 3, "restarting_share": 0.2, "persistent_workers": True}, True, False), ({}, False, False)],
)  # fmt: skip
def test_the_cost_of_restarts_is_named_where_it_was_seen(facts: dict[str, Any], persistent: bool, unseen: bool) -> None:
    """Each epoch's end may cost seconds, as workers start anew, and a short study sees none."""
    known = {**ATTACHED, "attached": "fetch: DataLoader with 2 workers; backward", "workers": 2, **facts}
    text = lines(study(Arm("script", facts=known)))
    assert ("No epoch ends in these steps, so no figure includes the cost of restarting the loader." in text) is unseen
    restarts = "restarting_share" in facts
    assert (" on average for the loader to restart at the ends of epochs" in text) is restarts
    assert ("more workers are not predicted" in text) is restarts
    assert ("persistent_workers=True keeps them alive" in text) is (restarts and not persistent)


@pytest.mark.parametrize("slow", [True, False])
def test_a_slow_sampler_and_an_idle_worker_are_named(slow: bool) -> None:
    facts = {"attached": "fetch: DataLoader with 2 workers; backward", "workers": 2, "sampling_share": 0.2 * slow}
    report = study(Arm("script", facts={**ATTACHED, **facts}))
    arm = replace(report.arms[0], idle_workers=int(slow), workers=2, gave_no_items=False)
    text = lines(replace(report, arms=[arm]))
    assert ("Its sampler takes" in text) is slow
    assert ("1 of the 2 loader workers of script delivered no batch in these steps." in text) is slow


def test_one_ratio_has_one_interval_wherever_it_stands() -> None:
    """Blocks of an arm that drifts are alike, which widens what is said of the others in the same study, too."""

    def drifts(record: RunRecord, row: int, columns: dict[str, list[Any]]) -> float:
        return columns["wall_ns"][row] / 1e6 * 0.03 * (record.block - 3) * (record.arm == "tokens")

    text = Arm("text")
    noise = {"day": 0.0, "block": 0.004, "repetition": 0.0, "step": 0.0}
    arms = [text, Arm("tokens"), *text.controls("a-a", "ideal-data")]
    report = study(*arms, edit=longer(drifts, "backward"), noise=noise, blocks=7, steps=2, repetitions=1)
    measured = report.compared[0].measured
    base, control, ideal = (report.arm(name) for name in ("text", "text+a-a", "text+ideal-data"))
    assert control.against_arm.distance == pytest.approx(measured.noise_floor, rel=1e-9)
    assert ideal.against_arm == base.explained.ideal_measured == measured.ideal


@pytest.mark.parametrize(("workers", "late_ms"), [(0, 0.001), (1, 0.04)])
def test_a_part_of_a_step_of_microseconds_has_the_unit_of_the_step(workers: int, late_ms: float) -> None:
    """``2.31 us of each 0.02 ms`` compares nothing: all that is said of time is in microseconds."""
    runs: list[RunData] = []
    for block in range(3):
        arms = [
            microseconds("text", tokenize=late_ms if block == 1 else 0.001, workers=workers, contended=0.001),
            microseconds("tokens", tokenize=0.0, workers=workers, contended=0.001),
        ]
        record, found = built(*arms, noise=EXACT, blocks=3, steps=4, repetitions=1)
        runs += [run for run in found if run.record.block == block]
    two = analyse(record, runs)
    links = " ".join(link.text for link in chain(two.compared[0]))
    for text in (sentence(two.compared[0]), lines(two), lines(analyse(replace(record, comparisons=[]), runs)), links):
        assert re.search(r"[0-9] us\b", text)
        assert not re.search(r"[0-9] ms\b", text), text


@pytest.mark.parametrize(("epoch", "share"), [(None, ""), (400.0, " (3.0 % of an epoch)"), (8.0, " (1.50 epochs)")])
def test_a_verdict_names_its_horizon(epoch: float | None, share: str) -> None:
    """600 ms every 60th batch are in no block of 12 steps."""
    text, tokens = Arm("text", facts={} if epoch is None else {"epoch_steps": epoch}), Arm("tokens", tokenize=0.0)
    for arms in ((text, tokens), (text,)):
        screen = first_screen(study(*arms))
        assert screen.horizon.startswith(f"Measured: 5 blocks of 12 steps{share}. Costs that come less often than ")
        assert screen.horizon in " ".join(" ".join(terminal.lines(screen)).split())
        assert screen.horizon in opening("x", screen)


def test_what_a_wait_may_be_by_either_reading_is_said_wherever_it_stands() -> None:
    report = study(Arm("text"), Arm("tokens", tokenize=4.0))
    (c,) = report.compared
    other = replace(c.measured, candidate_waits=replace(c.measured.candidate_waits, waited_range_ms=(0.3, 7.5)))
    assert "tokens waits between 0.30 ms and 7.50 ms of 3" in sentence(replace(c, measured=other))
    assert "between" not in sentence(c)
    known, arm = report.arms
    arms = [known, replace(arm, totals=replace(arm.totals, waited_range_ms=(0.3, 7.5)))]
    names = ArmNames([arm.name for arm in arms])
    assert "In either case, a step waits for data: tokens 0.30 to 7.50 ms." in numbers._data_work(arms, names)
    assert "In either case" not in numbers._data_work(report.arms, names)
    assert [plots._share(arm, 0.3, 30.0) for arm in arms] == ["1.0 %", "1.0 % to 25 %"]


@pytest.mark.parametrize(
    ("blocks", "turns", "found"),
    [({0}, 1, "all time apart"), ({0, 1, 2, 3, 4}, 1, "drift")],  # each process opens files that were not read before
)
def test_files_that_are_cold_for_one_side_are_never_a_plain_verdict(blocks: set[int], turns: int, found: str) -> None:
    """Both arms are alike once the page cache is warm. The baseline reads first, 30 ms longer a step."""

    def cold(record: RunRecord, row: int, columns: dict[str, list[Any]]) -> float:
        return 30.0 * (record.arm == "text" and record.block in blocks and columns["turn"][row] < turns)

    text = Arm("text")
    (c,) = study(text, *text.controls("a-a"), Arm("tokens"), edit=longer(cold, "fetch"), noise=NOISE).compared
    assert found in [entry.kind for entry in comparison_doubts(c)]
    assert c.measured.verdict == "undecided"


@pytest.mark.parametrize(("marked", "counted"), [([42, 83], False), (None, False), ([], True)])  # None: not recorded
def test_what_holds_an_evaluation_is_not_counted(marked: list[int] | None, counted: bool) -> None:
    facts = ATTACHED if marked is None else {**ATTACHED, "marked_steps": marked}
    slow, quick = (Arm(name, tokenize=ms, facts=facts) for name, ms in (("slow", 3.0), ("quick", 1.0)))
    report = study(slow, quick, *slow.controls("a-a"), edit=two_unmeasured(42, 83), steps=40)
    assert (report.compared[0].measured.in_total is not None) is counted


def test_a_gain_of_which_no_loss_is_known_says_so() -> None:
    def without(run: RunData) -> RunData:
        return steps_of(run, lambda columns: columns.update(loss=[None] * len(columns["loss"])))

    assert ["Losses were not compared." in lines(quicker(edit)) for edit in (without, None)] == [True, False]
