"""Situations in which a sentence of the product once was false, or misled: each of a study whose truth is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from harness.explain.bounds import agreed
from harness.explain.ledger import RunLedger, measure
from harness.explain.ranks import RanksReport, RankTimes
from harness.explain.statistics import Estimate
from harness.judge.report_types import Comparison, StudyReport
from harness.judge.study import analyse, comparison_doubts
from harness.judge.verdicts import judge
from harness.judge.waits import bounds_of
from harness.show import numbers, plots, ranks, terminal
from harness.show.chain import chain
from harness.show.first_screen import HEADER, _or_none, first_screen
from harness.show.markdown import how_to_read, opening
from harness.show.names import ArmNames
from harness.show.sentences import sentence
from harness.show.summary import summary
from harness.show.tables import ratio_cell
from harness.show.text.verdicts import finding
from harness.show.words import interval
from harness.study.contract import STEP_COLUMNS, arrow_schema
from harness.study.records import COMMAND, ArmRecord
from harness.study.run_data import RunData
from tests.harness.synthetic import NOISE, Arm, build, judged, page_of

EXACT = dict.fromkeys(NOISE, 0.0)
ATTACHED = {"attached": "forward: Sequential; backward; optimizer: AdamW", "step_ends": "the update of AdamW"}


def study(*arms: Arm, edit: Callable[[RunData], RunData] = lambda run: run, **how: Any) -> StudyReport:
    """The first arm against the others; alone it is compared with none. Replayed only with ``spans=True``."""
    compared = [(arms[0].name, one.name) for one in arms[1:] if not one.control]
    record, runs = build([*arms], compared, **{"noise": EXACT, "spans": False, **how})
    return analyse(record, [edit(run) for run in runs])


def lines(report: StudyReport) -> str:
    return " ".join(one.text for one in first_screen(report).headlines)


def steps_of(run: RunData, change: Callable[[dict[str, list[Any]]], None]) -> RunData:
    """``run`` with its table of steps changed."""
    assert run.steps is not None
    columns = run.steps.to_pydict()
    change(columns)
    return RunData(run.record, pa.table(columns, schema=arrow_schema(STEP_COLUMNS)), run.spans, run.samples)


@cache
def a_disk_slow_in_some_blocks(
    *names: str, late: tuple[tuple[int, float], ...] = ((1, 25.0), (3, 25.0)), blocks: int = 5, controls: str = ""
) -> StudyReport:
    """``late``: (block, ms that tokenizing takes there); elsewhere 0.3 ms."""
    late_ms = dict(late)
    runs: list[RunData] = []
    for block in range(blocks):
        arms = [Arm(name, tokenize=late_ms.get(block, 0.3)) for name in names]
        arms += arms[0].controls(*controls.split())
        record, found = build(arms, [(names[0], one) for one in names[1:]], noise=EXACT, blocks=blocks)
        runs += [run for run in found if run.record.block == block]
    return analyse(record, runs)


def test_a_wait_of_some_blocks_is_said_of_these() -> None:
    """The mean is 10.5 ms and the median 0.6: no block waits for the one, and not all for the other."""
    said = "25.3 ms of each 55.0 ms step in 2 of 5 blocks and 0.60 ms in the others"
    (c,) = a_disk_slow_in_some_blocks("text", "tokens").compared
    assert f"text waits for {said}" in sentence(c)
    assert "Without any data work text in the median block would be 1.020x as fast" in sentence(c)
    assert lines(a_disk_slow_in_some_blocks("text", "tokens")).endswith(
        "text waits for 25.3 ms of each 55.0 ms step in 2 of 5 blocks and 0.60 ms in the others."
    )
    alone = lines(a_disk_slow_in_some_blocks("text", controls="ideal-data"))
    assert f"It waits for data {said}." in alone
    in_blocks = "1.851x as fast in those 2 blocks and 1.020x in the others (median block: 1.020x, "
    assert f"(ideal-data) it is {in_blocks}" in alone
    assert f"Without any data work it would be {in_blocks}" in alone
    alike = study(Arm("text", tokenize=25.0), Arm("tokens"))
    assert "in the others" not in sentence(alike.compared[0])


@pytest.mark.parametrize(
    ("late_ms", "blocks", "said"),
    [
        # Mean and median are 13.0 ms: of no block.
        ({0: 25.0, 2: 25.0}, 4, "25.3 ms of each 55.0 ms step in 2 of 4 blocks and 0.60 ms in the others"),
        ({1: 25.0}, 2, "25.3 ms of each 55.0 ms step in 1 of 2 blocks and 0.60 ms in the others"),
        # Three kinds: the others are not as their mean either.
        ({0: 30.0, 1: 30.0, 2: 8.0}, 5, "30.3 ms of each 60.0 ms step in 2 of 5 blocks and 0.60 ms to 8.30 ms in the"),
        # Half of a step of 60 ms, and 40.3 ms of one of 70 ms.
        ({0: 30.0, 1: 40.0}, 5, "32.8 ms to 37.4 ms of each 65.0 ms step in 2 of 5 blocks and 0.60 ms in the others"),
        # All wait, for about as long as one another, in two groups by chance: what is said of all holds of each.
        ({0: 25.0, 1: 25.4, 2: 27.0, 3: 27.2}, 4, ""),
        (dict.fromkeys(range(4), 25.0), 4, ""),
    ],
)
def test_a_wait_of_half_of_the_blocks_is_said_of_these(late_ms: dict[int, float], blocks: int, said: str) -> None:
    two = a_disk_slow_in_some_blocks("text", "tokens", late=tuple(late_ms.items()), blocks=blocks)
    alone = a_disk_slow_in_some_blocks("text", late=tuple(late_ms.items()), blocks=blocks)
    for text in (sentence(two.compared[0]), lines(two), lines(alone)):
        assert (said in text) if said else ("in the others" not in text)


def test_the_median_of_blocks_of_which_half_wait_is_not_said_to_be_of_one() -> None:
    late = ((0, 25.0), (2, 25.0))
    (c,) = a_disk_slow_in_some_blocks("text", "tokens", late=late, blocks=4).compared
    assert "Without any data work text, halfway between these blocks and the others, would be 1.3" in sentence(c)
    alone = lines(a_disk_slow_in_some_blocks("text", late=late, blocks=4))
    assert "it would be 1.851x as fast in those 2 blocks and 1.020x in the others, by replay." in alone


def ledger(**changes: Any) -> RunLedger:
    found = measure(build([Arm("text")], blocks=1)[1][0])
    assert found is not None
    return replace(found, **changes)


def test_blocks_that_differ_in_what_bounds_them_have_no_bound_together() -> None:
    device, host = (ledger(device_starved_ms=starved, device_room_ms=37.0) for starved in (0.1, 10.0))
    assert agreed(bounds_of([device, device])) == "device"
    runs = [device, host, device, host, device]
    assert agreed(bounds_of(runs)) is None
    (c,) = study(Arm("text"), Arm("tokens")).compared
    waits = replace(c.measured.baseline_waits, bounds=bounds_of(runs))
    (link,) = (
        one for one in chain(replace(c, measured=replace(c.measured, baseline_waits=waits))) if one.name == "ceiling"
    )
    assert link.text.endswith(
        "; blocks differ in what bounds their steps: device-bound in 3 of 5 and host-bound in 2 of 5"
    )


def test_a_record_that_lacks_work_of_the_device_has_no_bound() -> None:
    """Without its backward pass a busy device looks idle. Such a record is not the run, so its waits are not split."""
    whole = ledger(device_starved_ms=10.0, device_room_ms=0.0)
    assert whole.bound == "host"
    facts = replace(whole.record.facts, asynchronous=True)
    lacking = replace(whole, record=replace(whole.record, facts=facts), exposed_ms={}, hidden_ms={})
    assert lacking.bound_shares is None
    assert lacking.bound is None


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
    (found,) = summary(report, first_screen(report))["comparisons"]  # type: ignore[misc]
    assert (found["ceiling_ratio"], found["predicted_ratio"], found["figures"]["ceiling"]) == (None, None, None)  # type: ignore[index,call-overload]


def test_a_measurement_that_saw_nothing_has_no_figure_anywhere() -> None:
    report = study(Arm("text"), Arm("tokens", tokenize=0.0), noise={"block": 0.9}, blocks=4, steps=4)
    (c,) = report.compared
    assert "too noisy" in [one.kind for one in c.measured.doubts]
    assert (c.measured.figure, c.measured.step_time, c.measured.tokens_ratio, c.measured.together) == (None,) * 4
    assert not [link for link in chain(c) if link.name in ("measured", "trained tokens") and link.ratio is not None]


def test_ranks_of_two_machines_are_not_said_to_be_on_one() -> None:
    (arm,) = study(Arm("text")).arms
    found = RanksReport("ddp", 30.0, (RankTimes(0, 30.0, None, 1.0), RankTimes(1, 30.0, None, 1.0)))
    pages = {
        nodes: ranks.section([replace(arm, ranks=replace(found, nodes=nodes))], ArmNames(["text"])) for nodes in (1, 2)
    }
    assert "All ranks are on one machine, whose clock" in pages[1]
    assert "All ranks are on one machine" not in pages[2]
    assert "Ranks of one machine share its clock" in pages[2]


@pytest.mark.parametrize(
    ("config", "declared", "facts", "words"),
    [
        ({}, {}, {}, "each block sees the documents\n  in another order"),
        ({"data": {"shuffle": False}}, {}, {}, "each block sees the same\n  documents in the same order"),
        ({"data": {"source": "own:rows"}}, {}, {}, "a data source that\n  seeds itself gives each block the same data"),
        ({}, {}, ATTACHED, "they are consecutive parts of\n  one run"),
        ({}, {COMMAND: "python train.py"}, ATTACHED, "a program that\n  seeds itself sees the same data in each block"),
    ],
)
def test_blocks_are_said_to_see_what_they_see(
    config: dict[str, Any], declared: dict[str, Any], facts: dict[str, Any], words: str
) -> None:
    report = study(Arm("text", facts=facts))
    report = replace(report, study=replace(report.study, arms=[ArmRecord("text", declared=declared, config=config)]))
    assert words in how_to_read(report)


def test_of_arms_of_which_one_is_not_shuffled_it_is_said_where_they_are() -> None:
    report = study(Arm("text"))
    arms = [ArmRecord(str(shuffle), config={"data": {"shuffle": shuffle}}) for shuffle in (True, False)]
    assert "where they are shuffled," in how_to_read(replace(report, study=replace(report.study, arms=arms)))


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Estimate(0.958, 0.926, 1.002, 5), "no detectable difference (between 7.4 % slower and 0.2 % faster)"),
        (Estimate(1.01, 0.998, 1.03, 5), "no detectable difference (under 3.0 %)"),
        (Estimate(0.99, 0.97, 1.02, 5), "no detectable difference (under 3.0 %)"),
    ],
)
def test_a_loss_that_is_not_excluded_is_said_beside_the_gain_that_is(ratio: Estimate, words: str) -> None:
    assert finding(judged(study(Arm("text"), Arm("tokens")), ratio, 0.001).compared[0].measured) == words


@pytest.mark.parametrize(
    ("used_lead", "words"), [((0.0, 0.015), "between 8.9 % slower and 0.2 %"), ((0.015, 0.0), "7.4 % slower and 1.7 %")]
)
def test_what_may_lie_behind_steps_that_lived_off_ready_batches_is_in_both_ends(
    used_lead: tuple[float, float], words: str
) -> None:
    lopsided = Estimate(0.958, 0.926, 1.002, 5)
    report = judged(study(Arm("text"), Arm("tokens")), lopsided, 0.001, used_lead=used_lead)
    assert words in finding(report.compared[0].measured)


def test_a_loss_in_what_is_counted_is_said_in_it() -> None:
    report = judged(study(Arm("text"), Arm("tokens", trained=2000)), Estimate(0.958, 0.926, 1.002, 5), 0.001)
    assert finding(report.compared[0].measured) == (
        "no detectable difference (between 7.4 % fewer trained tokens/s and 0.2 % more)"
    )


@pytest.mark.parametrize("blocks", [1, 2])
def test_replicates_of_one_run_are_no_interval(blocks: int) -> None:
    report = study(Arm("text", tokenize=5.0), blocks=blocks, noise={}, spans=True)
    (arm,) = report.arms
    assert arm.explained.ideal_predicted is not None
    assert (arm.explained.ideal_predicted.ci_low, arm.explained.ideal_predicted.ci_high) == (None, None)
    assert "x as fast, by replay." in lines(report)
    (row,) = (line for line in page_of(report).splitlines() if line.startswith("| text | pretokenizing |"))
    assert "[no interval]" in row


def test_a_step_in_twenty_that_lasts_a_second_is_told_from_the_others() -> None:
    """Each block has one, so the median over blocks is a mean of both kinds."""

    def saving(run: RunData) -> RunData:
        def change(columns: dict[str, list[Any]]) -> None:
            for name in ("wall_ns", "checkpoint_ns"):
                columns[name][7] += 1_000_000_000

        return steps_of(run, change)

    report = study(Arm("text"), edit=saving, steps=20, repetitions=1)
    assert lines(report).startswith(
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


def test_what_is_hidden_is_not_said_to_cost_nothing() -> None:
    text = " ".join(page_of(study(Arm("text", workers=1), Arm("tokens"), spans=True)).split())
    assert "It may still take cores from the step" in text


def test_a_figure_that_may_as_well_be_none_is_marked() -> None:
    report = study(Arm("text", tokenize=5.0), Arm("tokens"))

    def row(ceiling: Estimate) -> str:
        found = tuple(replace(c, measured=replace(c.measured, ceiling=ceiling)) for c in report.compared)
        return first_screen(replace(report, comparisons=found)).rows[0][HEADER.index("could gain")]

    assert row(Estimate(1.345, 0.876, 1.654, 5)) == "1.345x unclear"
    assert row(Estimate(1.345, 1.1, 1.654, 5)) == "1.345x"
    assert row(Estimate(1.001, 0.999, 1.003, 5)) == "1.001x"  # "1.001x" says as much


@pytest.mark.parametrize(
    ("step_time", "how"),
    [
        (Estimate(0.95, 0.94, 0.99, 5), "with more steps a block, as blocks hold different batches"),
        (Estimate(0.95, 0.6, 2.5, 5), "with more than 5 blocks, or on a quieter machine"),
        (None, "with more than 5 blocks, or on a quieter machine"),
    ],
)
def test_a_quieter_machine_is_asked_for_only_where_times_scatter(step_time: Estimate | None, how: str) -> None:
    report = judged(study(Arm("text"), Arm("tokens")), Estimate(4.5, 0.88, 6.9, 5), 0.01)
    assert finding(replace(report.compared[0].measured, step_time=step_time)).endswith(f"; repeat {how}")


@pytest.mark.parametrize(
    ("epoch", "share"),
    [(None, ""), (400.0, " (3.0 % of an epoch)"), (1500.0, " (0.8 % of an epoch)"), (8.0, " (1.50 epochs)")],
)
def test_a_verdict_names_its_horizon(epoch: float | None, share: str) -> None:
    """600 ms every 60th batch are in no block of 12 steps."""
    long = {} if epoch is None else {"epoch_steps": epoch}
    text, tokens = Arm("text", facts=long), Arm("tokens", tokenize=0.0)
    for arms in ((text, tokens), (text,)):
        report = study(*arms)
        screen = first_screen(report)
        assert screen.horizon == (
            f"Measured: 5 blocks of 12 steps{share}. Costs that come less often than every 12 steps may be missing: "
            "set more steps."
        )
        assert screen.horizon in " ".join(" ".join(terminal.lines(screen)).split())
        assert screen.horizon in opening("x", screen)


@pytest.mark.parametrize(
    ("blocks", "turns", "found"),
    [
        ({0}, 3, "all time apart"),
        ({0, 1}, 3, "all time apart"),
        ({0}, 1, "all time apart"),
        ({0, 1, 2, 3, 4}, 1, "drift"),  # each process opens files that were not read before
    ],
)
def test_files_that_are_cold_for_one_side_are_never_a_plain_verdict(blocks: set[int], turns: int, found: str) -> None:
    """Both arms are alike once the page cache is warm. The baseline reads first, 30 ms longer a step."""

    def cold(run: RunData) -> RunData:
        def change(columns: dict[str, list[Any]]) -> None:
            for place, turn in enumerate(columns["turn"]):
                if run.record.arm == "text" and run.record.block in blocks and turn < turns:
                    for name in ("wall_ns", "fetch_ns"):
                        columns[name][place] += 30_000_000

        return steps_of(run, change)

    text = Arm("text")
    report = study(text, *text.controls("a-a"), Arm("tokens"), edit=cold, noise=NOISE)
    (c,) = report.compared
    assert found in [entry.kind for entry in comparison_doubts(c)]
    assert c.measured.verdict == "undecided"
    assert first_screen(report).horizon


def drifting(times: float, **how: Any) -> Comparison:
    """The candidate's steps last ``times`` as long in its last repetition, and half of that in the middle."""

    def slow(run: RunData) -> RunData:
        def change(columns: dict[str, list[Any]]) -> None:
            for place, turn in enumerate(columns["turn"]):
                for name in ("wall_ns", "backward_ns"):
                    columns[name][place] += round(turn / 2 * (times - 1) * 31e6)

        return steps_of(run, change) if run.record.arm == "tokens" else run

    (c,) = study(Arm("text"), Arm("tokens"), edit=slow, **how).compared
    return c


