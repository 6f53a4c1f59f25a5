"""Reads and writes the token files of llm.c and nanoGPT, which an end-of-text id divides into documents.

llm.c (https://github.com/karpathy/llm.c, dev/data/data_common.py): shards with a header of 256 int32 (magic 20240520,
version 1, number of tokens) and that many uint16 ids, little-endian. The end-of-text id stands before each document. A
shard holds 100 million tokens, and documents continue in the next shard; shard 0 is the validation data.

nanoGPT (https://github.com/karpathy/nanoGPT, data/openwebtext/prepare.py): ``train.bin`` and ``val.bin`` with uint16
ids end to end, little-endian, without a header. The end-of-text id follows each document. The hash of a document's
tokens decides its file, so a copy of a document in val.bin is never in train.bin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from trainer.data.formats.flat import FlatTokens, Writer
from trainer.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_TOKENS = 1 << 24  # 32 MiB of uint16
CHUNK_DOCUMENTS = 1 << 16
MAGIC, VERSION = 20240520, 1
HEADER = 256  # int32 values
SHARD_TOKENS = 100_000_000
_HEADER_BYTES = HEADER * 4
VALIDATION_SHARE = 0.0005  # nanoGPT's share for OpenWebText


ExchangeFormat = Literal["llmc", "nanogpt"]


@dataclass(frozen=True)
class Stream:
    """Tokens of the files of llm.c or nanoGPT."""

    parts: tuple[NDArray[Any], ...]  # one per file, in order, mapped into memory
    eos_first: bool  # True if the end-of-text id stands before each document, not after it

    @property
    def tokens(self) -> int:
        """Number of tokens in all parts."""
        return sum(len(part) for part in self.parts)


def document_chunks(flat: FlatTokens, start: int = 0) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Yield (token ids, lengths) of consecutive documents from number ``start`` on, ids end to end."""
    document = start
    while document < flat.documents:
        first = int(flat.places[document])
        stop = int(np.searchsorted(flat.places, first + CHUNK_TOKENS, "right")) - 1
        stop = min(max(stop, document + 1), document + CHUNK_DOCUMENTS, flat.documents)
        places = np.asarray(flat.places[document : stop + 1])
        yield np.asarray(flat.tokens[first : int(places[-1])]), np.diff(places)
        document = stop


def check_uint16(name: str, vocab_size: int) -> None:
    """Raise InputError if a vocabulary is too large for 16-bit ids. ``name``: name of the format for the message."""
    if vocab_size > 2**16:
        raise InputError(
            f"{name}: its ids are uint16, at most 65,536; this vocabulary has {vocab_size:,}: choose flat (uint32), or "
            "another tokenizer"
        )


def documents_of(stream: Stream, eos_id: int | None) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """Yield groups (ids, lengths) of documents cut at ``eos_id``, each ending in it; None: all is one document."""
    pending: list[NDArray[Any]] = []
    started = not stream.eos_first
    for part in stream.parts:
        for start in range(0, len(part), CHUNK_TOKENS):
            chunk = np.asarray(part[start : start + CHUNK_TOKENS])
            ends = np.flatnonzero(chunk == eos_id) + 1 if eos_id is not None else np.empty(0, np.int64)
            if not started and len(chunk):
                # The first id begins the first document and ends none, if ``eos_first``.
                started = True
                if len(ends) and ends[0] == 1:
                    chunk, ends = chunk[1:], ends[1:] - 1
            if not len(ends):
                pending.append(chunk)
                continue
            first = [*pending, chunk[: ends[0]]]
            ids = np.concatenate(first)
            yield np.concatenate([ids, chunk[ends[0] : ends[-1]]]), np.concatenate([[len(ids)], np.diff(ends)])
            pending = [chunk[ends[-1] :]]
    rest = np.concatenate(pending) if pending else np.empty(0, np.uint16)
    if len(rest):
        closed = rest if eos_id is None else np.append(rest, np.asarray(eos_id, rest.dtype))
        yield closed, np.array([len(closed)])


