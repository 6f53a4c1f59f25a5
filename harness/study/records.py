"""The records of a study: study.json and run.json, a dataclass each. JSON keys are the fields' names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from harness.study.contract import SCHEMA

RunStatus = Literal["done", "failed", "interrupted"]


@dataclass
class RunRecord:
    """run.json: what ran, as it ran (not as it was asked), and how it ended."""

    arm: str
    block: int
    status: RunStatus
    # a-a, ideal-data, data-only, dose-<tokenize|read|device>-<k>; for the probes: profiled, bare, with-<probe>
    control: str | None = None
    of: str | None = None  # the arm this control belongs to
    session: str = ""  # runs of one session alternated in time; only these are paired turn by turn
    position: int = 0  # place in the block's order
    interleave: str = "runs"  # slices or runs, as used
    pid: int = 0
    started_utc: str = ""
    ended_utc: str = ""
    exit_code: int | None = None
    error: str | None = None
    config: dict[str, Any] = field(default_factory=dict)  # resolved trainer configuration
    declared: dict[str, Any] = field(default_factory=dict)  # dotted keys this arm declares, with values
    facts: dict[str, Any] = field(default_factory=dict)  # from the trainer: parameters, flops_per_token, device, ...
    environment: dict[str, Any] = field(default_factory=dict)
    realtime_minus_monotonic_ns: int = 0
    # As the parent saw it from outside, None where it did not: the template's imports and everything until the first
    # turn; the largest resident memory of the run's processes, summed (pages that they share count in each).
    startup_ns: int | None = None
    peak_memory_bytes: int | None = None
    peak_device_bytes: int | None = None  # CUDA: what torch's allocator held at most
    schema: int = SCHEMA


@dataclass
class StudyRecord:
    """study.json: the scenario as it was resolved, its arms and comparisons, and how the study went."""

    scenario: str
    question: str
    status: Literal["running", "done", "failed", "interrupted"]
    created_utc: str = ""
    ended_utc: str = ""
    command: list[str] = field(default_factory=list)
    scenario_file: str = ""
    scenario_text: dict[str, Any] = field(default_factory=dict)  # the resolved scenario, as plain data
    interleave: str = "runs"
    interleave_reason: str = ""
    blocks: int = 0
    order: list[list[str]] = field(default_factory=list)  # per block, the arms in the order they run
    # name, control, of, declared, config; contest: what it is one side of; code: where it runs other code than this;
    # other_defaults: what that code and its base have for keys that nobody declared
    arms: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[dict[str, str]] = field(default_factory=list)  # baseline, candidate
    environment: dict[str, Any] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)  # of every corpus and tokenizer, by what it is
    notes: list[str] = field(default_factory=list)
    schema: int = SCHEMA
