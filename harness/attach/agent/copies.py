"""Compare the first batches of a loader's workers: equal batches show that each worker serves the whole dataset.

Only a dataset without an index can do that (torch's IterableDataset). A few whole batches of each worker are hashed, if
they are small plain values. They are equal beyond chance if each has :data:`LEAST_NEW` values that the worker's other
batches lack, as documents do even behind a common prompt, but counters and class labels do not.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable
from marshal import dumps
from typing import Any

import torch
from _harness_agent import record
from torch import Tensor

BATCHES = 2  # hashed batches per worker; a single batch may be equal by chance
MOST_COMPARED = 64  # compared batches of a loader, enough for each worker to have made some
MAX_COPY_BYTES = 1 << 22  # bytes per batch; hashing takes milliseconds, once for each of the first batches
ITEM_BYTES = 128  # bytes that a value outside a tensor counts as, because hashing it takes longer
LEAST_NEW = 32  # distinct values of a batch that the worker's other batches lack
MOST_COUNTED = 1 << 14  # maximum counted values of a tensor, and of a batch
DEEPEST = 8  # maximum levels of nested lists
DIGEST_BYTES = 16
_FORMATS = {1: "B", 2: "H", 4: "I"}  # struct format by value size in bytes; other sizes are read as 8 bytes
_MARSHAL_FORMAT = 2  # format without references, so that equal values have equal bytes
_PLAIN = (int, float, complex, bool, type(None))


class _IncomparableError(Exception):
    """The batch cannot be compared: it is too large, or holds an object that is no tensor, array, number or text."""


class FirstBatches:
    """First batches of each worker of a loader without an index, as hashes and distinct values."""

    __slots__ = ("by_worker", "empty", "ended", "left", "written")

    def __init__(self) -> None:
        self.by_worker: dict[str, list[_Content]] = {}
        self.left = MOST_COMPARED
        self.written = 0
        self.ended = 0  # workers that have no items left
        self.empty = 0  # workers that had none before their first batch

    def add(self, worker: str, batch: Any) -> None:
        """Hash a batch of ``worker``, and note how many workers have made equal first batches."""
        if not self.left:
            return
        self.left -= 1
        contents = self.by_worker.setdefault(worker, [])
        if len(contents) < BATCHES:
            try:
                contents.append(_Content(batch))
            except _IncomparableError:
                self.left = 0
            else:
                self._compare()
        if not self.left:
            self.by_worker.clear()

    def _compare(self) -> None:
        digests = [tuple(content.digest for content in made) for made in self.by_worker.values() if _is_distinct(made)]
        if len(digests) < 2:
            return
        alike = max(Counter(digests).values())
        if alike > self.written:
            self.written = alike
            record.note("copies", alike)


def _is_distinct(made: list[_Content]) -> bool:
    """Return True if a worker's BATCHES batches each have LEAST_NEW values that the others lack."""
    return len(made) == BATCHES and all(
        len(first.values - second.values) >= LEAST_NEW for first in made for second in made if second is not first
    )


class _Content:
    """Hash of a whole batch, and its distinct values."""

    __slots__ = ("_hash", "_left", "digest", "values")

    def __init__(self, batch: Any) -> None:
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._left = MAX_COPY_BYTES
        self.values: set[Any] = set()
        self._add(batch, 0)
        self.digest = self._hash.digest()

    def _add(self, one: Any, depth: int) -> None:
        kind = type(one)
        numpy = sys.modules.get("numpy")
        if kind is Tensor:
            self._add_tensor(one)
        elif kind in _PLAIN:
            self._update(dumps(one, _MARSHAL_FORMAT), ITEM_BYTES)
            self._count((one,))
        elif kind is str:
            self._check_room(len(one))
            self._update(dumps(one, _MARSHAL_FORMAT), ITEM_BYTES + len(one))
            self._count(one[:MOST_COUNTED].split())
        elif kind is bytes:
            self._add_bytes("bytes", one, 8)
        elif numpy is not None and (kind is numpy.ndarray or isinstance(one, numpy.generic)):
            self._check_room(one.nbytes)
            if one.dtype.hasobject:
                raise _IncomparableError
            self._add_bytes(f"{one.dtype!r} {one.shape}", one.tobytes(), one.dtype.itemsize)
        elif depth >= DEEPEST:
            raise _IncomparableError
        elif kind is dict:
            self._update(b"{%d" % len(one), ITEM_BYTES)
            for name, value in one.items():
                self._update(dumps(_plain(name), _MARSHAL_FORMAT), ITEM_BYTES)
                self._add(value, depth + 1)
        elif kind is list or kind is tuple or _is_named_tuple(one):
            self._update(b"[%d" % len(one), ITEM_BYTES)
            for value in one:
                self._add(value, depth + 1)
        else:
            raise _IncomparableError

    def _add_tensor(self, one: Tensor) -> None:
        plain = one.device.type == "cpu" and one.layout is torch.strided and not (one.is_nested or one.is_quantized)
        if not plain or not one.is_contiguous() or one.is_conj() or one.is_neg():
            raise _IncomparableError
        size = one.element_size()
        self._check_room(one.numel() * size)
        content = ctypes.string_at(one.data_ptr(), one.numel() * size) if one.numel() else b""
        self._add_bytes(f"{one.dtype} {tuple(one.shape)}", content, size)

    def _add_bytes(self, what: str, content: bytes, size: int) -> None:
        """Add an array to hash and distinct values. ``what``: its type and shape; ``size``: bytes of one value."""
        self._update(what.encode(), ITEM_BYTES)
        self._update(content, len(content))
        size = size if size in _FORMATS else 8
        counted = memoryview(content)[: min(len(content) // size, MOST_COUNTED) * size]
        self._count(counted.cast(_FORMATS.get(size, "Q")))  # type: ignore[call-overload]

    def _count(self, values: Iterable[Any]) -> None:
        if len(self.values) < MOST_COUNTED:
            self.values.update(values)

    def _update(self, content: bytes, size: int) -> None:
        self._check_room(size)
        self._left -= size
        self._hash.update(b"%d:" % len(content))
        self._hash.update(content)

    def _check_room(self, size: int) -> None:
        """Raise _IncomparableError if ``size`` more bytes exceed the limit of MAX_COPY_BYTES per batch."""
        if size > self._left:
            raise _IncomparableError


def _plain(name: Any) -> Any:
    if type(name) is not str and type(name) not in _PLAIN:
        raise _IncomparableError
    return name


def _is_named_tuple(one: Any) -> bool:
    """Return True if ``one`` is a named tuple without additional attributes."""
    return isinstance(one, tuple) and hasattr(type(one), "_fields") and not hasattr(one, "__dict__")
