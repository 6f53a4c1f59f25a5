"""Reads multiple-choice questions: a context, four endings and the number of the right one, as in HellaSwag.

A jsonl file has one object per line, with ``ctx`` (or ``ctx_a``, ``ctx_b`` and ``activity_label``), ``endings`` and
``label``. A ``.bin`` file is one of llm.c, such as hellaswag_val.bin, by its published layout (little-endian):

    int32[256]   magic 20240522, version 1, number of questions, bytes of the longest one; the rest is 0
    uint16[...]  each question: 65535, its bytes, its index, its label, its number of endings, then the length and the
                 tokens of the context, and of each ending

Its tokens are GPT-2's. Each ending's tokens include the space before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainer.errors import InputError, literal, one_line
from trainer.files import expanded
from trainer.json_types import JsonObject

ENDINGS = 4  # endings of each question
MOST_LINE_BYTES = 1 << 20  # A longer line is no question: the file may have no line ends.
Prompt = Literal["ctx", "lm-eval"]
BIN = ".bin"
HEADER, MAGIC, VERSION = 256, 20240522, 1
START = 65535  # first value of a question
OTHERS = {20240520: "tokens to train on", 20240801: "tokens to train on", 20240326: "a model"}
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TextQuestion:
    """Question as text. An ending follows the context after a space. ``place``: its file and line, for errors."""

    place: str
    context: str
    endings: tuple[str, ...]
    label: int
    prompt: Prompt  # form of the text


def read_jsonl(path: str, key: str, most: int | None, prompt: Prompt | None) -> Iterator[TextQuestion]:
    """Yield the first ``most`` questions (None: all). Raises InputError, naming ``key``, for a line that is none.

    ``prompt``: ``ctx`` takes that field; ``lm-eval`` makes the text of raw fields; None: ctx if the line has it.
    """
    count = 0
    for number, line in _lines(path, key):
        if count == most:
            return
        count += 1
        yield _question(f"{key}: {path}:{number}", line, prompt)
    if not count:
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
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # no JSON, or no UTF-8
        raise InputError(f"{place}: no JSON ({one_line(error):.80})") from error
    if not isinstance(record, Mapping):
        raise InputError(f"{place}: no object; allowed: one with ctx, endings and label")
    raw = prompt == "lm-eval" or (prompt is None and "ctx" not in record)
    endings = record.get("endings")
    if not isinstance(endings, list) or len(endings) != ENDINGS:
        count = f"{len(endings)} of them" if isinstance(endings, list) else "not a list"
        raise InputError(f"{place}: endings: {'missing' if 'endings' not in record else count}; allowed: {ENDINGS}")
    clean = preprocessed if raw else str
    texts = tuple(clean(ending) if isinstance(ending, str) else "" for ending in endings)
    for number, text in enumerate(texts):
        if not text.strip():
            raise InputError(
                f"{place}: endings: number {number} (from 0) is {literal(endings[number]):.60}; allowed: text"
            )
    context = _raw_context(place, record) if raw else _text(place, record, "ctx")
    if not context.strip():
        raise InputError(f"{place}: ctx: empty, so that nothing comes before the endings; allowed: text")
    return TextQuestion(place, context, texts, _label(place, record.get("label")), "lm-eval" if raw else "ctx")


def _label(place: str, label: object) -> int:
    """Return the number of the right ending, given as a number or a digit. Raises InputError otherwise."""
    if isinstance(label, str) and re.fullmatch("[0-9]", label):
        label = int(label)
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < ENDINGS:
        shown = "missing" if label is None else f"{literal(label):.60}"
        raise InputError(f"{place}: label: {shown}; allowed: 0 to {ENDINGS - 1}")
    return label


def _text(place: str, record: JsonObject, name: str) -> str:
    if not isinstance(text := record.get(name), str):
        shown = f"{literal(text):.60}" if name in record else "missing"
        raise InputError(f"{place}: {name}: {shown}; allowed: text")
    return text


def _raw_context(place: str, record: JsonObject) -> str:
    """Return the context that lm-evaluation-harness 0.4 makes of the raw fields (tasks/hellaswag/utils.py)."""
    label, first, second = (_text(place, record, name) for name in ("activity_label", "ctx_a", "ctx_b"))
    return preprocessed(f"{label}: {first} {second.capitalize()}")


def preprocessed(text: str) -> str:
    """Return the text without the brackets that WikiHow's articles left in HellaSwag, as lm-evaluation-harness does."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def is_bin(path: str) -> bool:
    """Return True if the file is read as a .bin file of llm.c."""
    return Path(path).suffix == BIN


