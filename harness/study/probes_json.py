"""Reads probes.json: what the probes of one run reported besides their tables, as records.

Times are CLOCK_MONOTONIC in nanoseconds. Reading leaves out keys that no record declares, as a later version may add.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from harness.study.validation import first_fault
from trainer.errors import InputError
from trainer.files import read_json

Nanoseconds = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


def _ordered(range_: Sequence[int]) -> Sequence[int]:
    if any(first > last for first, last in zip(range_[::2], range_[1::2], strict=True)):
        raise ValueError("it ends before it begins")
    return range_


@dataclass(frozen=True, kw_only=True)
class TorchProfilerRecord:
    """The entry "torch_profiler"."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    # Of each window: start, end, first step, last step.
    windows: tuple[Annotated[tuple[Nanoseconds, Nanoseconds, Count, Count], AfterValidator(_ordered)], ...] = ()
    realtime_minus_monotonic_ns: tuple[Annotated[int, Field(ge=-(2**63), lt=2**63)], ...] = ()  # before and after
    clock_error_ns: Nanoseconds | None = None  # by how much the difference of the clocks can be off
    workers: tuple[str, ...] = ()  # roles of the loader workers that left a profile
    flops: dict[str, Annotated[float, Field(ge=0)]] = field(default_factory=dict)  # by operator, over all windows


@dataclass(frozen=True, kw_only=True)
class PySpyRecord:
    """The entry "py_spy": how its trace was recorded, which is what reading the trace needs."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    rate_hz: float = Field(ge=0.1, le=1e6)
    seconds: float = 0  # how long it was to sample
    native: bool = False
    gil: bool = False
    nonblocking: bool = False
    pid: int = 0  # of the main process
    metronome: tuple[int, ...] = ()  # process ids, see harness.probes.profilers.spy_process.Metronome
    started: tuple[int, ...] = ()  # when py-spy was started, and when it began to sample
    marks: tuple[tuple[int, int], ...] = ()  # when each clock mark began and ended
    window: Annotated[tuple[Nanoseconds, Nanoseconds], AfterValidator(_ordered)]
    steps: Count = 0  # in the window
    samples: Count = 0
    errors: Count = 0
    roots: tuple[str, ...] = ()  # folders that modules were imported from, the longest first


@dataclass(frozen=True)
class ProbesRecord:
    """What the probes of one run reported. None: the probe had no window in this run, or it failed."""

    problems: tuple[str, ...] = ()  # what went wrong, a line each
    missed_samples: dict[str, Count] = field(default_factory=dict)  # by source: host, nvml
    taken_samples: dict[str, Count] = field(default_factory=dict)
    torch_profiler: TorchProfilerRecord | None = None
    py_spy: PySpyRecord | None = None
    failed: tuple[str, ...] = ()  # names of probes


@cache
def _adapter() -> TypeAdapter[ProbesRecord]:
    return TypeAdapter(ProbesRecord)  # making one takes milliseconds


def read_facts(path: Path) -> ProbesRecord:
    """The probes.json at ``path``; InputError, one line, where it is none."""
    try:
        content = read_json(path)
        if isinstance(content, dict) and content.get("py_spy") == {}:  # as it is written where py-spy failed
            content["py_spy"] = None
        return _adapter().validate_json(json.dumps(content), strict=True)  # only of JSON may a tuple be an array
    except ValidationError as error:
        raise InputError(f"{path}: not what a run's probes report: {first_fault(error)}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
