"""Reads and checks a published results table in YAML (profiles/published/*.yaml), as plain data for the audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from harness.audit.schema import DeclaredSection, NoiseSection, Published, RowSection
from harness.audit.table import AuditRow, Declared, Noise, Optimizer, Table
from harness.scenario.errors import Problem, did_you_mean, first_error, problems_of, section_at
from harness.scenario.yaml import read_document
from trainer.config import PRESET_VOCABULARY, PRESETS, ModelConfig
from trainer.errors import InputError
from trainer.model import Shape, resolve_shape

NULL = ("", "~", "null", "Null", "NULL")


def load_published(path: Path) -> Table:
    """The table in ``path``; InputError with one line (file, line, key, what is allowed) where it is wrong."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory; give a published table (profiles/published/*.yaml)")
    document = read_document(path)  # refuses what is not plain YAML, and knows the line of every key
    if not isinstance(document.data, dict):
        raise InputError(f"{path}: not a mapping; a published table has at least title, source and rows")
    text = path.read_bytes().decode("utf-8-sig")
    raw = _plain(yaml.compose(text, Loader=yaml.BaseLoader))
    try:
        published = Published.model_validate(raw)
    except ValidationError as error:
        problems = [_unknown(one) if kind == "extra_forbidden" else one for kind, one in problems_of(error, Published)]
        raise first_error(problems, document) or InputError(f"{path}: not a published table") from error
    shape, found = _shape(published.declared)
    if wrong := first_error([*found, *_problems(published)], document):
        raise wrong
    return _table(published, shape)


def _unknown(problem: Problem) -> Problem:
    """An unknown key, with the keys of its own section alone: those of others would mislead."""
    section = section_at(Published, problem.path[:-1])
    allowed = list(section.model_fields) if section is not None else []
    guess = did_you_mean(str(problem.path[-1]), allowed) or ";"
    return Problem(problem.path, f"unknown key{guess} allowed: {', '.join(allowed)}")


def _plain(node: Any) -> Any:
    """Nodes as dict, list and the text of every scalar; None where nothing, ~ or null is written."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    return None if node.style is None and node.value in NULL else node.value


def _problems(published: Published) -> Iterator[Problem]:
    """What one section alone does not show."""
    seen: set[str] = set()
    for index, row in enumerate(published.rows):
        if row.name in seen:
            yield Problem(("rows", index, "name"), f"another row is called {row.name!r}; give each its own name")
        seen.add(row.name)
        isolated = published.isolated_ms_per_sample
        if row.data is not None and isolated and row.data not in isolated:
            guess = did_you_mean(row.data, isolated) or ";"
            message = f"no key of isolated_ms_per_sample is {row.data!r}{guess} allowed: {', '.join(isolated)}"
            yield Problem(("rows", index, "data"), message)
    for index, pair in enumerate(published.compare or []):
        for name in pair:
            if name not in seen:
                yield Problem(
                    ("compare", index), f"no row {name!r}{did_you_mean(name, seen) or ';'} allowed: row names"
                )
        if pair[0] == pair[1]:
            yield Problem(("compare", index), f"{pair[0]!r} is compared with itself")


def _shape(declared: DeclaredSection) -> tuple[Shape | None, list[Problem]]:
    """The model's shape, by the trainer's own rules; and what is wrong with it."""
    model, path = declared.model, ("declared", "model")
    if model is None:
        return None, []
    given = model.model_dump(exclude_none=True, exclude={"preset", "positions"})
    if model.preset is not None and model.preset not in PRESETS:
        guess = did_you_mean(model.preset, PRESETS) or ";"
        return None, [
            Problem((*path, "preset"), f"unknown preset {model.preset!r}{guess} allowed: {', '.join(PRESETS)}")
        ]
    needed = ["family", "layers", "width", "heads", "ffn_width", "vocab_size"]
    if model.preset is not None:
        needed = [] if model.preset in PRESET_VOCABULARY else ["vocab_size"]
    if missing := [key for key in needed if key not in given]:
        return None, [Problem(path, f"{', '.join(missing)} missing; give every dimension, or a preset")]
    positions = model.positions or declared.sequence_length or 1024
    try:
        # Without a preset every dimension is given, so that the default preset's show nowhere.
        config = ModelConfig.model_validate(given | ({} if model.preset is None else {"preset": model.preset}))
        return resolve_shape(config, 0, positions), []
    except InputError as error:
        return None, [Problem(path, str(error))]


def _table(published: Published, shape: Shape | None) -> Table:
    declared = published.declared
    optimizer = declared.optimizer
    return Table(
        title=published.title,
        source=published.source,
        declared=Declared(
            shape=shape,
            optimizer=None if optimizer is None else Optimizer(**optimizer.model_dump()),
            **declared.model_dump(exclude={"model", "optimizer"}),
        ),
        isolated_ms=dict(published.isolated_ms_per_sample),
        rows=[
            AuditRow(
                **{name: getattr(row, name) for name in RowSection.model_fields if name != "duration"},
                duration_s=row.duration,
            )
            for row in published.rows
        ],
        compare=published.compare,
        noise=_noise(published.noise),
        typical_noise=_noise(published.typical_noise),
    )


def _noise(section: NoiseSection | None) -> Noise | None:
    if section is None:
        return None
    return Noise(*section.fraction, section.source)
