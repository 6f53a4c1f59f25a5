"""The hot paths of this project, timed plainly: what a step waits for, what watches it, and what decides about it.

`make bench` prints them; `--benchmark-compare` and `--benchmark-histogram` work on what `--benchmark-save` kept.
Nothing is asserted about a time: whether a commit is slower is what `harness regress` decides, side by side.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.explain.ledger import measure
from harness.probes.ledger.recorders import StepRecorder
from harness.regress.decision import Limits, decide
from harness.regress.gate import comparisons
from harness.regress.series import rounds
from tests.harness.regress.tables import study
from trainer import telemetry
from trainer.config import DataConfig
from trainer.data.dataset import make_pipeline
from trainer.data.prepare import prepare

pytestmark = pytest.mark.slow  # measurements


@pytest.mark.nightly
@pytest.mark.parametrize("access", ["scalar", "zero-copy"])
@pytest.mark.parametrize("path", ["text-padded", "tokens-padded", "tokens-stream"])
def test_next_batch(benchmark, path: str, access: str) -> None:
    config = DataConfig.model_validate(
        {
            "path": path,
            "access": access,
            "sequence_length": 128,
            "batch_size": 4,
            "corpus": {"builtin": "python-docs", "documents": 200 if benchmark.enabled else 60},
            "tokenizer": {"train": {"kind": "bpe", "vocab_size": 512}},
        }
    )
    source = make_pipeline(config, prepare(config), seed=0, worker=0, workers=1)
    batch = benchmark(source.next_batch)
    assert batch.input_ids.shape == (4, 128)


def test_one_recorded_step(benchmark) -> None:
    recorder = StepRecorder(None)
    telemetry.attach(recorder)
    index = iter(range(10**9))

    def step() -> None:
        recorder.step(next(index))
        for phase in ("fetch", "h2d", "forward", "backward", "optimizer"):
            with telemetry.span(phase):
                pass

    try:
        benchmark(step)
    finally:
        telemetry.attach(None)


def test_reading_a_run(benchmark) -> None:
    _, runs = study(blocks=1, repetitions=100)
    assert benchmark(lambda: (measure(runs[0]), rounds(runs[0])))[1] is not None


def test_one_decision(benchmark) -> None:
    logs = list(np.random.default_rng(0).normal(0.02, 0.01, 14))
    assert benchmark(decide, logs, 0.01, logs).outcome


def test_one_contest(benchmark) -> None:
    record, runs = study(0.05, blocks=14)
    (found,) = benchmark(comparisons, record, runs, Limits())
    assert found.verdict == "slower"
