"""Reads a profile's YAML file as plain data. An error is one line: file, key, allowed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from trainer.errors import InputError, literal, one_line

SPARSE = ("sparse", "sparsity")
SHOWN_CHARACTERS = 60  # characters of a wrong value
MERGE = "tag:yaml.org,2002:merge"  # the key <<
MAX_PROFILE_BYTES = 2**18  # size of a file; the longest shipped one has 4 kB
MAX_PROFILE_VALUES = 10_000  # after expanding aliases; a profile has less than a hundred
PLAIN = {"a valid tuple": "a list", "a valid string": "text", "a valid ": "a "}


class _ProfileLoader(yaml.SafeLoader):
    """Loader of YAML that accepts safe tags only. A repeated key is an error (PyYAML silently takes the last)."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the mappings of ``<<`` into ``node``. Raises an error if that is too large or a cycle.

        Each mapping may merge others, so a few lines could expand to a billion keys.
        """
        for key, value in node.value:
            if key.tag == MERGE and value is node:
                message = "an alias refers to the mapping that holds it (a cycle)"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
        super().flatten_mapping(node)
        if len(node.value) > MAX_PROFILE_VALUES:
            message = f"merges more than {MAX_PROFILE_VALUES} keys (an alias that repeats)"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in lines:
                    message = f"duplicate key {key.value} (lines {lines[key.value]} and {line})"
                    raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Mapping[str, object]:
    """Return the mapping in ``path``. Raises InputError if it cannot be read or a key names a rate with sparsity."""
    try:
        with path.open("rb") as file:  # A device such as /dev/zero never ends.
            text = file.read(MAX_PROFILE_BYTES + 1)
        if len(text) > MAX_PROFILE_BYTES:
            raise InputError(f"{path}: more than {MAX_PROFILE_BYTES // 1024} KiB; that is no device profile")
        content = yaml.load(text.decode("utf-8"), _ProfileLoader)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; give a device profile (YAML)") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(f"{path}: {line}not readable YAML: {one_line(error.problem or error)}") from error
    except InputError:
        raise
    # Examples: no text; a date like 2026-13-01; nested too deep.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable YAML: {one_line(error)}") from error
    # Checked first, because a message that shows a value must not expand a billion aliases.
    keys = list(_keys(content, path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: must be a mapping of keys (name, peak_flops_per_s, ...); got {_shown(content)}")
    for key in keys:
        if any(word in key.lower() for word in SPARSE):
            raise InputError(f"{path}: {key}: peaks are dense; halve a rate with 2:4 sparsity and say so in its source")
    return content


def problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first problem of ``error`` as "key: problem; allowed values", with the number of further problems."""
    errors = error.errors(include_url=False)
    # A misspelt key is also a missing key. The misspelt one is reported first.
    fault = next((details for details in errors if details["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in fault["loc"] if part != "[key]"]
    kind, shown = fault["type"], _shown(fault["input"])
    if kind == "extra_forbidden":
        allowed = _allowed(model, place[:-1])
        matches = get_close_matches(place[-1], allowed, n=1)
        guess = f"; did you mean {matches[0]!r}?" if matches else ";"
        message = f"unknown key{guess} allowed: {', '.join(allowed)}"
    elif kind == "missing":
        message = "this key is required"
    elif kind == "value_error":
        message = str(fault["ctx"]["error"])
    elif kind == "literal_error":
        message = f"unknown dtype; allowed: {fault['ctx']['expected']}".replace("'", "").replace(" or ", ", ")
    elif kind == "too_short":
        message = "give at least one"
    elif kind in ("model_type", "dict_type"):
        message = f"must be a mapping of keys; got {shown}"
        if allowed := _allowed(model, place):
            message += f"; allowed: {', '.join(allowed)}"
    else:
        message = fault["msg"].replace("Input should be", "must be")
        for wording, plain in PLAIN.items():
            message = message.replace(wording, plain)
        message += f"; got {shown}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return one_line(f"{'.'.join(place)}: {message}{more}" if place else message + more)


def _allowed(model: type[BaseModel], place: list[str]) -> list[str]:
    """Return the allowed keys of the section at ``place``.

    Empty if it is no section or its keys are free, as dtypes are.
    """
    section: type[BaseModel] | None = model
    inside_table = False
    for part in place:
        if inside_table:  # the key of a table by dtype; its value is the section
            inside_table = False
            continue
        field = (
            next((f for name, f in section.model_fields.items() if part in (name, f.alias)), None) if section else None
        )
        annotation = field.annotation if field else None
        inside_table = bool(get_args(annotation))
        candidates = (*get_args(annotation), annotation)
        section = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    if section is None or inside_table:
        return []
    return [field.alias or name for name, field in section.model_fields.items()]


def _keys(content: Any, path: Path) -> Iterator[str]:
    """Yield every key in ``content``, in the order of the file. Raises InputError if aliases make it too large or
    cyclic.
    """
    count = 0
    waiting: list[tuple[str | None, Any]] = [(None, content)]
    while waiting:
        key, value = waiting.pop()
        count += 1
        if count > MAX_PROFILE_VALUES:
            raise InputError(f"{path}: more than {MAX_PROFILE_VALUES} values (an alias that repeats, or a cycle)")
        if key is not None:
            yield key
        if isinstance(value, dict):
            waiting += reversed([(str(inner), item) for inner, item in value.items()])
        elif isinstance(value, list | tuple):
            waiting += reversed([(None, item) for item in value])


def _shown(value: object) -> str:
    text = "null" if value is None else literal(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."
