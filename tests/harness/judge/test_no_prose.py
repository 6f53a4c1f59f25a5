"""explain and judge end in records: no function there makes a sentence. None of show reads one that was made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted(path for room in ("explain", "judge") for path in (ROOT / "harness" / room).rglob("*.py"))
SHOWN = sorted((ROOT / "harness" / "show").rglob("*.py"))
WORDS = 5  # from on which a text is prose
READS = {"startswith", "endswith", "removeprefix", "removesuffix", "lower", "upper", "title", "capitalize"}
# What may be read by its beginning or end, as it is an identifier of the results contract or of a profiler's record.
IDENTIFIERS = {"name", "key", "one", "source", "role", "control", "site", "frame", "file"}
IDENTIFIER_CALLS = {"lookup", "_file"}
# Calls that cut text apart. show may do so with identifiers and with markup, never with its own sentences.
PATTERNS = {"sub", "search", "match", "findall"}  # their text is an argument
CUTS = READS | PATTERNS | {"partition", "rpartition", "split", "rsplit", "replace"}
CAPITAL = "text[:1].upper()"  # the first letter of a sentence, written by words.capitalised
SHOWN_IDENTIFIERS = IDENTIFIERS | {
    "arm", "path", "metric", "function", "site", "threads", "command", "argument",  # of records and of the contract
    "before", "after", "first", "change", "rest", "pair", "settings",  # settings, command lines, arm names
    "headers", "hosts", "row", "head", "facts", "last", "place",  # of files, requests and addresses
    "COMMAND", "PAPER", "BAND", "GRID", "GAIN", "LOSS", "THEME", "colour",  # of colours
}  # fmt: skip
# Modules that turn text into markup, or markup into other markup: they escape letters and read no words.
MARKUP = {"tables.py", "build.py", "drawing.py"}
# Records whose texts are documentation: the rule of a doubt says in a sentence when it applies.
DOCUMENTED = {"DoubtRule"}


def kinds(tree: ast.AST) -> Iterator[str]:
    """Members of the Literal types, which are names and no text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            yield from (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))  # type: ignore[misc]


# A call site that the trainer records is an identifier as well.
KINDS = {"values of the step before"} | {
    kind for path in (ROOT / "harness").rglob("*.py") for kind in kinds(ast.parse(path.read_text()))
}


def prose(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts of at least :data:`WORDS` words but docstrings, names of kinds, and messages of what is raised."""
    spared = {id(one) for node in ast.walk(tree) if _is_spared(node) for one in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        for child in ast.iter_child_nodes(node):
            text = _text(child)
            if text is not None and id(child) not in spared and text not in KINDS and len(text.split()) >= WORDS:
                yield child.lineno, text  # type: ignore[attr-defined]


def _is_spared(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert):
        return True
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DOCUMENTED


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(one.value if isinstance(one, ast.Constant) else "x" for one in node.values)  # type: ignore[misc]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def inspected(tree: ast.AST, reads: set[str] = READS, identifiers: set[str] = IDENTIFIERS) -> Iterator[tuple[int, str]]:
    """Calls that read a text by its beginning, its end or its case, but for identifiers."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in reads):
            continue
        by_pattern = node.func.attr in PATTERNS or ast.unparse(node.func.value) == "re"
        read = node if by_pattern else node.func.value
        if not _is_identifier(read, identifiers) and ast.unparse(node) != CAPITAL:
            yield node.lineno, ast.unparse(node)


def _is_identifier(node: ast.AST, identifiers: set[str]) -> bool:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    names |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return bool(names & (identifiers | IDENTIFIER_CALLS | {"names"})) and not names & {"error", "sentence", "text"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_function_builds_or_reads_prose(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert [*prose(tree), *inspected(tree)] == []


@pytest.mark.parametrize("path", [path for path in SHOWN if path.name not in MARKUP], ids=lambda path: path.stem)
def test_show_reads_no_prose(path: Path) -> None:
    assert [*inspected(ast.parse(path.read_text()), CUTS, SHOWN_IDENTIFIERS)] == []


@pytest.mark.parametrize(
    "code",
    [
        'finding, _, figures = sentence(c).partition(" (")',
        "x = self._full.sub(lambda found: short(found[0]), text)",
        'x = percent(limit).removeprefix("under ")',
        'x = note.replace("may", "will")',
        'if part.startswith("## "):\n    x = part.split("\\n")',
    ],
)
def test_what_show_must_not_read_is_found(code: str) -> None:
    assert [*inspected(ast.parse(code), CUTS, SHOWN_IDENTIFIERS)]


@pytest.mark.parametrize(
    "code",
    [
        'x = "the interval holds one and more"',
        'def f(a):\n    return f"{a} is {a} times as fast as that"',
        'x = str(error).removeprefix("replay: ")',
        "x = sentence.lower()",
        'REASONS = {"no core": "its main thread had no core"}',
    ],
)
def test_what_builds_or_reads_prose_is_found(code: str) -> None:
    tree = ast.parse(code)
    assert [*prose(tree), *inspected(tree)]


def test_kinds_docstrings_and_refusals_are_no_prose() -> None:
    tree = ast.parse(
        'Kind = Literal["more than the data path differs"]\n'
        'def f(key):\n    """Return what nobody wrote down here before."""\n'
        '    if key.startswith("data."):\n        raise InputError("this file is not a study of ours")\n'
        '    return "more than the data path differs"\n'
    )
    assert [*prose(tree), *inspected(tree)] == []
