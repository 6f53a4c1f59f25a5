"""What the report does not predict of an arm, ``harness whatif`` does not either, and both give the same reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

from harness.cli import main
from harness.explain.policy import CHEAP_ROW_US_MAX
from harness.explain.replay.predict import Replays
from harness.judge.advice import advise
from harness.judge.doubts import Bar, Doubt, barred, doubt
from harness.judge.predictions import StudyRuns, bar_of, edit_doubts, refusal, whatifs
from harness.judge.report_types import ArmAdvice, WhatIf
from harness.judge.study import analyse
from harness.scenario.edits import parse_edits
from harness.show.advice import barred_text, next_steps
from harness.show.names import ArmNames
from harness.show.text.doubts import doubt_text
from harness.show.words import interval
from harness.study.records import ArmRecord, StudyRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.oracle import Truth
from tests.harness.explain.test_wall import rows_of
from tests.harness.synthetic import Arm, build

LOADER = {"attached": "fetch: DataLoader with 1 worker; backward"}
BY_HAND = {"attached": "fetch: get_batch (train.py:38); backward"}
HOST = {"h2d": 0.1, "forward": 40.0, "backward": 8.0, "optimizer": 2.0, "sync": 0.05, "log": 0.2}
INLINE = Truth(read=14.0, tokenize=0.0, workers=0, spread=0.1, steps=40, asynchronous=False, host=HOST)
# Four workers of which each waits 440 ms for the batch of a step of 50 ms.
STORE = Truth(
    read=440.0, tokenize=0.0, workers=4, spread=0.02, warmup=10, steps=40, lead=900.0, asynchronous=False, host=HOST
)


def runs_of(truth: Truth, blocks: int = 3, **facts: Any) -> list[RunData]:
    return [oracle.run(truth.having(seed=block), block=block, **facts) for block in range(blocks)]


def waiting(run: RunData) -> RunData:
    """``run`` with workers that need no core."""
    columns = run.spans.to_pydict()
    columns["cpu_ns"] = [
        0 if role.startswith("loader") else cpu for role, cpu in zip(columns["role"], columns["cpu_ns"], strict=True)
    ]
    return RunData(run.record, run.steps, pa.table(columns, schema=run.spans.schema), run.samples)


def advised(runs: list[RunData]) -> tuple[ArmAdvice, str]:
    found = advise("a", {"a": runs}, lambda _: {}, 0.0)
    return found, next_steps([found], ArmNames(["a"])).note


@pytest.fixture(scope="module")
def inline_runs() -> list[RunData]:
    return runs_of(INLINE, **LOADER)


@pytest.fixture(scope="module")
def inline(inline_runs: list[RunData]) -> ArmAdvice:
    return advised(inline_runs)[0]


def ask(folder: Path, capsys: pytest.CaptureFixture[str], runs: list[RunData], *words: str) -> tuple[int, str, str]:
    study = StudyFolder(folder / "study")
    study.write_study(StudyRecord("s", "?", "done", arms=[ArmRecord("a")]))
    for run in runs:
        study.write_run(run.record)
        study.write_tables("a", run.record.block, run.steps.to_pydict(), run.spans.to_pydict(), {})
    status = main(["whatif", str(study.path), *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("facts", "kind"),
    [({"waiting_share": 0.4}, "no core"), ({"unseen_share": 0.2}, "blocked"), ({"ranks": 2}, "ranks")],
)
def test_what_the_report_does_not_replay_whatif_refuses_for_the_same_reason(
    facts: dict[str, Any], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = runs_of(INLINE, **LOADER, **facts)
    why = refusal(runs)
    found, note = advised(runs)
    assert why.kind == kind
    assert found.refused == why
    assert found.options == ()
    assert f"No prediction for a: {doubt_text(why)}." in note
    status, out, err = ask(tmp_path, capsys, runs, "--set", "read=0")
    assert (status, out) == (2, "")
    assert err == f"harness: whatif: No prediction for a: {doubt_text(why)}.\n"


@pytest.mark.parametrize(("recorded", "why"), [(True, "one stream"), (False, "device")])
def test_a_device_that_was_recorded_in_part_is_not_called_unrecorded(recorded: bool, why: str) -> None:
    facts: dict[str, Any] = {**LOADER, "asynchronous": True}
    runs = runs_of(replace(INLINE, asynchronous=recorded), **facts)
    said = refusal(runs)
    assert said.kind == why


def test_workers_are_offered_to_a_loader_and_not_to_a_function_of_the_program(
    inline: ArmAdvice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [one.change for one in inline.options if one.worth] == ["workers=2"]
    runs = runs_of(INLINE, **BY_HAND)
    found, note = advised(runs)
    assert found.options == ()
    assert found.barred == "no loader"
    said = "No prediction of other loader settings (workers, prefetch) for a: its batches come from a function"
    assert note.startswith(said)
    status, out, err = ask(tmp_path, capsys, runs, "--set", "workers=2")
    assert (status, out) == (2, "")
    assert err.removeprefix("harness: whatif: ").startswith(said)
    swept = ask(tmp_path, capsys, runs, "--sweep", "workers=2,4")
    assert swept[0] == 2


def test_whatif_has_the_interval_and_the_doubts_of_the_report(
    inline_runs: list[RunData], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = ask(tmp_path, capsys, inline_runs, "--set", "read=0")
    speedup = Replays(inline_runs).predict(parse_edits(["read=0"])).speedup
    (line,) = [one for one in out.splitlines() if one.startswith("predicted")]
    assert line.endswith(f"x as fast as the unedited replay ({interval(speedup)})")
    runs = runs_of(INLINE, 1, **BY_HAND)
    _, out, _ = ask(tmp_path / "few", capsys, runs, "--set", "read=0", "--json")
    found = json.loads(out)["doubts"]
    assert [(one["kind"], one["bars"]) for one in found] == [
        ("too few blocks", "verdict and recommendation"),
        ("no loader", "loader settings"),
    ]
    assert [one.kind for one in advised(runs)[0].doubts] == [one["kind"] for one in found]


def test_pretokenizing_is_not_offered_to_a_program_that_tokenizes_nothing(inline: ArmAdvice) -> None:
    assert "tokenize=0" not in [one.change for one in inline.options]
    found, _ = advised(runs_of(INLINE.having(tokenize=9.0, steps=20), **LOADER))
    assert "tokenize=0" in [one.change for one in found.options if one.worth]


def test_more_workers_are_tried_where_those_there_are_only_wait_and_the_sentence_says_what_decides() -> None:
    runs = [waiting(run) for run in runs_of(STORE, cores=2, **LOADER)]
    found, note = advised(runs)
    by_change = {one.change: one for one in found.options}
    real = sum(map(oracle.step_ms, runs)) / sum(map(oracle.step_ms, runs_of(STORE.having(workers=16))))
    assert by_change["workers=16"].speedup.median == pytest.approx(real, rel=0.05)
    assert by_change["workers=8"].bar == by_change["workers=16"].bar == "serial"
    assert "No further change of the data loading is worth trying" not in note
    busy, _ = advised(runs_of(STORE, 2, cores=2, **LOADER))  # they need a core each, and there are two
    assert not [one for one in busy.options if one.cost == "processes"]
    many, _ = advised(runs_of(STORE, 3, cores=64, **LOADER))
    assert [one.change for one in many.options if one.worth and one.cost == "processes"] == ["workers=8"]


def test_nothing_is_untried_only_where_no_reason_bars_a_change() -> None:
    """Waits at the ends of epochs: two workers promise nothing that is sure, and are not predicted for that reason."""
    found, note = advised(runs_of(INLINE, **LOADER, restarting_share=0.2))
    assert found.barred == "restarts"
    assert not any(one.worth for one in found.options)
    assert "No further change of the data loading is worth trying" not in note
    quick, note = advised(runs_of(INLINE.having(read=0.05, pack=0.05), **LOADER, restarting_share=0.2))
    assert quick.barred is None
    assert "No further change of the data loading is worth trying" in note


@pytest.mark.parametrize(
    ("facts", "edit", "bar"),
    [
        ({"restarting_share": 0.2}, "workers=2", "restarts"),
        ({"restarting_share": 0.2}, "read=0", None),
        ({"sampling_share": 0.2}, "workers=2", "sampler"),
        ({"causes": (rows_of(0.9 * CHEAP_ROW_US_MAX),)}, "workers=2", "row by row"),
        ({"causes": (rows_of(1.1 * CHEAP_ROW_US_MAX),)}, "workers=2", None),
        ({"sampling_share": 0.2}, "prefetch=4", None),
        ({}, "workers=2", None),
    ],
)
def test_changes_of_a_loader_are_barred_where_replay_does_not_know_it(
    facts: dict[str, Any], edit: str, bar: str | None, inline_runs: list[RunData]
) -> None:
    one = inline_runs[0]
    runs = [replace(one, record=replace(one.record, facts=replace(one.record.facts, **facts)))]
    assert bar_of(parse_edits([edit]), runs, Replays(runs)) == bar


def test_the_error_of_the_replay_is_no_gain() -> None:
    """Without data work there is none to save, however far a resampled replay is from what was measured."""
    arm = Arm("plain", read=0.0, tokenize=0.0, pack=0.0, transfer=0.0)
    how = {"interleave": "runs", "repetitions": 1, "steps": 40, "noise": {"step": 0.8}, "blocks": 3}
    explained = analyse(*build([arm], **how)).arms[0].explained
    assert abs(explained.resampled_error or 0.0) > 0.01
    assert explained.ideal_predicted.median == pytest.approx(1.0)
    low, high = explained.ideal_predicted.ci_low, explained.ideal_predicted.ci_high
    assert low < 1.0 < high  # as wide as the error


@pytest.mark.parametrize("bar", get_args(Bar))
def test_a_bar_names_the_settings_that_it_bars(bar: Bar) -> None:
    both = barred([doubt(bar)], "prefetch") is not None
    assert ("prefetch" in barred_text(bar, "a")) == both


def whatif_table(truths: Mapping[str, tuple[Truth, int]], edits: str, **facts: Any) -> tuple[WhatIf, list[Doubt]]:
    """The scenario's table under ``edits`` of the first arm against the last, and what the command doubts of it."""
    names = list(truths)
    runs = {}
    for name, (truth, workers) in truths.items():
        found = [waiting(run) for run in runs_of(truth, cores=64, **LOADER, **facts)]
        config = {"data": {"workers": workers}}
        runs[name] = [
            RunData(replace(run.record, arm=name, config=config), run.steps, run.spans, run.samples) for run in found
        ]
    key, _, value = edits.partition("=")
    arms = [ArmRecord(name) for name in names]
    study = StudyRecord("s", "?", "done", arms=arms, blocks=3, scenario_text={"whatif": [{key: int(value)}]})
    _, asked = whatifs(study, (names[0], names[-1]), runs)
    replays = Replays(runs[names[0]])
    return asked, [*edit_doubts(StudyRuns(study, runs), names[0], replays, replays.predict(parse_edits([edits])))]


def test_the_table_of_a_scenario_has_the_doubts_of_the_command() -> None:
    """An arm with fewer workers that is no slower, and workers that wait for a store."""
    two = INLINE.having(workers=2, read=90.0, steps=20)
    asked, doubts = whatif_table({"two": (two, 2), "one": (two, 1)}, "workers=1")
    assert "contradicted" in [one.kind for one in doubts]
    assert {one.kind for one in doubts} <= {one.kind for one in asked.doubts}
    asked, doubts = whatif_table({"four": (STORE, 4), "other": (STORE, 4)}, "workers=16")
    assert "serial" in [one.kind for one in doubts]
    assert {one.kind for one in doubts} <= {one.kind for one in asked.doubts}


def test_the_table_of_a_scenario_has_no_figure_that_a_doubt_bars() -> None:
    arms = {"a": (INLINE, 0), "b": (INLINE, 0)}
    asked, _ = whatif_table(arms, "workers=2", sampling_share=0.2)
    assert [one.kind for one in asked.doubts] == ["sampler"]
    assert (asked.baseline_ms, asked.candidate_ms, asked.ratio) == (None, None, None)
