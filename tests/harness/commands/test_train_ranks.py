"""harness train with two ranks over gloo: killed and resumed, with the same losses bit for bit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest.mock import MagicMock

import pytest
import torch

from harness.launch import training, training_state
from harness.launch.channel import Channel
from harness.launch.diagnosis import RANK_NAME
from harness.launch.progress import Goal
from harness.launch.ranks import RankFailedError
from harness.launch.training import Training
from harness.launch.training_files import read_evaluations, read_losses
from harness.launch.training_records import TrainingRecords
from harness.scenario.load import load_scenario
from harness.scenario.plan import make_plan
from harness.study.records import StudyRecord
from harness.study.store import StudyFolder
from tests import warm
from tests.harness.commands.test_train import SCENARIO
from tests.trainer.data.conftest import make_texts, write_parquet
from trainer.data.position import Position
from trainer.errors import InputError
from trainer.ranks import Rank

if TYPE_CHECKING:
    from harness.launch.protocol import StartMessage
    from trainer.config import TrainerConfig

TWO = SCENARIO.replace(
    "  warmup_steps: 2\n", "  warmup_steps: 2\n  launch: {{torchrun: {{nproc: 2}}, timeout_s: 240}}\n"
)
STEPS = 24


def written(folder: Path, documents: int = 60) -> Path:
    corpus = write_parquet(folder / "corpus.parquet", make_texts(documents))
    scenario = folder / "small.yaml"
    # Moments and packed tokens are in flight between any two steps; workers read ahead of them.
    text = TWO.replace("every_steps: 10", "every_steps: 8").replace("batch_size: 3", "batch_size: 3\n    workers: 1")
    scenario.write_text(text.format(corpus=corpus))
    return scenario


def train_apart(command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as in one there is one group of ranks."""
    with warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd) as process:
        out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_a_rank_finds_what_rank_0_refused_and_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 is gone by then: there was a traceback below the one line."""

    def refused(_config: TrainerConfig) -> None:
        raise InputError("launch.torchrun.nproc: 2, but the checkpoint was made with 1")

    monkeypatch.setattr(training.signal, "signal", lambda *_: None)
    monkeypatch.setattr(training, "prepare_training", refused)
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    (tmp_path / "small.yaml").write_text(SCENARIO.format(corpus=corpus))
    plan = make_plan(load_scenario(tmp_path / "small.yaml"), "small.yaml", ["plain"])
    folder = StudyFolder(tmp_path / "out")
    other = Training(TrainingRecords(plan.arms[0], plan.arms[0].config, folder, [], "small.yaml"), Goal(steps=1))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send({"do": "train", "checkpoint": None, "block": 0})
        ours.close()
        rank = Rank(1, 2, 0, None, 60.0)
        assert other._serve_rank(cast("StartMessage", {}), Channel(theirs), rank) == 1
    assert capsys.readouterr().err == ""


def test_ranks_are_forked_with_everything_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each imported torch, transformers and the model for itself."""
    imported: list[str] = []
    at_fork: list[list[str]] = []

    def forked(*_: object) -> None:
        at_fork.append([*imported])
        raise RankFailedError("nothing is forked here")

    monkeypatch.setattr(training_state, "OtherRanks", forked)
    plan = make_plan(load_scenario(written(tmp_path), []), "small.yaml", ["plain"])
    folder = StudyFolder(tmp_path / "out")
    one = Training(TrainingRecords(plan.arms[0], plan.arms[0].config, folder, [], "small.yaml"), Goal(steps=1))
    monkeypatch.setattr(training_state.importlib, "import_module", imported.append)
    with pytest.raises(RankFailedError):
        one.run("small")
    (found,) = at_fork
    assert {"trainer.loop", "trainer.data.loader", "transformers.models.gpt2.modeling_gpt2"} <= {*found}


