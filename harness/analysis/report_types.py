"""What the analysis of a study returns: one record for the study, one for each arm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.analysis.comparisons import Comparison
from harness.analysis.ledger import Bound
from harness.analysis.overlap import SyncCall
from harness.analysis.probes.probe_cost import ProbeCost
from harness.analysis.statistics import Estimate
from harness.study.store import StudyRecord


@dataclass
class ArmReport:
    """One arm or control: medians over blocks with intervals, and means per step. None: not measured."""

    name: str
    control: str | None
    of: str | None
    declared: dict[str, Any]
    blocks: int  # finished, with measured steps
    steps: int = 0  # measured steps over all blocks
    tokens_per_s: Estimate | None = None
    trained_tokens_per_s: Estimate | None = None
    step_ms: Estimate | None = None
    p50_ms: float | None = None  # of single steps, over all blocks
    p95_ms: float | None = None
    useful_fraction: float | None = None
    tokens_per_step: float | None = None
    ledger: dict[str, float] = field(default_factory=dict)  # share of the step's wall time by phase
    phase_ms: dict[str, float] = field(default_factory=dict)
    exposed_ms: dict[str, float] = field(default_factory=dict)
    hidden_ms: dict[str, float] = field(default_factory=dict)
    contended_ms: float | None = None
    device_busy_ms: float | None = None
    device_starved_ms: float | None = None
    slack_ms: float | None = None
    starved_ms: dict[str, float] = field(default_factory=dict)
    bound: Bound | None = None
    syncs: list[SyncCall] = field(default_factory=list)
    replay_error: float | None = None  # fraction: the unedited replay's step time / the measured one - 1
    resampled_error: float | None = None  # the same from resampled durations, as predictions are made
    ideal_predicted: Estimate | None = None  # step time / that of its replay without data work
    ideal_measured: Estimate | None = None  # step time / that of its ideal-data control
    emulation: str | None = None  # the assumptions an emulated device's times rest on
    loss: float | None = None
    model_flops_per_s: float | None = None
    mfu: float | None = None
    mfu_reason: str = ""
    mfu_of: str = ""  # the peak that MFU is a share of
    device: str | None = None
    against_arm: Estimate | None = None  # of a control: its arm's step time / its own, paired


@dataclass
class StudyReport:
    """What a study found. ``problems`` says, most important first, what is missing or went wrong."""

    study: StudyRecord
    arms: list[ArmReport]
    comparisons: list[Comparison]
    problems: list[str]
    emulated: bool
    environment: dict[str, Any]
    probe_costs: list[ProbeCost] = field(default_factory=list)
    probe_problems: list[str] = field(default_factory=list)  # what a probe could not do, said once

    def arm(self, name: str) -> ArmReport | None:
        return next((arm for arm in self.arms if arm.name == name), None)
