"""Decides the steps of the optimizer: schedule of the learning rate, clipping of gradients, and mup.

Schedule: linear warmup, then the configured schedule. Progress runs from 0 at the end of the warmup to 1 after the
schedule's last step, as in nanoGPT and transformers.

Clipping by the global norm of the gradients: Pascanu et al. 2013, section 3.2.

Maximal update parametrization (mup), for Adam: Yang et al. 2022, "Tensor Programs V: Tuning Large Neural Networks via
Zero-Shot Hyperparameter Transfer", table 8, which allows an output projection tied to the input embedding. With
m = width / base width, and d the width of a head:

                     initial std       learning rate     multiplier
    embeddings       1                 1                 1
    biases, norms    1                 1                 1
    hidden matrices  1 / sqrt(m)       1 / m             1
    output           1                 1                 1 / m
    attention                                            sqrt(base d) / d in place of 1 / sqrt(d)

All are factors on the values at the base width. Multipliers would make another model, which readers of its checkpoints
would not know. So they are moved into weights: c * W with a learning rate equals W' = c * W with c times that rate.
This holds because Adam's steps do not depend on the size of the gradient (lemma J.1 of the paper). Exceptions are
Adam's epsilon, and the common norm of the gradients if they are clipped. 1 / m goes into the last norm, which only the
output projection reads. The attention's factor goes into the query. GPT-2 has query, key and value in one matrix. It
gets the root of the factor as a whole, and the projection after it the inverse root, which restores the value.

AdamW multiplies weight decay by the learning rate. So it is divided by the same factor, and is the same at every width
(like ``MuAdamW`` of the package mup).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from trainer.config import OptimizerConfig, TrainerConfig
from trainer.config_model import MupConfig

if TYPE_CHECKING:
    import torch


def schedule_steps(config: TrainerConfig) -> int:
    """Return the number of optimizer steps over which the schedule runs: the configured one, or this training's."""
    return config.optimizer.schedule_steps or config.warmup_steps + config.steps


def rate_factor(config: TrainerConfig) -> Callable[[int], float]:
    """Return ``LambdaLR``'s function: steps trained here, after those of ``resume``, to the rate's factor (0 to 1)."""
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
    """Return how much of the decay is left (1 to 0), at ``progress`` (0 to 1) of the schedule after its warmup."""
    if optimizer.schedule == "linear":
        return 1 - progress
    if optimizer.schedule == "cosine":  # Loshchilov and Hutter 2017, without restarts
        return 0.5 * (1 + math.cos(math.pi * progress))
    decay = max(1, round(optimizer.decay_fraction * total))  # warmup-stable-decay: Hu et al. 2024 (MiniCPM), linear
    return min(1.0, max(0.0, (total - step) / decay))


_EPSILON = 1e-6  # epsilon of torch.nn.utils.clip_grads_with_norm_; this module must compute the same coefficient


class GradientClipping:
    """Clips exactly like clip_grad_norm_, without its pass over gradients on a CPU whose norm needs no clipping."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], limit: float | None) -> None:
        """List the parameters once, because walking a module is slow. ``limit``: largest norm; None: any."""
        import torch

        self._utils: Any = torch.nn.utils
        self._parameters = list(parameters)
        self._limit = math.inf if limit is None else limit
        # False for shares (DTensor), whose norm is a share too.
        self._known_at_once = not any(
            parameter.is_cuda or hasattr(parameter, "full_tensor") for parameter in self._parameters
        )

    def __call__(self) -> torch.Tensor:
        """Clip the gradients in place, and return their global norm before clipping."""
        norm: torch.Tensor
        if not self._known_at_once:
            norm = self._utils.clip_grad_norm_(self._parameters, self._limit)
            return norm
        norm = self._utils.get_total_norm(
            [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        )
        if not self._limit / (norm + _EPSILON) >= 1:  # A norm that is NaN makes the gradients NaN, too.
            self._utils.clip_grads_with_norm_(self._parameters, self._limit, norm)
        return norm


_EMBEDDINGS = ("wte.weight", "wpe.weight", "embed_tokens.weight", "lm_head.weight")
_LAST_NORMS = ("transformer.ln_f.weight", "transformer.ln_f.bias", "model.norm.weight")


class ParameterGroup(TypedDict):
    """One parameter group of AdamW: parameters with the same learning rate and weight decay."""

    params: list[torch.nn.Parameter]
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class WeightFactors:
    """Factors of one parameter under mup, relative to its usual initial values and learning rate."""

    initial: float = 1.0
    rate: float = 1.0


def weight_factors(model: torch.nn.Module, mup: MupConfig) -> dict[str, WeightFactors]:
    """Return mup's factors for each parameter of a preset's model, by the parameter's name."""
    config: Any = model.config
    width, heads = config.hidden_size, config.num_attention_heads
    m = width / mup.base_width
    attention = math.sqrt(mup.base_width / (mup.base_heads or heads) / (width / heads))
    return {name: _factors(name, parameter.dim(), m, attention) for name, parameter in model.named_parameters()}


def _factors(name: str, dimensions: int, m: float, attention: float) -> WeightFactors:
    multiplier = 1.0  # multiplier that is moved into this parameter
    if name in _LAST_NORMS:
        multiplier = 1 / m
    elif ".c_attn." in name:
        multiplier = math.sqrt(attention)
    elif name.endswith(".attn.c_proj.weight"):
        multiplier = 1 / math.sqrt(attention)
    elif ".q_proj." in name:
        multiplier = attention
    hidden = dimensions >= 2 and not name.endswith(_EMBEDDINGS)
    return WeightFactors(multiplier / math.sqrt(m), multiplier / m) if hidden else WeightFactors(multiplier, multiplier)


def scale_initial_weights(model: torch.nn.Module, mup: MupConfig) -> None:
    """Multiply the usual initial weights of ``model`` by mup's factors, in place."""
    import torch

    factors = weight_factors(model, mup)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (factor := factors[name].initial) != 1:
                parameter.mul_(factor)


def learning_rate_factors(model: torch.nn.Module, mup: MupConfig | None) -> Mapping[str, float]:
    """Return the factor of each parameter's learning rate, by its name; empty without mup."""
    return {} if mup is None else {name: factors.rate for name, factors in weight_factors(model, mup).items()}


def parameter_groups(
    model: torch.nn.Module, optimizer: OptimizerConfig, rates: Mapping[str, float]
) -> list[ParameterGroup]:
    """Return AdamW's groups, one per rate (of ``rates``) and decay: first the configured rate; norms do not decay."""
    groups: dict[tuple[bool, float], list[torch.nn.Parameter]] = {(True, 1.0): [], (False, 1.0): []}
    for name, parameter in model.named_parameters():
        rate = rates[name.removeprefix("module.")] if rates else 1.0  # the prefix of DistributedDataParallel
        groups.setdefault((parameter.dim() >= 2, rate), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": optimizer.learning_rate * rate,
            "weight_decay": optimizer.weight_decay / rate if decays else 0.0,
        }
        for (decays, rate), parameters in groups.items()
    ]
