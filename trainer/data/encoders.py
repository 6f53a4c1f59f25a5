"""Marks calls of tokenizer libraries in a user's source as ``tokenize``. Imports are watched, as they may be late."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from trainer import telemetry

# Per module: the class that encodes, and its methods.
ENCODERS = {
    "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase", ("__call__", "encode", "batch_encode_plus")),
    "tokenizers": ("Tokenizer", ("encode", "encode_batch", "encode_batch_fast")),
    "tiktoken.core": ("Encoding", ("encode", "encode_ordinary", "encode_batch", "encode_ordinary_batch")),
    "gigatoken._tokenizer": ("Tokenizer", ("encode", "encode_batch", "encode_batch_list", "encode_batch_padded")),
    "sentencepiece": ("SentencePieceProcessor", ("encode", "Encode", "EncodeAsIds")),
}


def watch() -> None:
    """Record calls of tokenizer libraries, also those imported later, as spans ``tokenize`` while a batch is made."""
    making.thread = threading.get_ident()
    for name in ENCODERS:
        _mark(name, sys.modules.get(name))
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _EncoderFinder:
    """Import finder that lets others find a tokenizer's library, and wraps its encoding methods in spans."""

    def __init__(self) -> None:
        self._asking: set[str] = set()  # guards against two finders that ask each other

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in ENCODERS or name in self._asking:
            return None
        self._asking.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    if spec.loader is not None:
                        _follow(name, spec.loader)
                    return spec
        finally:
            self._asking.discard(name)
        return None


_finder: Any = _EncoderFinder()


def _follow(name: str, loader: Any) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        _mark(name, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # A loader without settable attributes: the calls count as reading.
        pass


def _mark(name: str, module: ModuleType | None) -> None:
    kind, methods = ENCODERS[name]
    owner = getattr(module, kind, None)
    for method in methods:
        original = getattr(owner, "__dict__", {}).get(method)
        if callable(original) and not hasattr(original, "__harness_timed__"):
            try:
                setattr(owner, method, _timed(f"{kind}.{method}", original))
            except (AttributeError, TypeError):  # A type without settable attributes: the calls count as reading.
                continue


class _Local(threading.local):
    within = False  # True within a tokenizer's call: one library calls another, and only the outermost call counts


class _Maker:
    """Context in which the current thread makes batches. Only tokenizer calls within it get spans."""

    def __init__(self) -> None:
        self.thread = 0
        self.busy = False  # True while a batch is being made

    def __enter__(self) -> None:
        self.thread, self.busy = threading.get_ident(), True

    def __exit__(self, *_: object) -> None:
        self.busy = False


_local = _Local()
making = _Maker()  # entered while this thread makes a batch
in_threads: set[str] = set()  # tokenizer methods that were called in other threads of this process


def _timed(name: str, before: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(before)
    def encode(*given: Any, **named: Any) -> Any:
        if _local.within:
            return before(*given, **named)
        _local.within = True
        try:
            if threading.get_ident() != making.thread:
                in_threads.add(name)
                return before(*given, **named)
            with telemetry.span("tokenize") if making.busy else nullcontext():
                return before(*given, **named)
        finally:
            _local.within = False

    encode.__harness_timed__ = True  # type: ignore[attr-defined]
    return encode
