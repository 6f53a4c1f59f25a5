"""Converts the result of a user's collate function to a :class:`Batch`, or raises an InputError of one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trainer.data.batch import IGNORED, Batch
from trainer.errors import InputError

KEY = "data.source"
ALLOWED = (
    "a mapping with input_ids (and labels, attention_mask), a pair (inputs, targets) with targets one ahead, "
    "or one tensor of ids; each of shape (samples, sequence)"
)
ACCEPTED = ("input_ids", "labels", "attention_mask")
# Outputs of tokenizers that no model takes. They are dropped.
LEFT_OUT = ("special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length")


def as_batch(made: Any, name: str, sequence_length: int, shifted: bool = True) -> Batch:
    """Return what the user's collate function ``made`` as a Batch. Raises InputError for an unknown form.

    ``name``: the user's source, for errors. ``shifted``: False for a masked-LM, whose labels are taken unchanged.
    """
    if isinstance(made, Batch):
        return made
    if not shifted and not (hasattr(made, "keys") and made.get("labels") is not None):
        raise InputError(
            f"{KEY}: {name} masks no tokens: with model.objective masked its batches must be mappings with input_ids "
            "and labels (-100 where nothing is predicted), as DataCollatorForLanguageModeling gives them"
        )
    ids, labels, mask = _parts(made, name)
    if ids.dim() != 2 or labels.shape != ids.shape or ids.is_floating_point():
        form = f"{ids.dtype} {tuple(ids.shape)}, labels {tuple(labels.shape)}".replace("torch.", "")
        raise InputError(f"{KEY}: {name} gives ids of {form}; allowed: {ALLOWED}")
    if ids.shape[1] > sequence_length:
        raise InputError(
            f"data.sequence_length: {sequence_length}, but {name} gives sequences of {ids.shape[1]}: give that"
        )
    trained = int(((labels[:, 1:] if shifted else labels) != IGNORED).sum())
    masked = mask is not None and (not shifted or _is_needed(mask, labels))
    return Batch(ids.long(), labels.long(), mask, ids.numel(), trained, ids.shape[0], masked=masked, shifted=shifted)


def _is_needed(mask: torch.Tensor, labels: torch.Tensor) -> bool:
    """Return True if a causal model's loss depends on the mask: padding precedes text or a label."""
    padding = mask[:, :-1] == 0
    return bool((padding & ((mask[:, 1:] != 0) | (labels[:, 1:] != IGNORED))).any())


def _parts(made: Any, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    if isinstance(made, Mapping) or hasattr(made, "keys"):
        ids, labels, mask = (made.get(key) for key in ("input_ids", "labels", "attention_mask"))
        if isinstance(ids, torch.Tensor):
            if unknown := [str(key) for key in made.keys() if key not in ACCEPTED + LEFT_OUT]:  # noqa: SIM118
                raise InputError(
                    f"{KEY}: {name} gives batches with {', '.join(unknown)}, which are not supported; accepted: "
                    f"{', '.join(ACCEPTED)}; left out: {', '.join(LEFT_OUT)}"
                )
            for key, value in (("labels", labels), ("attention_mask", mask)):
                if value is not None and not (isinstance(value, torch.Tensor) and value.shape == ids.shape):
                    shape = tuple(getattr(value, "shape", ())) or type(value).__name__
                    raise InputError(
                        f"{KEY}: {name} gives {key} of {shape}; allowed: that of its ids, {tuple(ids.shape)}"
                    )
            if labels is None:
                labels = ids if mask is None else ids.masked_fill(mask == 0, IGNORED)
            return ids, labels, mask
        raise InputError(f"{KEY}: {name} gives batches with {', '.join(map(str, made))}; allowed: {ALLOWED}")
    if isinstance(made, torch.Tensor):
        return made, made, None
    if isinstance(made, list | tuple) and len(made) == 2 and all(isinstance(part, torch.Tensor) for part in made):
        ids, targets = made
        # targets[:, t] is predicted from t, but labels[:, t] from t - 1, so the last target is left out.
        ignored = torch.full_like(targets[:, :1], IGNORED)
        return ids, torch.cat([ignored, targets[:, :-1]], dim=1), None
    raise InputError(f"{KEY}: {name} gives batches of type {type(made).__name__}; allowed: {ALLOWED}")
