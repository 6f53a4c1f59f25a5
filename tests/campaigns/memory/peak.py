"""``python -m tests.campaigns memory.peak``: trains a model for a few steps and prints how much memory that took at
most.

It reads a configuration of the trainer from standard input, as JSON, and prints bytes: the peak of the process's
resident memory while the model was built and trained, above what it had before. The ids are random, and no data are
prepared: memory does not depend on them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from trainer.compute.build import build_compute
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.model import shape_of
from trainer.model_files import objective_of

STEPS = 2  # in the second one the moments are there with the gradients and the activations


def resident(name: str) -> int:
    """VmRSS (now) or VmHWM (at most) in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [one for one in lines if one.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def measure(config: TrainerConfig, vocab_size: int) -> int:
    """Bytes at most above those before. What is imported by the first step is imported before."""
    small = {"layers": 1, "width": 16, "heads": 2, "kv_heads": None, "ffn_width": None, "vocab_size": 64}
    one = {"model": config.model.model_copy(update=small), "data": config.data.model_copy(update={"batch_size": 1})}
    train(config.model_copy(update=one), 64)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    train(config, vocab_size)
    return resident("VmHWM") - before


def train(config: TrainerConfig, vocab_size: int) -> None:
    compute = build_compute(config, vocab_size)
    shape = shape_of(config.model, vocab_size, config.data.sequence_length)
    assert shape is not None
    size = (config.data.batch_size, config.data.sequence_length)
    for step in range(STEPS):
        ids = torch.randint(0, shape.vocab_size, size)
        shifted = objective_of(config.model) == "causal"
        compute.begin_step(step)
        loss = compute.forward(Batch(ids, ids.clone(), None, ids.numel(), ids.numel(), size[0], shifted=shifted))
        compute.backward(loss)
        compute.check_finite(compute.clip_gradients(), step)
        compute.optimizer_step()
        del loss


if __name__ == "__main__":
    print(measure(TrainerConfig.model_validate(json.load(sys.stdin)), 0))
