"""Finds the packages of a state of the code: the dependencies in its pyproject.toml, and the pins of its constraints.

Two states with equal packages share one environment. Only packages of a run count, not those of tests and linters: the
project's dependencies and, transitively, their dependencies.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

CONSTRAINTS = "constraints.txt"
# A requirement or a pin: its name, optional extras, and the rest (a marker follows a semicolon).
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)\])?([^#]*)")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True)
class Packages:
    """Packages that a run of one state of the code needs. Two states with equal packages run in one environment."""

    asked: tuple[str, ...]  # requirements as written in the project
    pins: tuple[str, ...]  # lines of its constraints for these packages and their dependencies


def packages_of(folder: Path) -> Packages | None:
    """Return the packages that the project in ``folder`` requires.

    None if its pyproject.toml lists none or cannot be read.
    """
    try:
        dependencies = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    except (OSError, KeyError, TypeError, ValueError):  # ValueError: invalid TOML or UTF-8
        return None
    if not isinstance(dependencies, list):
        return None
    asked = tuple(sorted(str(dependency) for dependency in dependencies))
    return Packages(asked, tuple(sorted(_pins(folder / CONSTRAINTS, needed(asked)))))


def _pins(constraints: Path, needed: frozenset[str] | None) -> set[str]:
    lines = constraints.read_text(errors="replace").splitlines() if constraints.is_file() else []
    pins = {line.partition("#")[0].strip() for line in lines} - {""}
    return {pin for pin in pins if needed is None or (name := _name(pin)) is None or name in needed}


def needed(asked: Iterable[str]) -> frozenset[str] | None:
    """Return the names of all packages that ``asked`` requires, transitively, as installed here.

    None if one is not installed, because its dependencies are then unknown.
    This also holds for another state with equal pins. A package version with other requirements has another pin, which
    already makes the states differ.
    """
    names: set[str] = set()
    visited: set[tuple[str, frozenset[str]]] = set()
    todo = list(asked)
    while todo:
        requirement = todo.pop()
        if (match := _REQUIREMENT.match(requirement)) is None:
            return None
        name, extras = (
            _normal(match[1]),
            frozenset(_normal(extra) for extra in (match[2] or "").split(",") if extra.strip()),
        )
        if (name, extras) in visited:
            continue
        visited.add((name, extras))
        try:
            dependencies = requires(name) or []
        except PackageNotFoundError:
            if ";" in requirement:  # for another platform or Python
                continue
            return None
        names.add(name)
        todo += [dependency for dependency in dependencies if _applies(dependency, extras)]
    return frozenset(names)


def _applies(requirement: str, extras: frozenset[str]) -> bool:
    """True if a package's ``requirement`` holds always, or for one of the requested ``extras``."""
    required = {_normal(extra) for extra in _EXTRA.findall(requirement)}
    return not required or bool(required & extras)


def _name(pin: str) -> str | None:
    match = _REQUIREMENT.match(pin)
    return None if match is None else _normal(match[1])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
