"""The product's files, parsed once for all tests that read them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
