"""Reads a byte-level BPE tokenizer.json as merge ranks, a split pattern and added tokens, for tiktoken."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from trainer.errors import InputError, literal

# GPT-2's split pattern, the default of `pre_tokenizers.ByteLevel`.
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class ByteLevelBpe:
    """A byte-level BPE. ``ranks``: of each piece, lower merges first. ``ids``: by rank, then of added tokens."""

    ranks: dict[bytes, int]
    added: dict[str, int]  # numbers that continue the ranks
    special: frozenset[str]  # added tokens that are special
    ids: list[int]
    pattern: str

    @property
    def ids_are_ranks(self) -> bool:
        return self.ids == list(range(len(self.ids)))


class CannotExpressError(InputError):
    """Raised if an engine cannot reproduce a tokenizer. The message gives the reason without the engine's name."""


def read(text: str) -> ByteLevelBpe:
    """Return the parts of a tokenizer.json, given as text. Raises CannotExpressError unless it is byte-level BPE."""
    content = json.loads(text)
    model = content["model"]
    if model.get("type") != "BPE":
        raise CannotExpressError(f"the model is {model.get('type')}, not BPE")
    if content.get("normalizer") is not None:
        raise CannotExpressError(f"it normalizes text first ({_kind(content['normalizer'])})")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise CannotExpressError(f"its model has {key}")
    pattern = _pattern(content.get("pre_tokenizer"))
    vocabulary: dict[str, int] = model["vocab"]
    added = _added(content.get("added_tokens") or [])
    pieces = _ranked(vocabulary, model["merges"])
    if model.get("ignore_merges"):  # A word of the vocabulary is then one token even if no merges lead to it.
        reachable = {*pieces, *(token["content"] for token in added)}
        unmerged = [piece for piece in vocabulary if piece not in reachable and _is_bytes(piece)]
        if unmerged:
            raise CannotExpressError(f"{len(unmerged)} of its words come from no merge, such as {literal(unmerged[0])}")
    ranks: dict[bytes, int] = {}
    for piece in pieces:
        ranks[_bytes(piece)] = len(ranks)
    if (missing := sum(bytes([byte]) not in ranks for byte in range(256))) > 0:
        raise CannotExpressError(f"its vocabulary lacks {missing} of the 256 bytes")
    ids = [vocabulary[piece] for piece in pieces] + [token["id"] for token in added]
    return ByteLevelBpe(
        ranks,
        {token["content"]: len(ranks) + number for number, token in enumerate(added)},
        frozenset(token["content"] for token in added if token["special"]),
        ids,
        pattern,
    )


def _ranked(vocabulary: dict[str, int], merges: list[Any]) -> list[str]:
    """Return all pieces, highest priority first. Raises CannotExpressError if the vocabulary lacks one."""
    merged: dict[str, None] = {}
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        merged.setdefault(left + right)
    letters = [piece for piece in vocabulary if len(piece) == 1 and piece in BYTE_OF]
    unknown = next((piece for piece in merged if piece not in vocabulary or not _is_bytes(piece)), None)
    if unknown is not None:
        raise CannotExpressError(f"a merge makes {literal(unknown)}, which is no token of bytes")
    return letters + list(merged)


def _pattern(pre_tokenizer: dict[str, Any] | None) -> str:
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer] if pre_tokenizer else [])
    kinds = [step["type"] for step in steps]
    levels = [step for step in steps if step["type"] == "ByteLevel"]
    if len(levels) != 1 or kinds not in (["ByteLevel"], ["Split", "ByteLevel"]):
        raise CannotExpressError(f"it splits text by {' and '.join(kinds) or 'nothing'}, not by one pattern into bytes")
    level = levels[0]
    if level.get("add_prefix_space", True):
        raise CannotExpressError("it puts a space before the text")
    if kinds == ["ByteLevel"]:
        if not level.get("use_regex", True):
            raise CannotExpressError("it does not split text into words")
        return GPT2_PATTERN
    split = steps[0]
    pattern = split["pattern"].get("Regex")
    behavior = split.get("behavior"), bool(split.get("invert"))
    if level.get("use_regex", True) or pattern is None or behavior not in (("Isolated", False), ("Removed", True)):
        raise CannotExpressError("it splits text in more than one way")
    return str(pattern)


def _added(tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for token in tokens:
        for key in ("single_word", "lstrip", "rstrip"):
            if token.get(key):
                raise CannotExpressError(f"its token {literal(token['content'])} has {key}")
    contents = [token["content"] for token in tokens]
    for token in contents:
        if longer := next((candidate for candidate in contents if token in candidate and token != candidate), None):
            raise CannotExpressError(f"its token {literal(token)} is part of its token {literal(longer)}")
    return tokens


def _kind(step: dict[str, Any]) -> str:
    return ", ".join(map(_kind, step["normalizers"])) if "normalizers" in step else str(step.get("type"))


def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character in byte-level vocabularies (bytes_to_unicode of GPT-2's encoder.py)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


BYTE_OF = _bytes_of_characters()


def _is_bytes(piece: str) -> bool:
    return all(character in BYTE_OF for character in piece)


def _bytes(piece: str) -> bytes:
    return bytes(BYTE_OF[character] for character in piece)