def test_a_rank_that_fails_after_the_last_step_fails_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run was recorded as failed, but the command ended with status 0."""

    def failed() -> bool:
        raise RankFailedError("rank 1: its process is gone")

    plan = make_plan(load_scenario(written(tmp_path), []), "small.yaml", ["plain"])
    folder = StudyFolder(tmp_path / "out")
    one = Training(TrainingRecords(plan.arms[0], plan.arms[0].config, folder, [], "small.yaml"), Goal(steps=1))
    part = MagicMock(folder=tmp_path, study=StudyRecord("small", "?", "running"), lost="", begins=False, first=0)
    opened = MagicMock()
    opened.batches.ended_workers.return_value = None
    monkeypatch.setattr(training, "keep", lambda *_: None)
    for owner, name, value in (
        (one, "_begin", lambda *_: part),
        (one, "_train", lambda _: "done"),
        (one, "_count", lambda _: None),
        (one._state, "open", lambda *_: opened),
        (one._ranks, "fork", lambda _: None),
        (one._ranks, "wait_until_done", failed),
    ):
        monkeypatch.setattr(owner, name, value)
    trained = one.run("small")
    assert (trained.status, trained.error) == ("failed", "rank 1: its process is gone")


def check_what_is_kept(folder: Path, parallel: str) -> None:
    """By the training "two", which was killed, beside "one", which was not."""
    one, two = (list(StudyFolder(folder / out).runs())[-1].record for out in ("one", "two"))
    assert one.facts.ranks == 2
    # The same weights on both ranks, and the same ones as without the kill.
    assert one.facts.parameters_digest == two.facts.parameters_digest is not None
    assert {"steps.parquet", "steps.rank-1.parquet", "spans.rank-1.parquet"} <= set(two.digests)
    about = json.loads((max((folder / "two/checkpoints").glob("step-*")) / "checkpoint.json").read_text())
    names = {"rank-0.pt", "rank-1.pt", "state.pt", "facts.json", "tokenizer.json", "tokenizer_config.json"}
    names |= (
        {"model.safetensors", "config.json"} if parallel == "ddp" else {".metadata", "__0_0.distcp", "__1_0.distcp"}
    )
    assert set(about["files"]) == names


@pytest.mark.slow
@pytest.mark.nightly
def test_two_ranks_make_the_pass_that_a_killed_part_did_not(tmp_path: Path) -> None:
    scenario, table = written(tmp_path), tmp_path / "out/evaluations.csv"
    evaluation = "evaluation={every_steps: 8, fraction: 0.2, batches: 1}"

    def train(steps: int, *words: str) -> str:
        asked = ["--arm", "plain", "--steps", str(steps), "--set", evaluation, "--out", str(tmp_path / "out")]
        command = [sys.executable, "-m", "harness", "train", str(scenario), *asked, *words]
        done = train_apart(command)
        assert done.returncode == 0, done.stdout + done.stderr
        return table.read_text()

    before = train(8)
    # As a kill between the checkpoint of step 8 and the pass that is due there leaves it.
    table.write_text(before.splitlines(keepends=True)[0])
    after = train(16, "--resume")
    assert after.startswith(before)
    assert [row.step for row in read_evaluations(table)] == [7, 15]


@pytest.mark.slow
@pytest.mark.parametrize(("parallel", "victim", "words"), [
    ("ddp", 0, ["--epochs", "0.3", "--set", "checkpoint.every_steps=1"]),
    pytest.param(*("fsdp", 1, ["--steps", "20", "--set", "checkpoint={every_steps: null, every_minutes: 0.0001}"]),
     marks=pytest.mark.nightly),
])  # fmt: skip
def test_a_rank_killed_within_a_save_loses_nothing(
    tmp_path: Path, parallel: str, victim: int, words: list[str]
) -> None:
    scenario = written(tmp_path)

    def start(out: str, *more: str) -> subprocess.Popen[str]:
        asked = ["--arm", "plain", *words, "--set", f"launch.parallel={parallel}", "--out", str(tmp_path / out)]
        command = [sys.executable, "-m", "harness", "train", str(scenario), *asked]
        return warm.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    undisturbed, killed = start("one"), start("two")
    saved = tmp_path / "two/checkpoints"
    stop_within_a_save(killed, saved)
    if victim == 0:
        killed.kill()
        assert killed.wait(240) == -signal.SIGKILL
        assert half_written(saved)
    else:
        os.kill(rank_of(killed.pid, victim), signal.SIGKILL)
        killed.send_signal(signal.SIGCONT)
        _, err = killed.communicate(timeout=300)
        assert killed.returncode == 1, err
        assert f"rank {victim}: its process was killed by signal 9" in err
    for process in (undisturbed, start("two", "--resume")):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, out + err
        assert "done: " in out
    assert not half_written(saved)
    assert (tmp_path / "two/losses.csv").read_bytes() == (tmp_path / "one/losses.csv").read_bytes()
    check_what_is_kept(tmp_path, parallel)


def stop_within_a_save(process: subprocess.Popen[str], saved: Path) -> None:
    """Suspend rank 0 where a checkpoint is there and another one is half written: nothing renames it from then on."""
    until = time.monotonic() + 240
    while True:
        assert time.monotonic() < until
        if not (any(saved.glob("step-*")) and half_written(saved)):
            assert process.poll() is None, process.communicate()
            os.sched_yield()
            continue
        process.send_signal(signal.SIGSTOP)
        while state_of(process.pid) != "T":
            assert process.poll() is None, process.communicate()
            os.sched_yield()
        if half_written(saved):
            return
        process.send_signal(signal.SIGCONT)  # it was renamed before the signal came


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def half_written(saved: Path) -> bool:
    return any(".gone." not in path.name for path in saved.glob(".step-*.tmp"))


def rank_of(pid: int, number: int) -> int:
    """The process of that rank, which rank 0 has forked."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = [int(one) for one in children if Path(f"/proc/{one}/comm").read_text() == f"{RANK_NAME}{number}\n"]
    return found


