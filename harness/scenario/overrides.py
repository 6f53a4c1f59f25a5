"""Convert between dotted keys (``data.batch_size: 2``) and nested mappings, the working form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from trainer.json_types import Json, JsonObject

Nested = dict[str, Json]

# Sections with alternative members. Setting a member in an upper layer drops the others from the layers below, so
# `--set data.corpus.parquet=mine.parquet` is enough.
EXCLUSIVE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("data", "tokenizer"): ("train", "pretrained", "sentencepiece"),
    ("data", "corpus"): ("builtin", "parquet", "path"),
    ("model",): ("preset", "config", "pretrained", "factory"),
}

# Keys that change how batches reach the loop, but no batch.
HAND_OVER = ("data.prefetch", "data.transport", "data.pin_memory", "data.timeout_s", "data.start_method")
Dosed = Literal["tokenize", "read", "device"]
# Key that repeats each kind of work, in addition to the arm's own work.
DOSES: dict[Dosed, str] = {
    "tokenize": "data.extra_tokenizations",
    "read": "data.extra_reads",
    "device": "compute.extra_forwards",
}


class DottedKeyError(ValueError):
    """Raised by :func:`expand` for a malformed or repeated dotted key. ``path``: the key, split at its dots."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(f"{'.'.join(path)}: {message}")
        self.path = path
        self.message = message


def expand(mapping: JsonObject, path: tuple[str, ...] = (), split: Callable[..., None] | None = None) -> Nested:
    """Return ``mapping`` with every dotted key nested, at any level. ``path``: keys above it. ``split(written, parts)``
    is called with each path as written and as nested. Raises DottedKeyError for an empty part or a repeated value.
    """
    result: Nested = {}
    _expand_into(result, mapping, path, path, split)
    return result


def _expand_into(
    target: Nested,
    mapping: JsonObject,
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
            below = inner.setdefault(part, {})
            if not isinstance(below, dict):
                raise DottedKeyError(full[:depth], f"given twice, once as a value and once by {'.'.join(full)}")
            inner = below
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


def merge(under: JsonObject, over: JsonObject, path: tuple[str, ...] = ()) -> Nested:
    """Merge ``over`` over ``under`` (both nested, at ``path``) key by key; other values are replaced. A member of an
    :data:`EXCLUSIVE` section drops the section's other members from ``under``.
    """
    members = EXCLUSIVE.get(path, ())
    if any(over.get(member) is not None for member in members):
        under = {key: value for key, value in under.items() if key not in members or key in over}
    result: Nested = dict(under)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping):
            result[key] = merge(below if isinstance(below, Mapping) else {}, value, (*path, key))
        else:
            result[key] = value
    return result


def flatten(nested: JsonObject, prefix: str = "") -> Nested:
    """Return ``{dotted key: leaf}`` of a nested mapping, in its order. An empty mapping is a leaf."""
    flat: Nested = {}
    for key, value in nested.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{dotted}."))
        else:
            flat[dotted] = value
    return flat


def differing(first: JsonObject, second: JsonObject) -> list[str]:
    """Return the dotted keys in which two configurations differ: those of ``first``, then those of ``second`` only."""
    ours, theirs = flatten(first), flatten(second)
    return [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]


def lookup(nested: JsonObject, dotted: str, default: Json = None) -> Json:
    """Return the value under the dotted key, or ``default`` if the mapping has no such key."""
    *sections, last = dotted.split(".")
    for part in sections:
        below = nested.get(part)
        if not isinstance(below, Mapping):
            return default
        nested = below
    return nested.get(last, default)


def has(nested: JsonObject, dotted: str) -> bool:
    """Return True if there is a value under the dotted key, also if it is null."""
    *sections, last = dotted.split(".")
    section = lookup(nested, ".".join(sections)) if sections else nested
    return isinstance(section, Mapping) and last in section


def lookup_number(nested: JsonObject, dotted: str, default: float) -> float:
    """Return the number under the dotted key, or ``default`` if the key is missing or its value is not a number."""
    value = lookup(nested, dotted)
    return value if isinstance(value, int | float) else default


def edit_texts(edits: JsonObject) -> list[str]:
    """Convert ``{ranks: 16, sync: off}`` to the texts of ``harness whatif --set`` (YAML reads off as false)."""
    spelled = {True: "on", False: "off"}
    return [f"{key}={spelled[value] if isinstance(value, bool) else value}" for key, value in edits.items()]
