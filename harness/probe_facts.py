"""probes.json: what the probes of one run told besides their tables, and whether a file read back can be one.

Times are CLOCK_MONOTONIC in nanoseconds. Only what the analysis and the report take is declared; the rest is kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationError,
)

from harness.validation import first_fault
from trainer.errors import InputError


class _Facts(BaseModel):
    model_config = ConfigDict(extra="allow")


class _TorchProfiler(_Facts):
    windows: list[tuple[int, int, int, int]] = []  # start, end, first step, last step
    realtime_minus_monotonic_ns: list[int] = []
    clock_error_ns: NonNegativeInt = 0
    flops: dict[str, NonNegativeFloat] = {}  # by operator


class _PySpy(_Facts):
    rate_hz: PositiveFloat
    window: list[int] = Field(min_length=2, max_length=2)


class _Probes(_Facts):
    problems: list[str] = []
    failed: list[str] = []
    missed_samples: dict[str, NonNegativeInt] = {}  # by source: host, nvml
    taken_samples: dict[str, NonNegativeInt] = {}
    torch_profiler: _TorchProfiler | None = None
    py_spy: Annotated[_PySpy | None, BeforeValidator(lambda told: told or None)] = None  # {}: it failed


def read_facts(path: Path) -> dict[str, Any]:
    """The probes.json at ``path``; InputError, one line, where it is none."""
    try:
        text = path.read_text()
        _Probes.model_validate_json(text, strict=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    except ValidationError as error:
        raise InputError(f"{path}: not what a run's probes tell: {first_fault(error)}") from error
    content: dict[str, Any] = json.loads(text)
    return content
