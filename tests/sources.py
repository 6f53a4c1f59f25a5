"""The product's files, parsed once for all tests that read them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FUNCTION_LINES_MAX, FIELDS_MAX = 60, 20  # A longer function or class is two things.


def modules() -> dict[str, Path]:
    """Return every module of harness/ and trainer/ by its dotted name."""
    found = {}
    for top in ("harness", "trainer"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache  # not at import: each worker that collects the tests would parse every file
def trees() -> Mapping[str, ast.Module]:
    """Return the syntax tree of every module. The garbage collector leaves them alone: half of the time of parsing."""
    gc.disable()
    try:
        return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """Return every node of a module."""
    return tuple(ast.walk(trees()[module]))


def imports(module: str, *, types: bool = True) -> set[str]:
    """Return the modules of this project that the module imports, wherever in it, and other names as written.

    ``types``: also those that only a type checker imports.
    """
    found = set()
    for node in set(nodes(module)) - (set() if types else _for_types(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{module}:{node.lineno}: a relative import hides its arrow: write it in full")
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


def _for_types(module: str) -> set[ast.AST]:
    """Return the nodes under ``if TYPE_CHECKING``."""
    checks = (node for node in nodes(module) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {node for check in checks for one in check.body for node in ast.walk(one)}


@cache
def graph() -> dict[str, set[str]]:
    """Return the modules of this project that each module imports."""
    return {name: {one for one in imports(name) if one in MODULES and one != name} for name in MODULES}


def reached(module: str) -> set[str]:
    """Return the modules that ``module`` can import, itself included. Imports for type checkers do not count."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [one for one in imports(name, types=False) if one in MODULES]
    return found


def room_of(module: str) -> str:
    top, _, rest = module.partition(".")
    return "trainer" if top == "trainer" else rest.partition(".")[0] or "cli"


class Size(NamedTuple):
    """Size of a function or a class: lines and parameters of the one, fields of the other."""

    name: str
    lines: int = 0
    parameters: int = 0
    fields: int = 0


def sizes(nodes: Iterable[ast.AST]) -> Iterator[Size]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            parameters = len([name for name in given if name not in ("self", "cls")])
            yield Size(node.name, (node.end_lineno or node.lineno) - node.lineno + 1, parameters)
        elif isinstance(node, ast.ClassDef):
            yield Size(node.name, fields=len(fields_of(node)))


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return the fields that a class declares, or that its methods set on ``self``."""
    fields = {name_of(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and name_of(one.value) == "self":
            fields.add(one.attr)
    return fields


def name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
