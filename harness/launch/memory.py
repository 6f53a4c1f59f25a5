"""Estimates whether all arms of a block fit in memory together: the condition of ``interleave: slices``."""

from __future__ import annotations

from harness.machine.environment import available_memory_bytes
from harness.machine.gpu_memory import gpu_memory
from trainer.config import TrainerConfig
from trainer.devices.flops import parameters
from trainer.model import resolve_shape

# What a run forked from the fork server has for itself, the model left out (measured with tiny models: 50 to 260 MB
# private; the 270 MB of torch and transformers are shared).
PROCESS_BYTES = 300 * 2**20
WORKER_BYTES = 200 * 2**20  # a forked loader worker's own pages
MOST_OF_MEMORY = 0.7  # share of the free memory: leaves room for the page cache, which the sources read from
MOST_ARMS = 64  # alive together: each has its workers and a socket


def estimate_run_bytes(config: TrainerConfig, vocab_size: int) -> int:
    """Host memory of one run: 16 bytes per parameter (fp32 weight, gradient, two AdamW moments) plus activations.
    None of that for an emulated device.

    Activations are taken as fp32 logits with their gradient and log-softmax, and 16 values of the width per layer
    and token (attention scores left out: PyTorch's fused attention does not keep them). An estimate, no promise.
    """
    total = PROCESS_BYTES + config.data.workers * WORKER_BYTES
    if config.compute.work == "model" and config.compute.emulated is None:
        shape = resolve_shape(config.model, vocab_size, config.data.sequence_length)
        tokens = config.data.batch_size * config.data.sequence_length
        total += 16 * parameters(shape) + 4 * tokens * (3 * shape.vocab_size + 16 * shape.layers * shape.width)
    return total


def choose_interleave(asked: str, needs: list[int], uses_gpu: bool) -> tuple[str, str]:
    """("slices" or "runs", the reason in words) for runs that need ``needs`` bytes each."""
    if asked != "auto":
        return asked, "as the scenario asks"
    if len(needs) > MOST_ARMS:
        return "runs", f"{len(needs)} arms are too many to keep alive side by side"
    available = gpu_memory() if uses_gpu else available_memory_bytes()
    where = "GPU memory" if uses_gpu else "memory"
    if available is None:
        return "runs", f"free {where} is unknown here"
    total = sum(needs)
    text = f"{len(needs)} arms need about {total / 2**30:.1f} GiB together, {available / 2**30:.1f} GiB {where} is free"
    return ("slices" if total <= MOST_OF_MEMORY * available else "runs"), text
