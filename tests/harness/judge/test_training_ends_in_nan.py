"""A real training that ends in NaN, as the ledger, the table and the verdict see it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from harness.explain.ledger import RunLedger, measure
from harness.explain.spans import column
from harness.judge.comparisons import Controls, Measured, compare
from harness.judge.confounds import confounds
from harness.launch.tables import step_columns
from harness.probes.ledger.recorders import StepRecorder
from harness.show.text.doubts import confound_lines
from harness.study.contract import STEP_COLUMNS, arrow_schema
from harness.study.records import RunRecord
from harness.study.run_data import RunData
from trainer import telemetry
from trainer.compute.build import build_compute
from trainer.compute.torch_compute import TorchCompute
from trainer.config import TrainerConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.loop import train

STEPS = 16


def trained(seed: int, *, explodes: bool = False) -> RunData:
    """A run of the real trainer, recorded as `harness run` records it; its learning rate may explode half-way."""
    config = TrainerConfig.model_validate(
        {
            "model": {"preset": "llama-tiny", "layers": 1, "width": 32},
            "data": {
                "corpus": {"builtin": "python-docs", "documents": 60},
                "tokenizer": {"train": {"vocab_size": 512}},
                "path": "tokens-padded",
                "sequence_length": 16,
                "batch_size": 2,
            },
            "compute": {"check_finite": False, "threads": 1},
            "seed": seed,
        }
    )
    prepared = prepare(config.data)
    recorder = StepRecorder()
    telemetry.attach(recorder)
    try:
        with open_batches(config.data, prepared, config.seed) as batches:
            compute = build_compute(config, prepared.vocab_size)
            assert isinstance(compute, TorchCompute)
            loop = train(config, compute, batches)
            for step in range(STEPS):
                if explodes and step == STEPS // 2 - 1:
                    compute._optimizer.param_groups[0]["lr"] = math.inf
                next(loop)
            loop.close()
            recorder.pause()
    finally:
        telemetry.attach(None)
    columns = {
        **step_columns(recorder.rows()),
        "warmup": [False] * STEPS,
        "loss": [recorder.losses.get(step) for step in range(STEPS)],
    }
    blank = {name: columns.get(name) or [None] * STEPS for name, _ in STEP_COLUMNS}
    table = pa.table(blank, schema=arrow_schema(STEP_COLUMNS))
    return RunData(RunRecord("x", seed, "done"), table, None, None)


@pytest.mark.slow
def test_a_training_that_ends_in_nan_is_no_gain_however_fast() -> None:
    healthy = {seed: found for seed in range(3) if (found := measure(trained(seed))) is not None}
    run = trained(0, explodes=True)
    assert run.steps is not None
    losses = column(run.steps, "loss")
    assert np.isfinite(losses[: STEPS // 2]).all()  # it begins as it should
    assert np.isnan(losses[STEPS // 2 :]).all()
    broken = measure(run)
    assert broken is not None
    assert (broken.diverged, broken.loss) == (True, None)
    assert not any(one.diverged for one in healthy.values())
    assert healthy[0].loss == pytest.approx(math.log(512), rel=0.1)

    base, fast = sides(healthy, 1.0), sides(dict.fromkeys(range(3), broken), 0.5)
    found = compare("healthy", "broken", {"healthy": base, "broken": fast}, Controls({("a-a", "healthy"): base}))
    assert isinstance(found, Measured)
    assert found.ratio.median == pytest.approx(2.0)
    assert (found.verdict, found.undecided) == ("undecided", "diverged")
    lines = confound_lines(confounds(base, fast, {}, ("healthy", "broken"), 3, found.losses))
    assert lines[0] == "loss of broken diverged: NaN, infinite or far above its start in measured steps"


def sides(runs: dict[int, RunLedger], factor: float) -> dict[int, RunLedger]:
    """The same runs, whose steps all take ``factor`` seconds: speed is not what is measured here."""
    return {
        block: replace(
            run,
            repetitions={0: replace(run.repetitions[0], wall_ns=factor * 1e9, trained_tokens=1000.0, tokens=1000.0)},
        )
        for block, run in runs.items()
    }
