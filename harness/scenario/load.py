"""Load a scenario: merge files and options into one document (``extends``, dotted keys, ``--set``), and check it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from harness.scenario.checks import problems
from harness.scenario.errors import Problem, first_error, problems_of, shown
from harness.scenario.model import Scenario
from harness.scenario.overrides import DottedKeyError, Nested, expand, flatten, merge
from harness.scenario.yaml import Document, Mark, dotted, parse_document, read_document
from harness.study.records import COMMAND
from trainer.errors import InputError, one_line
from trainer.json_types import Json, JsonObject, section

_ROOT = Path(__file__).parents[2]
SCENARIOS, SWEEPS, PUBLISHED = _ROOT / "scenarios", _ROOT / "sweeps", _ROOT / "profiles" / "published"


def shipped(folder: Path) -> dict[str, Path]:
    """Return the YAML files of ``folder``, by name without suffix."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_file(given: str | Path, folder: Path) -> Path:
    """Return the file ``given``, ``given``.yaml in the current folder, or the file of that name in ``folder``. Raises
    InputError for a plain name (no suffix, no folder) without a file. Other paths are returned unchecked.
    """
    path = Path(given)
    if len(path.parts) != 1 or path.suffix or path.is_file():
        return path
    if (local := path.with_suffix(".yaml")).is_file():
        return local
    paths = shipped(folder)
    if path.name in paths:
        return paths[path.name]
    if path.exists():  # a folder; the reader of the path refuses it
        return path
    near = get_close_matches(path.name, paths, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    raise InputError(f"{path}: no such file{hint} shipped: {', '.join(paths) or 'none'}")


FILE_ONLY = ("extends", "arms", "matrix", "compare", "claims", "whatif", "requires", "isolated_baseline")
SETTABLE = tuple(name for name in Scenario.model_fields if name not in (*FILE_ONLY, "base"))
LOOP = "loop"  # key of a scenario whose arms are programs, as is COMMAND
COMMAND_LINE = 1_000_000  # Mark.order of options, which come after every file


def load_scenario(path: str | Path, sets: Sequence[str] = ()) -> Scenario:
    """Read, extend, override and check the scenario file at ``path``, or the shipped scenario of that name. ``sets``:
    ``key=value`` texts with dotted keys of base or settings of the scenario. Raises InputError with file, line, key and
    allowed values; also for arms that are programs.
    """
    document = read_overridden(path, sets)
    if (key := key_of_commands(document)) is not None:
        raise InputError(
            f"{document.marks[(key,)]}: {key}: its arms are your own programs, which this command does not support; "
            "use harness run or harness regress"
        )
    return check_scenario(document)


def read_overridden(
    path: str | Path, sets: Sequence[str] = (), *, repeats: int | None = None, interleave: str | None = None
) -> Document:
    """Return the scenario file's document, merged with ``extends`` and the options (None: not given), unchecked."""
    document = read_merged(find_file(path, SCENARIOS))
    for text in sets:
        apply_set(document, text)
    for option, value in (("repeats", repeats), ("interleave", interleave)):
        if value is not None:
            document.data[option] = value
            document.marks[(option,)] = Mark(COMMAND_LINE, 0, f"--{option} {value}")
    return document


def check_scenario(document: Document) -> Scenario:
    """Return the checked scenario whose arms are trainer configurations. Raises InputError for any problem."""
    mistakes: list[Problem] = []
    data = {key: value for key, value in document.data.items() if value is not None}
    try:
        scenario = Scenario.model_validate(data, strict=True)
    except ValidationError as error:
        mistakes += [problem for _, problem in problems_of(error, Scenario)]
        invalid = {str(problem.path[0]) for problem in mistakes}
        if invalid & {"arms", "matrix"}:
            invalid.add("compare")  # Pairs would name missing arms.
        partial = {"name": "unknown", "question": "", "arms": {"unknown": None}}
        partial |= {key: value for key, value in data.items() if key not in invalid}
        scenario = Scenario.model_validate(partial, strict=True)
    error_line = first_error([*mistakes, *problems(scenario)], document)
    if error_line:
        raise error_line
    return scenario


def key_of_commands(document: Document) -> str | None:
    """Return COMMAND or LOOP if the arms of the scenario are programs (harness.scenario.commands); else None."""
    return next((key for key in (COMMAND, LOOP) if key in document.data), None)


def read_merged(path: Path, what: str = "a scenario", needs: str = "name, question and arms") -> Document:
    """Return the document of ``path``, merged over the files that it extends, dotted keys nested, with its marks.

    ``what``, ``needs``: kind of file and its required keys, for messages. Raises InputError for an unreadable file or a
    cycle.
    """
    chain: list[Path] = []
    documents: list[Document] = []
    while True:
        document = read_document(path, order=len(documents))
        _check_is_mapping(document, path, what, needs)
        chain.append(path)
        documents.append(document)
        parent = document.data.get("extends")
        if parent is None:
            break
        mark = document.marks[("extends",)]
        if not isinstance(parent, str) or not parent:
            raise InputError(f"{mark}: extends: give the path of another {what.removeprefix('a ')} file")
        path = Path(os.path.normpath(path.parent / parent))
        if "\0" in parent:
            raise InputError(f"{mark}: extends: {shown(parent)}: no such file")
        if path.resolve() in {file.resolve() for file in chain}:
            names = " -> ".join(str(file) for file in [*chain, path])
            raise InputError(one_line(f"{mark}: extends: a cycle: {names}"))
        if not path.exists():
            raise InputError(f"{mark}: extends: {path}: no such file")
    for document in documents:
        _nest(document)
    merged = documents.pop()
    while documents:
        merged = _merge(merged, documents.pop())
    merged.data["extends"] = None
    return merged


def apply_set(document: Document, text: str) -> None:
    """Merge the option ``--set`` with ``text`` (key=value) into ``document``, in place. Raises InputError if the text
    is malformed, if only a file may set the key, or if the matrix or every arm sets it anyway.
    """
    label = one_line(f"--set {text}")
    key, equals, value_text = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"{label}: give key=value, as in --set data.batch_size=2")
    value = parse_document(value_text, label, numbered=False).data
    first = key.split(".")[0]
    if first in FILE_ONLY:
        raise InputError(f"{label}: only the file can set {first}; --set takes keys of base, and {', '.join(SETTABLE)}")
    if first not in (*SETTABLE, "base"):
        key = f"base.{key}"
    layer = option_layer(key, value, label)
    _check_effect(document.data, layer.data.get("base"), label)
    merged = _merge(document, layer)
    document.data, document.marks = merged.data, merged.marks


