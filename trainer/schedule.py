"""Computes the share of the learning rate for each optimizer step: linear warmup, then the configured schedule.

Progress runs from 0 at the end of the warmup to 1 after the schedule's last step, as in nanoGPT and transformers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from trainer.config import OptimizerConfig, TrainerConfig


def schedule_steps(config: TrainerConfig) -> int:
    """Return the number of optimizer steps over which the schedule runs: the configured one, or that of this
    training.
    """
    return config.optimizer.schedule_steps or config.warmup_steps + config.steps


def rate_factor(config: TrainerConfig) -> Callable[[int], float]:
    """Return the function for ``LambdaLR`` of torch: from the steps trained here to the factor on the learning rate.

    The factor is between 0 and 1. The steps of the training that this one continues (``resume``) are added.
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
    """Return the share (1 to 0) of the difference between full and final learning rate that is left at ``step``.

    ``total``: steps of the schedule. ``progress``: share of them that is done, without the warmup.
    """
    if optimizer.schedule == "linear":
        return 1 - progress
    if optimizer.schedule == "cosine":  # Loshchilov and Hutter 2017, without restarts
        return 0.5 * (1 + math.cos(math.pi * progress))
    decay = max(1, round(optimizer.decay_fraction * total))  # warmup-stable-decay: Hu et al. 2024 (MiniCPM), linear
    return min(1.0, max(0.0, (total - step) / decay))
