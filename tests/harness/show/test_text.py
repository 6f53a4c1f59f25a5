"""Every kind that a report can state has words, and the documentation lists them."""

from __future__ import annotations

import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from harness.regress.text import CAUSES

ROOT = Path(__file__).parents[3]
JUDGE = ROOT / "harness" / "judge"


def module(name: str) -> Any:
    """A module of docs/, which is no package."""
    spec = spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    sys.modules[name] = found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


kinds, generate = module("kinds"), module("generate")
SECTIONS = kinds.SECTIONS


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_every_kind_has_words_of_its_own(section: Any) -> None:
    texts = {kind: section.render(kind) for kind in section.kinds}
    assert len(set(texts.values())) == len(texts) > 1
    for kind, text in texts.items():
        assert len(text.split()) > 2, kind
        assert text != kind
        assert not {"{", "}", "None"} & {*text, *text.split()}, kind


def test_every_literal_of_kinds_that_judge_defines_is_rendered() -> None:
    """A new Literal whose name ends in Kind needs a section, and so does each of its members."""
    rendered = {frozenset(section.kinds) for section in SECTIONS}
    found = {}
    for path in JUDGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Subscript)
                and "Literal" in ast.dump(node.value)
            ):
                (target,) = node.targets
                if isinstance(target, ast.Name) and target.id.endswith("Kind"):
                    members = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
                    found[target.id] = frozenset(map(str, members))
    assert len(found) >= 8
    assert {name for name, members in found.items() if members not in rendered} == set()


def test_the_page_lists_every_kind_of_a_report_and_of_a_regression_check() -> None:
    page = generate.sayings()
    for kind in (*(kind for section in SECTIONS for kind in section.kinds), *CAUSES):
        assert f"\n| {kind} | " in page
    assert "{" not in page
