"""Condense an arm of a study to one value per block for the step and its parts, and sessions to the day-to-day scatter.

A round is one repetition of both sides, close in time and over the same documents. A block's value is the median over
its rounds of log(candidate time / baseline time), which a pause in one round hardly changes. Only blocks count as
independent values.

Studies of different days differ by more than their blocks scatter. The scatter of the medians of kept sessions shows
this variation; with fewer than :data:`MIN_SESSIONS` sessions it is assumed (:data:`DAY_DEVIATION`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import NormalDist, fmean, median

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import Blocks, derived_steps, epoch_steps, mean_over, measure
from harness.explain.spans import column
from harness.explain.statistics import Estimate, student_t, widening
from harness.judge.confounds import alike_environment, useful_fraction
from harness.judge.doubts import waiting_share
from harness.judge.losses import loss_of
from harness.judge.probes.machine_load import device_health
from harness.regress.policy import DAY_DEVIATION, MIN_SESSIONS, MS_DIGITS, ROUNDS_PER_RUN, SESSION_APART_H
from harness.scenario.overrides import flatten
from harness.study.contract import PHASES, STAGES
from harness.study.files import FolderName
from harness.study.records import RunFacts, RunFactsField, StudyRecord
from harness.study.run_data import RunData
from trainer.errors import InputError
from trainer.json_types import JsonObject, section

STEP = "step"
EXPOSED = "exposed "  # prefix of a stage's name: the time that the step waited for it
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Rounds:
    """Mean ms per measured step of one run, by round and part: step, phases, stages, and waits (:data:`EXPOSED`)."""

    parts: Mapping[str, Values]  # each (rounds,)
    alternated: bool  # True if its rounds are repetitions
    session: str  # runs with the same value ran side by side

    def mean_ms(self, part: str) -> float | None:
        values = self.parts.get(part)
        return None if values is None else float(values.mean())

    def typical_ms(self, part: str) -> float | None:
        values = self.parts.get(part)
        return None if values is None else float(np.median(values))


def rounds(run: RunData) -> Rounds | None:
    """Return the rounds of a finished run, without warm-up; None if it did not finish or measured no step. A round is
    one repetition, or one of up to :data:`ROUNDS_PER_RUN` equal slices of a run that did not alternate.
    """
    steps = derived_steps(run).table
    if run.record.status != "done" or steps is None:
        return None
    wall = column(steps, "wall_ns")
    measured = np.not_equal(column(steps, "warmup"), 1) & (wall > 0)
    if not measured.any():
        return None
    repetition = np.nan_to_num(column(steps, "turn")[measured])
    alternated = run.record.interleave == "slices" and len(np.unique(repetition)) > 1
    if not alternated:
        repetition = np.floor(np.arange(len(repetition)) * min(ROUNDS_PER_RUN, len(repetition)) / len(repetition))
    _, places = np.unique(repetition, return_inverse=True)
    counts = np.bincount(places)

    def per_step(values: Values) -> Values | None:
        if np.isnan(values).any():
            return None
        summed: Values = np.bincount(places, weights=values) / counts / 1e6
        return summed

    parts = {STEP: per_step(wall[measured])}
    for phase in PHASES:
        parts[phase] = per_step(column(steps, f"{phase}_ns")[measured])
    for stage in STAGES:
        exposed, hidden, work = (
            column(steps, f"{kind}_{stage}_ns")[measured] for kind in ("exposed", "hidden", "work")
        )
        if np.isnan(work).all():  # an older table without this column
            work = exposed + np.nan_to_num(hidden)
        parts[stage], parts[f"{EXPOSED}{stage}"] = per_step(work), per_step(exposed)
    measured_parts = {part: values for part, values in parts.items() if values is not None}
    return Rounds(measured_parts, alternated, run.record.session)


def typical_log(baseline: Rounds, candidate: Rounds, part: str = STEP, control: Rounds | None = None) -> float | None:
    """Return the median over rounds of log(candidate / baseline) of ``part``. None if a side lacks it, or spent no time
    on it in over half of the rounds.

    ``control``: the baseline's A/A control. If it ran in the same rounds, its log(candidate / control) of each round
    joins the median, and blocks scatter less (results/reference/detection-power). Averaging it with the baseline first
    would let a jump of the machine's speed spoil the round.
    """
    logs = [
        np.log(pair[1][positive] / pair[0][positive])
        for reference in (baseline, *([control] if control is not None and control.session == baseline.session else []))
        if (pair := _paired(reference, candidate, part)) is not None
        and (positive := (pair[0] > 0) & (pair[1] > 0)).sum() * 2 >= len(positive)
        and positive.any()
    ]
    return float(np.median(np.concatenate(logs))) if logs else None


def total_log(baseline: Rounds, candidate: Rounds) -> float | None:
    """Return the log of the candidate's total step time / the baseline's (medians if rounds differ); or None."""
    pair = _paired(baseline, candidate, STEP)
    if pair is None or not pair[0].sum() > 0 or not pair[1].sum() > 0:
        return None
    return math.log(pair[1].sum() / pair[0].sum())


def _paired(baseline: Rounds, candidate: Rounds, part: str) -> tuple[Values, Values] | None:
    """Return both sides' times of ``part`` per round, or one median each if the rounds differ; None if not measured."""
    first, second = baseline.parts.get(part), candidate.parts.get(part)
    if first is None or second is None:
        return None
    if len(first) == len(second):
        return first, second
    return np.array([np.median(first)]), np.array([np.median(second)])


