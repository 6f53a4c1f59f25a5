"""Formats scenario errors: the place, the problem, the allowed values, and the likely intention."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from harness.scenario.yaml import Document, KeyPath, Mark, dotted
from trainer.errors import InputError, literal, one_line


class Problem(NamedTuple):
    """A mistake in a scenario at ``path``: keys from its top level, with dotted keys split. Checks yield these."""

    path: KeyPath
    message: str


def did_you_mean(wrong: str, allowed: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` with the nearest of ``allowed``, or "" if none is near."""
    near = get_close_matches(wrong, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def shown(value: Any) -> str:
    """Format a value for a message as YAML text on one line, cut to 60 characters."""
    spelled = {True: "true", False: "false"}
    text = "null" if value is None else spelled[value] if isinstance(value, bool) else literal(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """List the pydantic models inside an annotation (``X | None``, ``list[X | Y]``)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def section_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the model of the section at ``path`` (the first of a union); None for a value or unknown key."""
    return next(iter(sections_at(model, path)), None)


def sections_at(model: type[BaseModel], path: KeyPath) -> list[type[BaseModel]]:
    """Return the models that a section at ``path`` below ``model`` may have: several for a union, none for a value."""
    current: list[type[BaseModel]] = [model]
    for part in path:
        if not current or isinstance(part, int):
            continue
        field = current[0].model_fields.get(part)
        current = models_in(field.annotation) if field else []
    return current


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """List every dotted key of ``model``, sections included, in the order of declaration."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append(f"{prefix}{name}")
        for section in models_in(field.annotation)[:1]:
            keys += dotted_keys(section, f"{prefix}{name}.")
    return keys


# pydantic's part for a key, and the tags of unions (trainer.config, scenario.model)
_MARKS = {"[key]", "[device]", "[emulated]", "[claim]", "[figure]"}


def problems_of(error: ValidationError, model: type[BaseModel]) -> Iterable[tuple[str, Problem]]:
    """Yield (pydantic's error type, Problem) for each error of ``error``, which validation against ``model`` raised."""
    for detail in error.errors(include_url=False):
        if not detail["loc"]:  # error between keys of different sections; the message names them
            yield detail["type"], Problem((), _message(detail, model, ()))
            continue
        *above, last = detail["loc"]
        path = tuple(part for part in above if part not in _MARKS)
        if last not in _MARKS or detail["type"] == "extra_forbidden":  # a user's key may equal one of the marks
            path = (*path, last)
        yield detail["type"], Problem(path, _message(detail, model, path))


def _message(error: Any, model: type[BaseModel], path: KeyPath) -> str:
    kind, value, context = error["type"], error.get("input"), error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(model, path)
    if kind == "missing":
        return "this key is required"
    if kind == "value_error":
        return str(context["error"])
    if kind == "too_short":
        least = context["min_length"]
        return "give at least one" if least == 1 else f"give at least {least}; got {context['actual_length']}"
    if kind == "literal_error":
        expected = context["expected"].replace("True", "true").replace("False", "false")  # spelling of YAML
        text = f"must be {expected}; got {shown(value)}"
        if isinstance(value, str):
            text += did_you_mean(value, expected.replace("'", "").replace(" or ", ", ").split(", "))
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        section = section_at(model, path)
        keys = f"; allowed: {', '.join(section.model_fields)}" if section else ""
        text = f"must be a mapping of keys; got {shown(value)}{keys}"
    else:
        message = error["msg"].replace("Input should be", "must be")
        message = message.replace("a valid integer", "an integer").replace("a valid ", "a ")
        text = f"{message}; got {shown(value)}"
    if isinstance(value, bool) and kind != "bool_type":
        text += " (YAML reads yes, no, on, off as true, false; quote text)"
    return text


def _unknown(model: type[BaseModel], path: KeyPath) -> str:
    key = str(path[-1])
    sections = sections_at(model, path[:-1])
    allowed = list(
        dict.fromkeys(field.alias or name for section in sections for name, field in section.model_fields.items())
    )
    guess = did_you_mean(key, allowed)
    if not guess:
        everywhere = dotted_keys(model)
        matches = [name for name in everywhere if name.rpartition(".")[2] == key]
        guess = f"; did you mean {matches[0]!r}?" if matches else did_you_mean(dotted(path), everywhere)
    end = " " if guess else "; "
    return f"unknown key{guess}{end}allowed: {', '.join(allowed) or 'nothing: this is a value, not a section'}"


def first_error(problems: Iterable[Problem], document: Document) -> InputError | None:
    """Return an InputError for ``problems``, the first by source and line, others following; None without any."""
    nowhere = Mark(0, 0, "scenario")
    marked = {(document.nearest(problem.path) or nowhere, problem) for problem in problems}
    placed = sorted(marked, key=lambda p: (p[0], dotted(p[1].path)))
    lines = list(dict.fromkeys(_line(mark, problem) for mark, problem in placed))
    if not lines:
        return None
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return InputError(lines[0] + more, lines[1:])


def _line(mark: Mark, problem: Problem) -> str:
    where = f"{dotted(problem.path)}: " if problem.path else ""
    return one_line(f"{mark}: {where}{problem.message}")
