"""The rooms of the house and the arrows between them, read from the imports (see docs/internals/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest

from tests.sources import (
    FIELDS_MAX,
    FUNCTION_LINES_MAX,
    MODULES,
    ROOT,
    graph,
    imports,
    name_of,
    nodes,
    reached,
    room_of,
    sizes,
    trees,
)

# A room may import the rooms below its own layer, never one of its own layer or above.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("trainer",),
    ("study", "machine"),
    ("probes", "scenario"),
    ("explain",),
    ("judge",),
    ("launch",),
    ("attach",),
    ("show",),
    ("regress", "audit", "sweep"),
    ("commands", "testing"),
    ("cli",),
    ("__main__",),
)
LAYER_OF = {room: layer for layer, rooms in enumerate(LAYERS) for room in rooms}
TRAINER_ROOMS = {"compute", "devices", "data"}
MOST_ROOMS = 17
REACHED_BY_PAGE_MAX = 90  # modules that building a page can import
# Rooms whose functions and classes are held small.
SMALL_ROOMS = ("attach", "launch")
PARAMETERS_MAX = 7
CLOCKS_AND_FILES = {"time", "datetime", "os", "pathlib", "io", "subprocess", "socket", "shutil", "tempfile"}


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


def test_arrows_point_downward() -> None:
    arrows = [(module, other) for module in MODULES if module.startswith("harness.") for other in graph()[module]]
    crossing = [(one, other) for one, other in arrows if room_of(other) != room_of(one) and other != "harness"]
    assert crossing
    assert [arrow for arrow in crossing if LAYER_OF[room_of(arrow[1])] >= LAYER_OF[room_of(arrow[0])]] == []


def test_every_room_has_a_layer_and_there_are_few() -> None:
    folders = {path.name for path in (ROOT / "harness").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(LAYER_OF) - {"trainer", "cli", "__main__"}
    inside = {path.name for path in (ROOT / "trainer").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert inside == TRAINER_ROOMS
    assert len(folders) + len(inside) <= MOST_ROOMS


def test_nothing_lies_at_the_root_but_the_entrance() -> None:
    assert {path.name for path in (ROOT / "harness").glob("*.py")} == {"__init__.py", "__main__.py", "cli.py"}


def test_the_trainer_knows_nothing_of_the_harness() -> None:
    for name in MODULES:
        if name.startswith("trainer"):
            assert not any(one.split(".")[0] == "harness" for one in imports(name)), name


def test_explain_and_judge_touch_no_clock_and_no_file() -> None:
    analysis = [name for name in MODULES if room_of(name) in ("explain", "judge")]
    assert analysis
    for name in analysis:
        assert not {one.split(".")[0] for one in imports(name)} & CLOCKS_AND_FILES, name
        calls = [node.func for node in nodes(name) if isinstance(node, ast.Call)]
        assert not any(isinstance(call, ast.Name) and call.id == "open" for call in calls), name


def test_the_page_builder_reaches_neither_launcher_nor_the_trainers_data() -> None:
    found = reached("harness.show.build")
    below = ("harness.launch", "harness.attach", "harness.machine.gpu", "trainer.data", "trainer.model")
    assert not {module for module in found if module.startswith(below)}
    assert len(found) <= REACHED_BY_PAGE_MAX


def test_one_module_opens_every_training() -> None:
    opening = {"trainer.data.loader.open_batches", "trainer.compute.build.build_compute", "trainer.loop.train"}
    trains = {name for name in MODULES if name.startswith("harness.") and opening & written(name)}
    assert trains == {"harness.launch.opener"}


def written(module: str) -> set[str]:
    """Every name that the module imports from another, with that module."""
    froms = (node for node in nodes(module) if isinstance(node, ast.ImportFrom))
    return {f"{node.module}.{alias.name}" for node in froms for alias in node.names}


def too_large(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield functions and classes that are larger than the limits, with their sizes."""
    for size in sizes(nodes):
        if size.lines > FUNCTION_LINES_MAX or size.parameters > PARAMETERS_MAX:
            yield f"{size.name}: {size.lines} lines, {size.parameters} parameters"
        elif size.fields > FIELDS_MAX:
            yield f"{size.name}: {size.fields} fields"


