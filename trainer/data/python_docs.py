"""Collects the builtin corpus from the standard library's sources, without an import, ordered by hash."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import InputError

PYTHON_DOCS_RECIPE = 1  # part of the cache key; raise it when the collected documents change

_SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}
_SKIPPED_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize", "config-")  # files that describe this machine
_SHORTEST_DOCSTRING = 200  # characters; shorter stubs ("Return True if ...") would outnumber everything else
_FEWEST_DOCUMENTS = 100
_HOLD_STATEMENTS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields of ast's nodes


def stdlib() -> Path:
    """Return the folder of the standard library's sources."""
    return Path(sysconfig.get_paths()["stdlib"])


def collect(root: Path) -> list[str]:
    """Return the documents below ``root``, without duplicates, by hash. Raises InputError if there are too few."""
    documents: dict[bytes, str] = {}
    for text in _documents(root):
        try:
            encoded = text.encode()
        except UnicodeEncodeError:  # A docstring with a lone surrogate has no UTF-8 form.
            continue
        documents.setdefault(hashlib.sha256(encoded).digest(), text)
    if len(documents) < _FEWEST_DOCUMENTS:
        raise InputError(
            f"data.corpus.builtin: python-docs found only {len(documents)} documents in {root}; "
            "this Python comes without its sources, give data.corpus.path instead"
        )
    return [documents[key] for key in sorted(documents)]


def _documents(root: Path) -> Iterator[str]:
    for path in _sources(root):
        try:
            with tokenize.open(path) as file:  # Follows the coding line.
                source = file.read()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Old modules have invalid escapes.
                tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError):  # Some sources are broken on purpose (lib2to3's test data).
            continue
        if path.parent.name == "pydoc_data" and path.name == "topics.py":
            yield from _strings_of_mapping(tree)
            continue
        if source.strip():
            yield source.strip()
        yield from _docstrings(tree)


def _sources(root: Path) -> Iterator[Path]:
    for entry in sorted(root.iterdir(), key=lambda path: path.name):
        if entry.name.startswith(_SKIPPED_PREFIXES) or entry.is_symlink():
            continue
        if entry.is_dir() and entry.name not in _SKIPPED_FOLDERS:
            yield from _sources(entry)
        elif entry.suffix == ".py":
            yield entry


def _strings_of_mapping(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for value in statement.value.values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value.strip()


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of modules, classes and functions of at least :data:`_SHORTEST_DOCSTRING` characters."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        for name in _HOLD_STATEMENTS:
            pending += getattr(node, name, ())
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text and len(text) >= _SHORTEST_DOCSTRING:
                yield text.strip()