# Controls with figures of their own, and the A/A control, which shows the noise.
KEPT = ("a-a", "ideal-data", "data-only")
# Entries of the environment that identify a machine and its settings.
MACHINE = ("cpu", "cores", "cpu_quota_cores", "cpu_governor", "cpu_turbo", "nvidia_driver", "memory_bytes")
PROGRAM = "program_fingerprint"  # fingerprint of its code, which may be the subject of the comparison
# Facts about the device and the work of a run.
FACTS = (
    "device", "device_count", "emulated", "threads", "parameters", "tokenizer_fingerprint", "corpus_fingerprint",
    "model_fingerprint", PROGRAM,
)  # fmt: skip


@dataclass(frozen=True)
class BlockSeries:
    """Figures of one arm in one study, as in a baseline file. Lists have a value per block, a median over rounds."""

    scenario: FolderName
    arm: FolderName
    created_utc: str
    blocks: list[int]
    part_ms: dict[str, list[float]]  # milliseconds per step by part (the step, phases, stages)
    twin_logs: list[float] = field(default_factory=list)  # log(A/A control / arm) of step times; name of old files
    peak_memory_bytes: list[int] = field(default_factory=list)
    startup_ms: list[float] = field(default_factory=list)
    config: JsonObject = field(default_factory=dict)  # dotted keys, from the first block
    environment: JsonObject = field(default_factory=dict)
    facts: RunFactsField = field(default_factory=RunFacts)
    useful_fraction: float | None = None
    sm_clock_mhz: float | None = None
    other_cpu_cores: float | None = None
    failed_runs: int = 0
    interleave: str = "runs"
    # number in the study, including controls, because arms alive together share caches and memory
    arms: int | None = None
    probes: JsonObject = field(default_factory=dict)  # dotted keys
    loss: float | None = None  # median over blocks, of the last measured steps
    diverged_runs: int = 0
    waiting_share: float | None = None  # for an attached program: share of the time without a core for its main thread
    started: str = "together"  # "one by one" if startup is judged
    steps: int | None = None  # fewest measured steps of a block; None in older baselines
    epoch_steps: float | None = None  # steps of an epoch of its data; None if unknown

    @property
    def emulated(self) -> bool:
        return bool(self.facts.emulated)


