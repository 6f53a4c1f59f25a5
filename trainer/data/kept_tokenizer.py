"""Writes a tokenizer as a folder that this harness and transformers' AutoTokenizer both read, with the same ids.

    tokenizer.json         file of the library `tokenizers`; or tokenizer.model of SentencePiece; or the files of
                           transformers' save_pretrained, for a tokenizer that only transformers loads
    tokenizer_config.json  the special tokens, for AutoTokenizer
    facts.json             the special ids and the fingerprint, for this harness

A training, its checkpoints, pretokenized files and exported tokens carry such a folder, so that they can be used
without the corpus and the cache.

llm.c prints samples with a file of its own (https://github.com/karpathy/llm.c, llmc/tokenizer.h). Its header has 256
int32 (magic 20240328, version 2, number of ids, end-of-text id), little-endian. For each id follow one byte with a
length from 1 to 255, and that many bytes of text. llm.c prints ids by putting their bytes end to end.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data import cache
from trainer.data.engines.byte_level import BYTE_OF
from trainer.data.engines.libraries import load_auto
from trainer.data.tokenizers import FOLDER, TokenizerInfo, info_of, sentencepiece_info, sentencepiece_model, special_ids
from trainer.data.train_tokenizer import FACTS, TokenizerFacts
from trainer.errors import InputError, one_line
from trainer.files import expanded, remove, write_bytes

CONFIG = "tokenizer_config.json"
_JSON, _MODEL = "tokenizer.json", "tokenizer.model"
_CLASSES = {_JSON: "PreTrainedTokenizerFast", _MODEL: "SentencePieceBackend"}  # classes of transformers
MAGIC, VERSION = 20240328, 2
TOKENIZER_HEADER = 256  # int32 values
MAX_TOKEN_BYTES = 255  # a token's length is one byte in the file
_SPACE = "\u2581"  # SentencePiece's sign for a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def keep(info: TokenizerInfo, owner: Path) -> None:
    """Write the tokenizer below ``owner``, unless it is there or unknown (a user's source tokenizes)."""
    target = owner / FOLDER
    if info.kind == "source" or _is_kept(info, owner):
        return
    remove(target)  # An earlier training in this folder may have left a tokenizer.
    cache.create_folder(target, lambda to: write(info, to))


def kept(owner: Path) -> TokenizerInfo | None:
    """Return the tokenizer that :func:`keep` wrote; None if there is none. Raises InputError if it is damaged."""
    return read(owner / FOLDER)


def write(info: TokenizerInfo, to: Path) -> None:
    """Write the files of the tokenizer into the folder ``to``, from which :func:`read` and AutoTokenizer load it."""
    source = Path(info.location)
    if source.is_dir():
        load_auto(info.location).save_pretrained(to)
        name = "."
    else:
        name = _MODEL if info.kind == "sentencepiece" else _JSON
        shutil.copyfile(source, to / name)
        (to / CONFIG).write_text(json.dumps(_config(info, name), indent=1) + "\n", encoding="utf-8")
    location = None if name == _JSON else name
    facts = TokenizerFacts(info.vocab_size, info.eos_id, info.bos_id, info.pad_id, location, info.fingerprint)
    (to / FACTS).write_text(json.dumps(asdict(facts)))


def read(folder: Path) -> TokenizerInfo | None:
    """Return the tokenizer that :func:`write` wrote; None if there is none. Raises InputError if damaged."""
    if (folder / FACTS).is_file():
        return info_of("pretrained", folder.absolute())
    # An earlier version wrote no facts for a SentencePiece model.
    return sentencepiece_info(str((folder / _MODEL).absolute())) if (folder / _MODEL).is_file() else None


def _config(info: TokenizerInfo, name: str) -> dict[str, str | bool]:
    """Return the content of tokenizer_config.json, which AutoTokenizer needs beside the file ``name``."""
    token: Callable[[int], str | None]
    if name == _MODEL:
        token = sentencepiece_model(info.location).id_to_piece
    else:
        from tokenizers import Tokenizer

        token = Tokenizer.from_file(info.location).id_to_token
    ids = {"eos": info.eos_id, "bos": info.bos_id, "pad": info.pad_id, "unk": special_ids(info).unknown}
    texts = {f"{kind}_token": token(token_id) for kind, token_id in ids.items() if token_id is not None}
    tokens = {key: text for key, text in texts.items() if text is not None}
    return {"tokenizer_class": _CLASSES[name], "clean_up_tokenization_spaces": False, **tokens}


def _is_kept(info: TokenizerInfo, owner: Path) -> bool:
    if not (owner / FOLDER / CONFIG).is_file():  # An earlier version wrote none.
        return False
    try:
        stored = kept(owner)
    except InputError:
        return False
    return stored is not None and stored.fingerprint == info.fingerprint


@dataclass(frozen=True)
class WrittenTokenizer:
    """Summary of a tokenizer file for llm.c. ``unused``: number of ids without a token, written as placeholders."""

    vocab_size: int
    eos_id: int
    unused: int


def write_tokenizer(info: TokenizerInfo, out: Path) -> WrittenTokenizer:
    """Write the tokenizer as a file for llm.c. Raises InputError if llm.c could not read or use it."""
    if info.eos_id is None:
        raise InputError(f"{info.location}: it has no end-of-text id, with which llm.c begins each sample")
    tokens: list[bytes] = [b""] * info.vocab_size
    for token_id, token in _token_bytes(info):
        if len(token) > MAX_TOKEN_BYTES:
            raise InputError(
                f"{info.location}: token {token_id} has {len(token):,} bytes ({one_line(repr(token)):.40}); llm.c's "
                f"file has room for {MAX_TOKEN_BYTES}"
            )
        tokens[token_id] = token
    unused = tokens.count(b"")
    header = np.zeros(TOKENIZER_HEADER, "<i4")
    header[:4] = MAGIC, VERSION, info.vocab_size, info.eos_id
    # llm.c refuses an empty token, so ids without a token get a placeholder. A model never chooses them.
    filled = [token or f"<|unused {token_id}|>".encode() for token_id, token in enumerate(tokens)]
    content = header.tobytes() + b"".join(bytes([len(token)]) + token for token in filled)
    write_bytes(expanded(out).absolute(), content)
    return WrittenTokenizer(info.vocab_size, info.eos_id, unused)


def _token_bytes(info: TokenizerInfo) -> Iterator[tuple[int, bytes]]:
    """Yield each id with a token, and the bytes that it adds to a text. Special tokens yield their written form."""
    if info.kind == "sentencepiece":
        model = sentencepiece_model(info.location)
        special = special_ids(info).ids
        for token_id in range(model.get_piece_size()):
            piece = model.id_to_piece(token_id)
            yield token_id, piece.encode() if token_id in special else _of_piece(piece)
        return
    if not info.location.endswith(".json"):
        raise InputError(f"{info.location}: only transformers can decode its ids; give one with a tokenizer.json")
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(info.location)
    added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
    text_of = _decoding(json.loads(Path(info.location).read_text(encoding="utf-8")).get("decoder"), info.location)
    for token, token_id in backend.get_vocab(with_added_tokens=True).items():
        yield token_id, added[token_id].encode() if token_id in added else text_of(token)


def _decoding(decoder: Any, location: str) -> Any:
    """Return the function from a token to bytes for a ``decoder`` of `tokenizers`. Raises InputError if unknown."""
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _of_byte_level
    if "WordPiece" in kinds:
        return _of_word_piece
    if "Metaspace" in kinds or any(step.get("pattern") == {"String": _SPACE} for step in steps):
        return _of_piece
    raise InputError(
        f"{location}: how its tokens become text is not known here (decoder {', '.join(sorted(kinds)) or 'none'}); "
        "allowed: ByteLevel, Metaspace, WordPiece, SentencePiece models"
    )


def _of_piece(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte is not None else piece.replace(_SPACE, " ").encode()


def _of_word_piece(token: str) -> bytes:
    return token.removeprefix("##").encode() if token.startswith("##") else f" {token}".encode()


def _of_byte_level(token: str) -> bytes:
    try:
        return bytes(BYTE_OF[letter] for letter in token)
    except KeyError:  # The vocabulary has this token as plain text.
        return token.encode()
