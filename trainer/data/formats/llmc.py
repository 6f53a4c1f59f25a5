"""Reads and writes the .bin shards of llm.c (https://github.com/karpathy/llm.c, dev/data/data_common.py).

A shard has a header of 256 int32 (magic 20240520, version 1, number of tokens) and that many uint16 ids, little-endian.
The end-of-text id stands before each document. A shard holds 100 million tokens, and documents go on from one to the
next; shard 0 is the validation data.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trainer.data.formats.exchange import Stream, check_uint16
from trainer.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC, VERSION = 20240520, 1
HEADER = 256  # int32 values
SHARD_TOKENS = 100_000_000
_HEADER_BYTES = HEADER * 4


class LlmcWriter:
    """Writes documents, each of which ends in ``eos_id`` or is empty, into shards ``NAME_val_000000.bin`` and so on."""

    def __init__(
        self, folder: Path, name: str, vocab_size: int, eos_id: int | None, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        check_uint16("llmc", vocab_size)
        if eos_id is None:
            raise InputError(
                "llmc: an end-of-text id stands before each document, and this tokenizer has none; choose nanogpt"
            )
        self._folder, self._name, self._eos_id, self._shard_tokens = folder, name, eos_id, shard_tokens
        self._file: IO[bytes] | None = None
        self._in_shard = 0
        self.files: list[Path] = []

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents. Empty ones leave no trace."""
        if not len(ids):
            return
        # Each document's own id goes to its front: as all end in it, the whole moves by one.
        moved = np.empty(len(ids), "<u2")
        moved[0], moved[1:] = self._eos_id, ids[:-1]
        while len(moved):
            if self._file is None or self._in_shard == self._shard_tokens:
                self._next_shard()
            assert self._file is not None
            some = moved[: self._shard_tokens - self._in_shard]
            self._file.write(some.data.cast("B"))
            self._in_shard += len(some)
            moved = moved[len(some) :]

    def close(self) -> None:
        """Write the header of the last shard."""
        if self._file is not None:
            self._file.seek(0)
            self._file.write(_header(self._in_shard))
            self._file.close()
            self._file = None

    def __enter__(self) -> LlmcWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif self._file is not None:
            try:
                self._file.close()
            except OSError:
                pass  # the first error is the one to show

    def _next_shard(self) -> None:
        self.close()
        number = len(self.files)
        path = self._folder / f"{self._name}_{'train' if number else 'val'}_{number:06d}.bin"
        self._file = path.open("wb")
        self._file.write(bytes(_HEADER_BYTES))
        self._in_shard = 0
        self.files.append(path)


def read_llmc(files: Sequence[Path]) -> Stream:
    """Map shards, in this order. Raises InputError where one is none, or cut short."""
    return Stream(tuple(_shard(path) for path in files), eos_first=True)


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
                f"{path}: {size:,} bytes, where its header speaks of {header[2]:,} tokens: cut short, or more than that"
            )
        return np.memmap(path, "<u2", "r", offset=_HEADER_BYTES) if header[2] else np.empty(0, "<u2")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _header(tokens: int) -> bytes:
    header = np.zeros(HEADER, "<i4")
    header[:3] = MAGIC, VERSION, tokens
    return header.tobytes()