def test_a_candidate_that_slows_down_in_its_runs_is_said_to() -> None:
    c = drifting(1.12)
    assert c.drift is not None
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


def test_what_a_wait_may_be_by_either_reading_is_said_wherever_it_stands() -> None:
    report = study(Arm("text"), Arm("tokens", tokenize=4.0))
    (c,) = report.compared
    other = replace(c.measured.candidate_waits, waited_range_ms=(0.3, 7.5))
    assert "tokens waits between 0.30 ms and 7.50 ms of 3" in sentence(
        replace(c, measured=replace(c.measured, candidate_waits=other))
    )
    assert "between" not in sentence(c)
    arms = [
        replace(arm, totals=replace(arm.totals, waited_range_ms=(0.3, 7.5))) if arm.name == "tokens" else arm
        for arm in report.arms
    ]
    names = ArmNames([arm.name for arm in arms])
    assert "In either case, a step waits for data: tokens 0.30 to 7.50 ms." in numbers._data_work(arms, names)
    assert "By either" not in numbers._data_work(report.arms, names)
    assert [plots._share(arm, 0.3, 30.0) for arm in arms] == ["1.0 %", "1.0 % to 25 %"]


@pytest.mark.parametrize(
    ("found", "marked"),
    [
        (Estimate(1.009, 0.880, 1.176, 5), True),  # whatever the median
        (Estimate(1.05, 0.99, 1.09, 5), True),
        (Estimate(1.05, 1.02, 1.09, 5), False),
        (Estimate(1.001, 0.998, 1.004, 5), False),
        (Estimate(1.05, None, None, 1), False),
    ],
)
def test_whether_a_figure_may_be_none_does_not_hang_on_its_median(found: Estimate, marked: bool) -> None:
    assert bool(_or_none(found)) is marked