@dataclass(frozen=True)
class TokenQuestion:
    """Question as token ids, of a .bin file. ``place``: its file and index, for errors."""

    place: str
    context: Ids
    endings: tuple[Ids, ...]
    label: int


def read_bin(path: str, key: str, most: int | None) -> list[TokenQuestion]:
    """Return the first ``most`` questions of a .bin file (None: all). Raises InputError, one line, if it is damaged."""
    place = f"{key}: {path}"
    try:
        content = expanded(path).read_bytes()
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror or error})") from error
    if not content:
        raise InputError(f"{place}: empty; allowed: llm.c's hellaswag_val.bin, or a jsonl file")
    if len(content) < 4 * HEADER:
        raise InputError(f"{place}: cut short: {len(content)} bytes, but its header needs {4 * HEADER}")
    magic, version, count = (int(value) for value in np.frombuffer(content, "<i4", 3))
    if magic != MAGIC:
        kind = f", as of {OTHERS[magic]}" if magic in OTHERS else ""
        raise InputError(f"{place}: begins with {magic}{kind}; a file of questions of llm.c begins with {MAGIC}")
    if version != VERSION:
        raise InputError(f"{place}: version {version}; allowed: {VERSION}")
    if count < 1:
        raise InputError(f"{place}: holds no question (its header says {count})")
    stream = np.frombuffer(content, "<u2", (len(content) - 4 * HEADER) // 2, 4 * HEADER)
    questions = list(_questions(place, stream, count if most is None else min(most, count), count))
    if len(content) % 2:
        raise InputError(f"{place}: {len(content):,} bytes; allowed: an even number, as every token has two")
    return questions


def _questions(place: str, stream: NDArray[np.uint16], wanted: int, count: int) -> Iterator[TokenQuestion]:
    offset = 0
    for number in range(wanted):
        question_place = f"{place}: question {number} of {count}"
        if offset + 6 > len(stream):
            raise InputError(f"{question_place}: the file is cut short there")
        start, size, index, label, endings = (int(value) for value in stream[offset : offset + 5])
        if start != START or index != number:
            raise InputError(f"{question_place}: begins with {start}, {index}; allowed: {START}, {number}")
        if size % 2 or size < 12 + 2 * ENDINGS:
            raise InputError(
                f"{question_place}: has a size of {size} bytes; allowed: an even number, enough for {ENDINGS}"
            )
        if offset + size // 2 > len(stream):
            raise InputError(f"{question_place}: the file is cut short there")
        if endings != ENDINGS:
            raise InputError(f"{question_place}: {endings} endings; allowed: {ENDINGS}")
        if label >= ENDINGS:
            raise InputError(f"{question_place}: label: {label}; allowed: 0 to {ENDINGS - 1}")
        context, *rest = _parts(question_place, stream[offset + 5 : offset + size // 2])
        yield TokenQuestion(question_place, context, tuple(rest), label)
        offset += size // 2
    if wanted == count and offset != len(stream):
        raise InputError(f"{place}: {2 * (len(stream) - offset)} bytes follow the last of the {count} questions")


def _parts(where: str, stream: NDArray[np.uint16]) -> list[Ids]:
    """Return the tokens of context and endings, each after its length; or InputError, which names ``where``."""
    parts, offset = [], 0
    for part in range(1 + ENDINGS):
        length = int(stream[offset]) if offset < len(stream) else 0
        name = f"ending {part - 1}" if part else "context"
        if not length:
            raise InputError(f"{where}: {name}: no token in it; allowed: at least one")
        if offset + 1 + length > len(stream):
            raise InputError(f"{where}: {name}: its {length} tokens reach beyond the question")
        parts.append(stream[offset + 1 : offset + 1 + length].astype(np.int64))
        offset += 1 + length
    if offset != len(stream):
        raise InputError(f"{where}: {2 * (len(stream) - offset)} bytes follow its last ending")
    return parts
