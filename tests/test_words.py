"""The words of the glossary hold in the code: no identifier of harness/ or trainer/ uses a word that it replaced."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.sources import MODULES, ROOT, nodes

# Replaced word -> what is said instead (docs/concepts/glossary.md).
REPLACED = {
    **dict.fromkeys(("contest", "contests"), "comparison"),
    **dict.fromkeys(("twin", "twins"), "A/A control"),
    **dict.fromkeys(("turn", "turns"), "repetition"),
    **dict.fromkeys(("settle", "settling"), "warm-up"),
    "patience": "timeout",
    **dict.fromkeys(("licence", "license", "licensed"), "validation error, within tolerance"),
    **dict.fromkeys(("starve", "starved", "starves", "starvation"), "device idle"),
    "contended": "run-queue delay",
    **dict.fromkeys(("tell", "tells", "told", "untold"), "report, reported, not recorded"),
    "said": "message",
    "words": "text, message",
    "looked": "profiled",
    "barren": "empty epochs",
    "outlook": "what-if prediction",
    **dict.fromkeys(("beside", "evidence"), "validation arms, results"),
}
# The same of names as a whole, whose parts say other things elsewhere (local names, the word of a device's stream).
REPLACED_NAMES = {
    "Attached": "probe set, attached program",
    "Found": "result",
    "Evidence": "probe results",
    "Composition": "data pipeline",
    "DocumentOrder": "sharded sampler",
    "left_over": "remainder",
    "go_on": "resume",
    "stand_still": "synchronize",
    "catch_up": "drain to one step",
}
# Names that stay, each with its reason.
SCHEMA = "a name of the results contract (schema 1), or the field that carries it"
AUDIT = "a key of `harness audit --json`"
ALLOWED = {
    "contended_ns": SCHEMA,
    "contended_ms": SCHEMA,
    "device_starved_ms": SCHEMA,
    "starved_ms": SCHEMA,
    "unedited_starved_ms": "a key of `harness whatif --json`",
    "contest": SCHEMA,
    "twin_logs": "a key of baseline files in git",
    "turn": "a column of the steps table (schema 1), and a key of a message between launcher and run",
    "settle": "a key of a message between launcher and run",
    "tell": "a method of files",
    "break_long_words": "an argument of textwrap.wrap",
    "evidence": AUDIT,
    "in_words": "trainer.errors: formats an error as one line, called by every state of the code",
    "turn_left": "calibrate: transposes the left matrix",
    "turn_right": "calibrate: transposes the right matrix",
}
# The modules in which an allowed name may stand, where it would be a bad name elsewhere.
ONLY_IN = {
    "turn": {"harness/launch/protocol.py", "harness/show/timeline/model.py"},
    "settle": {"harness/launch/protocol.py"},
    "evidence": {"harness/audit/checkup.py", "harness/audit/report.py", "harness/audit/text.py"},
}


@cache
def parts(identifier: str) -> list[str]:
    """Split an identifier at underscores and capitals: ``_TurnTotals`` is turn, totals."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def identifiers(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield every name that the code gives or uses, with its line."""
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            yield str(node.arg), node.lineno
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno


def replaced_words(names: Iterable[tuple[str, int]], path: str) -> list[str]:
    """One line for each identifier with a replaced word: where it is, the word, and what to say."""
    found = []
    for name, line in names:
        allowed = name in ALLOWED and path in ONLY_IN.get(name, {path})
        if (whole := name.lstrip("_")) in REPLACED_NAMES:
            found.append(f"{path}:{line}: {name}: say {REPLACED_NAMES[whole]}")
        if words := [] if allowed else [part for part in parts(name) if part in REPLACED]:
            found.append(f"{path}:{line}: {name}: say {REPLACED[words[0]]}, not {words[0]}")
    return found


@cache
def used() -> dict[str, list[tuple[str, int]]]:
    """Return the identifiers of each file of the product."""
    return {str(path.relative_to(ROOT)): list(identifiers(nodes(module))) for module, path in MODULES.items()}


def test_no_identifier_uses_a_replaced_word() -> None:
    found = [line for path, names in used().items() for line in replaced_words(names, path)]
    assert not found, "\n".join(found)


def test_no_module_is_named_by_a_replaced_word() -> None:
    named = {path for path in used() if set(parts(Path(path).stem)) & set(REPLACED)}
    assert named == {"harness/show/words.py"}  # the house's plan names it: how numbers are worded


def test_every_allowed_name_is_still_needed() -> None:
    assert set(ALLOWED) <= {name for names in used().values() for name, _ in names}


@pytest.mark.parametrize("source", [
    "class TurnTotals: ...",
    "def by_turn(): ...",
    "total = run.turns",
    "def f(twin_ms): ...",
    "f(licensed=True)",
    "said = []",
    "one.words",
    "class Found: ...",
    "self._go_on()",
])  # fmt: skip
def test_the_check_finds_each_kind_of_identifier(source: str) -> None:
    assert len(replaced_words(identifiers(ast.walk(ast.parse(source))), "harness/some.py")) == 1


def test_a_word_inside_another_word_is_no_replaced_word() -> None:
    tree = ast.parse("def returned(keywords): return keywords.sword")
    assert not replaced_words(identifiers(ast.walk(tree)), "harness/some.py")
