"""Comparisons of two states with a known change: the step, its parts, memory and startup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from tests.harness.regress.tables import BASE, HEAD, TWIN, recorded, steps_table, study

Study = tuple[StudyRecord, list[RunData]]


@pytest.mark.parametrize(("change", "outcome"), [(0.0, "same"), (0.05, "slower"), (-0.05, "faster")])
def test_the_step(change: float, outcome: str) -> None:
    (found,) = comparisons(*study(change), Limits())
    assert (found.step.outcome, found.verdict, found.blocks) == (outcome, outcome, 9)
    assert found.step.change.median == pytest.approx(change, abs=0.006)
    assert (found.name, found.baseline, found.candidate) == ("x", "aaa", "bbb")


def test_a_hidden_regression_of_a_stage_is_found_although_the_step_is_the_same() -> None:
    (found,) = comparisons(*study(0.0, tokenize_ms=1.2, hidden=True), Limits())
    (tokenize,) = (part for part in found.parts if part.name == "tokenize")
    assert (found.verdict, tokenize.decision.outcome) == ("same", "slower")
    assert tokenize.candidate_ms == pytest.approx(1.2)


def test_a_stage_is_compared_although_no_replay_knows_what_it_cost_the_step() -> None:
    """Its exposed time is null where the replay of a run was too far off, as on a loaded machine; its work is known."""
    record, runs = study()
    for place, one in enumerate(runs):
        table = one.steps.to_pylist()
        for row in table:
            row |= {"work_tokenize_ns": row["exposed_tokenize_ns"], "exposed_tokenize_ns": None}
        runs[place] = replace(one, steps=one.steps.from_pylist(table, schema=one.steps.schema))
    (comparison,) = comparisons(record, runs, Limits())
    (tokenize,) = [part for part in comparison.parts if part.name == "tokenize"]
    assert (comparison.verdict, tokenize.exposed_ms, tokenize.hidden) == ("same", None, False)


GATES = pytest.mark.parametrize(("field", "amount", "name"), [
    ("peak_memory_bytes", 900 * 2**20, "peak memory"), ("startup_ns", 9 * 10**9, "startup"),
])  # fmt: skip


@GATES
def test_memory_and_startup_have_gates_of_their_own(field: str, amount: int, name: str) -> None:
    record, runs = changed(study(0.0), **{field: (amount * 2 // 3, amount)})
    (found,) = comparisons(record, runs, Limits())
    assert (found.step.outcome, found.verdict) == ("same", "slower")
    assert [gate.name for gate in found.gates if gate.decision.outcome == "slower"] == [name]
    (off,) = comparisons(record, runs, Limits(memory=None, startup=None))
    assert (off.verdict, off.gates) == ("same", [])


def longer(record: Study, step: int, ms: float, side: str = HEAD, every: int = 1) -> Study:
    """The same study, in which one step of every ``every``-th block of a side takes ``ms`` more."""
    study, runs = record
    for place, one in enumerate(runs):
        if one.record.arm == side and one.record.block % every == 0:
            table = one.steps.to_pylist()
            table[step]["wall_ns"] += round(ms * 1e6)
            runs[place] = replace(one, steps=one.steps.from_pylist(table, schema=one.steps.schema))
    return study, runs


def changed(side: Study, **changes: tuple[object, object]) -> Study:
    """The same study with other records: {field: (of the baseline's, of the candidate's)}."""
    study, runs = side
    of = {head: {name: pair[head] for name, pair in changes.items()} for head in (False, True)}
    return study, [recorded(one, **of[one.record.arm == HEAD]) for one in runs]


@pytest.mark.parametrize("side", [BASE, TWIN, HEAD])
@pytest.mark.parametrize("change", [0.0, 0.05])
def test_one_long_step_never_flips_a_decision(side: str, change: float) -> None:
    for pause_ms in (200.0, 3000.0):
        (after,) = comparisons(*longer(study(change), 0, pause_ms, side, every=9), Limits())
        assert after.verdict == ("slower" if change else "same")


@pytest.mark.parametrize(("spread", "ms", "every", "step", "verdict", "cause"), [
    (0.002, 40, 1, "same", "slower", None),  # The typical round is what it was.
    (0.03, 100, 1, "undecided", "slower", None),  # The page and the exit code say the same.
    (0.002, 40, 2, "same", "undecided", "other check open"),  # too few to decide, too many to call it the same
])  # fmt: skip
def test_long_steps_move_the_total(spread, ms, every, step, verdict, cause):
    found = comparisons(*longer(study(0.0, spread=spread), 5, ms, every=every), Limits())
    (one,) = found
    assert (one.step.outcome, one.verdict, one.cause, one.rare) == (step, verdict, cause, verdict == "slower")
    assert list(one.open) == (["all time together"] if cause else [])
    assert of_verdict(overall(found), undecided=0) == (REGRESSION if verdict == "slower" else 0)
    assert ("the typical step alone is undecided" in sentence(one)) == (step == "undecided")
    assert ("slower by more than" in sentence(one)) == (verdict == "slower")
    assert "all time together" in markdown(found)


def test_processes_of_two_kinds_are_named_where_the_typical_one_did_not_change() -> None:
    """One process in four was slower by 28 ms. The median said +0.27 %, and no line was about +27 %."""
    record, runs = study(blocks=16, spread=0.001)
    slow = steps_table(np.full((8, 4), 38.0))
    odd = {(HEAD, block) for block in (3, 7, 11, 15)}
    runs = [replace(one, steps=slow) if (one.record.arm, one.record.block) in odd else one for one in runs]
    (found,) = comparisons(record, runs, Limits())
    assert found.total.change.median > 0.2
    assert found.slow_blocks.blocks == (3, 7, 11, 15)
    assert found.slow_blocks.change > 2
    assert (found.verdict, found.cause) in (("slower", None), ("undecided", "slow blocks"))
    (entry,) = as_json([found])["contests"]
    assert entry["slow_blocks"]["blocks"] == [3, 7, 11, 15]
    assert "4 of 16 blocks were" in entry["sentence"]
    assert "all time together" in markdown([found])


@GATES
@pytest.mark.parametrize("every", [4, 8])
def test_processes_of_two_kinds_are_not_hidden_by_the_median_of_memory_or_startup(field, amount, name, every):
    record, runs = study(blocks=16, spread=0.001)
    high = tuple(range(every - 1, 16, every))
    runs = [
        recorded(one, **{field: amount}) if one.record.arm == HEAD and one.record.block in high else one for one in runs
    ]
    (found,) = comparisons(record, runs, Limits())
    assert (found.step.outcome, found.verdict, found.cause) == ("same", "undecided", "other check open")
    (gate,) = [one for one in found.gates if one.name == name]
    assert gate.high_blocks.blocks == high


@pytest.mark.parametrize(("logs", "slow"), [
    ([0.0] * 5, None),
    ([0.0, 0.01, -0.01, 0.2], None),  # a single block may be a disturbance
    ([0.0, 0.01, -0.01, 0.2, 0.2], (3, 4)),
    ([0.2, 0.2, 0.2, 0.0, 0.0], None),  # the typical one is slower
    ([0.0, 0.05, -0.05, 0.1, 0.15], None),  # scatter
    ([0.0, 0.02, 0.04, 0.15, 0.15], None),  # a gap of less than three times the range of the others
    ([0.0, 0.02, 0.04, 0.17, 0.17], (3, 4)),
    ([0.0] * 18 + [0.05] * 2, None),  # 0.5 % of the time in all
    ([-0.02, -0.07, -0.07, -0.07] * 4, None),  # faster in all blocks
])  # fmt: skip
def test_blocks_of_a_slower_kind_are_told_from_scatter(logs: list[float], slow: tuple[int, ...] | None) -> None:
    found = high_blocks(dict(enumerate(logs)), 0.01, dict(enumerate(logs)))
    assert (None if found is None else found.blocks) == slow
    assert high_blocks(dict(enumerate(logs)), 0.01, dict.fromkeys(range(len(logs)), 0.0)) is None  # of the baseline


@pytest.mark.parametrize("blocks", [5, 16])
def test_blocks_of_one_kind_rarely_look_like_two(blocks: int) -> None:
    draw = np.random.default_rng(0)
    studies = [dict(enumerate(draw.normal(0.0, 0.05, blocks))) for _ in range(500)]
    assert sum(high_blocks(logs, 0.01, logs) is not None for logs in studies) <= 30


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
    record.arms[2] = replace(record.arms[2], other_defaults=(other := OtherDefault("data.workers", 0, 2),))
    (found,) = comparisons(record, runs, Limits())
    assert (found.defaults, found.confounds) == ([other], [])
    assert safe(default(other)) in markdown([found])


@pytest.mark.parametrize(("key", "values"), [("parameters", (1, 2)), ("model_fingerprint", ("a", "b"))])
def test_sides_that_do_different_work_are_never_called_the_same(key: str, values: tuple[Any, Any]) -> None:
    facts = tuple(RunFacts(**{key: value}) for value in values)
    (found,) = comparisons(*changed(study(0.0), facts=(facts[0], facts[1])), Limits())
    assert (found.step.outcome, found.verdict, found.cause) == ("same", "undecided", "other work")
    assert found.other_work == Confound("fact", key=key, values=values)


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
    (found,) = comparisons(
        *changed(
            study(), declared=({"code": "aaa"}, {"code": "bbb"}), config=({"data": {}}, {"data": {"new": 1}}),
            environment=({"git_commit": "1", "torch": "1"}, {"git_commit": "2", "torch": "2"}),
        ), Limits(),
    )  # fmt: skip
    assert found.confounds == [Confound("environment", key="torch", values=("1", "2"))]


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
