"""Says which share of the learning rate each optimizer step uses: linear warmup, then the configured schedule.

Progress runs from 0 at the end of the warmup to 1 after the schedule's last step, as in nanoGPT and transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from trainer.config import OptimizerConfig, TrainerConfig


def schedule_steps(config: TrainerConfig) -> int:
    """Optimizer steps that the schedule is over: those asked for, or the run's own."""
    return config.optimizer.schedule_steps or config.warmup_steps + config.steps


def rate_factor(config: TrainerConfig) -> Callable[[int], float]:
    """The factor on the learning rate by how many steps were trained here, for ``torch.optim.lr_scheduler.LambdaLR``.

    The number of the step is that, after those of the training that this one goes on with (``resume``).
    """
    optimizer, total = config.optimizer, schedule_steps(config)
    warmup, first_step = optimizer.lr_warmup_steps, config.first_step

    def factor(trained: int) -> float:
        step = first_step + trained
        if step + 1 <= warmup:
            return (step + 1) / warmup
        if optimizer.schedule == "constant":
            return 1.0
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return optimizer.final_fraction + (1 - optimizer.final_fraction) * _left(optimizer, step, total, progress)

    return factor


def _left(optimizer: OptimizerConfig, step: int, total: int, progress: float) -> float:
    """How much of the way from the full rate to the final one is left, 1 to 0."""
    if optimizer.schedule == "linear":
        return 1 - progress
    if optimizer.schedule == "cosine":  # Loshchilov and Hutter 2017, without restarts
        return 0.5 * (1 + math.cos(math.pi * progress))
    decay = max(1, round(optimizer.decay_fraction * total))  # warmup-stable-decay: Hu et al. 2024 (MiniCPM), linear
    return min(1.0, max(0.0, (total - step) / decay))
