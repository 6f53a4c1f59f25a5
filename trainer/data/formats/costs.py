"""Measures the size of each format, and the seconds to write and to read a corpus' tokens in it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from trainer.data.formats.exchange import document_chunks
from trainer.data.formats.export import Division, ExchangeFormat, Vocabulary, read, writer
from trainer.data.formats.flat import FlatTokens, FlatWriter, open_flat, token_type
from trainer.data.formats.parquet import PaddedWriter, TokenListWriter
from trainer.errors import InputError

_TOKENS_AT_ONCE = 1 << 20  # widened at once


@dataclass(frozen=True)
class FormatCost:
    """Size and speed of one format, by medians. ``reason``: why it cannot hold these tokens, "" if it can."""

    format: str
    tokens: int  # stored tokens: padded rows cut some
    size_bytes: int
    write_s: float
    read_s: float
    reason: str = ""


@dataclass(frozen=True)
class _Way:
    """Functions that measure one format: ``write`` opens a writer in a folder; ``read`` reads all tokens from there."""

    write: Callable[[Path], AbstractContextManager[Any]]
    read: Callable[[Path], int]


def costs(
    flat: FlatTokens, vocabulary: Vocabulary, sequence_length: int, pad_id: int, folder: Path, repeats: int
) -> Iterator[FormatCost]:
    """Write and read the tokens in every format, ``repeats`` times each, and yield the cost of each format.

    The files are in the operating system's cache, so the costs are those of the format, not of the disk.
    """
    kind = token_type(vocabulary.size)
    ways = {
        "padded": _Way(
            lambda to: PaddedWriter(to / "x", sequence_length, pad_id),
            lambda to: _read_parquet(to / "x", "attention_mask"),
        ),
        "token-list": _Way(lambda to: TokenListWriter(to / "x"), lambda to: _read_parquet(to / "x", "tokens")),
        "flat": _Way(lambda to: FlatWriter(to, kind), lambda to: _touch(open_flat(to, kind).tokens)),
        "llmc": _exchanged("llmc", vocabulary),
        "nanogpt": _exchanged("nanogpt", vocabulary),
    }
    for name, way in ways.items():
        try:
            yield _cost(name, way, flat, folder, repeats)
        except InputError as error:
            yield FormatCost(name, 0, 0, 0.0, 0.0, str(error))


def _cost(name: str, way: _Way, flat: FlatTokens, folder: Path, repeats: int) -> FormatCost:
    writing, reading = [], []
    tokens = size = 0
    for _ in range(repeats):
        to = Path(tempfile.mkdtemp(prefix=".formats-", dir=folder))
        try:
            begun_s = time.perf_counter()
            with way.write(to) as file:
                for ids, lengths in document_chunks(flat):
                    file.add(ids, lengths)
            written_s = time.perf_counter()
            tokens = way.read(to)
            reading.append(time.perf_counter() - written_s)
            writing.append(written_s - begun_s)
            size = sum(path.stat().st_size for path in to.iterdir())
        finally:
            shutil.rmtree(to, ignore_errors=True)
    return FormatCost(name, tokens, size, median(writing), median(reading))


def _exchanged(format: ExchangeFormat, vocabulary: Vocabulary) -> _Way:
    return _Way(
        lambda to: writer(format, to, vocabulary, Division()),
        lambda to: sum(map(_touch, read(format, sorted(to.glob("*.bin"))).parts)),
    )


def _touch(tokens: Any) -> int:
    """Read all tokens, widened to int64 as a loader does. Return their number."""
    for start in range(0, len(tokens), _TOKENS_AT_ONCE):
        np.asarray(tokens[start : start + _TOKENS_AT_ONCE]).astype(np.int64).sum()
    return len(tokens)


def _read_parquet(path: Path, counted: str) -> int:
    import pyarrow.parquet as pq

    tokens = 0
    file = pq.ParquetFile(path, memory_map=True)
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, use_threads=False)
        for name in table.column_names:
            for chunk in table.column(name).chunks:
                values = chunk.values.to_numpy(zero_copy_only=True)
                total = int(values.astype(np.int64).sum())
                if name == counted:
                    tokens += total if counted == "attention_mask" else len(values)
    return tokens
