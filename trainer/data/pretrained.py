"""Imports pretrained tokenizers through transformers' AutoTokenizer, once.

Importing transformers takes seconds and loads torch. A tokenizer with a fast backend is therefore saved into the cache
as a plain ``tokenizer.json``. From then on neither this process nor any loader worker needs transformers.

Code that a folder carries is never run, and nobody is asked whether to: transformers would ask on a terminal.
"""

from __future__ import annotations

import json
import os
import socket
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import urlsplit

from trainer.data import cache, train_tokenizer
from trainer.errors import InputError, one_line
from trainer.files import expanded

_KEY = "data.tokenizer.pretrained"


def import_tokenizer(name: str) -> Path:
    """Return the cached folder of the tokenizer ``name``: a directory, a tokenizer.json, or a name on the hub."""
    if (file := expanded(name).absolute()).is_file():
        if not (file.name == "tokenizer.json" and (file.parent / "tokenizer_config.json").is_file()):
            return _import_file(file)
        name = str(file.parent)  # whose other files say what is special
    source = _local_folder(name)
    if source is None:
        _check_hub_resolves(name)
        load_auto(name)  # downloads it, or says in one line why it cannot
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
        train_tokenizer.largest_id(vocabulary, name)  # before it is saved: the library goes through every id up to it
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


def _import_file(file: Path) -> Path:
    """Import a tokenizer.json that lies by itself. It names no special tokens: ``<|endoftext|>`` ends documents if it
    is one of its special tokens, else nothing does."""

    def build(to: Path) -> None:
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing else
            raise InputError(f"{_KEY}: {file} is no tokenizer.json ({shorten(str(error), 200)})") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        vocabulary = tokenizer.get_vocab()
        train_tokenizer.largest_id(vocabulary, str(file))
        special = {token.content: at for at, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        train_tokenizer.save(tokenizer, to)
        train_tokenizer.write_facts(to, vocabulary, special.get(train_tokenizer.END_OF_TEXT), None, None)

    key = ["tokenizer.json", version("tokenizers"), cache.file_fingerprint(file)]
    return cache.folder("tokenizer", key, build, train_tokenizer.read_facts)


def check_there(name: str) -> None:
    """InputError where the tokenizer ``name`` is not on this machine and cannot be looked for elsewhere."""
    if not expanded(name).is_file() and _local_folder(name) is None:
        _check_hub_resolves(name)


def load_auto(location: str, name: str | None = None) -> Any:
    """Load an AutoTokenizer from ``location``; ``name`` is the user's name for it, for error messages.

    Raises InputError where it cannot be loaded, or not without running code that comes with it.
    """
    if code := carried_code(Path(location), of_tokenizer=True):  # transformers may take a class of its own instead
        raise _never_run(name or location, code)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:  # transformers and the hub raise a dozen kinds; the user needs one line
        code = carried_code(Path(location))
        if code or "trust_remote_code" in str(error):  # that advice would not help: there is no such option here
            raise _never_run(name or location, code) from error
        reason = shorten(str(error), 200, placeholder=" ...") or type(error).__name__
        raise InputError(f"{_KEY}: cannot load {name or location}: {reason}") from error


def carried_code(folder: Path, of_tokenizer: bool = False) -> list[str]:
    """List the code that a model's folder names as its own (``auto_map``), as "file: class"; [] for none.

    ``of_tokenizer``: only the tokenizer's. A folder may carry a model's code beside an ordinary tokenizer.
    """
    found = []
    for file in ("tokenizer_config.json", "config.json"):
        try:
            content = json.loads((folder / file).read_bytes())
        except (OSError, ValueError, RecursionError):  # of what cannot be read, transformers says what is wrong
            continue
        names = content.get("auto_map") if isinstance(content, dict) else None
        if of_tokenizer and file == "config.json":
            names = names.get("AutoTokenizer") if isinstance(names, dict) else None
        classes = names.values() if isinstance(names, dict) else [names]
        flat = [name for one in classes for name in (one if isinstance(one, list) else [one])]
        found += [f"{file}: {one_line(name)}" for name in flat if name]
    return found


def _never_run(name: str, code: list[str]) -> InputError:
    what = f" ({', '.join(code)})" if code else ""
    return InputError(
        f"{_KEY}: {name} carries code of its own{what}, and code of a tokenizer's folder is never run; "
        "give a folder with a tokenizer.json and without auto_map"
    )


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
            found = try_to_load_from_cache(name, file)
        except HFValidationError as error:
            raise InputError(f"{_KEY}: {name} is neither a directory nor a name on the Hugging Face hub") from error
        if isinstance(found, str):
            return Path(found).parent
    return None


def _check_hub_resolves(name: str) -> None:
    """Fail at once on a machine without a network; the hub's client would retry for most of a minute."""
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
    """Return the files that a tokenizer may consist of. Weights, which may be huge, are left out."""
    suffixes = {".json", ".txt", ".model", ".spm", ".jinja", ".tiktoken"}
    files = (path for path in folder.iterdir() if path.is_file() and path.suffix in suffixes)
    return sorted(path for path in files if not path.name.endswith(".index.json"))
