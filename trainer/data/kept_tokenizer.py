"""Writes a tokenizer as a folder that this harness and transformers' AutoTokenizer both read, with the same ids.

    tokenizer.json         file of the library `tokenizers`; or tokenizer.model of SentencePiece; or the files of
                           transformers' save_pretrained, for a tokenizer that only transformers loads
    tokenizer_config.json  the special tokens, for AutoTokenizer
    facts.json             the special ids and the fingerprint, for this harness

A training, its checkpoints, pretokenized files and exported tokens carry such a folder, so that they can be used
without the corpus and the cache.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from trainer.data import cache
from trainer.data.engines.libraries import load_auto
from trainer.data.tokenizers import FOLDER, TokenizerInfo, info_of, sentencepiece_info, sentencepiece_model, special_ids
from trainer.data.train_tokenizer import FACTS, TokenizerFacts
from trainer.errors import InputError
from trainer.files import remove

CONFIG = "tokenizer_config.json"
_JSON, _MODEL = "tokenizer.json", "tokenizer.model"
_CLASSES = {_JSON: "PreTrainedTokenizerFast", _MODEL: "SentencePieceBackend"}  # classes of transformers


def keep(info: TokenizerInfo, owner: Path) -> None:
    """Write the tokenizer, unless it is there or a user's, into the folder of ``owner``, such as a checkpoint."""
    target = owner / FOLDER
    if info.kind == "source" or _is_kept(info, owner):
        return
    remove(target)  # An earlier training in this folder may have left a tokenizer.
    cache.create_folder(target, lambda to: write(info, to))


def kept(owner: Path) -> TokenizerInfo | None:
    """Return the tokenizer that :func:`keep` wrote for ``owner``; None without one. Raises InputError if damaged."""
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
    """Return the tokenizer that :func:`write` wrote into ``folder``; None without one. Raises InputError if damaged."""
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
