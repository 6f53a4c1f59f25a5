"""regress and audit end in records: but for the text module of each room, no function builds or reads a sentence."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.harness.judge.test_no_prose import inspected, prose

ROOT = Path(__file__).parents[3]
# A module that refuses wrong files: its texts are messages of an InputError, made before it is raised.
REFUSALS = {"text.py", "load.py", "schema.py"}
MESSAGES = {"InputError", "NoBaselineError"}  # what is made and raised elsewhere, too
NAMES = {"duration against steps x step time", "restore it from version control, or delete it to start a new baseline"}
FILES = sorted(path for room in ("regress", "audit") for path in (ROOT / "harness" / room).glob("*.py"))


def built_or_read(source: str) -> list[tuple[int, str]]:
    tree = ast.parse(source)
    refused = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MESSAGES
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    texts = [one for one in prose(tree) if one[0] not in refused and one[1] not in NAMES]
    return texts + [one for one in inspected(tree) if not one[1].startswith("arm.")]  # names of arms end in their side


@pytest.mark.parametrize("path", [path for path in FILES if path.name not in REFUSALS], ids=str)
def test_no_function_builds_or_reads_prose(path: Path) -> None:
    assert built_or_read(path.read_text()) == []


def test_prose_beside_a_refusal_is_found() -> None:
    assert built_or_read('print("both sides are one and the same commit")')
    assert built_or_read('if line.startswith("losses differ"): pass')
    assert not built_or_read('error = InputError("give one of the arms of this file")')


def test_every_cause_of_undecided_has_a_text() -> None:
    """A kind without one would end a check with a KeyError."""
    from typing import get_args

    from harness.regress.decision import Cause
    from harness.regress.text import CAUSES

    kinds = {kind for part in get_args(Cause) for kind in get_args(part)} or set(get_args(Cause))
    assert set(CAUSES) == kinds
    assert all(one.cause and (one.remedy or kind == "not compared") for kind, one in CAUSES.items())
