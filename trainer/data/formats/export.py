"""Exports flat tokens to the files of other trainers, imports such files, and measures what each format costs."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.data import cache
from trainer.data.formats.exchange import (
    SHARD_TOKENS,
    VALIDATION_SHARE,
    ExchangeFormat,
    LlmcWriter,
    NanogptWriter,
    Stream,
    document_chunks,
    documents_of,
    read,
)
from trainer.data.formats.flat import FlatTokens, FlatWriter, open_flat, token_type
from trainer.data.pretokenize import PaddedWriter, TokenListWriter
from trainer.errors import InputError
from trainer.files import expanded, write_atomically, write_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXPORT = "export.json"


@dataclass(frozen=True)
class Vocabulary:
    """Facts about a tokenizer that a format needs: its largest id + 1, and its end-of-text id, if any."""

    size: int
    eos_id: int | None


@dataclass(frozen=True)
class Division:
    """Division of an export into files: tokens per shard (llmc), share of validation documents (nanoGPT)."""

    name: str = "tokens"
    shard_tokens: int = SHARD_TOKENS
    validation_share: float = VALIDATION_SHARE


@dataclass(frozen=True)
class Exported:
    """Description of an exported folder, the content of its export.json."""

    format: ExchangeFormat
    files: tuple[str, ...]
    tokens: int
    documents: int
    empty: int  # documents without a token, which these formats cannot express
    eos_id: int | None
    tokenizer_fingerprint: str


@dataclass(frozen=True)
class Imported:
    """Result of importing another trainer's files."""

    documents: int
    tokens: int  # tokens of the column, including each document's end-of-text id
    cut: bool  # True if the first document begins before these files, or the last one continues after them
    lost: tuple[str, ...]  # facts that the files do not contain


def writer(format: ExchangeFormat, folder: Path, vocabulary: Vocabulary, division: Division) -> Any:
    """Return an open writer of ``format`` in ``folder``. Raises InputError if the format cannot hold such tokens."""
    if format == "llmc":
        return LlmcWriter(folder, division.name, vocabulary.size, vocabulary.eos_id, division.shard_tokens)
    return NanogptWriter(folder, vocabulary.size, division.validation_share)


def export(
    flat: FlatTokens,
    format: ExchangeFormat,
    vocabulary: Vocabulary,
    tokenizer_fingerprint: str,
    out: Path,
    division: Division | None = None,
) -> Exported:
    """Write ``flat`` into the new folder ``out``, and describe it. Raises InputError if the format cannot hold it."""
    target = expanded(out).absolute()
    if target.exists():
        raise InputError(f"{out}: already exists; choose a new folder")
    written: list[Exported] = []

    def build(to: Path) -> None:
        with writer(format, to, vocabulary, division or Division()) as files:
            for ids, lengths in document_chunks(flat):
                files.add(ids, lengths)
        lengths = np.diff(flat.places)
        exported = Exported(
            format,
            tuple(path.name for path in files.files),
            len(flat.tokens),
            flat.documents,
            flat.documents - int(np.count_nonzero(lengths)),
            vocabulary.eos_id,
            tokenizer_fingerprint,
        )
        write_text(to / EXPORT, json.dumps(asdict(exported), indent=1) + "\n")
        written.append(exported)

    cache.create_folder(target, build)
    return written[0]


def import_tokens(format: ExchangeFormat, files: Sequence[Path], vocabulary: Vocabulary, out: Path) -> Imported:
    """Write ``files``' documents to a Parquet column of ids. Return counts and what is lost. Raises InputError."""
    stream = read(format, files)
    documents = tokens = 0

    def write(to: Path) -> None:
        nonlocal documents, tokens
        with TokenListWriter(to) as column:
            for ids, lengths in _checked(stream, vocabulary):
                column.add(ids, lengths)
                documents += len(lengths)
                tokens += len(ids)

    if not stream.tokens:
        raise InputError(f"{', '.join(map(str, files[:3]))}: no token in it")
    write_atomically(expanded(out).absolute(), write)
    return Imported(documents, tokens, _is_cut(stream, vocabulary.eos_id), _lost(stream, vocabulary.eos_id))


def _checked(stream: Stream, vocabulary: Vocabulary) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    for ids, lengths in documents_of(stream, vocabulary.eos_id):
        if (largest := int(ids.max())) >= vocabulary.size:
            raise InputError(
                f"the files hold the id {largest:,}, and the tokenizer's ids end at {vocabulary.size - 1:,}: "
                "another tokenizer made them"
            )
        yield ids, lengths


def _is_cut(stream: Stream, eos_id: int | None) -> bool:
    if eos_id is None:
        return False
    if stream.eos_first:
        return int(next(part for part in stream.parts if len(part))[0]) != eos_id
    return int(next(part for part in reversed(stream.parts) if len(part))[-1]) != eos_id


def _lost(stream: Stream, eos_id: int | None) -> tuple[str, ...]:
    lost = ["the text itself", "whether a document was empty, unless its end-of-text id was written"]
    if eos_id is None:
        lost.append("where documents end: the tokenizer has no end-of-text id, so all tokens are one document")
        return tuple(lost)
    lost.append("whether an end-of-text id stood within a text: each one ends a document")
    if not stream.eos_first:
        lost.append("the order of the documents across train.bin and val.bin")
    return tuple(lost)


_TOKENS_AT_ONCE = 1 << 20  # widened at once


@dataclass(frozen=True)
class FormatCost:
    """Size (bytes) and median seconds to write and read a format. ``reason``: why it cannot hold the tokens."""

    format: str
    tokens: int  # stored tokens: padded rows cut some
    size_bytes: int
    write_s: float
    read_s: float
    reason: str = ""


@dataclass(frozen=True)
class _Way:
    """How to time a format: ``write`` opens a writer in a folder, ``read`` returns the number of tokens there."""

    write: Callable[[Path], AbstractContextManager[Any]]
    read: Callable[[Path], int]


def costs(
    flat: FlatTokens, vocabulary: Vocabulary, sequence_length: int, pad_id: int, folder: Path, repeats: int
) -> Iterator[FormatCost]:
    """Yield each format's cost: ``flat`` written into ``folder`` and read back ``repeats`` times, then deleted."""
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
