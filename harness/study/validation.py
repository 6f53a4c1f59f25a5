"""Validates records that are read back against their dataclass, and says in one line what is wrong with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from trainer.errors import InputError
from trainer.files import read_json

Record = TypeVar("Record")
_adapters: dict[type, TypeAdapter[Any]] = {}  # making one takes milliseconds


def made_of(kind: type[Record], content: Mapping[str, object]) -> Record:
    """The record of ``kind``, a dataclass, that ``content`` describes; pydantic's ValidationError where it does not.

    Keys that ``kind`` does not have are left out: a later version may have added them.
    """
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # a type checker cannot ask for a dataclass
    record: Record = _adapters[kind].validate_python({key: one for key, one in content.items() if key in known})
    return record


def read_record(path: Path, kind: type[Record], schema: int) -> Record | None:
    """Read a record from a JSON file; None if there is no file. Raises InputError for a damaged one."""
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable JSON ({getattr(error, 'strerror', None) or error})") from error
    if not isinstance(content, dict) or content.get("schema") != schema:
        raise InputError(f"{path}: expected an object with schema {schema}")
    try:
        return made_of(kind, content)
    except ValidationError as error:
        raise InputError(f"{path}: {first_fault(error)}") from error


def first_fault(error: ValidationError) -> str:
    """Where the first thing wrong is, and what is wrong there: ``windows.0: Input should be a valid integer``."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
