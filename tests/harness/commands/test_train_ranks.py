"""harness train with two ranks over gloo: killed and resumed, with the same losses bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.launch.training_files import read_losses
from harness.study.store import StudyFolder
from tests.commands import harness
from tests.harness.commands.test_train import SCENARIO
from tests.trainer.data.conftest import make_texts, write_parquet

TWO = SCENARIO.replace(
    "  warmup_steps: 2\n", "  warmup_steps: 2\n  launch: {{torchrun: {{nproc: 2}}, timeout_s: 60}}\n"
)
STEPS = 24


def written(folder: Path) -> Path:
    corpus = write_parquet(folder / "corpus.parquet", make_texts())
    scenario = folder / "small.yaml"
    # Moments and packed tokens are in flight between any two steps; workers read ahead of them.
    text = TWO.replace("every_steps: 10", "every_steps: 8").replace("batch_size: 3", "batch_size: 3\n    workers: 1")
    scenario.write_text(text.format(corpus=corpus))
    return scenario


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_are_killed_and_go_on_with_the_same_losses(tmp_path: Path, parallel: str) -> None:
    scenario = written(tmp_path)

    def start(out: str, *words: str) -> subprocess.Popen[str]:
        asked = ["--arm", "plain", "--steps", str(STEPS), "--set", f"launch.parallel={parallel}"]
        command = [sys.executable, "-m", "harness", "train", str(scenario), *asked, "--out", str(tmp_path / out)]
        return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    undisturbed, killed = start("one"), start("two")
    until = time.monotonic() + 240
    while not (tmp_path / "two/checkpoints/step-00000008").exists():
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < until
        os.sched_yield()
    killed.send_signal(signal.SIGKILL)
    assert killed.wait(60) == -signal.SIGKILL
    for process in (undisturbed, start("two", "--resume")):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, out + err
        assert f"done: {STEPS} steps, {STEPS * 2 * 3 * 16:,} tokens" in out  # of both ranks
    assert len(read_losses(tmp_path / "one/losses.csv")) == STEPS
    assert (tmp_path / "two/losses.csv").read_bytes() == (tmp_path / "one/losses.csv").read_bytes()

    records = {out: list(StudyFolder(tmp_path / out).runs())[-1].record for out in ("one", "two")}
    assert records["one"].facts.ranks == 2
    # The same weights on both ranks, and the same ones as without the kill.
    assert records["one"].facts.parameters_digest == records["two"].facts.parameters_digest is not None
    assert {"steps.parquet", "steps.rank-1.parquet", "spans.rank-1.parquet"} <= set(records["two"].digests)
    last = tmp_path / f"two/checkpoints/step-{STEPS:08d}"
    about = json.loads((last / "checkpoint.json").read_text())
    names = {"rank-0.pt", "rank-1.pt", "state.pt"}
    names |= (
        {"model.safetensors", "config.json"} if parallel == "ddp" else {".metadata", "__0_0.distcp", "__1_0.distcp"}
    )
    assert set(about["files"]) == names


def test_what_several_ranks_cannot_be_asked_is_one_line(tmp_path: Path) -> None:
    scenario = str(written(tmp_path))
    for words, said in (
        (("--tokens", "100"), "train: arm plain has 2 ranks (launch), which end together; give --steps"),
    ):
        done = harness("train", scenario, "--arm", "plain", "--out", str(tmp_path / "out"), *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert said in done.stderr
    assert not (tmp_path / "out").exists()
