"""The contestants of ``tests.benchmarks.training_peers`` train the same, and its page says what its figures allow."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from harness.launch.channel import Channel
from tests.benchmarks.peer_loops import LEDGER, NANOGPT, OURS, TRANSFORMERS, serve
from tests.benchmarks.training_peers import WARMUP, Case, Result, config_of, page, write_batches
from trainer.config import TrainerConfig

CASE = Case({"preset": "gpt2-tiny", "layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn_width": 64}, 32, 2, 1, 3)


@pytest.mark.nightly
@pytest.mark.slow  # trains, on the built-in corpus
def test_contestants_have_the_same_losses_and_answer_each_order(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    content = config_of(CASE, "fp32", 1).model_dump(mode="json")
    content["data"]["corpus"]["documents"] = 400
    content["data"]["tokenizer"]["train"]["vocab_size"] = 1024
    config = TrainerConfig.model_validate(content)
    write_batches(config, WARMUP + 8, tmp_path)
    losses = {}
    for kind in (OURS, NANOGPT, TRANSFORMERS):
        here, there = socket.socketpair()
        launcher = Channel(here)
        launcher.send({"record": {"config": content}, "study": "", "probes": {}})
        launcher.send({"do": "turn", "turn": 0, "settle": CASE.warmup, "steps": CASE.steps})
        launcher.send({"do": "finish"})
        serve(kind, Channel(there), tmp_path)
        ready, first, done = (dict(launcher.receive_event(0)) for _ in range(3))
        losses[kind] = ready["losses"]
        assert first["ns"] > 0
        assert done["event"] == "done"
    assert len(losses[OURS]) == WARMUP
    assert losses[NANOGPT] == pytest.approx(losses[OURS], rel=1e-5)
    assert losses[TRANSFORMERS] == pytest.approx(losses[OURS], rel=1e-5)


ABOUT = dict.fromkeys(
    ("command", "utc", "cpu", "cores", "torch", "transformers", "accelerate", "precision", "threads"), "x"
)


def result(ours: list[float], ledger: list[float]) -> Result:
    speeds = {OURS: ours, LEDGER: ledger, NANOGPT: [100.0, 101, 99, 100], TRANSFORMERS: [90.0, 91, 89, 90]}
    cpu = {kind: [12.34] * 4 for kind in speeds}
    return Result("tiny", CASE, speeds, cpu, {kind: [7.5] * WARMUP for kind in speeds}, [0.5, 2.25])


def test_page_compares_with_the_faster_of_the_others() -> None:
    found = result([104.0, 105, 103, 104], [96.0, 97, 95, 96])
    text = page([found], ABOUT)
    assert found.faster_peer == NANOGPT
    assert "- this trainer, ledger off: 1.040 (1.0" in text
    assert "faster;" in text
    assert "- this trainer, ledger on: 0.960 (0.9" in text
    assert "slower;" in text
    assert "| 1.040 " in text
    assert "| 12.3 |" in text
    assert "load 0.50 to 2.25" in text


def test_page_claims_nothing_of_an_interval_that_holds_one() -> None:
    text = page([result([95.0, 106, 94, 105], [100.0, 101, 99, 100])], ABOUT)
    assert "no difference that these rounds can show" in text
    assert "faster;" not in text.replace("The faster", "")


def test_disagreement_is_of_the_first_losses() -> None:
    found = result([1.0] * 4, [1.0] * 4)
    found.losses[TRANSFORMERS][0] = 7.6
    assert found.disagreement == pytest.approx(0.1 / 7.5)
