"""Reads multiple-choice questions: a context, four endings, and which of them is right. HellaSwag has this form.

A jsonl file has one object a line, with ``ctx`` (or ``ctx_a``, ``ctx_b`` and ``activity_label``), ``endings`` and
``label``. A ``.bin`` file is llm.c's hellaswag_val.bin, see :mod:`trainer.data.questions_bin`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer.errors import InputError, literal, one_line
from trainer.files import expanded
from trainer.json_types import JsonObject

ENDINGS = 4  # of each question, as in HellaSwag
MOST_LINE_BYTES = 1 << 20  # no question is longer; a file without line ends is none
Prompt = Literal["ctx", "lm-eval"]
BIN = ".bin"


@dataclass(frozen=True)
class TextQuestion:
    """A question as text. An ending follows the context after a space. ``place``: its file and line, for errors."""

    place: str
    context: str
    endings: tuple[str, ...]
    label: int
    prompt: Prompt  # which form of the text it is


def read_jsonl(path: str, key: str, most: int | None, prompt: Prompt | None) -> Iterator[TextQuestion]:
    """The first ``most`` questions of a file (None: all), whose blank lines are left out.

    ``key``: what errors call the file. ``prompt``: ``ctx`` is that field as it is, as llm.c and nanoGPT-like scripts
    have it; ``lm-eval`` is what lm-evaluation-harness makes of the raw fields; None: ctx where a line has it.
    Raises InputError, one line, for the first question that is none.
    """
    found = 0
    for number, line in _lines(path, key):
        if found == most:
            return
        found += 1
        yield _question(f"{key}: {path}:{number}", line, prompt)
    if not found:
        raise InputError(f"{key}: {path} holds no question; allowed: a line with ctx, endings and label for each")


def _lines(path: str, key: str) -> Iterator[tuple[int, bytes]]:
    try:
        with open(expanded(path), "rb") as file:
            number = 0
            while line := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(line) > MOST_LINE_BYTES:
                    raise InputError(
                        f"{key}: {path}:{number}: longer than {MOST_LINE_BYTES >> 20} MiB; allowed: a question a line"
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(f"{key}: {path}: cannot be read ({error.strerror or error})") from error


def _question(place: str, line: bytes, prompt: Prompt | None) -> TextQuestion:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise InputError(f"{place}: no JSON ({one_line(error):.80})") from error
    if not isinstance(found, Mapping):
        raise InputError(f"{place}: no object; allowed: one with ctx, endings and label")
    raw = prompt == "lm-eval" or (prompt is None and "ctx" not in found)
    endings = found.get("endings")
    if not isinstance(endings, list) or len(endings) != ENDINGS:
        count = f"{len(endings)} of them" if isinstance(endings, list) else "not a list"
        raise InputError(f"{place}: endings: {'missing' if 'endings' not in found else count}; allowed: {ENDINGS}")
    clean = preprocessed if raw else str
    texts = tuple(clean(one) if isinstance(one, str) else "" for one in endings)
    for at, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"{place}: endings: number {at} (from 0) is {literal(endings[at]):.60}; allowed: text")
    context = _raw_context(place, found) if raw else _text(place, found, "ctx")
    if not context.strip():
        raise InputError(f"{place}: ctx: empty, so that nothing comes before the endings; allowed: text")
    return TextQuestion(place, context, texts, _label(place, found.get("label")), "lm-eval" if raw else "ctx")


def _label(place: str, label: object) -> int:
    """HellaSwag's own files have a number, its copy on the hub the same as text, and none where it is kept secret."""
    if isinstance(label, str) and re.fullmatch("[0-9]", label):
        label = int(label)
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < ENDINGS:
        given = "missing" if label is None else f"{literal(label):.60}"
        raise InputError(f"{place}: label: {given}; allowed: 0 to {ENDINGS - 1}")
    return label


def _text(place: str, found: JsonObject, name: str) -> str:
    if not isinstance(text := found.get(name), str):
        given = f"{literal(text):.60}" if name in found else "missing"
        raise InputError(f"{place}: {name}: {given}; allowed: text")
    return text


def _raw_context(place: str, found: JsonObject) -> str:
    """What lm-evaluation-harness makes of HellaSwag's raw fields (its tasks/hellaswag/utils.py, version 0.4)."""
    label, first, second = (_text(place, found, name) for name in ("activity_label", "ctx_a", "ctx_b"))
    return preprocessed(f"{label}: {first} {second.capitalize()}")


def preprocessed(text: str) -> str:
    """The text without the brackets that WikiHow's articles left in HellaSwag, as lm-evaluation-harness cleans it."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def is_bin(path: str) -> bool:
    """Whether the file is read as llm.c's."""
    return Path(path).suffix == BIN
