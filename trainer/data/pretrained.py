"""Imports pretrained tokenizers through transformers' AutoTokenizer, once: a fast one loads without it afterwards."""

from __future__ import annotations

import os
import socket
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from urllib.parse import urlsplit

from trainer.data import cache, train_tokenizer
from trainer.data.engines.libraries import load_auto
from trainer.errors import InputError
from trainer.files import expanded

_KEY = "data.tokenizer.pretrained"


def import_tokenizer(name: str) -> Path:
    """Return the folder, in the cache if need be, of a directory, a tokenizer.json or a name on the hub."""
    file = expanded(name).absolute()
    folder = file.parent if file.is_file() and file.name == "tokenizer.json" else file
    if _has_facts(folder):
        return folder
    if file.is_file():
        if not (file.name == "tokenizer.json" and (file.parent / "tokenizer_config.json").is_file()):
            return _import_file(file)
        name = str(file.parent)  # tokenizer_config.json there names the special tokens.
    source = _local_folder(name)
    if source is None:
        _check_hub_resolves(name)
        load_auto(name)  # Downloads it, or raises InputError.
        source = _local_folder(name)
        if source is None:
            raise InputError(f"{_KEY}: {name} was loaded but is not in the Hugging Face cache; give a directory")
    folder = source
    contents = [[path.name, cache.file_fingerprint(path)] for path in _tokenizer_files(folder)]
    if not contents:
        raise InputError(f"{_KEY}: {name} holds no tokenizer files (tokenizer.json, tokenizer_config.json, ...)")

    def build(to: Path) -> None:
        tokenizer = load_auto(str(folder), name)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        location, fingerprint = None, None
        vocabulary = tokenizer.get_vocab()
        train_tokenizer.largest_id(vocabulary, name)  # Check before saving: the library walks every id up to it.
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()
            train_tokenizer.save(backend, to)
        else:
            location, fingerprint = str(folder), cache.fingerprint(contents)
        ids = (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id)
        train_tokenizer.write_facts(to, vocabulary, *ids, location, fingerprint)

    key = ["pretrained", version("transformers"), str(folder), contents]
    return cache.folder("tokenizer", key, build, train_tokenizer.read_facts)


def _has_facts(folder: Path) -> bool:
    """Return True if ``folder`` has a facts.json of this harness that describes its tokenizer."""
    try:
        train_tokenizer.read_facts(folder)
    except InputError:
        return False
    return True


def _import_file(file: Path) -> Path:
    """Import a lone tokenizer.json into the cache; ``<|endoftext|>`` ends documents if it is a special token."""

    def build(to: Path) -> None:
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # The library raises plain Exceptions.
            raise InputError(f"{_KEY}: {file} is no tokenizer.json ({shorten(str(error), 200)})") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        vocabulary = tokenizer.get_vocab()
        train_tokenizer.largest_id(vocabulary, str(file))
        special = {
            token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        train_tokenizer.save(tokenizer, to)
        train_tokenizer.write_facts(to, vocabulary, special.get(train_tokenizer.END_OF_TEXT), None, None)

    key = ["tokenizer.json", version("tokenizers"), cache.file_fingerprint(file)]
    return cache.folder("tokenizer", key, build, train_tokenizer.read_facts)


def check_there(name: str) -> None:
    """Raise InputError if the tokenizer ``name`` is not on this machine and the hub cannot be reached."""
    if not expanded(name).is_file() and _local_folder(name) is None:
        _check_hub_resolves(name)


def _local_folder(name: str) -> Path | None:
    folder = expanded(name)
    if folder.is_dir():
        return folder.absolute()
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InputError(f"{_KEY}: no directory {name}")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for file in ("tokenizer_config.json", "tokenizer.json", "vocab.json", "tokenizer.model"):
        try:
            path = try_to_load_from_cache(name, file)
        except HFValidationError as error:
            raise InputError(f"{_KEY}: {name} is neither a directory nor a name on the Hugging Face hub") from error
        if isinstance(path, str):
            return Path(path).parent
    return None


def _check_hub_resolves(name: str) -> None:
    """Raise InputError at once on a machine without a network (not checked behind a proxy)."""
    if any(os.environ.get(variable) for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return  # the proxy resolves names, so this machine need not
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname or ""
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise InputError(
            f"{_KEY}: {name} is neither a directory nor in the Hugging Face cache, and {host} cannot be reached"
        ) from error


def _tokenizer_files(folder: Path) -> list[Path]:
    """Return the files in ``folder`` that may belong to a tokenizer, sorted, without weights."""
    suffixes = {".json", ".txt", ".model", ".spm", ".jinja", ".tiktoken"}
    files = (path for path in folder.iterdir() if path.is_file() and path.suffix in suffixes)
    return sorted(path for path in files if not path.name.endswith(".index.json"))
