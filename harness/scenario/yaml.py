"""Read YAML into plain data, and keep the line of every key for error messages. Safe tags only.

Unlike PyYAML, ``1e-3`` is a number and dates stay text. Duplicate keys, cycles, alias bombs, keys that are not text and
several documents are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer.errors import InputError, one_line
from trainer.json_types import Json

MAX_YAML_BYTES = 2**24  # limit of a file; the longest shipped one has 10 kB
MAX_DEPTH = 64  # libyaml's composer recurses in C, and deeper input would overflow its stack
MAX_YAML_VALUES = 200_000  # limit after aliases are expanded, against a billion laughs
MAX_ARMS = 256  # limit including matrix and controls; more are probably a mistake, as such a study never finishes

KeyPath = tuple[str | int, ...]
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, order=True)
class Mark:
    """Place of a value. ``order``: number of the source (0 is read first). ``line``: from 1; 0 if unknown."""

    order: int
    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass
class Document:
    """A parsed YAML file: plain data (dict, list, str, int, float, bool, None) and the source line of each path."""

    data: Any
    marks: dict[KeyPath, Mark] = field(default_factory=dict)

    def nearest(self, path: KeyPath) -> Mark | None:
        """Return the mark of ``path`` or of its nearest ancestor that has one; None if none has."""
        for end in range(len(path), -1, -1):
            if mark := self.marks.get(path[:end]):
                return mark
        return None


def dotted(path: KeyPath) -> str:
    """Format a path of keys and indices: ``("compare", 0, "baseline")`` becomes ``compare[0].baseline``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C one where PyYAML has it
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(r"^[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)


def read_document(path: Path, order: int = 0) -> Document:
    """Return the parsed file (``order`` among merged files). Raises InputError if missing, too large or not YAML."""
    try:
        with path.open("rb") as file:  # a device such as /dev/zero never ends
            content = file.read(MAX_YAML_BYTES + 1)
        if len(content) > MAX_YAML_BYTES:
            raise InputError(f"{path}: more than {MAX_YAML_BYTES // 2**20} MiB; give a scenario file")
        text = content.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file{_neighbours(path)}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path}: is a directory; give a scenario file (*.yaml)") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return parse_document(text, str(path), order)


def parse_document(text: str, source: str, order: int = 0, numbered: bool = True) -> Document:
    """Parse YAML; ``data`` is None for empty text. Errors name ``source`` and, if ``numbered``, the line."""
    try:
        node = yaml.compose(text, Loader=_Loader) if _shallow(text, source) else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Mark(order, mark.line + 1 if mark and numbered else 0, source)
        raise InputError(f"{where}: not valid YAML: {_problem(error)}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{source}: not valid YAML: {one_line(str(error))}") from error
    document = Document(None, {(): Mark(order, 1 if numbered else 0, source)})
    if node is not None:
        document.data = _Builder(document, source, order, numbered).build(node, (), ())
    return document


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return PyYAML's problem as one line. For an error about two places, such as an anchor that is defined twice, the
    line number of the first is included.
    """
    if isinstance(error, yaml.composer.ComposerError) and error.context and error.context_mark:
        return one_line(f"{error.context} (line {error.context_mark.line + 1}), {error.problem}")
    return one_line(error.problem or str(error))


def _neighbours(path: Path) -> str:
    names = sorted(entry.name for entry in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    return f"; {path.parent} has {', '.join(names[:12])}" if names else ""


def _shallow(text: str, source: str) -> bool:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 0
            raise InputError(f"{Mark(0, line, source)}: nested more than {MAX_DEPTH} levels deep")
    return True


class _Builder:
    """Turns yaml nodes into plain data and records the line of every path."""

    def __init__(self, document: Document, source: str, order: int, numbered: bool) -> None:
        self._document = document
        self._source, self._order, self._numbered = source, order, numbered
        self._values = 0
        self._constructor = yaml.constructor.SafeConstructor()

    def _mark(self, node: yaml.Node) -> Mark:
        return Mark(self._order, node.start_mark.line + 1 if self._numbered else 0, self._source)

    def _refuse(self, node: yaml.Node, path: KeyPath, message: str) -> InputError:
        where = f"{dotted(path)}: " if path else ""
        return InputError(one_line(f"{self._mark(node)}: {where}{message}"))

    def build(self, node: yaml.Node, path: KeyPath, open_nodes: tuple[int, ...]) -> Json:
        self._values += 1
        if self._values > MAX_YAML_VALUES:
            raise self._refuse(node, path[:1], f"expands to more than {MAX_YAML_VALUES} values (aliases that repeat?)")
        self._document.marks.setdefault(path, self._mark(node))
        if id(node) in open_nodes:
            raise self._refuse(node, path, "an alias refers to a value that contains it (cycle)")
        inside = (*open_nodes, id(node))
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path, inside)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.build(item, (*path, index), inside) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag.removeprefix(_TAG) in ("null", "bool", "int", "float", "str"):
            try:
                value: Json = self._constructor.construct_object(node)
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{node.value} is not finite")
                return value
            except (ValueError, KeyError) as error:
                raise self._refuse(node, path, f"not a readable value: {error}") from error
        raise self._refuse(node, path, f"tag {node.tag.replace(_TAG, '!!')} is not allowed in a scenario")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, inside: tuple[int, ...]) -> dict[str, Json]:
        if path == ("arms",) and len(node.value) > MAX_ARMS:  # checked here, before the arms are built
            raise InputError(f"{self._document.marks[path]}: arms: {len(node.value)} arms; at most {MAX_ARMS}")
        result: dict[str, Json] = {}
        for merged in self._merged(node, path):
            below = self.build(merged, path, inside)
            assert isinstance(below, dict), "the merge of a mapping is a mapping"
            result = below | result
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != f"{_TAG}str":
                text = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a collection"
                raise self._refuse(key_node, path, f"key {text} is not text; quote it (YAML reads it as another type)")
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in lines:
                where = f" (lines {lines[key]} and {line})" if self._numbered else ""
                raise self._refuse(key_node, (*path, key), f"duplicate key{where}")
            lines[key] = line
            self._document.marks[(*path, key)] = self._mark(key_node)
            result[key] = self.build(value_node, (*path, key), inside)
        return result

    def _merged(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[yaml.MappingNode]:
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                for item in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    if not isinstance(item, yaml.MappingNode):
                        raise self._refuse(item, path, "<<: merges mappings only")
                    yield item
