"""Renders chats with a Jinja template, in the sandbox of transformers: a template can only read its chat."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.data.corpus.base import MOST_CHARACTERS, ChatTemplate
from trainer.data.engines.libraries import load_auto
from trainer.errors import InputError, one_line
from trainer.files import expanded

KEY = "data.corpus.chat_template"
_FILE, _CONFIG, _TOKENIZER = "chat_template.jinja", "tokenizer_config.json", "tokenizer.json"
_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LONGEST_BYTES = 2**20  # maximum size of a template; the longest in use have about ten thousand bytes
# Some templates write today's date, but a corpus must not change from day to day. This macro replaces the clock by the
# default date of Llama 3's templates.
_NO_CLOCK = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}\n"


def load_template(location: str) -> ChatTemplate:
    """Return the template of a Jinja file or a tokenizer's folder, its special tokens known. Raises InputError."""
    path = expanded(location).absolute()
    if not path.exists():
        raise InputError(f"{KEY}: no {location}; allowed: a Jinja file, or a tokenizer's folder that has a template")
    folder = path if path.is_dir() else path.parent
    config = _config(folder / _CONFIG)
    source = _text(path) if path.is_file() and path.suffix != ".json" else _of_folder(folder, config)
    if source is None:
        raise InputError(f"{KEY}: {location} has no {_FILE}, and {_CONFIG} there names no chat_template")
    return ChatTemplate(source, _special_tokens(location, folder, config, source), str(path))


def _special_tokens(location: str, folder: Path, config: dict[str, Any], source: str) -> tuple[tuple[str, str], ...]:
    """Return (name, token) of each special token, loading the tokenizer if the template ``source`` needs one."""
    used = set(re.findall(r"\w+", source))
    missing = [name for name in _TOKENS if name in used and name not in config]
    if missing:
        config = {**_of_tokenizer(location, folder, missing), **config}
    tokens = []
    for name in _TOKENS:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens.append((name, value))
    return tuple(tokens)


def _of_tokenizer(location: str, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    remedy = f"give the tokenizer's folder, or put a {_CONFIG} with it (null: none) next to the template"
    problem = f"{KEY}: {location} names {', '.join(names)}, and"
    if not any((folder / name).is_file() for name in (_CONFIG, _TOKENIZER)):
        raise InputError(f"{problem} there is no tokenizer next to it; {remedy}")
    try:
        return dict(load_auto(str(folder)).special_tokens_map)
    except InputError as error:
        raise InputError(f"{problem} the tokenizer next to it cannot be loaded; {remedy}") from error


def _of_folder(folder: Path, config: dict[str, Any]) -> str | None:
    if (folder / _FILE).is_file():
        return _text(folder / _FILE)
    template = config.get("chat_template")
    if isinstance(template, list):  # several templates by name
        defaults = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next((entry.get("template") for entry in defaults), None)
    return template if isinstance(template, str) else None


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({one_line(error)})") from error
    return config if isinstance(config, dict) else {}


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST_BYTES + 1)
        if len(content) <= _LONGEST_BYTES:
            return content.decode()
    except (OSError, ValueError) as error:
        raise InputError(f"{KEY}: {path}: cannot be read as text ({one_line(error)})") from error
    raise InputError(f"{KEY}: {path}: more than {_LONGEST_BYTES:,} bytes; a chat template is a short text")


def rendered(template: ChatTemplate, chats: Sequence[Any], name: str, first: int) -> list[str]:
    """Return each chat as text, or raise InputError with its row. ``name``, ``first``: file and row of the first."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source = _NO_CLOCK * ("strftime_now" in template.source) + template.source
    tokens: dict[str, Any] = dict(template.tokens)
    texts = []
    for row, chat in enumerate(chats, start=first):
        _check(chat, f"{name}, row {row} (from 0)")
        try:
            (text,), _ = render_jinja_template(conversations=[chat], chat_template=source, **tokens)
            text.encode()
        except Exception as error:  # Jinja has a dozen kinds, and an expression of the template may raise any.
            reason = one_line(error)[:MOST_CHARACTERS] or type(error).__name__
            raise InputError(f"{name}, row {row} (from 0): the template {template.name} fails: {reason}") from error
        texts.append(text)
    return texts


def _check(chat: Any, where: str) -> None:
    if not isinstance(chat, list) or not all(isinstance(message, dict) for message in chat):
        raise InputError(f"{where}: not a list of messages; allowed: {{role, content}} each")
    for number, message in enumerate(chat):
        missing = [key for key in ("role", "content") if key not in message]
        if "role" in missing or (missing and "tool_calls" not in message):  # A tool call may have no content.
            keys = ", ".join(map(repr, message)) or "none"
            raise InputError(f"{where}: message {number} has no {missing[0]!r}; its keys: {keys}")
