"""Finds, fingerprints and calls a user's MODULE:FUNCTION: in the working directory, CODE_PATH, or packages."""

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

# Further folders to search, in the format of PYTHONPATH. Other imports of a process do not use them.
CODE_PATH = "HARNESS_CODE_PATH"
_OURS = [Path(__file__).resolve().parents[1] / name for name in ("harness", "trainer")]
_INSTALLED = {"site-packages", "dist-packages"}
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def named_function(name: str) -> str:
    """Return ``name``, as a validator of pydantic. Raises ValueError unless it is MODULE:FUNCTION."""
    if not _NAME.fullmatch(name):
        raise ValueError("give MODULE:FUNCTION, such as mydata:make or package.module:make")
    return name


def fingerprint(key: str, name: str, places: Sequence[str] | None = None, others: Iterable[str] = ()) -> str:
    """Return a digest of ``name``'s files and ``others``, without import. Raises InputError, naming ``key``."""
    digest = hashlib.sha256()
    for path in sorted({path.resolve() for path in (*map(Path, others), *files(key, name, places))}):
        try:
            content = path.read_bytes()
        except OSError:  # one of ``others`` that no longer exists
            content = b""
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def own_files(folder: Path) -> list[str]:
    """Return the sorted files below ``folder`` that are imported modules, but for packages and this harness."""
    place = folder.resolve()
    library = Path(sysconfig.get_paths()["stdlib"]).resolve()
    paths = {
        path
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str) and (path := Path(file).resolve()).is_file()
        if path.is_relative_to(place) and not any(path.is_relative_to(excluded) for excluded in (library, *_OURS))
        if not _INSTALLED.intersection(path.parts)
    }
    return sorted(map(str, paths))


def call(key: str, name: str, arguments: Mapping[str, Json], offered: Mapping[str, object]) -> Any:
    """Import and call ``name``, with those of ``offered`` that it takes; InputError with ``key``, one line."""
    function = find(key, name)
    parameters = inspect.signature(function).parameters
    keywords = {parameter: value for parameter, value in offered.items() if parameter in parameters} | dict(arguments)
    try:
        inspect.signature(function).bind(**keywords)
    except TypeError as error:
        raise InputError(f"{key}: {name}{inspect.signature(function)} cannot be called: {error}") from error
    try:
        return function(**keywords)
    except Exception as error:
        raise failed(key, name, error) from error


def failed(key: str, name: str, error: Exception) -> InputError:
    """Print the traceback of an error in the user's code to stderr. Return the InputError to raise instead."""
    traceback.print_exception(error)
    return InputError(f"{key}: {name} failed: {in_words(error)}")


def find(key: str, name: str) -> Callable[..., Any]:
    """Import and return the function ``name``. Raises InputError, one line that begins with ``key``, if that fails."""
    module, _, function = name.partition(":")
    files(key, name)  # Raises an error that names the searched folders.
    for place in reversed(_places()):
        if place not in sys.path:
            sys.path.insert(0, place)
    try:
        member = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise failed(key, name, error) from error
    if not callable(member):
        raise InputError(f"{key}: {name}: {module} has no function {function}")
    return member  # type: ignore[no-any-return]


def _places() -> list[str]:
    return [str(Path.cwd()), *filter(None, os.environ.get(CODE_PATH, "").split(os.pathsep))]


def files(key: str, name: str, places: Sequence[str] | None = None) -> list[Path]:
    """Return the files of ``name``'s module or package, ``places`` searched first; InputError, naming ``key``."""
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
    if not (paths := sorted(path for folder in folders for path in folder.rglob("*.py") if path.is_file())):
        raise InputError(f"{key}: {name}: no Python file in {folders[0]}")
    return paths


def _inside(folder: Path, parts: list[str]) -> list[Path]:
    """Return the existing paths (file, folder) of a submodule, named by ``parts``, in the package ``folder``."""
    module_path = folder.joinpath(*parts)
    return [place for place in (module_path.with_suffix(".py"), module_path) if place.exists()]
