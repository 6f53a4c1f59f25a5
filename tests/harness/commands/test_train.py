"""harness train: one arm to its end, and on from where it was killed, with the same losses bit for bit."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness.launch.progress import Goal, TrainingProgress
from harness.launch.training_files import (
    EvaluationRow,
    EvaluationTable,
    LossRow,
    LossTable,
    SampleTable,
    read_evaluations,
    read_losses,
)
from tests import warm
from tests.trainer.data.conftest import make_texts, write_parquet
from tests.trainer.questions import FILE
from trainer import checkpoint_folder
from trainer.errors import InputError
from trainer.evaluate import Sample

SCENARIO = """\
name: small
question: Does it train?
base:
  model: {{layers: 1, width: 32, heads: 2}}
  data:
    corpus: {{parquet: {corpus}}}
    tokenizer: {{train: {{vocab_size: 300}}}}
    path: text-stream
    sequence_length: 16
    batch_size: 3
    inject: {{pack_ms: 5, how: sleep}}
  compute: {{device: cpu, threads: 1}}
  checkpoint: {{every_steps: 10}}
  warmup_steps: 2
arms: {{plain: null, other: {{data.path: tokens-padded}}}}
"""


def test_a_loss_table_has_neither_gap_nor_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "losses.csv"
    table = LossTable(path, 0)
    for step in range(6):
        table.add(LossRow(step, 10 * (step + 1), 1 / (step + 3)))
    table.close()
    with open(path, "a") as file:
        file.write("6,7")  # as a killed process leaves it
    table = LossTable(path, 4)
    table.add(LossRow(4, 50, 0.5))
    table.close()
    assert [row.step for row in read_losses(path)] == [0, 1, 2, 3, 4]
    assert read_losses(path)[3].loss == 1 / 6
    assert capsys.readouterr().err == ""
    LossTable(path, 9).close()
    assert "of the first 9 steps it has 5 losses" in capsys.readouterr().err
    path.write_text("step,tokens,loss\n0,1,2\nx\n2,3,4\n")
    with pytest.raises(InputError, match=r"losses\.csv:3: not a row"):
        read_losses(path)


def test_a_table_of_passes_goes_on_where_the_training_does(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.csv"
    table = EvaluationTable(path, 0)
    assert not table.lacking(-1)
    for step in (3, 7):
        table.add(EvaluationRow(step, 1 / (step + 3), None if step == 3 else 0.25, 128))
    with open(path, "a") as file:
        file.write("11,0.")  # as a killed process leaves it
    table = EvaluationTable(path, 8)
    assert table.lacking(7) == {"choices"}
    assert read_evaluations(path) == [EvaluationRow(3, 1 / 6, None, 128), EvaluationRow(7, 0.1, 0.25, 128)]
    table = EvaluationTable(path, 6)
    assert table.lacking(5) == {"loss", "choices"}
    assert [row.step for row in read_evaluations(path)] == [3]
    asked = EvaluationRow(5, None, None, None, 12, 0.25, None, None, math.nan)
    table.add(asked)
    table = EvaluationTable(path, 6)
    assert table.lacking(5) == {"loss"}
    (_, kept) = read_evaluations(path)
    assert kept[:-1] == asked[:-1]
    assert math.isnan(kept[-1] or 0)
    path.write_text("step,loss,accuracy,tokens\n5,2.5,,64\n")  # before there were questions
    assert EvaluationTable(path, 6).lacking(5) == {"choices"}
    assert read_evaluations(path) == [EvaluationRow(5, 2.5, None, 64)]
    path.unlink()
    assert not EvaluationTable(path, 6).lacking(5)  # begun by a state of the code that had no such table


def test_a_table_of_texts_goes_on_where_the_training_does(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    table = SampleTable(path, 0)
    assert not path.exists()  # none is due yet
    written = [Sample(step, "a\u2028b\n\x1b", (3, 4), "max tokens", 0.5) for step in (3, 7, 11)]
    for one in written:
        table.add(one)
    with open(path, "a") as file:
        file.write('{"step": 1')  # as a killed process leaves it
    SampleTable(path, 8).add(written[2])
    found = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    assert [Sample(**{**one, "ids": tuple(one["ids"])}) for one in found] == written
    SampleTable(path, 0)
    assert not path.read_bytes()


def test_a_goal_says_how_far_and_the_line_how_long() -> None:
    assert Goal(steps=50).share(25, 0, None) == 0.5
    assert Goal(tokens=1000).share(0, 250, None) == 0.25
    assert Goal(epochs=2).share(0, 0, 1.0) == 0.5
    with pytest.raises(InputError, match="give --steps or --tokens"):
        Goal(epochs=2).share(0, 0, None)
    progress = TrainingProgress(Goal(steps=100), 0.2, 400)
    line = progress.line(60, 2400, 0.6, 1.25, 10.0)
    assert line == "step 60 (60.0% of 100 steps): loss 1.2500, 200 tokens/s, 0:10 left"
    # Passes over held-out data are no training, and they take their time all the same.
    line = progress.line(60, 2400, 0.6, 1.25, 10.0, evaluating_s=5.0)
    assert line == "step 60 (60.0% of 100 steps): loss 1.2500, 400 tokens/s, 0:10 left"


@pytest.mark.slow
def test_killed_and_stopped_it_goes_on_with_the_same_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in a process of its own; stopped, and on to its end, in this one."""
    from harness.cli import main

    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    scenario = tmp_path / "small.yaml"
    scenario.write_text(SCENARIO.format(corpus=corpus))

    def words(out: str, *more: str) -> list[str]:
        return ["train", str(scenario), "--arm", "plain", "--steps", "30", "--out", str(tmp_path / out), *more]

    assert main(words("one")) == 0
    assert "done: 30 steps, 1,440 tokens" in capsys.readouterr().out
    assert (tmp_path / "one/loss.png").read_bytes().startswith(b"\x89PNG")
    command = [sys.executable, "-m", "harness", *words("two")]
    with warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        until = time.monotonic() + 240
        while not (tmp_path / "two/checkpoints/step-00000010").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            os.sched_yield()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with monkeypatch.context() as patch:
        ending_at(20, patch)
        assert main(words("two", "--resume")) == 130
    assert "continue with the same command and --resume" in "".join(capsys.readouterr())
    assert main(words("two", "--resume")) == 0
    assert (tmp_path / "two/losses.csv").read_bytes() == (tmp_path / "one/losses.csv").read_bytes()


