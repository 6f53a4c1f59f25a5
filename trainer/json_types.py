"""Names types of plain JSON, for content whose keys another program or version defines: a reader checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from typing_extensions import TypeAliasType  # typing has it from Python 3.12 on; pydantic, which brings it, asks for it

Json = TypeAliasType("Json", "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None")
JsonObject: TypeAlias = Mapping[str, Json]


def section(content: JsonObject, key: str) -> JsonObject:
    """Return the object at ``key``; empty if there is none, or a value of another kind."""
    value = content.get(key)
    return value if isinstance(value, Mapping) else {}


def objects(content: Json) -> list[JsonObject]:
    """Return the items of a list that are objects; empty if ``content`` is no list."""
    listed = content if isinstance(content, Sequence) and not isinstance(content, str) else ()
    return [item for item in listed if isinstance(item, Mapping)]


def integer(content: JsonObject, key: str) -> int:
    """Return the whole number at ``key``. Raises KeyError or TypeError for other values."""
    value = content[key]
    if not isinstance(value, int):
        raise TypeError(f"{key}: expected a whole number, got {value!r}")
    return value
