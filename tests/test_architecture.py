"""The rooms of the house and the arrows between them, read from the imports themselves (see docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A room may import the rooms below its own layer, never one of its own layer or above.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("trainer",),
    ("study", "traces", "machine"),
    ("probes", "scenario"),
    ("analysis",),
    ("launch",),
    ("timeline",),
    ("report",),
    ("regression", "audit"),
    ("commands", "testing"),
    ("cli",),
    ("__main__",),
)
LAYER_OF = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms}
TRAINER_ROOMS = {"compute", "devices", "data"}
MOST_ROOMS = 16
CLOCKS_AND_FILES = {"time", "datetime", "os", "pathlib", "io", "subprocess", "socket", "shutil", "tempfile"}


def modules() -> dict[str, Path]:
    """Every module of harness/ and trainer/ by its dotted name."""
    found = {}
    for top in ("harness", "trainer"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Modules of this project that the file imports, wherever in it, and names of others as they are written."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found


@cache  # not at import: each worker that collects the tests would parse every file
def graph() -> dict[str, set[str]]:
    return {name: {one for one in imports(path) if one in MODULES and one != name} for name, path in MODULES.items()}


def room_of(module: str) -> str:
    top, _, rest = module.partition(".")
    return "trainer" if top == "trainer" else rest.partition(".")[0] or "cli"


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = stack.index(node)
            component = stack[place:]
            del stack[place:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_no_module_imports_itself_in_a_circle() -> None:
    assert circles(graph()) == []


def test_no_room_imports_itself_in_a_circle() -> None:
    """Rooms are the folders of harness/ and trainer/; a file at a root is a room by itself."""

    def folder(module: str) -> str:
        return ".".join(module.split(".")[:2])

    rooms: dict[str, set[str]] = {folder(module): set() for module in graph()}
    for module, others in graph().items():
        rooms[folder(module)] |= {folder(other) for other in others} - {folder(module)}
    assert circles(rooms) == []


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name.startswith("harness.")))
def test_arrows_point_downward(module: str) -> None:
    room = room_of(module)
    for other in graph()[module]:
        if room_of(other) != room and other != "harness":
            assert LAYER_OF[room_of(other)] < LAYER_OF[room], f"{module} imports {other}"


def test_every_room_has_a_layer_and_there_are_few() -> None:
    folders = {path.name for path in (ROOT / "harness").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(LAYER_OF) - {"trainer", "cli", "__main__"}
    inside = {path.name for path in (ROOT / "trainer").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert inside == TRAINER_ROOMS
    assert len(folders) + len(inside) <= MOST_ROOMS


def test_nothing_lies_at_the_root_but_the_entrance() -> None:
    assert {path.name for path in (ROOT / "harness").glob("*.py")} == {"__init__.py", "__main__.py", "cli.py"}


def test_the_trainer_knows_nothing_of_the_harness() -> None:
    for name, path in MODULES.items():
        if name.startswith("trainer"):
            assert not any(one.split(".")[0] == "harness" for one in imports(path)), path


def test_analysis_touches_no_clock_and_no_file() -> None:
    for path in (ROOT / "harness" / "analysis").rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & CLOCKS_AND_FILES, path
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not any(isinstance(call, ast.Name) and call.id == "open" for call in calls), path


def test_nothing_a_user_s_run_waits_for_is_imported_by_the_entrance() -> None:
    """``harness --help`` answers without pydantic, numpy or torch: what commands need, they import when called."""
    top_level = [
        node
        for node in ast.parse((ROOT / "harness" / "cli.py").read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {alias.name for node in top_level if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in top_level if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in names} & {"torch", "numpy", "pydantic", "pyarrow", "yaml"}


def test_a_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}
