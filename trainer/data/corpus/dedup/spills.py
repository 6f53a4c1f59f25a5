"""Rows of numbers that are written as they come, divided over files, and read back file by file: memory is bounded."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

SPILL_PARTS = 64
_HELD_BYTES = 8 << 20  # before they are divided and written


class Spill:
    """Takes structured rows, each for one of :data:`SPILL_PARTS` files of a folder."""

    def __init__(self, folder: Path, dtype: np.dtype[np.void]) -> None:
        folder.mkdir(parents=True)
        self._dtype = dtype
        self._files: list[IO[bytes]] = [(folder / f"{number:02}.bin").open("w+b") for number in range(SPILL_PARTS)]
        self._held: list[NDArray[np.void]] = []
        self._held_parts: list[NDArray[np.integer[Any]]] = []
        self._held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files:
            file.close()

    def add(self, parts: NDArray[np.integer[Any]], **columns: NDArray[Any]) -> None:
        """Take rows, given by column; ``parts``: the number of each row's file."""
        rows = np.empty(len(parts), self._dtype)
        for name, values in columns.items():
            rows[name] = values
        self._held.append(rows)
        self._held_parts.append(parts)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._write()

    def read(self, number: int) -> NDArray[np.void]:
        """All rows of a file, in the order in which they came."""
        self._write()
        self._files[number].seek(0)
        found = np.frombuffer(self._files[number].read(), self._dtype)
        self._files[number].seek(0, 2)
        return found

    def _write(self) -> None:
        if not self._held:
            return
        rows, parts = np.concatenate(self._held), np.concatenate(self._held_parts)
        self._held, self._held_parts, self._held_bytes = [], [], 0
        order = np.argsort(parts, kind="stable")
        rows, bounds = rows[order], np.searchsorted(parts[order], np.arange(SPILL_PARTS + 1))
        for number, file in enumerate(self._files):
            if bounds[number] < bounds[number + 1]:
                file.write(rows[bounds[number] : bounds[number + 1]].tobytes())