def test_functions_and_classes_are_small() -> None:
    for name in MODULES:
        if room_of(name) in SMALL_ROOMS:
            assert not list(too_large(nodes(name))), name


@pytest.mark.parametrize(("source", "sizes"), [
    ("def f(self, a, b, c, d, *, e, g, h): ...", []),
    ("def f(a, b, c, d, *, e, g, h, i): ...", ["f: 1 lines, 8 parameters"]),
    ("def f():\n" + "    pass\n" * 59, []),
    ("def f():\n" + "    pass\n" * 60, ["f: 61 lines, 0 parameters"]),
    ("class C:\n" + "".join(f"    a{n}: int\n" for n in range(20)), []),
    ("class C:\n    a: int\n    def f(self):\n" + "".join(f"        self.b{n}, x = 1, 2\n" for n in range(20)),
     ["C: 21 fields"]),
])  # fmt: skip
def test_a_large_function_or_class_is_found(source: str, sizes: list[str]) -> None:
    assert list(too_large(ast.walk(ast.parse(source)))) == sizes


def test_nothing_a_user_s_run_waits_for_is_imported_by_the_entrance() -> None:
    """``harness --help`` answers without pydantic, numpy or torch: what commands need, they import when called."""
    top_level = [node for node in trees()["harness.cli"].body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top_level if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in top_level if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in names} & {"torch", "numpy", "pydantic", "pyarrow", "yaml"}


# Dataclasses that change after they were made, each with its reason. All others are frozen.
COLLECTING = "collects what comes in, within its module"
BUILT = "rows are added while the timeline is built, which one room does from beginning to end"
MUTABLE = {
    "harness.attach.agent.batches._Batches": COLLECTING,
    "harness.attach.agent.boundaries._Measuring": COLLECTING,
    "harness.attach.agent.boundaries._Optimizers": COLLECTING,
    "harness.attach.agent.boundaries._Steps": COLLECTING,
    "harness.attach.agent.on_demand._Request": COLLECTING,
    "harness.attach.agent.phases._Phases": COLLECTING,
    "harness.attach.alternation._Rank": COLLECTING,
    "harness.attach.alternation.AlternatingCommand": "a process that is started, suspended and ended",
    "harness.attach.hooks.RecordedBlock": "what a with block gives before it knows its study",
    "harness.attach.totals.DataWork": COLLECTING,
    "harness.attach.totals.ExcludedSteps": COLLECTING,
    "harness.attach.totals.FirstStep": COLLECTING,
    "harness.attach.totals.Looks": COLLECTING,
    "harness.attach.totals.StepLengths": COLLECTING,
    "harness.attach.totals.StepTotals": COLLECTING,
    "harness.attach.totals.ThreadTime": COLLECTING,
    "harness.probes.ledger.rows._Open": COLLECTING,
    "harness.scenario.yaml.Document": "a file and its marks, which --set and extends are merged into",
    "harness.show.timeline.model.Counter": BUILT,
    "harness.show.timeline.model.Process": BUILT,
    "harness.show.timeline.model.Thread": BUILT,
    "harness.show.timeline.model.Trace": BUILT,
    "trainer.data.batch.Batch": "its tensors are pinned in place, as DataLoader's pin thread asks for",
}


def test_records_are_frozen() -> None:
    found = set()
    for name in MODULES:
        for node in nodes(name):
            for one in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                text = ast.unparse(one)
                if text.startswith("dataclass") and "frozen=True" not in text:
                    found.add(f"{name}.{node.name}")
    assert found == set(MUTABLE)


def test_a_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = {}
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


