"""Every kind that a report can state has words, and the documentation lists them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from harness.regress.text import CAUSES
from harness.show.text.examples import SECTIONS, KindsSection

JUDGE = Path(__file__).parents[3] / "harness" / "judge"
EVERY = [(section, kind) for section in SECTIONS for kind in section.kinds]


@pytest.mark.parametrize(("section", "kind"), EVERY, ids=[f"{section.title}: {kind}" for section, kind in EVERY])
def test_every_kind_has_words_of_its_own(section: KindsSection, kind: str) -> None:
    text = section.render(kind)
    assert len(text.split()) > 2
    assert text != kind
    assert not {"{", "}", "None"} & {*text, *text.split()}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_no_two_kinds_of_a_section_say_the_same(section: KindsSection) -> None:
    texts = [section.render(kind) for kind in section.kinds]
    assert len(texts) > 1
    assert len(set(texts)) == len(texts)


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
    spec = importlib.util.spec_from_file_location("generate", JUDGE.parents[1] / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    page = generate.sayings()
    for kind in (*(kind for section in SECTIONS for kind in section.kinds), *CAUSES):
        assert f"\n| {kind} | " in page
    assert "{" not in page