def series_of(study: StudyRecord, runs: Sequence[RunData]) -> dict[str, BlockSeries]:
    """Return the series by arm (and control except A/A). Raise InputError if an arm's environments differ."""
    by_arm: dict[str, dict[int, RunData]] = {}
    for run in runs:
        if run.record.control is None or run.record.control in KEPT:
            by_arm.setdefault(run.record.arm, {})[run.record.block] = run
    result = {}
    for arm, group in by_arm.items():
        control = next((b for b in by_arm.values() if _aa_control_of(b) == arm), {})
        series = None if _aa_control_of(group) else _series(study, arm, group, control)
        if series is not None:
            result[arm] = series
    return result


def _aa_control_of(group: Mapping[int, RunData]) -> str | None:
    record = next(iter(group.values())).record
    return record.of if record.control == "a-a" else None


def _series(
    study: StudyRecord, arm: str, group: Mapping[int, RunData], control: Mapping[int, RunData]
) -> BlockSeries | None:
    rounds_by_block = {block: found for block, run in sorted(group.items()) if (found := rounds(run)) is not None}
    ledgers: Blocks = {block: ledger for block, run in group.items() if (ledger := measure(run)) is not None}
    if not rounds_by_block:
        return None
    controls = {block: run_rounds for block, run in control.items() if (run_rounds := rounds(run)) is not None}
    records = [group[block].record for block in rounds_by_block]
    every = (STEP, *PHASES, *STAGES)
    names = [part for part in every if all(part in one.parts for one in rounds_by_block.values())]
    clocks = [card.sm_clock_mhz for card in device_health({arm: list(group.values())}) if card.sm_clock_mhz]
    first = records[0]
    for record in records:
        here, there = record.environment, first.environment
        differs = [key for key in there if not alike_environment(key, here.get(key), there[key])]
        if differs:
            raise InputError(
                f"{study.scenario}: {arm}: block {record.block} ran in another environment than block {first.block} "
                f"({', '.join(differs)}); measure all blocks in one environment"
            )
    part_ms = {
        part: [round(one.typical_ms(part) or 0.0, MS_DIGITS) for one in rounds_by_block.values()] for part in names
    }
    noise_logs = [
        typical_log(rounds_by_block[block], controls[block]) for block in rounds_by_block if block in controls
    ]
    separate = any(arm_record.contest is not None for arm_record in study.arms)
    return BlockSeries(
        study.scenario,
        arm,
        study.created_utc,
        list(rounds_by_block),
        part_ms,
        twin_logs=[round(log, MS_DIGITS) for log in noise_logs if log is not None],
        peak_memory_bytes=[record.peak_memory_bytes for record in records if record.peak_memory_bytes],
        startup_ms=[round(record.startup_ns / 1e6, 1) for record in records if record.startup_ns],
        config={key: value for key, value in flatten(first.config).items() if key != "seed"},
        environment=dict(first.environment),
        facts=first.facts.only(FACTS),
        useful_fraction=useful_fraction(ledgers),
        sm_clock_mhz=median(clocks) if clocks else None,
        other_cpu_cores=mean_over(list(ledgers.values()), lambda ledger: ledger.other_cpu_cores),
        failed_runs=sum(run.record.status == "failed" for run in group.values()),
        interleave=first.interleave,
        arms=len(study.arms) or None,
        probes=flatten(section(study.scenario_text, "probes")),
        loss=loss_of(list(ledgers.values())),
        diverged_runs=sum(ledger.diverged for ledger in ledgers.values()),
        waiting_share=waiting_share([record.facts for record in records]),
        steps=min((len(ledger.step_ms) for ledger in ledgers.values()), default=None),
        epoch_steps=epoch_steps(ledgers),
        started="one by one" if separate else "together",
    )


STARTUP = "startup"  # name of the startup among the parts of a session


