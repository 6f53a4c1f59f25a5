"""Reads and writes the .bin files of nanoGPT (https://github.com/karpathy/nanoGPT, data/openwebtext/prepare.py).

``train.bin`` and ``val.bin`` hold uint16 ids end to end, little-endian, without a header; the end-of-text id follows
each document. Which documents are in val.bin, the hash of their tokens says: a copy of one is never in train.bin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trainer.data.formats.exchange import Stream, check_uint16
from trainer.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

VALIDATION_SHARE = 0.0005  # nanoGPT's own of OpenWebText


class NanogptWriter:
    """Writes documents into ``train.bin`` and ``val.bin``. Empty ones leave no trace."""

    def __init__(self, folder: Path, vocab_size: int, validation_share: float = VALIDATION_SHARE) -> None:
        check_uint16("nanogpt", vocab_size)
        self._limit = int(validation_share * 2**64)
        self.files = [folder / "train.bin", folder / "val.bin"]
        self._open = ExitStack()
        self._train: IO[bytes] = self._open.enter_context(self.files[0].open("wb"))
        self._val: IO[bytes] = self._open.enter_context(self.files[1].open("wb"))

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents: their ids end to end, and how many each has."""
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

    def __enter__(self) -> NanogptWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except OSError:
            if error is None:  # else the first error is the one to show
                raise

    def _is_validation(self, document: NDArray[Any]) -> bool:
        return int.from_bytes(hashlib.blake2b(document.data, digest_size=8).digest()) < self._limit


def read_nanogpt(files: Sequence[Path]) -> Stream:
    """Map files, in this order. Raises InputError where one cannot be of 16-bit ids."""
    return Stream(tuple(_mapped(path) for path in files), eos_first=False)


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
