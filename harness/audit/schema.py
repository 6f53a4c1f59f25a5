"""Defines the keys of a published results table (profiles/published/*.yaml), each with its documentation.

Figures arrive as *text*: ``6544.40`` and ``6544.4`` stand for different intervals, and the audit's tolerances follow
from the digits. Only title, source and rows are required. The audit names what it cannot check without the others.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from harness.audit.figures import AuditedFigure, read_duration, read_figure
from harness.audit.policy import TABLE_ROWS_MAX


def _figure(value: Any) -> AuditedFigure:
    return read_figure(_text(value))


def _duration(value: Any) -> AuditedFigure:
    return read_duration(_text(value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a figure, not a mapping or list")
    return value


def _fractions(value: Any) -> tuple[float, float]:
    """``0.01``, or ``[0.01, 0.03]``; both as text."""
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


AFigure = Annotated[AuditedFigure, BeforeValidator(_figure)]
ADuration = Annotated[AuditedFigure, BeforeValidator(_duration)]
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
    """What is needed to count the optimizer's memory traffic."""

    name: Text | None = None
    fused: bool
    bytes_per_value: PositiveCount
    """Of an element of weight, gradient and moment: 2 for pure bf16, 4 for fp32."""
    gradient_norm: Literal["none", "norm", "clip"] = "none"
    memory_bandwidth_bytes_per_s: PositiveRate | None = None


class DeclaredSection(_AuditSection):
    """What holds for all rows that do not say otherwise."""

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
    """One row; figures with the digits that were printed (~300: rounded; 48-49: a range)."""

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
    """How far identical runs differ (0.01 is 1 %), and the source of that."""

    fraction: Annotated[tuple[float, float], BeforeValidator(_fractions)]
    """One number, or [from, to]."""
    source: Text


class Published(_AuditSection):
    """The file."""

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