class LlmcWriter(Writer):
    """Writes llm.c's shards ``NAME_val_000000.bin``, ``NAME_train_000001.bin``; documents end in ``eos_id``."""

    def __init__(
        self, folder: Path, name: str, vocab_size: int, eos_id: int | None, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        check_uint16("llmc", vocab_size)
        if eos_id is None:
            raise InputError(
                "llmc: each document needs an end-of-text id before it, but this tokenizer has none; choose nanogpt"
            )
        self._folder, self._name, self._eos_id, self._shard_tokens = folder, name, eos_id, shard_tokens
        self._file: IO[bytes] | None = None
        self._in_shard = 0
        self.files: list[Path] = []

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents: their ids end to end, and the length of each. Empty ones leave no trace."""
        if not len(ids):
            return
        # Each document's end-of-text id moves to its front. All documents end in it, so everything moves by one.
        shifted = np.empty(len(ids), "<u2")
        shifted[0], shifted[1:] = self._eos_id, ids[:-1]
        while len(shifted):
            if self._file is None or self._in_shard == self._shard_tokens:
                self._next_shard()
            assert self._file is not None
            part = shifted[: self._shard_tokens - self._in_shard]
            self._file.write(part.data.cast("B"))
            self._in_shard += len(part)
            shifted = shifted[len(part) :]

    def close(self) -> None:
        """Write the number of tokens into the last shard's header, and close the shard."""
        if self._file is not None:
            self._file.seek(0)
            self._file.write(_header(self._in_shard))
            self._file.close()
            self._file = None

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()

    def _next_shard(self) -> None:
        self.close()
        number = len(self.files)
        path = self._folder / f"{self._name}_{'train' if number else 'val'}_{number:06d}.bin"
        self._file = path.open("wb")
        self._file.write(bytes(_HEADER_BYTES))
        self._in_shard = 0
        self.files.append(path)


def read(format: ExchangeFormat, files: Sequence[Path]) -> Stream:
    """Return the tokens of files, mapped into memory. Raises InputError if one is of another format, or cut short."""
    is_llmc = format == "llmc"
    return Stream(tuple(map(_shard if is_llmc else _mapped, files)), eos_first=is_llmc)


def _shard(path: Path) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = np.frombuffer(file.read(_HEADER_BYTES), "<i4", count=-1) if size >= _HEADER_BYTES else None
        if header is None or header[0] != MAGIC:
            raise InputError(f"{path}: not a .bin of llm.c (its first int32 must be {MAGIC})")
        if header[1] != VERSION:
            raise InputError(f"{path}: version {header[1]} of llm.c's .bin; allowed: {VERSION} (uint16 ids)")
        if size != _HEADER_BYTES + 2 * int(header[2]):
            raise InputError(
                f"{path}: {size:,} bytes, but its header has {header[2]:,} tokens: cut short, or more than that"
            )
        return np.memmap(path, "<u2", "r", offset=_HEADER_BYTES) if header[2] else np.empty(0, "<u2")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _header(tokens: int) -> bytes:
    header = np.zeros(HEADER, "<i4")
    header[:3] = MAGIC, VERSION, tokens
    return header.tobytes()


class NanogptWriter(Writer):
    """Writes documents into nanoGPT's ``train.bin`` and ``val.bin``. Empty documents leave no trace."""

    def __init__(self, folder: Path, vocab_size: int, validation_share: float = VALIDATION_SHARE) -> None:
        check_uint16("nanogpt", vocab_size)
        self._limit = int(validation_share * 2**64)
        self.files = [folder / "train.bin", folder / "val.bin"]
        self._open = ExitStack()
        self._train: IO[bytes] = self._open.enter_context(self.files[0].open("wb"))
        self._val: IO[bytes] = self._open.enter_context(self.files[1].open("wb"))

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents: their ids end to end, and the length of each."""
        values = np.ascontiguousarray(ids, "<u2")
        ends = np.cumsum(lengths)
        train = np.ones(len(values), bool)
        if self._limit:
            for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True):
                train[start:end] = not self._is_validation(values[start:end])
        self._train.write(values[train].tobytes())
        self._val.write(values[~train].tobytes())

    def close(self) -> None:
        """Close both files."""
        self._open.close()

    def _is_validation(self, document: NDArray[Any]) -> bool:
        return int.from_bytes(hashlib.blake2b(document.data, digest_size=8).digest()) < self._limit


def _mapped(path: Path) -> NDArray[Any]:
    try:
        size = path.stat().st_size
        if size % 2:
            raise InputError(
                f"{path}: {size:,} bytes are no whole number of uint16 ids: no .bin of nanoGPT, or cut short"
            )
        return np.memmap(path, "<u2", "r") if size else np.empty(0, "<u2")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
