"""What needs a CUDA device. Not run where there is none; run it there with `python -m pytest tests/gpu`."""

from __future__ import annotations

import pytest
import torch

from harness.launch.tables import step_columns
from harness.probes.ledger.recorders import StepRecorder
from harness.study.contract import PHASES
from trainer import telemetry
from trainer.compute.build import build_compute
from trainer.config import TrainerConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.loop import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_trains_on_cuda_and_the_ledger_holds(precision: str) -> None:
    config = TrainerConfig.model_validate(
        {
            "data": {
                "corpus": {"builtin": "python-docs", "documents": 200},
                "tokenizer": {"train": {"vocab_size": 1024}},
                "sequence_length": 64,
                "workers": 1,
                "pin_memory": True,
            },
            "compute": {"device": "cuda", "precision": precision},
            "optimizer": {"learning_rate": 3e-3},
        }
    )
    recorder = StepRecorder()
    with open_batches(config.data, prepare(config.data), seed=0) as batches:
        compute = build_compute(config, 1024)
        telemetry.attach(recorder)
        try:
            loop = train(config, compute, batches)
            for _ in range(60):
                next(loop)
            recorder.pause()
            loop.close()
        finally:
            telemetry.attach(None)
    table = step_columns(recorder.rows())
    loss = recorder.losses
    assert [sum(table[f"{phase}_ns"][row] for phase in PHASES) for row in range(60)] == table["wall_ns"]
    assert loss[59] < loss[0] - 0.5


@pytest.mark.parametrize("documents", ["joined", "separated"])
@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_nothing_in_the_default_loop_waits_for_the_device_unasked(preset: str, documents: str) -> None:
    """torch raises an error for any operation that makes the host wait; the loop's own event says so by itself."""
    config = TrainerConfig.model_validate(
        {
            "model": {"preset": preset},
            "data": {
                "corpus": {"builtin": "python-docs", "documents": 200},
                "tokenizer": {"train": {"vocab_size": 1024}},
                "path": "tokens-mmap",
                "documents": documents,
                "sequence_length": 64,
                "pin_memory": True,
            },
            "compute": {"device": "cuda", "precision": "bf16"},
        }
    )
    with open_batches(config.data, prepare(config.data), seed=0) as batches:
        loop = train(config, build_compute(config, 1024), batches)
        for _ in range(10):
            next(loop)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                next(loop)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        loop.close()
