"""Scales initial weights and learning rates by maximal update parametrization (mup), for Adam.

Yang et al. 2022, "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer", table 8,
which allows an output projection tied to the input embedding. With m = width / base width, and d the width of a head:

                     initial std       learning rate     multiplier
    embeddings       1                 1                 1
    biases, norms    1                 1                 1
    hidden matrices  1 / sqrt(m)       1 / m             1
    output           1                 1                 1 / m
    attention                                            sqrt(base d) / d in place of 1 / sqrt(d)

all as factors on what the model has at the base width. Multipliers would make it another model, which no reader of its
checkpoints knows. So they are moved into weights: c * W with a learning rate is W' = c * W with c times that rate, as
Adam's steps do not depend on the size of the gradient (lemma J.1 of the paper; but for Adam's epsilon, and for the
common norm of the gradients where they are clipped). 1 / m goes into the last norm, which only the output projection
reads; the attention's factor into the query. GPT-2 has query, key and value in one matrix: it gets the root of the
factor as a whole, and the projection behind it the inverse of the root, which undoes it for the value.

Weight decay as AdamW has it is multiplied by the learning rate: it is divided by the same factor, and so is the same at
every width (as ``MuAdamW`` of the package mup has it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from trainer.config import OptimizerConfig
from trainer.config_model import MupConfig

if TYPE_CHECKING:
    import torch

_EMBEDDINGS = ("wte.weight", "wpe.weight", "embed_tokens.weight", "lm_head.weight")
_LAST_NORMS = ("transformer.ln_f.weight", "transformer.ln_f.bias", "model.norm.weight")


class ParameterGroup(TypedDict):
    """One of AdamW's."""

    params: list[torch.nn.Parameter]
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class WeightFactors:
    """What the initial values of a parameter, and its learning rate, are multiplied by."""

    initial: float = 1.0
    rate: float = 1.0


def weight_factors(model: torch.nn.Module, mup: MupConfig) -> dict[str, WeightFactors]:
    """Of each parameter of a preset's model, by its name."""
    config: Any = model.config
    width, heads = config.hidden_size, config.num_attention_heads
    m = width / mup.base_width
    attention = math.sqrt(mup.base_width / (mup.base_heads or heads) / (width / heads))
    return {name: _factors(name, one.dim(), m, attention) for name, one in model.named_parameters()}


def _factors(name: str, dimensions: int, m: float, attention: float) -> WeightFactors:
    moved = 1.0  # of a multiplier, into this parameter
    if name in _LAST_NORMS:
        moved = 1 / m
    elif ".c_attn." in name:
        moved = math.sqrt(attention)
    elif name.endswith(".attn.c_proj.weight"):
        moved = 1 / math.sqrt(attention)
    elif ".q_proj." in name:
        moved = attention
    hidden = dimensions >= 2 and not name.endswith(_EMBEDDINGS)
    return WeightFactors(moved / math.sqrt(m), moved / m) if hidden else WeightFactors(moved, moved)


def scale_initial_weights(model: torch.nn.Module, mup: MupConfig) -> None:
    """Turn the usual initial weights of ``model`` into those of mup, in place."""
    import torch

    factors = weight_factors(model, mup)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if (factor := factors[name].initial) != 1:
                one.mul_(factor)


def learning_rate_factors(model: torch.nn.Module, mup: MupConfig | None) -> Mapping[str, float]:
    """What each parameter's learning rate is multiplied by, by its name; empty without mup."""
    return {} if mup is None else {name: one.rate for name, one in weight_factors(model, mup).items()}


def parameter_groups(
    model: torch.nn.Module, optimizer: OptimizerConfig, rates: Mapping[str, float]
) -> list[ParameterGroup]:
    """AdamW's groups. The first has the learning rate as it was given, which is the one that is reported.

    Biases and norms have no weight decay, by custom. ``rates``: as :func:`learning_rate_factors` gives them.
    """
    groups: dict[tuple[bool, float], list[torch.nn.Parameter]] = {(True, 1.0): [], (False, 1.0): []}
    for name, one in model.named_parameters():
        rate = rates[name.removeprefix("module.")] if rates else 1.0  # the prefix is DistributedDataParallel's
        groups.setdefault((one.dim() >= 2, rate), []).append(one)
    return [
        {
            "params": parameters,
            "lr": optimizer.learning_rate * rate,
            "weight_decay": optimizer.weight_decay / rate if decays else 0.0,
        }
        for (decays, rate), parameters in groups.items()
    ]
