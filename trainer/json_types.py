"""Names plain data, whatever JSON can hold: for content whose keys another state of the code or a program defines.

A record is better wherever the keys are known. These names are for the borders: a configuration that an older version
wrote, a probe's part of a file, a user's YAML before it is checked. Unlike ``Any`` they make a reader look first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from typing_extensions import TypeAliasType  # typing has it from Python 3.12 on; pydantic, which brings it, asks for it

Json = TypeAliasType("Json", "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None")
JsonObject: TypeAlias = Mapping[str, Json]


def section(content: JsonObject, key: str) -> JsonObject:
    """The object at ``key``; an empty one where there is none."""
    found = content.get(key)
    return found if isinstance(found, Mapping) else {}


def objects(content: Json) -> list[JsonObject]:
    """The objects of a list; none where ``content`` is no list."""
    listed = content if isinstance(content, Sequence) and not isinstance(content, str) else ()
    return [one for one in listed if isinstance(one, Mapping)]


def integer(content: JsonObject, key: str) -> int:
    """The whole number at ``key``. Raises KeyError or TypeError where there is none."""
    found = content[key]
    if not isinstance(found, int):
        raise TypeError(f"{key}: expected a whole number, got {found!r}")
    return found
