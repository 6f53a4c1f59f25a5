"""Finds, fingerprints and calls a function that the user wrote, named MODULE:FUNCTION in a scenario.

It is looked for in the working directory first, as Python does for a script, then in the folders of ``CODE_PATH``, then
among the installed packages.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from trainer.errors import InputError, in_words
from trainer.json_types import Json

# More folders to look in, as PYTHONPATH has them. Whatever else a process imports is not looked for there.
CODE_PATH = "HARNESS_CODE_PATH"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def named_function(name: str) -> str:
    """``name``, as pydantic validates it. Raises ValueError unless it is MODULE:FUNCTION."""
    if not _NAME.fullmatch(name):
        raise ValueError("give MODULE:FUNCTION, such as mydata:make or package.module:make")
    return name


def fingerprint(key: str, name: str, places: Sequence[str] | None = None) -> str:
    """A digest of the Python files that ``name`` comes with: of its module or, where it is in a package, of all of it.

    Nothing is imported. Raises InputError, which begins with ``key``, where no such module is found. ``places``: where
    a process in another folder would look first.
    """
    digest = hashlib.sha256()
    for path in files(key, name, places):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def call(key: str, name: str, arguments: Mapping[str, Json], offered: Mapping[str, Json]) -> Any:
    """Import ``name`` and call it with ``arguments``, and with those of ``offered`` that it has a parameter for.

    Raises InputError, one line that begins with ``key``; the traceback of the user's code goes to stderr.
    """
    function = _function(key, name)
    parameters = inspect.signature(function).parameters
    given = {one: value for one, value in offered.items() if one in parameters} | dict(arguments)
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        raise InputError(f"{key}: {name}{inspect.signature(function)} cannot be called: {error}") from error
    try:
        return function(**given)
    except Exception as error:
        raise failed(key, name, error) from error


def failed(key: str, name: str, error: Exception) -> InputError:
    """What is raised instead of an error of the user's code, whose traceback goes to stderr."""
    traceback.print_exception(error)
    return InputError(f"{key}: {name} failed: {in_words(error)}")


def _function(key: str, name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    files(key, name)  # says where it was looked for
    for place in reversed(_places()):
        if place not in sys.path:
            sys.path.insert(0, place)
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise failed(key, name, error) from error
    if not callable(found):
        raise InputError(f"{key}: {name}: {module} has no function {function}")
    return found  # type: ignore[no-any-return]


def _places() -> list[str]:
    return [str(Path.cwd()), *filter(None, os.environ.get(CODE_PATH, "").split(os.pathsep))]


def files(key: str, name: str, places: Sequence[str] | None = None) -> list[Path]:
    """The Python files that ``name`` comes with; see :func:`fingerprint`."""
    module = name.partition(":")[0]
    top, *rest = module.split(".")
    places = _places() if places is None else places
    spec = PathFinder.find_spec(top, [*places, *(path for path in sys.path if path)])
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    inside = [place for folder in folders for place in _inside(folder, rest)] if rest else []
    if spec is None or (rest and not inside) or (spec.origin is None and not folders):
        reason = f"no module {module} in {places[0]}, nor among the installed packages"
        raise InputError(f"{key}: {name}: {reason}; give MODULE:FUNCTION, importable from where harness is called")
    if not folders:
        return [Path(str(spec.origin))]
    if not (found := sorted(path for folder in folders for path in folder.rglob("*.py") if path.is_file())):
        raise InputError(f"{key}: {name}: no Python file in {folders[0]}")
    return found


def _inside(folder: Path, parts: list[str]) -> list[Path]:
    """Where a submodule of the package in ``folder`` lies."""
    at = folder.joinpath(*parts)
    return [place for place in (at.with_suffix(".py"), at) if place.exists()]