def option_layer(key: str, value: Json, label: str) -> Document:
    """Return a document with only ``value`` at the dotted ``key``. ``label``: text of the command-line option, which
    errors name as the place of the key. Raises InputError for a malformed key.
    """
    try:
        layer = Document(expand({key: value}))
    except DottedKeyError as error:
        raise InputError(f"{label}: {error}") from error
    for leaf in flatten(layer.data):
        path = tuple(leaf.split("."))
        places = range(2 if path[0] == "base" else 1, len(path) + 1)
        layer.marks |= {path[:end]: Mark(COMMAND_LINE, 0, label) for end in places}
    return layer


def _check_is_mapping(document: Document, path: Path, what: str, needs: str) -> None:
    if document.data is None:
        raise InputError(f"{path}: empty; {what} needs at least {needs}")
    if not isinstance(document.data, dict):
        examples = needs.partition(" and ")[0]
        raise InputError(f"{document.marks[()]}: not a mapping; {what} has keys and values ({examples}, ...)")


def _nest(document: Document) -> None:
    """Nest the dotted keys of ``base`` and of every arm, in place, and move their marks (source lines) along."""
    data = document.data
    if isinstance(data.get("base"), dict):
        data["base"] = _expand(document, ("base",), data["base"])
    if isinstance(data.get("arms"), dict):
        for name, overrides in data["arms"].items():
            if isinstance(overrides, dict):
                data["arms"][name] = _expand(document, ("arms", name), overrides)


def _expand(document: Document, root: tuple[str, ...], mapping: JsonObject) -> Nested:
    lines_by_path: dict[tuple[str, ...], list[int]] = {}

    def follow(written: tuple[str, ...], parts: tuple[str, ...]) -> None:
        mark = document.marks[(*root, *written)]
        for end in range(1, len(parts) + 1):
            document.marks.setdefault((*root, *parts[:end]), mark)
        lines_by_path.setdefault(parts, []).append(mark.line)

    try:
        return expand(mapping, split=follow)
    except DottedKeyError as error:
        spellings = [numbers for path, numbers in lines_by_path.items() if path[: len(error.path)] == error.path]
        lines = sorted({line for numbers in spellings for line in numbers})
        where = f" (lines {' and '.join(map(str, lines))})" if len(lines) > 1 else ""
        path = (*root, *error.path)
        raise InputError(f"{document.nearest(path)}: {dotted(path)}: {error.message}{where}") from error


def _merge(under: Document, over: Document) -> Document:
    """Merge ``over`` over ``under``: ``base``, ``probes`` and arms recursively, other mappings by top-level key."""
    data = dict(under.data)
    for key, value in over.data.items():
        below = data.get(key)
        if not isinstance(value, dict) or not isinstance(below, dict):
            data[key] = value
        elif key in ("base", "probes"):
            data[key] = merge(below, value)
        elif key == "strategy":  # settings of another sweep strategy do not apply
            data[key] = value
        elif key == "arms":
            data[key] = below | {
                name: merge(below[name], arm) if isinstance(arm, dict) and isinstance(below.get(name), dict) else arm
                for name, arm in value.items()
            }
        else:
            data[key] = below | value
    return Document(data, under.marks | over.marks)


def _check_effect(data: JsonObject, base: Json, label: str) -> None:
    """Raise InputError if a ``--set`` has no effect, because the matrix or every arm of the scenario ``data`` sets its
    key. ``base``: what the option sets below base; None if nothing. ``label``: text of the option, for the error.
    """
    arms, matrix = (section(data, key) for key in ("arms", "matrix"))
    for leaf in flatten(base) if isinstance(base, dict) else ():
        if leaf in matrix:
            raise InputError(f"{label}: has no effect: the scenario's matrix sets {leaf}")
        if arms and all(isinstance(arm, dict) and leaf in flatten(arm) for arm in arms.values()):
            raise InputError(f"{label}: has no effect: every arm of the scenario sets {leaf}")