def test_one_ratio_has_one_interval_wherever_it_stands() -> None:
    """Blocks of an arm that drifts are alike, which widens what is said of the others in the same study, too."""

    def drifts(run: RunData) -> RunData:
        def change(columns: dict[str, list[Any]]) -> None:
            for place, wall_ns in enumerate(columns["wall_ns"]):
                more_ns = round(wall_ns * 0.03 * (run.record.block - 3))
                columns["wall_ns"][place] += more_ns
                columns["backward_ns"][place] += more_ns

        return steps_of(run, change) if run.record.arm == "tokens" else run

    text, tokens = Arm("text"), Arm("tokens")
    two = Arm("two", workers=2, declared={"data.workers": 2}, config={"data.workers": 2})
    noise = {"day": 0.0, "block": 0.004, "repetition": 0.0, "step": 0.0}
    report = study(
        text, tokens, two, *text.controls("a-a", "ideal-data"), edit=drifts, noise=noise, blocks=7, spans=True
    )
    measured = report.compared[0].measured
    control, ideal = report.arm("text+a-a"), report.arm("text+ideal-data")
    assert control is not None
    assert ideal is not None
    assert control.against_arm is not None
    assert control.against_arm.distance == pytest.approx(measured.noise_floor, rel=1e-9)
    assert ideal.against_arm == measured.ideal
    base = report.arm("text")
    assert base is not None
    assert base.explained.ideal_measured == measured.ideal
    (tried,) = [one for one in report.advice[0].options if one.measured is not None]
    assert tried.measured == report.compared[1].measured.step_time


