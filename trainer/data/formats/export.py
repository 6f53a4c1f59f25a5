"""Exports flat tokens to the files of other trainers, and imports such files as a column of token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainer.data import cache
from trainer.data.formats.exchange import (
    SHARD_TOKENS,
    VALIDATION_SHARE,
    LlmcWriter,
    NanogptWriter,
    Stream,
    document_chunks,
    documents_of,
    read_llmc,
    read_nanogpt,
)
from trainer.data.formats.flat import FlatTokens
from trainer.data.formats.parquet import TokenListWriter
from trainer.errors import InputError
from trainer.files import expanded, write_atomically, write_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

ExchangeFormat = Literal["llmc", "nanogpt"]
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
    """Write all documents of ``flat`` into the new folder ``out``, which appears when it is whole.

    Return its description. Raises InputError if ``out`` exists or the format cannot hold the tokens.
    """
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


def read(format: ExchangeFormat, files: Sequence[Path]) -> Stream:
    """Return the tokens of files of ``format``, mapped into memory. Raises InputError for another one, or cut short."""
    return (read_llmc if format == "llmc" else read_nanogpt)(files)


def import_tokens(format: ExchangeFormat, files: Sequence[Path], vocabulary: Vocabulary, out: Path) -> Imported:
    """Write the files' documents into ``out``, a parquet file with a column ``tokens``: a corpus of token ids.

    Return counts. Raises InputError if the files contain an id that the tokenizer does not have.
    """
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