# Public names that may have dict[str, Any] in their annotations, with the reason.
ANY_ALLOWED: dict[str, str] = {}
_MAPPINGS = {"dict", "Dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict"}


def holds_any(annotation: ast.AST, aliases: set[str]) -> bool:
    """Whether ``dict[str, Any]`` or the like stands anywhere in an annotation, by itself or by an alias's name."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and len(node.slice.elts) == 2:
            value = node.slice.elts[1]
            if name_of(node.value) in _MAPPINGS and name_of(value) == "Any":
                return True
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not any(name in node.value for name in ("Any", *aliases)):
                continue
            try:
                quoted = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                continue
            if holds_any(quoted, aliases):
                return True
        elif name_of(node) in aliases:
            return True
    return False


def any_aliases(tree: ast.Module) -> set[str]:
    """Names that a module gives to a type with ``dict[str, Any]`` in it."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and holds_any(node.value, found):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name_of(target) for target in targets}
    return found


def annotations(name: str, body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Every annotation of the public functions, methods and fields in ``body``, by its dotted name."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_") or node.name.startswith("__"):
                listed = node.args
                given = [*listed.posonlyargs, *listed.args, *listed.kwonlyargs, listed.vararg, listed.kwarg]
                for argument in given:
                    if argument is not None and argument.annotation is not None:
                        yield f"{name}.{node.name}", argument.annotation
                if node.returns is not None:
                    yield f"{name}.{node.name}", node.returns
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from annotations(f"{name}.{node.name}", node.body)
        elif isinstance(node, ast.AnnAssign) and not name_of(node.target).startswith("_"):
            yield f"{name}.{name_of(node.target)}", node.annotation


def untyped(modules: Mapping[str, ast.Module]) -> set[str]:
    """Public names of ``modules`` with ``dict[str, Any]`` in an annotation, also by an alias of another module."""
    aliases = {name: any_aliases(tree) for name, tree in modules.items()}
    found = set()
    for name, tree in modules.items():
        known = set(aliases[name])
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in aliases:
                known |= {one.asname or one.name for one in node.names if one.name in aliases[node.module]}
        found |= {place for place, annotation in annotations(name, tree.body) if holds_any(annotation, known)}
    return found


def test_no_dict_of_any_travels_between_rooms() -> None:
    """Records have types, and JSON of unknown keys is a JsonObject (trainer.json_types): a reader must look first."""
    found = untyped(trees())
    assert found == set(ANY_ALLOWED)


@pytest.mark.parametrize(("source", "place"), [
    ("def found() -> dict[str, Any]: ...", "found"),
    ("def found(given: list[Mapping[str, Any]] | None = None): ...", "found"),
    ("def found(*, given: 'typing.Dict[str, typing.Any]'): ...", "found"),
    ("@dataclass\nclass Found:\n    facts: dict[str, Any] = field(default_factory=dict)", "Found.facts"),
    ("class Found:\n    def made(self, **more: dict[str, Any]): ...", "Found.made"),
    ("class Found:\n    def __init__(self, given: dict[str, Any]): ...", "Found.__init__"),
    ("Row = dict[str, Any]\ndef found() -> list[Row]: ...", "found"),
    ("from other import Row\ndef found() -> Row: ...", "found"),
])  # fmt: skip
def test_a_dict_of_any_is_found_wherever_it_stands(source: str, place: str) -> None:
    others = {"other": ast.parse("Row: TypeAlias = dict[str, Any]")}
    assert untyped({**others, "here": ast.parse(source)}) == {f"here.{place}"}


@pytest.mark.parametrize("source", [
    "def found() -> dict[str, int]: ...",
    "def _own() -> dict[str, Any]: ...",
    "def found():\n    own: dict[str, Any] = {}",
    "def found(given: JsonObject) -> dict[str, list[Any]]: ...",  # tables of the results contract
])  # fmt: skip
def test_what_stays_inside_or_has_a_type_is_left_alone(source: str) -> None:
    assert untyped({"here": ast.parse(source)}) == set()
