"""Lists the ways in which people count a transformer's training FLOPs per token: which weights, how much attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.devices.flops import flops_per_token, lookups, parameters
from trainer.model import Shape

PALM = "as PaLM does"
Attention = Literal["full", "half", "none"]
_ATTENTION_FACTOR = {"full": 12.0, "half": 6.0, "none": 0.0}
_ATTENTION_TEXTS = {"full": "", "half": "with causal attention (half of it)", "none": "without attention"}


@dataclass(frozen=True)
class Convention:
    """6 x ``weights`` + attention. ``text`` ends "FLOPs counted …" and says how it differs from PaLM's formula."""

    text: str
    weights: int
    attention: Attention
    attention_per_position: float
    """FLOPs per token for each position of the sequence."""

    def flops_per_token(self, sequence_length: float) -> float:
        return 6.0 * self.weights + self.attention_per_position * sequence_length

    def sequence_length(self, flops: float) -> float:
        """The length at which a token costs ``flops``; only where attention is counted at all."""
        return (flops - 6.0 * self.weights) / self.attention_per_position


def conventions(shape: Shape) -> list[Convention]:
    """PaLM's first (trainer/flops.py: output projection counted, embedding lookups not, full attention), then others.

    Formulas with the same count are listed once, under the first name.
    """
    found: list[Convention] = []
    per_position = float(shape.layers * shape.heads * (shape.width // shape.heads))
    for text, weights in _weights(shape).items():
        for attention, counted in _ATTENTION_TEXTS.items():
            name = " and ".join(part for part in (text, counted) if part) or PALM
            one = Convention(name, weights, attention, _ATTENTION_FACTOR[attention] * per_position)  # type: ignore[arg-type]
            if all((one.weights, one.attention) != (other.weights, other.attention) for other in found):
                found.append(one)
    assert found[0].flops_per_token(1024) == flops_per_token(shape, 1024)  # one formula, not two that drift apart
    return sorted(found, key=lambda one: one.text != PALM)


def _weights(shape: Shape) -> dict[str, int]:
    """Text -> parameters that are counted. The tied token embedding of GPT-2 is its output projection."""
    everything = parameters(shape)
    embedding = shape.vocab_size * shape.width
    palm = everything - lookups(shape)
    norm_weights = (2 * shape.layers + 1) * shape.width
    biases = 0
    if shape.family != "llama":  # attention 4 widths, feed-forward 1 width and its own, two norms, and the last norm
        biases = shape.layers * (7 * shape.width + shape.ffn_width) + shape.width
    if shape.family == "distilbert":  # its head: a matrix and a norm, and a bias for each token id
        biases += 2 * shape.width + shape.vocab_size
        norm_weights += shape.width
    lookups_too = "with embedding lookups" if shape.family == "llama" else "with position embeddings"
    found = {
        "": palm,
        f"{lookups_too} (all parameters)": everything,
        "without the output projection (no embeddings at all)": palm - embedding,
    }
    if biases:
        found |= {"without biases": palm - biases, "with position embeddings, without biases": everything - biases}
    found |= {
        "with weight matrices alone (no biases, no norms)": palm - biases - norm_weights,
        "with the layers' weight matrices alone": palm - biases - norm_weights - embedding,
    }
    return found
