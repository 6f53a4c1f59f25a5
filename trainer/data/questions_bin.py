"""Reads llm.c's files of multiple-choice questions, such as hellaswag_val.bin, by their published layout.

    int32[256]   magic 20240522, version 1, number of questions, bytes of the longest one; the rest is 0
    uint16[...]  each question: 65535, its bytes, its index, its label, its number of endings, then the length and the
                 tokens of the context, and of each ending

Numbers are little-endian. The tokens are those of GPT-2, each ending's with the space before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.questions import ENDINGS
from trainer.errors import InputError
from trainer.files import expanded

HEADER, MAGIC, VERSION = 256, 20240522, 1
START = 65535  # of a question
OTHERS = {20240520: "tokens to train on", 20240801: "tokens to train on", 20240326: "a model"}
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TokenQuestion:
    """A question as token ids. ``place``: its file and index, for errors."""

    place: str
    context: Ids
    endings: tuple[Ids, ...]
    label: int


def read_bin(path: str, key: str, most: int | None) -> list[TokenQuestion]:
    """The first ``most`` questions of the file (None: all). Raises InputError, one line, where it is not one."""
    place = f"{key}: {path}"
    try:
        content = expanded(path).read_bytes()
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror or error})") from error
    if not content:
        raise InputError(f"{place}: empty; allowed: llm.c's hellaswag_val.bin, or a jsonl file")
    if len(content) < 4 * HEADER:
        raise InputError(f"{place}: cut short: {len(content)} bytes, and its header alone has {4 * HEADER}")
    magic, version, count = (int(one) for one in np.frombuffer(content, "<i4", 3))
    if magic != MAGIC:
        what = f", as of {OTHERS[magic]}" if magic in OTHERS else ""
        raise InputError(f"{place}: begins with {magic}{what}; a file of questions of llm.c begins with {MAGIC}")
    if version != VERSION:
        raise InputError(f"{place}: version {version}; allowed: {VERSION}")
    if count < 1:
        raise InputError(f"{place}: holds no question (its header says {count})")
    stream = np.frombuffer(content, "<u2", (len(content) - 4 * HEADER) // 2, 4 * HEADER)
    found = list(_questions(place, stream, count if most is None else min(most, count), count))
    if len(content) % 2:
        raise InputError(f"{place}: {len(content):,} bytes; allowed: an even number, as every token has two")
    return found


def _questions(place: str, stream: NDArray[np.uint16], wanted: int, count: int) -> Iterator[TokenQuestion]:
    at = 0
    for number in range(wanted):
        what = f"{place}: question {number} of {count}"
        if at + 6 > len(stream):
            raise InputError(f"{what}: the file is cut short there")
        start, size, index, label, endings = (int(one) for one in stream[at : at + 5])
        if start != START or index != number:
            raise InputError(f"{what}: begins with {start}, {index}; allowed: {START}, {number}")
        if size % 2 or size < 12 + 2 * ENDINGS:
            raise InputError(f"{what}: says that it has {size} bytes; allowed: an even number, enough for {ENDINGS}")
        if at + size // 2 > len(stream):
            raise InputError(f"{what}: the file is cut short there")
        if endings != ENDINGS:
            raise InputError(f"{what}: {endings} endings; allowed: {ENDINGS}")
        if label >= ENDINGS:
            raise InputError(f"{what}: label: {label}; allowed: 0 to {ENDINGS - 1}")
        context, *rest = _parts(what, stream[at + 5 : at + size // 2])
        yield TokenQuestion(what, context, tuple(rest), label)
        at += size // 2
    if wanted == count and at != len(stream):
        raise InputError(f"{place}: {2 * (len(stream) - at)} bytes follow the last of the {count} questions")


def _parts(what: str, stream: NDArray[np.uint16]) -> list[Ids]:
    """The tokens of the context and of the endings, each behind its length; together they are all of ``stream``."""
    found, at = [], 0
    for part in range(1 + ENDINGS):
        length = int(stream[at]) if at < len(stream) else 0
        name = f"ending {part - 1}" if part else "context"
        if not length:
            raise InputError(f"{what}: {name}: no token in it; allowed: at least one")
        if at + 1 + length > len(stream):
            raise InputError(f"{what}: {name}: its {length} tokens reach beyond the question")
        found.append(stream[at + 1 : at + 1 + length].astype(np.int64))
        at += 1 + length
    if at != len(stream):
        raise InputError(f"{what}: {2 * (len(stream) - at)} bytes follow its last ending")
    return found