def test_a_checkpoint_within_the_first_repetition_is_no_drift() -> None:
    def saving(run: RunData) -> RunData:
        def change(columns: dict[str, list[Any]]) -> None:
            place = next(place for place, warmup in enumerate(columns["warmup"]) if not warmup)
            for name in ("wall_ns", "other_ns"):
                columns[name][place] += 300_000_000

        return steps_of(run, change) if run.record.arm == "tokens" else run

    report = study(Arm("text"), Arm("tokens"), edit=saving, steps=10)
    assert report.compared[0].drift is None
    assert "in the last repetition" not in lines(report)


@pytest.mark.parametrize(("ends", "workers", "said"), [(0, 2, True), (1, 2, False), (0, 0, False), (None, 2, False)])
def test_where_no_epoch_ends_its_end_is_said_to_be_in_no_figure(ends: int | None, workers: int, said: bool) -> None:
    """Each epoch's end may cost seconds, as workers start anew, and a short study sees none."""
    facts = {**ATTACHED, "attached": "fetch: DataLoader with 2 workers; backward", "workers": workers}
    text = lines(study(Arm("script", facts=facts if ends is None else {**facts, "epoch_ends": ends})))
    assert ("No epoch ends in these steps, so no figure includes the cost of restarting the loader." in text) is said


