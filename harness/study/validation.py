"""Validates records that are read back against their dataclass, and says in one line what is wrong with one."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

Record = TypeVar("Record")
_adapters: dict[type, TypeAdapter[Any]] = {}  # making one takes milliseconds


def made_of(kind: type[Record], content: dict[str, Any]) -> Record:
    """The record of ``kind``, a dataclass, that ``content`` describes; pydantic's ValidationError where it does not."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    record: Record = _adapters[kind].validate_python(content)
    return record


def first_fault(error: ValidationError) -> str:
    """Where the first thing wrong is, and what is wrong there: ``windows.0: Input should be a valid integer``."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