@dataclass(frozen=True)
class Session:
    """Medians of one study that was saved into a baseline file."""

    created_utc: str
    level: int = 0  # number of a code state: only the machine makes sessions of one level differ
    ms: dict[str, float] = field(default_factory=dict)  # medians over blocks: step by part, and startup
    git_commit: str | None = None


@dataclass(frozen=True)
class BetweenDays:
    """Variation between days, by which the interval of a comparison of two studies of different days was widened."""

    allowance: float  # a fraction, at the level of the decision
    sessions: int  # number of kept sessions of the newest level
    known: bool  # True if the allowance comes from them, else it is assumed
    blocks_only: Estimate | None = None  # the change with the interval from blocks alone


@dataclass(frozen=True)
class Days:
    """Kept sessions of one arm, from which the variation between days is estimated."""

    sessions: tuple[Session, ...] = ()  # oldest first
    centred: bool = False  # True: compare with the mean of the newest level's sessions, not with one day's study

    @property
    def level(self) -> tuple[Session, ...]:
        """Sessions of the newest level: a code state, whose number grows if its speed was changed on purpose."""
        newest = max((session.level for session in self.sessions), default=0)
        return tuple(session for session in self.sessions if session.level == newest)

    @property
    def more_sessions(self) -> int:
        """Number of further sessions until :meth:`between` is measured instead of assumed."""
        return max(MIN_SESSIONS - 1 - (len(self.sessions) - len(self._levels())), 0)

    def centre(self, part: str) -> float | None:
        """Return the mean log(ms of ``part``) of the newest level; None unless ``centred`` by MIN_SESSIONS of them."""
        logs = _logs(self.level, part)
        return fmean(logs) if self.centred and len(logs) >= MIN_SESSIONS else None

    def between(self, part: str, confidence: float) -> tuple[float, bool]:
        """Return (half width, measured): a new day's log(ms) of ``part`` lies within the half width of the centre.

        With too few sessions it is not measured, and :data:`DAY_DEVIATION` is assumed. It is a prediction interval: the
        new day is one draw, and the centre a mean of few. The scatter within each level is pooled. Similar days in a
        row hold less information than independent ones, so they widen it.
        """
        groups = [
            _logs([session for session in self.sessions if session.level == level], part) for level in self._levels()
        ]
        squares = sum((log - fmean(logs)) ** 2 for logs in groups for log in logs)
        freedom = sum(len(logs) - 1 for logs in groups if logs)
        centre = len(_logs(self.level, part)) if self.centre(part) is not None else 1  # number of days in the mean
        drawn = math.sqrt(1 + 1 / centre)
        tail = 1 - (1 - confidence) / 2
        if freedom < MIN_SESSIONS - 1:
            return NormalDist().inv_cdf(tail) * DAY_DEVIATION * drawn, False
        widened = max(widening(np.array(logs)) for logs in groups if logs)
        return student_t(tail, freedom) * math.sqrt(squares / freedom) * drawn * widened, True

    def _levels(self) -> list[int]:
        return sorted({session.level for session in self.sessions})


def _logs(sessions: Iterable[Session], part: str) -> list[float]:
    return [math.log(session.ms[part]) for session in sessions if session.ms.get(part, 0.0) > 0]


def session_of(series: BlockSeries, level: int) -> Session:
    """Return the medians of ``series`` over its blocks, as one session of the code state ``level``."""
    parts = {part: median(values) for part, values in series.part_ms.items() if values}
    startup = {STARTUP: median(series.startup_ms)} if series.startup_ms else {}
    commit = series.environment.get("git_commit")
    return Session(series.created_utc, level, parts | startup, commit if isinstance(commit, str) else None)


def apart(one: str, other: str) -> bool:
    """Return True if two times (UTC, ISO 8601) are at least :data:`SESSION_APART_H` hours apart; else False."""
    try:
        first, second = (datetime.fromisoformat(text).replace(tzinfo=None) for text in (one, other))
    except ValueError:
        return False
    return abs((second - first).total_seconds()) >= SESSION_APART_H * 3600