@pytest.mark.parametrize("persistent", [True, False])
def test_persistent_workers_are_no_advice_where_they_are_on(persistent: bool) -> None:
    facts = {**ATTACHED, "attached": "fetch: DataLoader with 2 workers; backward", "workers": 2, "epoch_ends": 3}
    arm = Arm("script", facts={**facts, "restarting_share": 0.2, "persistent_workers": persistent})
    text = lines(study(arm, spans=True))
    assert "more workers are not predicted" in text
    assert ("persistent_workers=True keeps them alive" in text) is not persistent


@pytest.mark.parametrize(
    ("found", "cell"),
    [
        (Estimate(1.001, 1.001, 1.001, 1), "1.001x [no interval]"),
        (Estimate(1.001, 1.0, 1.003, 1), "1.001x [1.000–1.003]"),
        (Estimate(1.001, None, None, 2), "1.001x [no interval]"),
        (Estimate(1.001, 1.001, 1.001, 5), "1.001x [1.001–1.001]"),
    ],
)
def test_assumptions_that_come_to_the_same_are_no_interval_of_one_block(found: Estimate, cell: str) -> None:
    assert ratio_cell(found) == cell


def saves(*rows: int, ms: float = 1500.0, arm: str = "quick") -> Callable[[RunData], RunData]:
    """An edit of a study: ``arm`` takes ``ms`` longer in these rows of every block's table."""

    def save(columns: dict[str, list[Any]]) -> None:
        for row in rows:
            for name in ("wall_ns", "other_ns"):
                columns[name][row] += round(ms * 1e6)

    return lambda run: steps_of(run, save) if run.record.arm == arm else run


