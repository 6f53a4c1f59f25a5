"""Time the outermost calls of tokenizers, as the stage ``tokenize`` of the batch in preparation, else outside fetches.

CPU time of threads that encode a list of texts while the caller waits counts as the stage's.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from time import monotonic_ns, process_time_ns
from typing import Any

from _harness_agent import boundaries, guard, stages

# Module: (class, encoding methods)
ENCODERS = {
    "transformers.tokenization_utils_base": (
        "PreTrainedTokenizerBase", ("__call__", "encode", "encode_plus", "batch_encode_plus", "_encode_plus"),
    ),
    "tokenizers": ("Tokenizer", ("encode", "encode_batch", "encode_batch_fast")),
    "tiktoken.core": ("Encoding", ("encode", "encode_ordinary", "encode_batch", "encode_ordinary_batch")),
    "sentencepiece": ("SentencePieceProcessor", ("encode", "Encode", "EncodeAsIds", "EncodeAsPieces")),
}  # fmt: skip


class _Loose(threading.local):
    on = False  # True if this thread is in a call without a batch in preparation


_loose = _Loose()


def patch() -> None:
    """Wrap the encoding methods of each library in :data:`ENCODERS`, now or when the library is imported."""
    for module, (kind, methods) in ENCODERS.items():
        _after_import(module, functools.partial(_wrap, kind, methods))


def _wrap(kind: str, methods: tuple[str, ...], module: Any) -> None:
    owner = getattr(module, kind, None)
    for name in methods:
        before = getattr(owner, "__dict__", {}).get(name)
        if before is None or getattr(before, "_harness_seam", False) or not callable(before):
            continue
        try:
            setattr(owner, name, _timed(before))
        except (AttributeError, TypeError):  # a type that cannot be changed: its time is part of the enclosing stage
            continue


def _several(given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """True if a tokenizer call encodes several texts: the argument after ``self``, or a named one, is a list."""
    return any(isinstance(argument, (list, tuple)) for argument in (*given[1:2], *named.values()))


def _timed(before: Any) -> Any:
    @functools.wraps(before)
    def encode(*given: Any, **named: Any) -> Any:
        if guard.carefully(stages.enter_within, "tokenize"):
            begun_ns = process_time_ns() if _several(given, named) else None
            try:
                return before(*given, **named)
            finally:
                if begun_ns is not None:
                    guard.carefully(stages.add_others, begun_ns)
                guard.carefully(stages.leave)
        if not guard.on or stages.busy() or _loose.on:
            return before(*given, **named)
        _loose.on, begun_ns = True, monotonic_ns()
        try:
            return before(*given, **named)
        finally:
            _loose.on = False
            guard.carefully(boundaries.tokenized, monotonic_ns() - begun_ns)

    encode._harness_seam = True  # type: ignore[attr-defined]
    return encode


def _after_import(name: str, action: Callable[[Any], None]) -> None:
    """Call ``action(module)`` as soon as the module ``name`` is imported; at once if it already is."""
    module = sys.modules.get(name)
    if module is not None:
        guard.carefully(action, module)
        return
    _finder.wanted.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    def __init__(self) -> None:
        self.wanted: dict[str, list[Callable[[Any], None]]] = {}
        self._asking: set[str] = set()  # prevents two finders from asking each other for ever

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.wanted or name in self._asking:
            return None
        self._asking.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    if spec.loader is not None:
                        self._follow(name, spec.loader)
                    return spec
        finally:
            self._asking.discard(name)
        return None

    def _follow(self, name: str, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            for action in self.wanted.pop(name, []):
                guard.carefully(action, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots cannot be changed
            pass


_finder = _Finder()
