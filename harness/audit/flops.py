"""Lists the usual formulas for a transformer's training FLOPs per token: counted weights and share of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.devices.estimates import flops_per_token, lookups, parameters
from trainer.model import Shape

Attention = Literal["full", "half", "none"]
Weights = Literal[
    "palm", "all, lookups", "all, positions", "no output projection", "no biases", "positions, no biases", "matrices",
    "layer matrices",
]  # fmt: skip
_ATTENTION_FACTOR: dict[Attention, float] = {"full": 12.0, "half": 6.0, "none": 0.0}


@dataclass(frozen=True)
class Convention:
    """Training FLOPs per token: 6 x ``weights`` (named ``counted``) + ``attention_per_position`` x length."""

    counted: Weights
    weights: int
    attention: Attention
    attention_per_position: float
    """FLOPs per token for each position of the sequence."""

    def flops_per_token(self, sequence_length: float) -> float:
        return 6.0 * self.weights + self.attention_per_position * sequence_length

    def sequence_length(self, flops: float) -> float:
        """Return the sequence length at which a token costs ``flops``. The formula must count attention."""
        return (flops - 6.0 * self.weights) / self.attention_per_position


def conventions(shape: Shape) -> list[Convention]:
    """Return all distinct formulas for a model's FLOPs per token, PaLM's first (trainer/devices/estimates.py)."""
    distinct: list[Convention] = []
    per_position = float(shape.layers * shape.heads * (shape.width // shape.heads))
    for counted, weights in _weights(shape).items():
        for attention, factor in _ATTENTION_FACTOR.items():
            convention = Convention(counted, weights, attention, factor * per_position)
            if all(
                (convention.weights, convention.attention) != (other.weights, other.attention) for other in distinct
            ):
                distinct.append(convention)
    assert distinct[0].flops_per_token(1024) == flops_per_token(shape, 1024)  # Both modules must agree.
    return distinct


def _weights(shape: Shape) -> dict[Weights, int]:
    """Return the number of parameters by way of counting. GPT-2's output projection is its token embedding."""
    everything = parameters(shape)
    embedding = shape.vocab_size * shape.width
    palm = everything - lookups(shape)
    norm_weights = (2 * shape.layers + 1) * shape.width
    biases = 0
    # Biases per layer: attention 4 widths, feed-forward its own and 1 width, norms 2; and the last norm 1.
    if shape.family != "llama":
        biases = shape.layers * (7 * shape.width + shape.ffn_width) + shape.width
    if shape.family == "distilbert":  # The head has a matrix, a norm, and a bias for each token id.
        biases += 2 * shape.width + shape.vocab_size
        norm_weights += shape.width
    counts: dict[Weights, int] = {
        "palm": palm,
        "all, lookups" if shape.family == "llama" else "all, positions": everything,
        "no output projection": palm - embedding,
    }
    if biases:
        counts |= {"no biases": palm - biases, "positions, no biases": everything - biases}
    counts |= {"matrices": palm - biases - norm_weights, "layer matrices": palm - biases - norm_weights - embedding}
    return counts