def two_unmeasured(run: RunData) -> RunData:
    """Each turn of 41 steps begins with two that are not measured, in place of one."""

    def mark(columns: dict[str, list[Any]]) -> None:
        for row in (1, 42, 83):
            columns["warmup"][row] = True

    return steps_of(run, mark)


def in_some_blocks(edit: Callable[[RunData], RunData], *blocks: int) -> Callable[[RunData], RunData]:
    return lambda run: edit(run) if run.record.block in blocks else run


def quicker(edit: Callable[[RunData], RunData], **how: Any) -> StudyReport:
    slow = Arm("slow", tokenize=3.0)
    return study(slow, Arm("quick", tokenize=1.0), *slow.controls("a-a"), edit=edit, steps=40, **how)


def test_rare_long_steps_that_outweigh_a_gain_are_no_gain() -> None:
    """Two of twenty blocks hold a step of 6 s among 120 of 31 ms: the median block is faster, all of them are not."""
    report = quicker(in_some_blocks(saves(50, ms=6000.0), 3, 14), blocks=20)
    (c,) = report.compared
    truth = 2400 * 33.02 / (2400 * 31.02 + 2 * 6000)
    assert c.measured.in_total is not None
    assert c.measured.in_total.ratio == pytest.approx(truth, rel=0.005)
    assert (c.measured.verdict, c.measured.undecided) == ("undecided", "long steps")
    said = "2 of 2,400 steps of the candidate take 6,030 ms, in 2 of 20 blocks, and by total time the candidate"
    assert said in lines(report)
    assert "; repeat with more steps a block" in lines(report)
    assert said in sentence(c)


