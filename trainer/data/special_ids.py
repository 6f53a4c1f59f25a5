"""Finds the ids of a tokenizer that stand for no text: the special ones, and the one for what it does not know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trainer.data.tokenizers import TokenizerInfo, sentencepiece_model


@dataclass(frozen=True)
class SpecialIds:
    """``unknown``: None where there is none, as of a tokenizer that falls back to bytes."""

    ids: frozenset[int]
    unknown: int | None


def special_ids(info: TokenizerInfo) -> SpecialIds:
    """Those of the tokenizer that ``info`` is about; ids that no document can have are left out."""
    found = _of_sentencepiece(info) if info.kind == "sentencepiece" else _of_library(info)
    known = frozenset(one for one in found.ids if one < info.vocab_size)
    return SpecialIds(known, found.unknown if found.unknown is not None and found.unknown < info.vocab_size else None)


def _of_sentencepiece(info: TokenizerInfo) -> SpecialIds:
    model = sentencepiece_model(info.location)
    unknown = int(model.unk_id())
    ids = frozenset(one for one in range(model.get_piece_size()) if model.is_control(one) or model.is_unknown(one))
    return SpecialIds(ids, unknown if unknown >= 0 else None)


def _of_library(info: TokenizerInfo) -> SpecialIds:
    if not info.location.endswith(".json"):
        from trainer.data import pretrained

        tokenizer = pretrained.load_auto(info.location)
        return SpecialIds(frozenset(tokenizer.all_special_ids), tokenizer.unk_token_id)
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(info.location)
    ids = frozenset(at for at, token in backend.get_added_tokens_decoder().items() if token.special)
    model = json.loads(Path(info.location).read_text(encoding="utf-8"))["model"]
    unknown = model.get("unk_id")  # of a unigram model; the others name it
    if unknown is None and isinstance(model.get("unk_token"), str):
        unknown = backend.token_to_id(model["unk_token"])
    return SpecialIds(ids, unknown)