@pytest.mark.slow
@pytest.mark.nightly
def test_tokens_and_epochs_are_those_of_all_ranks(tmp_path: Path) -> None:
    scenario = written(tmp_path, documents=61)  # so that the ranks' shards differ
    # With evaluation every rank must know before its last checkpoint that it is the last one.
    words = "--set", "checkpoint={every_steps: 1, keep: 2}", "--set", "evaluation={fraction: 0.1, batches: 1}"

    def train(out: str, *end: str) -> str:
        asked = ["train", str(scenario), "--arm", "plain", "--out", str(tmp_path / out), *words, *end]
        done = train_apart([sys.executable, "-m", "harness", *asked])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "done: 11 steps, 1,056 tokens" in train("tokens", "--tokens", "1000")  # 96 a step
    train("epochs", "--epochs", "0.3")
    before, last = sorted((tmp_path / "epochs/checkpoints").iterdir())
    assert int(last.name[-8:]) == int(before.name[-8:]) + 1 == len(read_losses(tmp_path / "epochs/losses.csv"))
    assert min(epochs_of_ranks(before)) < 0.3 <= min(epochs_of_ranks(last))


def epochs_of_ranks(checkpoint: Path) -> list[float]:
    found = []
    for rank in range(2):
        (position,) = torch.load(checkpoint / f"rank-{rank}.pt", weights_only=True)["data"]["positions"]
        epochs = Position(*position).epochs
        assert epochs is not None
        found.append(epochs)
    return found


OWN_SOURCE = """\
import torch
from torch.utils.data import DataLoader


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, index):
        ids = torch.full((16,), index % 50)
        return {"input_ids": ids, "labels": ids}


def make():  # ranks take turns: one has all of one row, the other all of three
    batches = [[[at], [at + 1, at + 2, at + 3]] for at in range(0, 600, 4)]
    return DataLoader(Rows(), batch_sampler=[rows for both in batches for rows in both])
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_tokens_of_a_users_source_are_summed_over_the_ranks_and_go_on_so(tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text(OWN_SOURCE)
    scenario = tmp_path / "own.yaml"
    text = TWO[: TWO.index("    corpus:")] + "    source: own_rows:make\n" + TWO[TWO.index("  compute:") :]
    text = text.replace("every_steps: 10", "every_steps: 2").replace("heads: 2", "heads: 2, vocab_size: 64")
    scenario.write_text(text.format())

    def train(out: str, tokens: int, *more: str) -> str:
        asked = ["train", str(scenario), "--arm", "plain", "--tokens", str(tokens), "--out", str(tmp_path / out), *more]
        done = train_apart([sys.executable, "-m", "harness", *asked], cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "unsaid.yaml").write_text(scenario.read_text().replace(", vocab_size: 64", ""))
    words = ["train", "unsaid.yaml", "--arm", "plain", "--steps", "4", "--out", "unsaid"]
    done = train_apart([sys.executable, "-m", "harness", *words], cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        2,
        ["harness: model.vocab_size: give it, because own_rows:make does not define it"],
    )
    # 16 and 48 a step: 64.
    assert "done: 11 steps, 704 tokens" in train("whole", 700)
    assert "done: 6 steps, 384 tokens" in train("parts", 350)
    assert "done: 11 steps, 704 tokens" in train("parts", 700, "--resume")
    assert (tmp_path / "parts/losses.csv").read_bytes() == (tmp_path / "whole/losses.csv").read_bytes()
