"""``data.workers: auto`` is a number before anything runs, and the study says by which figures."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness.launch import choose_workers
from harness.launch.choose_workers import WorkerChoice, refuse_auto, with_workers_chosen
from harness.launch.preparation import TrialAnswer
from harness.launch.study import begin_study
from harness.scenario.load import load_scenario
from harness.scenario.plan import Plan, make_plan
from tests.commands import fork_servers, harness
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.worker_trial import WorkerTrial

SCENARIO = """
name: chosen
question: How many workers?
base:
  model: {layers: 1, width: 32}
  data: {path: tokens-mmap, sequence_length: 16, batch_size: 2, transport: ring, corpus: {parquet: "CORPUS"},
         tokenizer: {train: {vocab_size: 300}}}
  compute: {work: none}
  steps: 4
  warmup_steps: 1
arms:
  chosen: {data.workers: auto}
  none: {}
controls: [a-a]
repeats: 1
slice_steps: 2
"""
TRIAL = WorkerTrial(5, 0.1, 0.4, 10, 1, 2)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    from tests.trainer.data.conftest import make_texts, write_parquet

    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    path = tmp_path / "chosen.yaml"
    path.write_text(SCENARIO.replace("CORPUS", str(corpus)))
    return path


def plan_of(scenario: Path, *sets: str) -> Plan:
    return make_plan(load_scenario(scenario, sets), str(scenario))


def test_each_arm_is_tried_once_and_its_controls_follow(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def choose(arm: Any, start_s: float) -> WorkerChoice:
        assert start_s == 60
        tried.append(arm.name)
        return WorkerChoice(1, TRIAL)

    monkeypatch.setattr(choose_workers, "_choose", choose)
    plan, notes = with_workers_chosen(plan_of(scenario), 60)
    workers = {arm.name: arm.config.data.workers for arm in plan.arms}
    assert tried == ["chosen"]
    assert workers == {name: int(name.startswith("chosen")) for name in workers}
    assert sum(workers.values()) == 2  # the arm and its A/A control
    assert {arm.declared.get("data.workers") for arm in plan.arms if arm.config.data.workers} == {1}
    assert notes == [
        "arm chosen: data.workers auto is 1: a batch takes 5 ms to make on average, 0.1 ms to receive from a worker "
        "(0.4 ms of the worker), and 10 ms to train on with 1 of 2 cores. Predicted time of a step, per batch: "
        "15 ms with 0, 10.1 ms with 1, 10.1 ms with 2"
    ]
    assert notes[0] in capsys.readouterr().err


def test_processes_of_the_tokenizer_leave_no_choice(scenario: Path) -> None:
    plan, notes = with_workers_chosen(plan_of(scenario, "data.tokenize=pool"), 60)
    assert not any(arm.config.data.workers for arm in plan.arms)
    assert notes == ["arm chosen: data.workers auto is 0, because data.tokenize starts its own processes"]


def test_where_a_number_is_needed() -> None:
    config = TrainerConfig.model_validate({"data": {"workers": "auto"}})
    with pytest.raises(InputError, match=r"^data\.workers: auto is chosen when .* and this is a test; allowed here: a"):
        refuse_auto([TrainerConfig(), config], "this is a test")


@pytest.mark.slow
@pytest.mark.parametrize("measured", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_study_chooses_and_says_why(
    measured: bool, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first run, which is not started here. ``measured``: by a trial instead of an answer that is given."""
    with monkeypatch.context() as patch, fork_servers.shared():
        if not measured:
            answer = TrialAnswer(json.dumps(asdict(TRIAL)).encode(), "", 0)
            patch.setattr(choose_workers, "run_trial", lambda *_: answer)
        _, record, _ = begin_study(plan_of(scenario), tmp_path / "out", [], str(scenario))
    (note,) = record.notes
    workers = {arm.name: arm.config["data"]["workers"] for arm in record.arms}  # type: ignore[index, call-overload]
    assert note.startswith(f"arm chosen: data.workers auto is {workers['chosen']}: a batch takes ")
    assert workers["none"] == 0
    assert measured or workers["chosen"] == 1
    if measured:
        return
    for command, words, line in (
        ("run", ("--set", "data.corpus.parquet=gone.parquet"), "gone.parquet"),
        (
            "train",
            ("--arm", "chosen", "--set", "compute.work=model"),
            "data.workers: auto is chosen when a study begins",
        ),
    ):
        done = harness(command, str(scenario), "--out", str(tmp_path / "none"), *words)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].count(line) == 1
