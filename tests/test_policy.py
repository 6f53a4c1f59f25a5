"""Numbers that decide something: each name is defined once, and each policy entry says its unit, reason and test."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from tests.sources import ROOT, trees

POLICIES = [f"harness.{room}.policy" for room in ("explain", "judge", "show", "regress", "audit")]
AGENT = "harness.attach.agent"  # loads nothing of the product: it has copies


def constants(tree: ast.Module) -> Iterator[tuple[str, float]]:
    """Yield the names of module-level numbers with their values; nan stands for an expression."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        parts = [part.value for part in ast.walk(value) if isinstance(part, ast.Constant)]
        if not parts or not all(type(part) in (int, float) for part in parts) or not _is_arithmetic(value):
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                yield target.id, eval(ast.unparse(value)) if not _names(value) else float("nan")


def _is_arithmetic(value: ast.expr) -> bool:
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Name, ast.Load)
    return all(isinstance(part, allowed) for part in ast.walk(value))


def _names(value: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) for part in ast.walk(value))


def defined(modules: Mapping[str, ast.Module]) -> dict[str, list[tuple[str, float]]]:
    found = defaultdict(list)
    for module, tree in modules.items():
        for name, value in constants(tree):
            found[name].append((module, value))
    return found


def test_each_number_has_a_name_of_its_own() -> None:
    product = defined({name: tree for name, tree in trees().items() if not name.startswith(AGENT)})
    assert {name: places for name, places in product.items() if len(places) > 1} == {}
    for name, copies in defined({name: tree for name, tree in trees().items() if name.startswith(AGENT)}).items():
        values = {value for _, value in [*copies, *product.get(name, [])]}
        assert len(values) == 1, name


def test_a_name_that_two_modules_define_is_found() -> None:
    modules = {"one": ast.parse("MOST_STEPS = 2 ** 4"), "two": ast.parse("MOST_STEPS: float = 5 * 1.0  # steps")}
    assert defined(modules)["MOST_STEPS"] == [("one", 16), ("two", 5.0)]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_entry_says_its_unit_its_reason_and_its_test(policy: str) -> None:
    body = trees()[policy].body
    entries = [place for place, node in enumerate(body) if isinstance(node, ast.Assign | ast.AnnAssign)]
    assert entries
    for place in entries:
        name = ast.unparse(body[place]).partition(" ")[0].rstrip(":")
        text = body[place + 1].value if place + 1 < len(body) else None  # type: ignore[attr-defined]
        assert isinstance(text, ast.Constant), name
        guards = re.findall(r"tests/\S+\.py", text.value)
        assert guards, name
        assert all((ROOT / guard).is_file() for guard in guards), (name, guards)
