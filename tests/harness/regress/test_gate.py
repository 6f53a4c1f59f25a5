"""Comparisons of two states with a known change: the step, its parts, memory and startup."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from harness.commands.exit_codes import REGRESSION, of_verdict
from harness.judge.confounds import Confound
from harness.regress.decision import Limits, OneSidedProblem, WhyUndecided, confidence_at, high_blocks
from harness.regress.gate import comparisons
from harness.regress.report import as_json, markdown, overall
from harness.regress.text import default, sentence
from harness.show.tables import safe
from harness.study.records import OtherDefault, RunFacts, StudyRecord
from harness.study.run_data import ProbesRecord, RunData
from tests.harness.regress.tables import BASE, HEAD, TWIN, recorded, run, steps_table, study


@pytest.mark.parametrize(("change", "outcome"), [(0.0, "same"), (0.05, "slower"), (-0.05, "faster")])
def test_the_step(change: float, outcome: str) -> None:
    (found,) = comparisons(*study(change), Limits())
    assert (found.step.outcome, found.verdict, found.blocks) == (outcome, outcome, 9)
    assert found.step.change is not None
    assert found.step.change.median == pytest.approx(change, abs=0.006)
    assert (found.name, found.baseline, found.candidate) == ("x", "aaa", "bbb")


def test_a_hidden_regression_of_a_stage_is_found_although_the_step_is_the_same() -> None:
    (found,) = comparisons(*study(0.0, tokenize_ms=1.2, hidden=True), Limits())
    assert found.verdict == "same"
    parts = {part.name: part for part in found.parts}
    assert parts["tokenize"].decision.outcome == "slower"
    assert parts["tokenize"].candidate_ms == pytest.approx(1.2)


def test_a_stage_is_compared_although_no_replay_knows_what_it_cost_the_step() -> None:
    """Its exposed time is null where the replay of a run was too far off, as on a loaded machine; its work is known."""
    record, runs = study()
    for place, one in enumerate(runs):
        steps = one.steps
        assert steps is not None
        found = {name: steps.schema.get_field_index(f"{name}_tokenize_ns") for name in ("exposed", "work")}
        known = steps.column(found["exposed"])
        steps = steps.set_column(found["exposed"], "exposed_tokenize_ns", pa.nulls(len(known), known.type))
        runs[place] = replace(one, steps=steps.set_column(found["work"], "work_tokenize_ns", known))
    (comparison,) = comparisons(record, runs, Limits())
    assert comparison.verdict == "same"
    (tokenize,) = [part for part in comparison.parts if part.name == "tokenize"]
    assert tokenize.exposed_ms is None
    assert not tokenize.hidden


@pytest.mark.parametrize(
    ("field", "amount", "name"),
    [("peak_memory_bytes", 330 * 2**20, "peak memory"), ("startup_ns", 3 * 10**9, "startup")],
)
def test_memory_and_startup_have_gates_of_their_own(field: str, amount: int, name: str) -> None:
    record, runs = study(0.0)
    runs = [recorded(one, **{field: amount}) if one.record.arm == HEAD else one for one in runs]
    (found,) = comparisons(record, runs, Limits())
    assert found.step.outcome == "same"
    assert found.verdict == "slower"
    assert [gate.name for gate in found.gates if gate.decision.outcome == "slower"] == [name]
    (off,) = comparisons(record, runs, Limits(memory=None, startup=None))
    assert (off.verdict, off.gates) == ("same", [])


@cache
def without_long_steps(change: float) -> tuple[StudyRecord, tuple[RunData, ...], str]:
    """A study and its verdict."""
    record, runs = study(change)
    (found,) = comparisons(record, runs, Limits())
    return record, tuple(runs), found.verdict


@pytest.mark.parametrize("side", [BASE, TWIN, HEAD])
@pytest.mark.parametrize("pause_ms", [200.0, 3000.0])
@pytest.mark.parametrize("change", [0.0, 0.05])
def test_one_long_step_never_flips_a_decision(side: str, pause_ms: float, change: float) -> None:
    record, unchanged, verdict = without_long_steps(change)
    runs = list(unchanged)
    for place, one in enumerate(runs):
        if (one.record.arm, one.record.block) == (side, 2):
            table = one.steps.to_pylist()
            table[0]["wall_ns"] += round(pause_ms * 1e6)
            runs[place] = replace(one, steps=one.steps.from_pylist(table, schema=one.steps.schema))
    (after,) = comparisons(record, runs, Limits())
    assert after.verdict == verdict != "undecided"


def test_rare_long_steps_in_every_block_are_named() -> None:
    """The typical round is what it was: nothing but the total shows them."""
    record, runs = study(0.0)
    for place, one in enumerate(runs):
        if one.record.arm == HEAD:
            table = one.steps.to_pylist()
            table[5]["wall_ns"] += 40_000_000
            runs[place] = replace(one, steps=one.steps.from_pylist(table, schema=one.steps.schema))
    (found,) = comparisons(record, runs, Limits())
    assert found.step.outcome == "same"
    assert found.rare
    assert found.verdict == "slower"
    assert found.total is not None
    assert found.total.change is not None
    assert found.total.change.median > 0.08


def test_processes_of_two_kinds_are_named_where_the_typical_one_did_not_change() -> None:
    """One process in four was slower by 28 ms. The median said +0.27 %, and no line was about +27 %."""
    record, runs = study(blocks=16, spread=0.001)
    runs = [
        replace(one, steps=steps_table(np.full((8, 4), 38.0)))
        if one.record.arm == HEAD and one.record.block % 4 == 3
        else one
        for one in runs
    ]
    (found,) = comparisons(record, runs, Limits())
    assert found.total is not None
    assert found.total.change is not None
    assert found.total.change.median > 0.2
    assert found.slow_blocks is not None
    assert found.slow_blocks.blocks == (3, 7, 11, 15)
    assert found.slow_blocks.change > 2
    assert (found.verdict, found.cause) in (("slower", None), ("undecided", "slow blocks"))
    (entry,) = as_json([found])["contests"]
    assert entry["slow_blocks"]["blocks"] == [3, 7, 11, 15]
    assert "4 of 16 blocks were" in entry["sentence"]
    assert "all time together" in markdown([found])


@pytest.mark.parametrize(
    ("field", "amount", "name"),
    [("peak_memory_bytes", 900 * 2**20, "peak memory"), ("startup_ns", 9 * 10**9, "startup")],
)
@pytest.mark.parametrize("every", [4, 8])
def test_processes_of_two_kinds_are_not_hidden_by_the_median_of_memory_or_startup(
    field: str, amount: int, name: str, every: int
) -> None:
    record, runs = study(blocks=16, spread=0.001)
    high = tuple(range(every - 1, 16, every))
    runs = [
        recorded(one, **{field: amount}) if one.record.arm == HEAD and one.record.block in high else one for one in runs
    ]
    (found,) = comparisons(record, runs, Limits())
    assert (found.step.outcome, found.verdict, found.cause) == ("same", "undecided", "other check open")
    (gate,) = [one for one in found.gates if one.name == name]
    assert gate.high_blocks is not None
    assert gate.high_blocks.blocks == high


@pytest.mark.parametrize(
    ("logs", "slow"),
    [
        ([0.0] * 5, None),
        ([0.0, 0.01, -0.01, 0.2], None),  # a single block may be a disturbance
        ([0.0, 0.01, -0.01, 0.2, 0.2], (3, 4)),
        ([0.2, 0.2, 0.2, 0.0, 0.0], None),  # the typical one is slower
        ([0.0, 0.05, -0.05, 0.1, 0.15], None),  # scatter
        ([0.0, 0.02, 0.04, 0.15, 0.15], None),  # a gap of less than three times the range of the others
        ([0.0, 0.02, 0.04, 0.17, 0.17], (3, 4)),
        ([0.0] * 18 + [0.05] * 2, None),  # 0.5 % of the time in all
    ],
)
def test_blocks_of_a_slower_kind_are_told_from_scatter(logs: list[float], slow: tuple[int, ...] | None) -> None:
    found = high_blocks(dict(enumerate(logs)), 0.01, dict(enumerate(logs)))
    assert (None if found is None else found.blocks) == slow


def test_a_baseline_of_two_kinds_is_no_slower_kind_of_the_candidate() -> None:
    logs = {block: 0.05 if block % 4 == 0 else 0.0 for block in range(16)}
    assert high_blocks(logs, 0.01, logs) is not None
    assert high_blocks(logs, 0.01, dict.fromkeys(logs, 0.0)) is None
    faster = {block: log - 0.07 for block, log in logs.items()}
    assert high_blocks(faster, 0.01, faster) is None  # faster in all blocks


@pytest.mark.parametrize("blocks", [5, 6, 9, 16])
def test_blocks_of_one_kind_rarely_look_like_two(blocks: int) -> None:
    draw = np.random.default_rng(0)
    studies = [dict(enumerate(draw.normal(0.0, 0.05, blocks))) for _ in range(1000)]
    assert sum(high_blocks(logs, 0.01, logs) is not None for logs in studies) <= 60


def test_a_typical_step_that_is_undecided_does_not_hide_a_total_that_is_slower() -> None:
    """Exit code 3 and the page said "slower", the row and the terminal "undecided"."""
    record, runs = study(0.0, spread=0.03)
    for place, one in enumerate(runs):
        if one.record.arm == HEAD:
            table = one.steps.to_pylist()
            table[5]["wall_ns"] += 100_000_000
            runs[place] = replace(one, steps=one.steps.from_pylist(table, schema=one.steps.schema))
    found = comparisons(record, runs, Limits())
    assert (found[0].verdict, found[0].step.outcome) == ("slower", "undecided")
    assert of_verdict(overall(found), undecided=0) == REGRESSION
    assert "slower by more than" in sentence(found[0])
    assert "the typical step alone is undecided" in sentence(found[0])
    page = markdown(found)
    assert "slower" in page.splitlines()[0]
    assert "all time together" in page


def test_a_total_that_looks_worse_and_is_not_decided_leaves_all_undecided() -> None:
    """Long steps in some blocks only: too few to decide, too many to call it the same."""
    record, runs = study(0.0)
    for place, one in enumerate(runs):
        if one.record.arm == HEAD and one.record.block % 2 == 0:
            table = one.steps.to_pylist()
            table[5]["wall_ns"] += 40_000_000
            runs[place] = replace(one, steps=one.steps.from_pylist(table, schema=one.steps.schema))
    (found,) = comparisons(record, runs, Limits())
    assert found.step.outcome == "same"
    assert list(found.open) == ["all time together"]
    assert found.verdict == "undecided"
    assert found.cause == "other check open"
    assert safe(sentence(found)) in markdown([found])
    assert "9 blocks of 32 steps" in sentence(found)


def test_steps_of_other_numbers_of_tokens_are_not_compared() -> None:
    record, runs = study(-0.7)
    for place, one in enumerate(runs):
        if one.record.arm == HEAD:
            tokens = pa.array([64] * len(one.steps), one.steps.schema.field("tokens").type)
            steps = one.steps.set_column(one.steps.schema.get_field_index("tokens"), "tokens", tokens)
            runs[place] = replace(one, steps=steps)
    (found,) = comparisons(record, runs, Limits())
    assert found.verdict == "undecided"
    assert found.missing == WhyUndecided("other tokens per step", tokens=(256.0, 64.0))


def test_defaults_that_differ_between_states_are_said() -> None:
    record, runs = study(0.0)
    other = OtherDefault("data.workers", 0, 2)
    record.arms[2] = replace(record.arms[2], other_defaults=(other,))
    (found,) = comparisons(record, runs, Limits())
    assert (found.defaults, found.confounds) == ([other], [])
    assert safe(default(other)) in markdown([found])


def test_sides_that_do_different_work_are_never_called_the_same() -> None:
    record, runs = study(0.0)
    runs = [recorded(one, facts=RunFacts(parameters=2 if one.record.arm == HEAD else 1)) for one in runs]
    (found,) = comparisons(record, runs, Limits())
    assert (found.step.outcome, found.verdict) == ("same", "undecided")
    assert found.other_work == Confound("fact", key="parameters", values=(1, 2))
    assert found.cause == "other work"


def test_sides_that_train_another_model_of_the_users_own_are_never_called_the_same() -> None:
    one, runs = study(0.0)
    runs = [recorded(run, facts=RunFacts(model_fingerprint="b" if run.record.arm == HEAD else "a")) for run in runs]
    (found,) = comparisons(one, runs, Limits())
    assert (found.step.outcome, found.verdict) == ("same", "undecided")
    assert found.other_work == Confound("fact", key="model_fingerprint", values=("a", "b"))


def test_a_side_that_never_finished_is_said_with_its_reason() -> None:
    record, runs = study()
    for place, one in enumerate(runs):
        if one.record.arm == HEAD:
            runs[place] = replace(recorded(one, status="failed", error="ValueError: no"), steps=None)
    (found,) = comparisons(record, runs, Limits())
    assert (found.verdict, found.missing) == ("undecided", WhyUndecided("failed runs", ("ValueError: no",)))


def test_looks_count_blocks_that_one_side_failed_and_parts_share_their_error() -> None:
    """Such a block was one more at which the check might have ended; and each part is one more chance to err."""
    record, runs = study(blocks=6)
    head = [place for place, one in enumerate(runs) if one.record.arm == HEAD]
    for place in head[-2:]:
        runs[place] = replace(recorded(runs[place], status="failed", error="no"), steps=None)
    (found,) = comparisons(record, runs, Limits())
    assert (found.blocks, found.step.confidence) == (4, confidence_at(6))
    assert [part.name for part in found.parts] == ["fetch", "forward", "tokenize"]
    assert [1 - part.decision.confidence for part in found.parts] == [pytest.approx((1 - confidence_at(6)) / 3)] * 3


def test_what_else_differs_is_said_and_the_commit_is_not() -> None:
    record, runs = study()
    for place, one in enumerate(runs):
        head = one.record.arm == HEAD
        runs[place] = recorded(
            one,
            declared={"code": "bbb" if head else "aaa"},
            environment={"git_commit": one.record.arm, "torch": "2" if head else "1"},
            config={"data": {"new": 1}} if head else {"data": {}},
        )
    (found,) = comparisons(record, runs, Limits())
    assert found.confounds == [Confound("environment", key="torch", values=("1", "2"))]


def test_parts_too_small_to_matter_are_left_out() -> None:
    record, runs = study(0.0, tokenize_ms=0.01, hidden=True)
    for place, one in enumerate(runs):
        if one.record.arm != HEAD:
            runs[place] = run(one.record.arm, one.record.block, steps_table(np.full((8, 4), 10.0), tokenize_ms=0.01))
    (found,) = comparisons(record, runs, Limits())
    assert "tokenize" not in {part.name for part in found.parts}


def test_a_probe_that_ended_on_one_side_only_is_named() -> None:
    """What it took (a process, its memory) the other side still has."""
    record, runs = study(0.0)
    both, base_only = ("nvml: no driver",), ("nvml: no driver", "sampling: ended with status 1")
    runs = [replace(one, probes=ProbesRecord(problems=both if one.record.arm == HEAD else base_only)) for one in runs]
    late = ProbesRecord(problems=(*runs[0].probes.problems, "sampling: 3 readings late"))
    runs[0] = replace(runs[0], probes=late)
    (found,) = comparisons(record, runs, Limits())
    assert found.problems == [OneSidedProblem(BASE, "sampling: ended with status 1")]
    assert "sampling: ended with status 1" in markdown([found], [])


@pytest.mark.parametrize("slower", [True, False])
@pytest.mark.parametrize("share", [0.2, 0.05])
def test_times_of_a_program_without_a_core_say_only_that_it_is_slower(share: float, slower: bool) -> None:
    """Both sides take turns, so what takes the cores slows both."""
    record, runs = study(0.05 if slower else 0.0)
    waited = [recorded(one, facts=RunFacts(attached="backward", waiting_share=share)) for one in runs]
    (found,) = comparisons(record, waited, Limits())
    alone = "slower" if slower else "same"
    assert (found.step.outcome, found.verdict) == (alone, "undecided" if share > 0.1 and not slower else alone)
    assert [one.kind for one in found.doubts] == (["no core"] * 2 if share > 0.1 else [])