def test_one_long_step_is_told_and_may_be_an_accident() -> None:
    report = quicker(in_some_blocks(saves(50, ms=9000.0), 1), blocks=20)
    assert report.compared[0].measured.verdict == "gain"
    assert "1 of 2,400 steps of the candidate takes 9,030 ms, in 1 of 20 blocks" in lines(report)
    # Nor is it more than an accident where another block holds a step of 120 ms.
    twice = quicker(
        lambda run: in_some_blocks(saves(60, ms=90.0), 7)(in_some_blocks(saves(50, ms=9000.0), 1)(run)), blocks=20
    )
    assert twice.compared[0].measured.verdict == "gain"
    assert "2 of 2,400 steps of the candidate take 121 ms to 9,030 ms, in 2 of 20 blocks" in lines(twice)


def test_long_steps_of_the_baseline_make_the_candidate_faster_in_all_time() -> None:
    report = quicker(in_some_blocks(saves(50, ms=6000.0, arm="slow"), 3, 14), blocks=20)
    (c,) = report.compared
    assert c.measured.verdict == "gain"
    assert "2 of 2,400 steps of the baseline take 6,030 ms" in lines(report)
    truth = (2400 * 33.02 + 2 * 6000) / (2400 * 31.02)
    assert f"by total time the candidate is {truth:.3f}x as fast." in lines(report)


def test_long_steps_of_every_block_and_of_both_arms_need_no_word() -> None:
    """Each block holds as many: their median over blocks does as well."""
    every = quicker(saves(50))
    assert every.compared[0].measured.verdict == "loss"
    both = quicker(lambda run: saves(50, arm=run.record.arm)(run))
    none = quicker(lambda run: run)
    assert [one.compared[0].measured.in_total for one in (every, both, none)] == [None, None, None]


def test_a_save_that_always_falls_into_the_first_steps_of_a_turn_is_counted() -> None:
    """No figure holds these: 39 measured steps a turn, two before them that are not, and there the candidate saves."""
    report = quicker(lambda run: two_unmeasured(saves(42, 83, ms=600.0)(run)))
    (c,) = report.compared
    truth = 119 * 33.02 / (119 * 31.02 + 2 * 600)  # 39 a turn, and one before each but the first turn
    assert c.measured.in_total is not None
    assert c.measured.in_total.ratio == pytest.approx(truth, rel=0.005)
    assert (c.measured.verdict, c.measured.undecided) == ("undecided", "long steps")
    assert "all of these begin a repetition and are in no other figure" in lines(report)
    # The first step of a turn may be long as the run was suspended until then.
    suspended = quicker(lambda run: two_unmeasured(saves(41, 82, ms=600.0)(run)))
    assert suspended.compared[0].measured.in_total is None


def test_what_begins_a_program_or_holds_an_evaluation_is_not_counted() -> None:
    first = quicker(saves(0, ms=60000.0))
    assert first.compared[0].measured.in_total is None
    marked = [Arm(name, tokenize=ms, facts={**ATTACHED, "marked_steps": [42, 83]}) for name, ms in PAIR]
    old = [Arm(name, tokenize=ms, facts=ATTACHED) for name, ms in PAIR]  # recorded before it was known which
    new = [Arm(name, tokenize=ms, facts={**ATTACHED, "marked_steps": []}) for name, ms in PAIR]
    found = [
        study(*arms, *arms[0].controls("a-a"), edit=lambda run: two_unmeasured(saves(42, 83)(run)), steps=40)
        .compared[0]
        .measured.in_total
        for arms in (marked, old, new)
    ]
    assert [one is not None for one in found] == [False, False, True]


PAIR = (("slow", 3.0), ("quick", 1.0))


def test_what_the_same_arm_again_does_as_well_is_no_difference() -> None:
    """The A/A control is itself 7 % faster in every block: of 9 % a part may be what that is."""
    slow = Arm("slow", tokenize=3.0)
    again = slow.variant("a-a", tokenize=0.8)
    noise = {"step": 0.02, "block": 0.001}

    def of(tokenize: float) -> StudyReport:
        return study(slow, Arm("quick", tokenize=tokenize), again, noise={**EXACT, **noise}, steps=20)

    near, far = of(0.45), of(0.0)
    (c,) = near.compared
    assert c.measured.ratio.median - 1 > (c.measured.noise_floor or 0)
    assert (c.measured.verdict, c.measured.undecided) == ("undecided", "a-a apart")
    assert "the A/A control of slow, the same program again, was 7.5 % faster (6.7 to 7.9 %)" in lines(near)
    assert far.compared[0].measured.verdict == "gain"
    assert "was 7.5 % faster (6.7 to 7.9 %): that much of the difference may be noise." in lines(far)


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
    assert steps is not None
    assert steps.of is not None  # The sentence shows the interval that was judged.
    assert interval(steps.of) in sentence(c)


