"""The measures of the house count what they name."""

from __future__ import annotations

import ast

import pytest

from tests.measures import code_lines, imported_inside, rooms, table
from tests.sources import MODULES, reached


def test_code_is_what_is_neither_blank_nor_comment_nor_docstring() -> None:
    source = '''"""A module.

    With two paragraphs.
    """
    # a comment
    NAMES = (
        "one",  # a comment beside code

    )


    def f():
        "A docstring."
        return """two
    lines"""
    '''.replace("\n    ", "\n")
    assert code_lines(source) == 6


@pytest.mark.parametrize(("source", "packages"), [
    ("import json", []),
    ("def f():\n    import json, torch.optim", ["json"]),
    ("class C:\n    def f(self):\n        def g():\n            from harness.study import store", ["harness"]),
    ("async def f():\n    from optuna import create_study", []),
])  # fmt: skip
def test_an_import_inside_a_function_counts_once(source: str, packages: list[str]) -> None:
    assert list(imported_inside(ast.walk(ast.parse(source)))) == packages


def test_the_rooms_add_up_and_stand_in_a_table() -> None:
    files = {name: path for name, path in MODULES.items() if name.startswith(("harness.machine", "harness.study"))}
    *by_room, whole = rooms(files)
    assert [row[0] for row in by_room] == ["harness/machine", "harness/study"]
    assert whole == ("all", *(sum(column) for column in list(zip(*by_room, strict=True))[1:]))
    assert whole[3] == len(files)
    assert 0 < whole[2] < whole[1]
    assert list(table(("room", "lines"), [("all", 1200)])) == ["| room | lines |", "| --- | ---: |", "| all | 1,200 |"]


def test_a_module_reaches_what_it_imports_and_what_that_imports() -> None:
    assert {"harness.study.contract", "trainer.errors"} <= reached("harness.study.store")
    assert "harness.launch.study" not in reached("harness.study.store")
