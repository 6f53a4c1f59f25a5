"""Reads and validates probes.json: what the probes of one run reported besides their tables.

Times are CLOCK_MONOTONIC in nanoseconds. Only what the analysis and the report use is declared; the rest is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from harness.study.validation import first_fault
from trainer.errors import InputError

Nanoseconds = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


def _ordered(range_: Sequence[int]) -> Sequence[int]:
    if any(first > last for first, last in zip(range_[::2], range_[1::2], strict=True)):
        raise ValueError("it ends before it begins")
    return range_


class _Facts(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class _TorchProfiler(_Facts):
    # start, end, first step, last step
    windows: list[Annotated[tuple[Nanoseconds, Nanoseconds, Count, Count], AfterValidator(_ordered)]] = []
    realtime_minus_monotonic_ns: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]] = []
    clock_error_ns: Nanoseconds = 0
    flops: dict[str, Annotated[float, Field(ge=0)]] = {}  # by operator


class _PySpy(_Facts):
    rate_hz: float = Field(ge=0.1, le=1e6)
    window: Annotated[list[Nanoseconds], Field(min_length=2, max_length=2), AfterValidator(_ordered)]


class _Probes(_Facts):
    problems: list[str] = []
    failed: list[str] = []
    missed_samples: dict[str, Count] = {}  # by source: host, nvml
    taken_samples: dict[str, Count] = {}
    torch_profiler: _TorchProfiler | None = None
    py_spy: Annotated[_PySpy | None, BeforeValidator(lambda reported: reported or None)] = None  # {}: it failed


def read_facts(path: Path) -> dict[str, Any]:
    """The probes.json at ``path``; InputError, one line, where it is none."""
    try:
        text = path.read_text()
        _Probes.model_validate_json(text, strict=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    except ValidationError as error:
        raise InputError(f"{path}: not what a run's probes report: {first_fault(error)}") from error
    content: dict[str, Any] = json.loads(text)
    return content
