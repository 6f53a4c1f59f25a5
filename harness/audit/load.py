"""Read and check a published results table (profiles/published/*.yaml); document its keys.

Figures are *text*: ``6544.40`` and ``6544.4`` are different intervals. Only title, source and rows are required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from harness.audit.policy import TABLE_ROWS_MAX
from harness.audit.table import AuditedFigure, AuditRow, Declared, Noise, Optimizer, Table, read_duration, read_figure
from harness.scenario.errors import Problem, did_you_mean, first_error, problems_of, section_at
from harness.scenario.yaml import read_document
from trainer.config import PRESET_VOCABULARY, PRESETS, ModelConfig
from trainer.errors import InputError
from trainer.model import Shape, resolve_shape

NULL = ("", "~", "null", "Null", "NULL")


def load_published(path: Path) -> Table:
    """Read and check a published table. Raise InputError with one line (file, line, key) if it is wrong."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory; give a published table (profiles/published/*.yaml)")
    document = read_document(path)  # accepts plain YAML alone, and records the line of every key
    if not isinstance(document.data, dict):
        raise InputError(f"{path}: not a mapping; a published table has at least title, source and rows")
    text = path.read_bytes().decode("utf-8-sig")
    raw = _plain(yaml.compose(text, Loader=yaml.BaseLoader))
    try:
        published = Published.model_validate(raw)
    except ValidationError as error:
        kinds = problems_of(error, Published)
        problems = [_unknown(problem) if kind == "extra_forbidden" else problem for kind, problem in kinds]
        raise first_error(problems, document) or InputError(f"{path}: not a published table") from error
    shape, shape_problems = _shape(published.declared)
    if wrong := first_error([*shape_problems, *_problems(published)], document):
        raise wrong
    return _table(published, shape)


def _unknown(problem: Problem) -> Problem:
    """Return the problem of an unknown key, with a suggestion and the allowed keys of its section."""
    section = section_at(Published, problem.path[:-1])
    allowed = list(section.model_fields) if section is not None else []
    guess = did_you_mean(str(problem.path[-1]), allowed) or ";"
    return Problem(problem.path, f"unknown key{guess} allowed: {', '.join(allowed)}")


def _plain(node: Any) -> Any:
    """Return a YAML node as dict, list and text: scalars stay as written; nothing, ~ and null become None."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    return None if node.style is None and node.value in NULL else node.value


def _problems(published: Published) -> Iterator[Problem]:
    """Yield problems that involve several sections, such as two rows of one name or an unknown row in ``compare``."""
    names: set[str] = set()
    for index, row in enumerate(published.rows):
        if row.name in names:
            yield Problem(("rows", index, "name"), f"another row is called {row.name!r}; give each its own name")
        names.add(row.name)
        isolated = published.isolated_ms_per_sample
        if row.data is not None and isolated and row.data not in isolated:
            guess = did_you_mean(row.data, isolated) or ";"
            message = f"no key of isolated_ms_per_sample is {row.data!r}{guess} allowed: {', '.join(isolated)}"
            yield Problem(("rows", index, "data"), message)
    for index, pair in enumerate(published.compare or []):
        for name in pair:
            if name not in names:
                guess = did_you_mean(name, names) or ";"
                yield Problem(("compare", index), f"no row {name!r}{guess} allowed: row names")
        if pair[0] == pair[1]:
            yield Problem(("compare", index), f"{pair[0]!r} is compared with itself")


def _shape(declared: DeclaredSection) -> tuple[Shape | None, list[Problem]]:
    """Return the declared model shape (None: missing or wrong), checked by the trainer's rules, and its problems."""
    model, path = declared.model, ("declared", "model")
    if model is None:
        return None, []
    dimensions = model.model_dump(exclude_none=True, exclude={"preset", "positions"})
    if model.preset is not None and model.preset not in PRESETS:
        guess = did_you_mean(model.preset, PRESETS) or ";"
        return None, [
            Problem((*path, "preset"), f"unknown preset {model.preset!r}{guess} allowed: {', '.join(PRESETS)}")
        ]
    needed = ["family", "layers", "width", "heads", "ffn_width", "vocab_size"]
    if model.preset is not None:
        needed = [] if model.preset in PRESET_VOCABULARY else ["vocab_size"]
    if missing := [key for key in needed if key not in dimensions]:
        return None, [Problem(path, f"{', '.join(missing)} missing; give every dimension, or a preset")]
    positions = model.positions or declared.sequence_length or 1024
    try:
        # Without a preset every dimension is given, so that the default preset's show nowhere.
        config = ModelConfig.model_validate(dimensions | ({} if model.preset is None else {"preset": model.preset}))
        return resolve_shape(config, 0, positions), []
    except InputError as error:
        return None, [Problem(path, str(error))]


def _table(published: Published, shape: Shape | None) -> Table:
    declared, optimizer = published.declared, published.declared.optimizer
    facts = declared.model_dump(exclude={"model", "optimizer"})
    own = [name for name in RowSection.model_fields if name != "duration"]
    return Table(
        title=published.title,
        source=published.source,
        declared=Declared(
            shape=shape, optimizer=None if optimizer is None else Optimizer(**optimizer.model_dump()), **facts
        ),
        isolated_ms=dict(published.isolated_ms_per_sample),
        rows=[
            AuditRow(**{name: getattr(row, name) for name in own}, duration_s=row.duration) for row in published.rows
        ],
        compare=published.compare,
        noise=_noise(published.noise),
        typical_noise=_noise(published.typical_noise),
    )


