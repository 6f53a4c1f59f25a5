"""Dotted configuration keys: ``data.batch_size: 2`` and ``data: {batch_size: 2}`` are the same thing.

Nested mappings are the working form; a leaf is anything that is not a non-empty mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Nested = dict[str, Any]

# Sections of which exactly one member counts: setting one in a layer above drops the others from the layers below,
# so that `--set data.corpus.parquet=mine.parquet` is enough.
EXCLUSIVE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("data", "tokenizer"): ("train", "pretrained", "sentencepiece"),
    ("data", "corpus"): ("builtin", "parquet"),
}


class DottedKeyError(ValueError):
    """A dotted key that is malformed, or that says twice what one value is. ``path`` is where, with its parts split."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(f"{'.'.join(path)}: {message}")
        self.path = path
        self.message = message


def expand(mapping: Mapping[str, Any], path: tuple[str, ...] = (), split: Callable[..., None] | None = None) -> Nested:
    """``mapping`` with every dotted key made nested, at any level.

    ``split(written, parts)`` is told where each written path went (both as tuples of keys).
    Raises DottedKeyError for an empty part and for a value that is given twice.
    """
    result: Nested = {}
    _expand_into(result, mapping, path, path, split)
    return result


def _expand_into(
    target: Nested,
    mapping: Mapping[str, Any],
    written: tuple[str, ...],
    path: tuple[str, ...],
    split: Callable[..., None] | None,
) -> None:
    for key, value in mapping.items():
        parts = key.split(".")
        full = (*path, *parts)
        if not all(parts):
            raise DottedKeyError((*path, key), "a dotted key needs a name before and after each dot")
        if split is not None:
            split((*written, key), full)
        inner = target
        for depth, part in enumerate(parts[:-1], start=len(path) + 1):
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise DottedKeyError(full[:depth], f"given twice, once as a value and once by {'.'.join(full)}")
        last = parts[-1]
        if isinstance(value, Mapping):
            nested = inner.setdefault(last, {})
            if not isinstance(nested, dict):
                raise DottedKeyError(full, "given twice")
            _expand_into(nested, value, (*written, key), full, split)
        elif last in inner:
            raise DottedKeyError(full, "given twice")
        else:
            inner[last] = value


def merge(under: Mapping[str, Any], over: Mapping[str, Any], path: tuple[str, ...] = ()) -> Nested:
    """``over`` laid on ``under`` (both nested): mappings merge key by key, anything else replaces what was there."""
    members = EXCLUSIVE.get(path, ())
    if any(over.get(member) is not None for member in members):
        under = {key: value for key, value in under.items() if key not in members or key in over}
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping):
            result[key] = merge(below if isinstance(below, Mapping) else {}, value, (*path, key))
        else:
            result[key] = value
    return result


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{dotted key: leaf}`` in order; an empty mapping is a leaf."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{dotted}."))
        else:
            flat[dotted] = value
    return flat


def lookup(nested: Mapping[str, Any], dotted: str, default: Any = None) -> Any:
    """The value at ``dotted``, or ``default`` where the path ends early."""
    value: Any = nested
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def edit_texts(edits: Mapping[str, Any]) -> list[str]:
    """``{ranks: 16, sync: off}`` as the KEY=VALUE texts of ``harness whatif --set`` (YAML reads off as false)."""
    words = {True: "on", False: "off"}
    return [f"{key}={words[value] if isinstance(value, bool) else value}" for key, value in edits.items()]