def test_wrong_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from harness.cli import main

    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    scenario = tmp_path / "small.yaml"
    scenario.write_text(SCENARIO.format(corpus=corpus))
    (tmp_path / "there" / "checkpoints").mkdir(parents=True)
    out = ["--out", str(tmp_path / "out")]
    for words, message in (
        (out, "only one arm can be trained, not 2: give --arm; arms: plain, other"),
        (["--arm", "plain", *out, "--steps", "0"], "--steps: 0; allowed: more than 0, at most 10,000,000,000"),
        (["--arm", "plain", *out, "--set", "compute.device={emulated: gh200}"], "computes no model"),
        (["--arm", "plain", "--out", str(tmp_path / "there")], "it contains a training; continue it (--resume)"),
        (["--arm", "plain", *out, "--set", "seed=3"], "--set seed=3: has no effect: "),
        (["--arm", "plain", *out, "--set", "checkpoint={every_steps: 1, every_minutes: 1}"], "at most one of"),
    ):
        assert main(["train", str(scenario), *words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert message in lines[0]
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks git for the commit starts a process."""
    monkeypatch.setattr("harness.launch.study.record_environment", dict)


def of_one_arm(tmp_path: Path) -> tuple[str, Callable[..., int]]:
    """The folder of a training of few steps, and what trains its arm in this process."""
    from harness.cli import main

    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    scenario = tmp_path / "small.yaml"
    scenario.write_text(SCENARIO.format(corpus=corpus).replace("pack_ms: 5", "pack_ms: 0"))
    out = str(tmp_path / "out")

    def train(*words: str, steps: int = 20) -> int:
        return main(["train", str(scenario), "--arm", "plain", "--out", out, "--steps", str(steps), *words])

    return out, train


def ending_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SIGTERM come while that step is going on."""
    after = TrainingProgress.step

    def stopping(self: TrainingProgress, steps: int, *rest: Any) -> None:
        if steps == step:
            os.kill(os.getpid(), signal.SIGTERM)
        after(self, steps, *rest)

    monkeypatch.setattr(TrainingProgress, "step", stopping)


@pytest.mark.usefixtures("no_git")
def test_one_that_ends_before_its_first_step_names_what_it_left_and_does_not_run_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.study.store import StudyFolder

    begin = TrainingProgress.__init__

    def stopping(self: TrainingProgress, *rest: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        begin(self, *rest)

    out, train = of_one_arm(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "__init__", stopping)
        assert train(steps=4) == 130
    assert capsys.readouterr().out.splitlines()[-1] == f"training: {out} (checkpoints)"
    assert StudyFolder(Path(out)).read_study().status == "interrupted"
    assert train("--resume", steps=4) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"training: {out} (losses.csv, loss.png, checkpoints); where its time went: harness report {out}"


EVALUATED = ("--set", "evaluation={every_steps: 4, fraction: 0.2, batches: 1}")
ASKED = (
    *("--set",
     f"evaluation={{every_steps: 5, fraction: 0.2, batches: 1, multiple_choice: {{path: {FILE}, every_steps: 2}}}}"),
    *("--set", "checkpoint.asynchronous=false", "--set", "data.sequence_length=128"),
)  # fmt: skip


@pytest.mark.usefixtures("no_git")
def test_what_a_training_answers_is_in_its_tables_its_report_and_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two passes that are due after one step: the next part makes the one that is missing."""
    from harness.judge.study import analyse
    from harness.launch.tracking.tracked_study import metric_rows
    from harness.show.learning import learning_json
    from harness.study.store import StudyFolder
    from trainer.evaluate import Evaluator

    answer = Evaluator._answer

    def killed(self: Evaluator, step: int) -> None:
        if step == 9:
            raise KeyboardInterrupt
        answer(self, step)

    out, train = of_one_arm(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "_answer", killed)
        assert train(*ASKED, steps=16) == 130
    capsys.readouterr()
    assert train("--resume", *ASKED, steps=16) == 0
    rows = read_evaluations(Path(out) / "evaluations.csv")
    steps = {kind: [row.step for row in rows if row.kind == kind] for kind in ("loss", "choices")}
    assert steps == {"loss": [4, 9, 14, 15], "choices": [1, 3, 5, 7, 9, 11, 13, 15]}
    last = rows[-1] if rows[-1].kind == "choices" else rows[-2]
    said = capsys.readouterr().out
    assert f"multiple choice acc {last.acc:.4f}, acc_norm {last.acc_norm:.4f}" in said
    folder = StudyFolder(Path(out))
    runs = list(folder.runs())
    report = analyse(folder.read_study(), runs)
    (arm,) = report.learning.arms
    assert arm.runs[0].choices[-1].step == 15
    content = learning_json(report.learning)
    assert isinstance(content, dict)
    asked = content["arms"]["plain"]["multiple_choice"]  # type: ignore[index,call-overload]
    assert asked["questions"] == [12]  # type: ignore[index,call-overload]
    assert asked["acc_norm"]["share"] == last.acc_norm  # type: ignore[index,call-overload]
    metrics = [row[2] for row in metric_rows(runs[-1])]  # type: ignore[index]
    assert {"multiple_choice_acc", "multiple_choice_acc_tokens"} <= {name for one in metrics for name in one}  # type: ignore[union-attr]
    assert runs[-1].record.facts.questions_fingerprint
    spans = runs[-1].spans
    assert spans.column("name").to_pylist().count("evaluate") == 6  # choices after 9, 11, 13, 15; losses after 14, 15


@pytest.mark.usefixtures("no_git")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.nightly])])
def test_passes_and_checkpoints_by_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """60 documents, 3 in each step: half an epoch is 10 steps. One pass is killed, and made by the next part."""
    from trainer.evaluate import Evaluator

    held = write_parquet(tmp_path / "held.parquet", make_texts()[:12])
    words = [
        f'evaluation={{"every_epochs": 0.5, "corpus": {{"path": "{held}"}}, "batches": 2}}',
        'checkpoint={"every_steps": null, "every_epochs": 0.5, "keep": 9}',
        "data.path=tokens-padded",
        f"data.workers={workers}",
    ]
    sets = [word for one in words for word in ("--set", one)]
    out, train = of_one_arm(tmp_path)
    write_parquet(tmp_path / "corpus.parquet", [text or "never empty" for text in make_texts()])
    evaluate = Evaluator._evaluate

    def killed(self: Evaluator, step: int) -> None:
        if step == 19:
            raise KeyboardInterrupt
        evaluate(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "_evaluate", killed)
        assert train(*sets, steps=34) == 130
    assert train("--resume", *sets, steps=34) == 0
    assert [row.step for row in read_evaluations(Path(out) / "evaluations.csv")] == [9, 19, 29, 33]
    saved = checkpoint_folder.written(Path(out) / "checkpoints")
    assert [path.name for path in reversed(saved)] == [f"step-{steps:08d}" for steps in (10, 20, 30, 34)]


@pytest.mark.usefixtures("no_git")
def test_the_parts_of_a_training_are_one_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One curve over all parts and its last validation loss; nothing is advised that a training does not have."""
    from harness.cli import main
    from harness.judge.study import analyse
    from harness.study.store import StudyFolder

    out, train = of_one_arm(tmp_path)
    with monkeypatch.context() as patch:
        ending_at(6, patch)
        assert train(*EVALUATED) == 130
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("interrupted: 6 steps, ")
    assert line.endswith(" (after 4 steps)")  # else its validation loss would pass as one of the last step
    assert train("--resume", *EVALUATED) == 0
    text = capsys.readouterr()
    assert ", validation loss " in text.out.splitlines()[-2]
    assert " (after " not in text.out
    assert "killed" not in text.err
    folder = StudyFolder(Path(out))
    report = analyse(folder.read_study(), list(folder.runs()))
    (arm,) = report.learning.arms
    assert arm.final_steps == (20,)
    assert [step for step, _ in arm.runs[0].validation] == [3, 7, 11, 15, 19]
    assert [step for step, _ in arm.runs[0].training] == list(range(20))
    assert f"validation loss {arm.final_loss:.4f}" in text.out
    assert main(["report", out]) == 0
    text = capsys.readouterr()
    assert "One training has no interval" in text.out
    assert "--repeats" not in text.out + folder.summary_md.read_text()
    assert main(["run", "--resume", out]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"harness train SCENARIO --out {out} --resume" in line


@pytest.mark.usefixtures("no_git")
def test_a_training_that_diverged_is_not_told_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Resumed it computes the same bits, and another learning rate is refused: it is another training."""
    _, train = of_one_arm(tmp_path)
    keys = ("--set", "checkpoint={every_steps: 1, asynchronous: false}")
    rate = ("--set", "optimizer={learning_rate: 1.0e+12, clip_norm: null}")
    for resumed in ([], ["--resume"]):
        assert train(*keys, *rate, *resumed) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert "the gradient norm is" in line
        assert "--resume would fail in the same way" in line


@pytest.mark.usefixtures("no_git")
def test_what_failed_before_a_checkpoint_begins_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_self: TrainingProgress, steps: int, *_rest: Any) -> None:
        if steps == 11:
            raise OSError("a disk is gone")

    monkeypatch.setattr(TrainingProgress, "step", failing)
    _, train = of_one_arm(tmp_path)
    for every_steps, advice in (
        (10, "continue from the last checkpoint"),
        (15, "no checkpoint was saved, so --resume starts"),
    ):
        keys = ("--set", f"checkpoint={{every_steps: {every_steps}, asynchronous: false}}")
        assert train(*keys, "--out", str(tmp_path / f"every-{every_steps}")) == 1
        assert advice in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.usefixtures("no_git")
def test_steps_without_a_ledger_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed part leaves its checkpoints and its losses, and no record."""
    from harness.study.store import StudyFolder

    out, train = of_one_arm(tmp_path)
    ending_at(8, monkeypatch)
    assert train() == 130
    for path in (Path(out) / "runs/plain/0").iterdir():
        path.unlink()
    assert train("--resume") == 0
    assert "the part that trained steps 0 to 7 was killed: no ledger contains them; losses.csv has" in (
        capsys.readouterr().err
    )
    assert any("steps 0 to 7" in note for note in StudyFolder(Path(out)).read_study().notes)


@pytest.mark.usefixtures("no_git")
def test_a_training_whose_last_pass_is_missing_is_not_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is due at the last step too: one that is there before the last pass would end the training."""
    from trainer.evaluate import Evaluator

    def killed(_self: Evaluator) -> None:
        raise KeyboardInterrupt

    _, train = of_one_arm(tmp_path)
    at_end = "--set", "evaluation={fraction: 0.2, batches: 1}"
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "finish", killed)
        assert train(*at_end) == 130
    capsys.readouterr()
    assert train("--resume", *at_end) == 0
    assert ", validation loss " in capsys.readouterr().out


@pytest.mark.slow  # the tracker is a process
@pytest.mark.usefixtures("no_git")
def test_each_part_is_handed_to_the_trackers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.study.store import StudyFolder

    out, train = of_one_arm(tmp_path)
    scenario = tmp_path / "small.yaml"
    scenario.write_text(scenario.read_text() + "track: [jsonl]\n")
    ending_at(8, monkeypatch)
    assert train(*EVALUATED) == 130
    scenario.write_text(scenario.read_text().replace("[jsonl]", '[jsonl, "nowhere:tracker"]'))
    assert train("--resume", *EVALUATED) == 0
    said = capsys.readouterr().err
    warning = "warning: track: nowhere:tracker gets no data: no module nowhere in "
    assert said.index(warning) < said.rindex("preparing data")
    assert "warning: tracking: nowhere:tracker: 0 of " in said
    kept: dict[str, list[dict[str, Any]]] = {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in Path(out, "tracking/jsonl").glob("*.jsonl")
    }
    assert sorted(kept) == ["small-out-0.jsonl", "small-out-1.jsonl"]
    losses = [(one["step"], one["loss"]) for name in sorted(kept) for one in kept[name] if "loss" in one]
    assert losses == [(row.step, row.loss) for row in read_losses(Path(out) / "losses.csv")]
    passes = [one["step"] for name in sorted(kept) for one in kept[name] if "validation_loss" in one]
    assert passes == [3, 7, 11, 15, 19]
    last = kept["small-out-1.jsonl"]
    attached = next(one["files"] for one in last if one["event"] == "attach")
    assert [Path(one).name for one in attached] == ["losses.csv", "evaluations.csv", "loss.png"]
    assert last[-1]["status"] == "done"
    (note,) = [one for one in StudyFolder(Path(out)).read_study().notes if one.startswith("tracking: ")]
    assert note.startswith("tracking: part 1: nowhere:tracker: 0 of ")


@pytest.mark.usefixtures("no_git")
def test_what_cannot_go_on_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from harness.study.store import StudyFolder

    out, train = of_one_arm(tmp_path)
    cosine = "--set", "optimizer={schedule: cosine, lr_warmup_steps: 10}"
    for words, steps, message in (
        (cosine, 9, "optimizer.lr_warmup_steps: 10 of a cosine schedule of 9 steps"),
        (("--set", "data.batch_size=2"), 4, ""),
        (("--resume", "--set", "data.batch_size=3"), 4, "data.batch_size: 3, but"),
        (("--resume", "--set", "data.batch_size=2", "--set", "evaluation={}"), 4, "evaluation: 'given', but"),
    ):
        assert train(*words, steps=steps) == (2 if message else 0)
        lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("preparing data")]
        assert not message or len(lines) == 1
        assert not message or message in lines[0]
    path = checkpoint_folder.path_of(Path(out) / "checkpoints", 4)
    about = {**checkpoint_folder.read(path).about, "tokens": "many"}
    checkpoint_folder.write(path.parent, 4, {"data": {}}, about, checkpoint_folder.WholeState(), lambda: None)
    assert train("--resume", "--set", "data.batch_size=2") == 2
    assert "not a checkpoint of harness train (tokens: expected a whole number, got 'many')" in capsys.readouterr().err
    study = StudyFolder(Path(out))
    study.write_study(replace(study.read_study(), interleave_reason="they fit"))
    assert train("--resume") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "not a training" in line


@pytest.mark.usefixtures("no_git")
def test_what_cannot_fit_is_refused_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel would end it without a word, once its weights fill the memory."""
    out, train = of_one_arm(tmp_path)
    free = "harness.launch.needs.free_host_bytes"
    with mock.patch(free, return_value=2**20):
        assert train() == 2
        (line,) = (one for one in capsys.readouterr().err.splitlines() if not one.startswith("preparing data"))
        assert re.fullmatch(
            r"harness: arm plain: needs at least 0\.\d GiB of memory, 0\.0 GiB is free: .+ --force", line
        )
        assert not (Path(out) / "study.json").exists()
        assert train("--force") == 0
    assert "warning: arm plain may not fit: needs " in capsys.readouterr().err


@pytest.mark.usefixtures("no_git")
def test_out_of_memory_says_what_the_arithmetic_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.compute.torch_compute import TorchCompute

    def full(_self: TorchCompute, _loss: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    _, train = of_one_arm(tmp_path)
    monkeypatch.setattr(TorchCompute, "backward", full)
    assert train() == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "can't allocate memory" in last
    assert "by estimate batch_size" in last