def _noise(section: NoiseSection | None) -> Noise | None:
    return None if section is None else Noise(*section.fraction, section.source)


def _by(read: Callable[[str], AuditedFigure]) -> BeforeValidator:
    """Return a validator that reads a figure with ``read``."""

    def figure(value: Any) -> AuditedFigure:
        if not isinstance(value, str):
            raise ValueError("must be a figure, not a mapping or list")
        return read(value)

    return BeforeValidator(figure)


def _fractions(value: Any) -> tuple[float, float]:
    """Return (low, high) of ``[0.01, 0.03]`` or ``0.01``, given as text. Raise ValueError unless both are in 0 to 1."""
    message = "must be a fraction or a range [from, to] between 0 and 1; for 1 to 3 %: [0.01, 0.03]"
    ends = value if isinstance(value, list) else [value, value]
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError) as error:
        raise ValueError(message) from error
    if not 0 < low <= high < 1:
        raise ValueError(message)
    return low, high


def _pair(value: Any) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a pair of row names: [baseline, candidate]")
    return value[0], value[1]


AFigure = Annotated[AuditedFigure, _by(read_figure)]
ADuration = Annotated[AuditedFigure, _by(read_duration)]
PositiveCount = Annotated[int, Field(ge=1, le=10**15)]
PositiveRate = Annotated[float, Field(ge=1, le=1e30, allow_inf_nan=False)]  # a second: operations, bytes
Text = Annotated[str, Field(min_length=1)]


class _AuditSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, arbitrary_types_allowed=True)


class ModelSection(_AuditSection):
    """The model's shape: a preset of the trainer, or all dimensions, or a preset with dimensions overridden."""

    preset: Text | None = None
    family: Literal["gpt2", "llama"] | None = None
    """gpt2: learned positions, tied output projection, biases; llama: none of these, and a gated feed-forward."""
    layers: PositiveCount | None = None
    width: PositiveCount | None = None
    heads: PositiveCount | None = None
    kv_heads: PositiveCount | None = None
    """Key-value heads; default: as many as heads."""
    ffn_width: PositiveCount | None = None
    vocab_size: Annotated[int, Field(ge=2, le=10**15)] | None = None
    """As the model holds it: padded where the trainer pads it."""
    positions: PositiveCount | None = None
    """Learned positions (gpt2); default: the declared sequence length."""


class OptimizerSection(_AuditSection):
    """Facts about the optimizer from which its memory traffic follows."""

    name: Text | None = None
    fused: bool
    bytes_per_value: PositiveCount
    """Of an element of weight, gradient and moment: 2 for pure bf16, 4 for fp32."""
    gradient_norm: Literal["none", "norm", "clip"] = "none"
    memory_bandwidth_bytes_per_s: PositiveRate | None = None


class DeclaredSection(_AuditSection):
    """Declarations that hold for every row without its own."""

    model: ModelSection | None = None
    sequence_length: PositiveCount | None = None
    devices: PositiveCount | None = None
    """Devices that share the work; default 1."""
    peak_flops_per_s: PositiveRate | None = None
    """Dense peak of one device, as the publication used it for MFU."""
    dtype: Text | None = None
    optimizer: OptimizerSection | None = None
    notes: Text | None = None


class RowSection(_AuditSection):
    """One row of the table. Figures keep the digits that were printed (~300: rounded; 48-49: a range)."""

    name: Text
    kind: Text | None = None
    """Rows of one kind differ in batch size alone."""
    data: Text | None = None
    """A key of isolated_ms_per_sample: this row's data path."""
    batch_size: PositiveCount | None = None
    """Samples per device and optimizer step."""
    tokens_per_step: PositiveCount | None = None
    """Over all devices; default: batch_size x sequence_length x devices."""
    sequence_length: PositiveCount | None = None
    devices: PositiveCount | None = None
    peak_flops_per_s: PositiveRate | None = None
    padded: bool | None = None
    """false: the batch holds no padding, so padding explains nothing."""
    tokens_per_s: AFigure | None = None
    """Over all devices."""
    mfu_percent: AFigure | None = None
    tflops: AFigure | None = None
    """TFLOP/s of one device."""
    step_ms: AFigure | None = None
    """Milliseconds of an optimizer step."""
    steps: PositiveCount | None = None
    duration: ADuration | None = None
    """Of all ``steps``: 94.3 min, ~4 days."""
    source: Text | None = None
    note: Text | None = None


class NoiseSection(_AuditSection):
    """Relative difference between identical runs (0.01 is 1 %), and where it is published."""

    fraction: Annotated[tuple[float, float], BeforeValidator(_fractions)]
    """One number, or [from, to]."""
    source: Text


class Published(_AuditSection):
    """A whole table file (profiles/published/*.yaml)."""

    title: Text
    source: Text
    declared: DeclaredSection = DeclaredSection()
    isolated_ms_per_sample: dict[str, AFigure] = {}
    """Milliseconds per sample of each data path measured by itself."""
    rows: Annotated[list[RowSection], Field(min_length=1, max_length=TABLE_ROWS_MAX)]
    compare: list[Annotated[tuple[str, str], BeforeValidator(_pair)]] | None = None
    """[baseline, candidate] by row name; default: derived from batch sizes and isolated figures."""
    noise: NoiseSection | None = None
    """Of identical runs in this publication."""
    typical_noise: NoiseSection | None = None
    """Of identical runs elsewhere, for the reader; decides nothing."""