def microseconds(name: str, tokenize: float = 0.001, **more: Any) -> Arm:
    """A step of 26 us: the 20 us that the synthetic loop spends outside of phases, and 3 us of computing."""
    return Arm(name, read=0.0005, tokenize=tokenize, pack=0.0005, compute={"forward": 0.003}, **more)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("late_ms", [0.001, 0.04])
def test_a_part_of_a_step_of_microseconds_has_the_unit_of_the_step(workers: int, late_ms: float) -> None:
    """``2.31 us of each 0.02 ms`` compares nothing: all that is said of time is in microseconds."""
    runs: list[RunData] = []
    for block in range(5):
        arms = [
            microseconds("text", tokenize=late_ms if block in (1, 3) else 0.001, workers=workers, contended=0.001),
            microseconds("tokens", tokenize=0.0, workers=workers, contended=0.001),
        ]
        record, found = build(arms, [("text", "tokens")], noise=EXACT, steps=8)
        runs += [run for run in found if run.record.block == block]
    two = analyse(record, runs)
    alone = analyse(replace(record, comparisons=[]), runs)
    links = " ".join(link.text for link in chain(two.compared[0]))
    for text in (sentence(two.compared[0]), lines(two), lines(alone), links):
        assert re.search(r"[0-9] us\b", text)
        assert not re.search(r"[0-9] ms\b", text), text


def test_slow_blocks_that_outweigh_a_gain_are_no_gain() -> None:
    """In four of twenty blocks each step of the candidate takes half as long again: none is long for its run."""

    def half_as_long_again(run: RunData) -> RunData:
        return saves(*range(123), ms=15.5)(run)

    report = quicker(in_some_blocks(half_as_long_again, 2, 7, 11, 16), blocks=20)
    (c,) = report.compared
    truth = 2400 * 33.02 / (2400 * 31.02 + 480 * 15.5)
    assert c.measured.in_total is not None
    assert c.measured.in_total.ratio == pytest.approx(truth, rel=0.005)
    assert (c.measured.verdict, c.measured.undecided) == ("undecided", "long steps")
    said = f"by total time the candidate is {truth:.3f}x as fast, as the candidate is slower in 4 of 20 blocks"
    assert said in lines(report)


def test_steps_that_get_longer_within_the_only_turn_of_each_block_are_named() -> None:
    def grow(columns: dict[str, list[Any]]) -> None:
        for row in range(41):
            for name in ("wall_ns", "other_ns"):
                columns[name][row] += row * 150_000

    report = quicker(lambda run: steps_of(run, grow) if run.record.arm == "quick" else run, repetitions=1)
    assert "its steps got 9.2 % slower from the beginning of a run to its end" in lines(report)
    (remedy,) = [doubt.remedy for doubt in comparison_doubts(report.compared[0]) if doubt.kind == "drift"]
    assert remedy is not None
    assert remedy.steps == 4 * 40


def test_work_hidden_behind_all_of_the_step_is_not_said_to_be_behind_a_part_of_it() -> None:
    report = study(Arm("text", workers=1, tokenize=4.0), Arm("tokens"), spans=True)
    (c,) = report.compared

    def told(**behind_ms: float) -> str:
        explained = replace(c.explained, hidden_behind_ms=behind_ms)
        return lines(replace(report, comparisons=(replace(c, explained=explained),)))

    assert "is hidden behind the optimizer." in told(optimizer=4.0, forward=0.3)
    assert "is hidden behind backward and forward." in told(backward=2.5, forward=1.5, optimizer=0.3)
    assert "is hidden behind the step." in told(optimizer=1.1, forward=0.8, backward=0.8, h2d=0.8, sync=0.8)


def test_a_gain_of_which_no_loss_is_known_says_so() -> None:
    unknown = "Losses were not compared."

    def without(run: RunData) -> RunData:
        return steps_of(run, lambda columns: columns.update(loss=[None] * len(columns["loss"])))

    assert unknown in lines(quicker(without))
    assert unknown not in lines(quicker(lambda run: run))
