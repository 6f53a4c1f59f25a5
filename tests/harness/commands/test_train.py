"""harness train: one arm to its end, and on from where it was killed, with the same losses bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.launch.training_files import LossRow, LossTable, read_losses
from harness.launch.training_progress import Goal, TrainingProgress
from tests.trainer.data.conftest import make_texts, write_parquet
from trainer.errors import InputError

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


def test_a_goal_says_how_far_and_the_line_how_long() -> None:
    assert Goal(steps=50).share(25, 0, None) == 0.5
    assert Goal(tokens=1000).share(0, 250, None) == 0.25
    assert Goal(epochs=2).share(0, 0, 1.0) == 0.5
    with pytest.raises(InputError, match="give --steps or --tokens"):
        Goal(epochs=2).share(0, 0, None)
    progress = TrainingProgress(Goal(steps=100), 0.2, 400)
    line = progress.line(60, 2400, 0.6, 1.25, 10.0)
    assert line == "step 60 (60.0% of 100 steps): loss 1.2500, 200 tokens/s, 0:10 left"


@pytest.mark.slow
def test_killed_and_stopped_it_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    scenario = tmp_path / "small.yaml"
    scenario.write_text(SCENARIO.format(corpus=corpus))

    def start(out: str, *words: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "harness",
            "train",
            str(scenario),
            "--steps",
            "60",
            "--out",
            str(tmp_path / out),
        ]
        return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
        out, err = process.communicate(timeout=300)
        return process.returncode, out + err

    def hit(process: subprocess.Popen[str], number: signal.Signals, steps: int) -> tuple[int, str]:
        until = time.monotonic() + 240
        while not (tmp_path / f"two/checkpoints/step-{steps:08d}").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            os.sched_yield()
        process.send_signal(number)
        return ended(process)

    code, text = ended(start("one", "--arm", "plain"))
    assert code == 0, text
    assert "done: 60 steps, 2,880 tokens" in text
    assert (tmp_path / "one/loss.png").read_bytes().startswith(b"\x89PNG")
    assert hit(start("two", "--arm", "plain"), signal.SIGKILL, 20)[0] == -signal.SIGKILL
    code, text = hit(start("two", "--arm", "plain", "--resume"), signal.SIGTERM, 40)
    assert code == 130, text
    assert "go on with the same command and --resume" in text
    code, text = ended(start("two", "--arm", "plain", "--resume"))
    assert code == 0, text
    assert (tmp_path / "two/losses.csv").read_bytes() == (tmp_path / "one/losses.csv").read_bytes()


def test_wrong_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from harness.cli import main

    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    scenario = tmp_path / "small.yaml"
    scenario.write_text(SCENARIO.format(corpus=corpus))
    (tmp_path / "there" / "checkpoints").mkdir(parents=True)
    out = ["--out", str(tmp_path / "out")]
    for words, message in (
        (out, "one arm is trained, not 2: give --arm; arms: plain, other"),
        (["--arm", "plain", *out, "--steps", "0"], "--steps: 0; allowed: more than 0"),
        (["--arm", "plain", *out, "--set", "compute.device={emulated: gh200}"], "computes no model"),
        (["--arm", "plain", "--out", str(tmp_path / "there")], "a training lies there; go on with it (--resume)"),
        (["--arm", "plain", *out, "--set", "checkpoint={every_steps: 1, every_minutes: 1}"], "at most one of"),
    ):
        assert main(["train", str(scenario), *words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert message in lines[0]
    assert not (tmp_path / "out").exists()
