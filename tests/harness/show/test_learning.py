"""What arms learned: curves compared loss by loss, and the sentences and figures made of that."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.judge.learning import Learning, learning
from harness.judge.study import analyse
from harness.show.curves import loss_curves
from harness.show.first_screen import first_screen
from harness.show.learning import agreement, cost, learning_json, section
from harness.show.markdown import page
from harness.show.names import ArmNames
from harness.study.contract import EVALUATION_COLUMNS, STEP_COLUMNS
from harness.study.records import ComparisonRecord, RunFacts, RunRecord
from harness.study.run_data import RunData
from harness.study.tables import completed, make_table
from tests.harness.synthetic import Arm, build

SECOND = 1_000_000_000
LOSSES = [6.0, 5.5, 5.0, 4.5]
PAIR = [ComparisonRecord("text", "tokens")]


def run(
    arm: str,
    losses: list[float] = LOSSES,
    passes: dict[int, float | None] | None = None,
    block: int = 0,
    accuracy: float | None = None,
    workers: int = 0,
    tokens: int = 1000,
    vocab_size: int = 300,
) -> RunData:
    passes = {1: 5.6, 3: 4.6} if passes is None else passes
    steps = {"step": list(range(len(losses))), "wall_ns": [SECOND] * len(losses), "loss": losses}
    evaluations = {
        "step": list(passes),
        "start_ns": [0] * len(passes),
        "end_ns": [SECOND // 2] * len(passes),
        "loss": list(passes.values()),
        "accuracy": [accuracy] * len(passes),
        "tokens": [tokens] * len(passes),
    }
    record = RunRecord(arm, block, "done", facts=RunFacts(workers=workers, vocab_size=vocab_size))
    tables = make_table(STEP_COLUMNS, steps), make_table(EVALUATION_COLUMNS, evaluations)
    return RunData(record, tables[0], None, None, evaluations=tables[1])


def found(*runs: RunData) -> Learning:
    by_arm: dict[str, list[RunData]] = {}
    for one in runs:
        by_arm.setdefault(one.record.arm, []).append(one)
    result = learning(by_arm, PAIR)
    assert result is not None
    return result


NAMES = ArmNames(["text", "tokens"])
LAST_BIT = math.nextafter(LOSSES[2], 10)
ALL = "all 4 training and 2 validation losses at common steps, in 1 block; 2"
OVER = "over 4 training and 2 validation losses"
NAN = [*LOSSES[:2], math.nan, math.nan]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([run("text"), run("tokens"), run("text", block=1), run("tokens", block=1)],
         "identical losses: all 8 training and 4 validation losses at common steps, in 2 blocks"),
        ([run("text"), run("tokens", [*LOSSES[:2], LAST_BIT, 4.05])],
         "different losses: first the training loss of step 2 (counted from 0) in block 0, 5.000000000000001 against "
         f"5.0 (1.8e-16 of it); at most 10 % apart {OVER}"),
        ([run("text"), run("tokens", passes={1: 5.6, 3: 4.7})],
         "different losses: first the validation loss of step 3 (counted from 0) in block 0, 4.7 against 4.6 (2.2 %); "
         f"at most 2.2 % apart {OVER}"),
        ([run("text", [], {1: 5.6}), run("tokens", [], {2: 5.6})], "no loss at a common step"),
        # Equal up to the step that it diverges in, and no pass of that block is finite.
        ([run("text"), run("tokens", NAN, {1: math.nan, 3: math.nan})],
         "different losses: first the validation loss of step 1 (counted from 0) in block 0, nan against 5.6; at most "
         f"0.0 % apart {OVER}; 4 of them NaN or infinite in an arm"),
        ([run("text", NAN), run("tokens", NAN)], f"identical losses: {ALL} of them NaN or infinite in an arm"),
        ([run("text", [*LOSSES, 9.0, 9.0]), run("tokens")],
         f"identical losses: {ALL} more of text at steps that the other has no loss of"),
    ],
)  # fmt: skip
def test_losses_of_two_arms_agree_or_the_first_difference_is_named(runs: list[RunData], said: str) -> None:
    both = found(*runs)
    assert agreement(both.compared[0]) == f"tokens and text have {said}"
    content: Any = learning_json(both)
    assert content["compared"][0]["identical"] is said.startswith("identical")


def test_a_block_that_diverges_later_differs() -> None:
    later = run("text"), run("tokens"), run("text", block=1), run("tokens", NAN, {3: math.nan}, block=1)
    assert "different losses: first the training loss of step 2 (counted from 0) in block 1" in agreement(
        found(*later).compared[0]
    )


def test_the_figures_of_an_arm_are_medians_over_blocks() -> None:
    arm = found(*(run("text", passes={1: 9.0, 3: last}, block=block) for block, last in enumerate([4.0, 5.0, 7.0])))
    assert arm.arms[0].final_loss == 5.0
    assert arm.arms[0].perplexity == pytest.approx(math.exp(5.0))
    assert (arm.arms[0].final_steps, arm.arms[0].passes) == ((4,), 6)
    assert arm.arms[0].share == pytest.approx(3 / 15)  # 6 passes of 0.5 s, 12 steps of 1 s
    assert cost(arm.arms) == (
        "Evaluation: 6 passes, 3.00 s, 20 % of the time of steps and passes together, outside the steps: no "
        "throughput includes it"
    )


def test_the_final_loss_of_a_diverged_arm_is_not_its_last_finite_one() -> None:
    both = found(run("text"), run("tokens", passes={1: 5.0, 3: math.nan}))
    arm = both.arms[1]
    assert math.isnan(arm.final_loss)
    assert (arm.perplexity, arm.final_steps, arm.passes) == (None, (4,), 2)
    assert "| tokens | **diverged** | – | 4 | 2 |" in section(both, [], NAMES)
    content: Any = learning_json(both)
    assert content["arms"]["tokens"]["validation_loss"] is None
    assert learning({"text": [RunData(RunRecord("text", 0, "done"), None, None, None)]}, PAIR) is None


def test_losses_over_other_labels_are_not_ranked() -> None:
    """A smaller vocabulary has an easier token to predict: its lower loss per token says nothing of the model."""
    warning = "their losses and perplexities cannot be compared"
    for other, warned in (({"vocab_size": 100}, True), ({"tokens": 900}, True), ({}, False)):
        assert (warning in section(found(run("text"), run("tokens", **other)), [], NAMES)) is warned
    alike = found(run("text"), run("tokens"), run("text", block=1, tokens=900), run("tokens", block=1, tokens=900))
    assert warning not in section(alike, [], NAMES)


def test_the_section_has_accuracy_only_of_a_masked_objective() -> None:
    plain = section(found(run("text"), run("tokens")), ["loss.png"], NAMES)
    assert "| text | 4.6000 | 99.5 | 4 | 2 |" in plain
    assert "plots/loss.png" in plain
    masked = section(found(run("text", accuracy=0.25)), [], NAMES)
    assert "| text | 4.6000 | 99.5 | 25 % | 4 | 2 |" in masked
    assert "plots/" not in masked
    assert section(None, [], NAMES) == ""


def test_the_page_has_one_section_of_what_was_learned_beside_a_target_too() -> None:
    record, runs = build(
        [Arm("text", loss=3.0), Arm("tokens", loss=3.0)], blocks=1, repetitions=4, steps=9, spans=False
    )
    passed = run("text").evaluations
    runs = [replace(one, record=replace(one.record, peak_memory_bytes=300 * 2**20), evaluations=passed) for one in runs]
    for target in ({"target_loss": 3.7}, {}):
        report = analyse(replace(record, scenario_text={**record.scenario_text, **target}), runs)
        shown = page(report, first_screen(report), ())
        (learned,) = [one.text for one in shown.sections if one.title == "Losses and evaluations"]
        assert "| text | 4.6000 | 99.5 | 4 | 2 |" in learned
        assert ("| 1 of 1 | 300 |" in learned) == bool(target)


def test_the_picture_shows_every_loss_of_both_arms() -> None:
    lines = loss_curves(found(run("text"), run("tokens")), NAMES).axes[0].lines
    assert [(line.get_label(), line.get_ydata().tolist()) for line in lines] == [
        (f"{arm}: {kind}", values)
        for arm in ("text", "tokens")
        for kind, values in (("training", LOSSES), ("validation", [5.6, 4.6]))
    ]


def test_tables_from_before_there_was_a_learning_rate_are_read() -> None:
    old = tuple(column for column in STEP_COLUMNS if column[0] != "learning_rate")
    table = make_table(old, {"step": [0], "warmup": [False], "start_ns": [1], "wall_ns": [1]})
    assert completed(Path("steps.parquet"), table, STEP_COLUMNS).column("learning_rate").to_pylist() == [None]


def asked(
    arm: str,
    shares: dict[int, float | None],
    questions: int = 400,
    prompt: str = "auto",
    file: str = "f",
    block: int = 0,
) -> RunData:
    """A run with the shares of right answers by step, beside a pass over documents."""
    plain = run(arm, block=block)
    rows = [
        *plain.evaluations.to_pylist(),
        *(
            {"step": step, "start_ns": 0, "end_ns": SECOND, "questions": questions, "acc": share, "acc_norm": share,
             "acc_bytes": share, "acc_tokens": share}
            for step, share in shares.items()
        ),
    ]  # fmt: skip
    names = [name for name, _ in EVALUATION_COLUMNS]
    table = make_table(EVALUATION_COLUMNS, {name: [row.get(name) for row in rows] for name in names})
    record = RunRecord(
        arm, block, "done", facts=RunFacts(workers=0, vocab_size=300, questions_fingerprint=file),
        config={"evaluation": {"multiple_choice": {"prompt": prompt}}},
    )  # fmt: skip
    return RunData(record, plain.steps, None, None, evaluations=table)


def test_what_was_answered_has_a_table_of_its_own_with_intervals() -> None:
    both = found(asked("text", {1: 0.25, 3: 0.3}), asked("tokens", {3: 0.35}), run("plain"))
    page = section(both, [], ArmNames(["text", "tokens", "plain"]))
    header = "| arm | acc | acc_norm (per character) | per token | questions | steps trained | passes |"
    assert header in page
    # Wilson (1927) of 120 of 400: (0.3 + 1.92/400 -+ 1.96 sqrt(0.21/400 + 0.96/400^2)) / (1 + 3.84/400)
    assert "| text | 30.0 % [25.7 %–34.7 %] | 30.0 % [25.7 %–34.7 %] | 30.0 % [25.7 %–34.7 %] | 400 | 4 | 2 |" in page
    table = page[page.index(header) :].partition("\n\n")[0]
    assert len(table.splitlines()) == 4  # an arm that was asked nothing has no row
    assert "Evaluation: 9 passes" in page  # 6 over documents and 3 over questions, in the time of both
    content: Any = learning_json(both)
    assert content["arms"]["text"]["multiple_choice"]["acc"] == pytest.approx(
        {"share": 0.3, "ci_low": 0.2572, "ci_high": 0.3467}, abs=1e-4
    )
    assert "multiple_choice" not in content["arms"]["plain"]
    assert both.arms[0].final_loss == 4.6  # that of the documents, whichever row is the last


def test_arms_that_are_asked_otherwise_are_not_ranked() -> None:
    warning = "answer different questions, or in a different form"
    other: list[dict[str, Any]] = [{"questions": 300}, {"prompt": "lm-eval"}, {"file": "g"}, {}]
    pages = [section(found(asked("text", {3: 0.3}), asked("tokens", {3: 0.4}, **one)), [], NAMES) for one in other]
    assert [warning in page for page in pages] == [True, True, True, False]
    page = section(found(asked("text", {3: math.nan}), asked("tokens", {3: None})), [], NAMES)
    assert "| text | **diverged** | **diverged** | **diverged** | 400 | 4 | 1 |" in page
    assert "| tokens | – | – | – | 400 | 4 | 1 |" in page


def test_runs_that_were_asked_questions_alone_have_no_loss_and_are_drawn() -> None:
    """A training that was ended before its first pass over documents."""
    only = asked("text", {1: 0.25, 3: 0.3})
    table = only.evaluations.filter(only.evaluations.column("questions").is_valid())
    alone = found(RunData(only.record, only.steps, None, None, evaluations=table))
    page = section(alone, [], ArmNames(["text"]))
    assert "final validation loss" not in page
    assert "30.0 %" in page
    assert alone.arms[0].final_loss is None
    assert loss_curves(alone, ArmNames(["text"])).axes
