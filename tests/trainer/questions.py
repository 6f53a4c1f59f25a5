"""The multiple-choice questions of the tests: our own, in HellaSwag's format, and written as llm.c has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parent / "data" / "questions.jsonl"
QUESTIONS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text().splitlines()]


def write_bin(path: Path, questions: Sequence[tuple[Sequence[int], Sequence[Sequence[int]], int]]) -> Path:
    """``questions``: ids of the context, ids of each ending, and the label; by the layout, not by the reader."""
    stream: list[int] = []
    longest = 0
    for index, (context, endings, label) in enumerate(questions):
        parts = [len(context), *context]
        for ending in endings:
            parts += [len(ending), *ending]
        size = 2 * (5 + len(parts))
        longest = max(longest, size)
        stream += [65535, size, index, label, len(endings), *parts]
    header = np.zeros(256, dtype="<i4")
    header[:4] = 20240522, 1, len(questions), longest
    path.write_bytes(header.tobytes() + np.array(stream, dtype="<u2").tobytes())
    return path
