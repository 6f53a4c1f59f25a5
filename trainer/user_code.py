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
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from trainer.errors import InputError, in_words
from trainer.json_types import Json

# More folders to look in, as PYTHONPATH has them. Whatever else a process imports is not looked for there.
CODE_PATH = "HARNESS_CODE_PATH"
_OURS = [Path(__file__).resolve().parents[1] / name for name in ("harness", "trainer")]
_INSTALLED = {"site-packages", "dist-packages"}
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def named_function(name: str) -> str:
    """``name``, as pydantic validates it. Raises ValueError unless it is MODULE:FUNCTION."""
    if not _NAME.fullmatch(name):
        raise ValueError("give MODULE:FUNCTION, such as mydata:make or package.module:make")
    return name


def fingerprint(key: str, name: str, places: Sequence[str] | None = None, others: Iterable[str] = ()) -> str:
    """A digest of the Python files that ``name`` comes with: of its module or, where it is in a package, of all of it.

    Nothing is imported here. Raises InputError, which begins with ``key``, where no such module is found. ``places``:
    where a process in another folder would look first. ``others``: files that it imports besides (:func:`own_files`).
    """
    digest = hashlib.sha256()
    for path in sorted({path.resolve() for path in (*map(Path, others), *files(key, name, places))}):
        try:
            content = path.read_bytes()
        except OSError:  # one of the others that is gone
            content = b""
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def own_files(folder: Path) -> list[str]:
    """The files in ``folder`` that this process has imported modules from: the user's, not libraries' or ours."""
    place = folder.resolve()
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    found = {
        path
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str) and (path := Path(file).resolve()).is_file()
        if path.is_relative_to(place) and not any(path.is_relative_to(one) for one in (library, *_OURS))
        if not _INSTALLED.intersection(path.parts)
    }
    return sorted(map(str, found))


def call(key: str, name: str, arguments: Mapping[str, Json], offered: Mapping[str, object]) -> Any:
    """Import ``name`` and call it with ``arguments``, and with those of ``offered`` that it has a parameter for.

    Raises InputError, one line that begins with ``key``; the traceback of the user's code goes to stderr.
    """
    function = find(key, name)
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


def find(key: str, name: str) -> Callable[..., Any]:
    """Import ``name``. Raises InputError, one line that begins with ``key``, where that fails."""
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
