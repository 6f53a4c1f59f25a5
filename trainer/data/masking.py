"""Masks tokens for the masked-LM objective, as a part of packing a batch.

15 % of a batch's tokens are to be predicted. 80 % of these are replaced by the mask token, 10 % by a token drawn from
the vocabulary, 10 % stay (Devlin et al. 2019, "BERT", section 3.1). The draws follow from the run's seed, the worker
and the batch's number, so a run repeats, and pretokenized and on-the-fly runs mask alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.batch import IGNORED, Batch
from trainer.data.engines.libraries import load_auto
from trainer.data.tokenizers import TokenizerInfo, sentencepiece_model
from trainer.files import read_json

PREDICTED = 0.15
REPLACED, RANDOM = 0.8, 0.1  # shares of the predicted tokens; the others stay
_NAMES = ("[MASK]", "<mask>")  # BERT's and RoBERTa's
_MASK_STREAM = 0x6D61736B  # keeps these draws apart from other draws of the same seed


@dataclass(frozen=True)
class Masking:
    """Token ids for masking (picklable): the mask token, and ``kept_ids``, which are never masked."""

    mask_id: int  # the tokenizer's own, else the first id beyond the vocabulary
    vocab_size: int  # upper limit of random tokens
    kept_ids: tuple[int, ...]  # special ids, such as padding, which are never predicted


def masking_of(info: TokenizerInfo) -> Masking:
    """Return the ids to mask with. Without a mask token, the first id beyond the vocabulary is used."""
    own_mask_id = mask_id(info)
    special = {token for token in (info.eos_id, info.bos_id, info.pad_id, own_mask_id) if token is not None}
    return Masking(info.vocab_size if own_mask_id is None else own_mask_id, info.vocab_size, tuple(sorted(special)))


def mask_id(info: TokenizerInfo) -> int | None:
    """Return the id of the tokenizer's mask token; None if it has none."""
    path = Path(info.location)
    if info.kind == "sentencepiece":
        model: Any = sentencepiece_model(info.location)
        ids = [model.piece_to_id(name) for name in _NAMES]
        return next((token for token in ids if token != model.unk_id()), None)
    if path.suffix == ".json":
        content = read_json(path)
        added = content.get("added_tokens") if isinstance(content, dict) else None
        ids_of = {token["content"]: int(token["id"]) for token in added or ()}
        return next((ids_of[name] for name in _NAMES if name in ids_of), None)
    own_id = load_auto(info.location).mask_token_id
    return None if own_id is None else int(own_id)


class Masker:
    """Masks the batches of one worker for a masked LM, one after the other. The draws depend on the batch's number."""

    def __init__(self, masking: Masking, seed: int, worker: int, batches: int = 0, every: int = 1) -> None:
        """Set up a worker's draws, from batch ``batches`` on, in steps of ``every`` batches."""
        self._masking, self._key = masking, (_MASK_STREAM, seed, worker)
        self._batches, self._every = batches, every

    def mask(self, batch: Batch) -> Batch:
        """Mask ``batch`` in place and return it. Its ids, labels and number of trained tokens change."""
        masking = self._masking
        ids = batch.input_ids.numpy()
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence([*self._key, self._batches])))
        self._batches += self._every
        is_real = ~np.isin(ids, masking.kept_ids)
        if batch.attention_mask is not None:
            is_real &= batch.attention_mask.numpy() == 1
        # Draw for every position, so that one token's draws do not depend on the others.
        predicted = (random.random(ids.shape) < PREDICTED) & is_real
        fate = random.random(ids.shape)
        random_ids = random.integers(0, masking.vocab_size, ids.shape)
        labels = batch.labels.numpy()
        labels[...] = np.where(predicted, ids, IGNORED)
        ids[predicted & (fate < REPLACED)] = masking.mask_id
        is_random = predicted & (fate >= REPLACED) & (fate < REPLACED + RANDOM)
        ids[is_random] = random_ids[is_random]
        batch.trained_tokens = int(predicted.sum())
        batch.shifted = False
        batch.masked = batch.attention_mask is not None  # Attention goes both ways, so it must skip padding.
        return batch
