"""Condenses an arm of a study to one value a block for the step and each part, and sessions to what days differ by.

A round is one repetition of both sides, side by side in time and over the same documents. A block's value is the median
over its rounds of the logarithm of candidate time / baseline time: a pause that hits one round moves it by next to
nothing. Rounds of one pair of processes share its luck, so only blocks count as independent values.

Two studies of different days differ by more than their blocks scatter: the machine's clocks, neighbours and temperature
are another draw. The scatter of the medians of kept sessions shows that. Below :data:`MIN_SESSIONS` of them it is
assumed (:data:`DAY_DEVIATION`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import NormalDist, fmean, median

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import Blocks, derived_steps, mean_over, measure
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
EXPOSED = "exposed "  # + a stage: what it made the step wait
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Rounds:
    """One run: mean milliseconds per measured step by round, {part: (rounds,)}, for the step, its phases and stages.

    The work of a stage counts whether the step waited for it or not.
    """

    parts: Mapping[str, Values]
    alternated: bool  # whether its rounds are repetitions
    session: str

    def mean_ms(self, part: str) -> float | None:
        values = self.parts.get(part)
        return None if values is None else float(values.mean())

    def typical_ms(self, part: str) -> float | None:
        values = self.parts.get(part)
        return None if values is None else float(np.median(values))


def rounds(run: RunData) -> Rounds | None:
    """The rounds of a finished run; None where it did not finish or left no measured step.

    Warm-up steps, of the run and of each repetition, are left out.
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
        if np.isnan(work).all():  # a table from before there was this column
            work = exposed + np.nan_to_num(hidden)
        parts[stage], parts[f"{EXPOSED}{stage}"] = per_step(work), per_step(exposed)
    known = {part: values for part, values in parts.items() if values is not None}
    return Rounds(known, alternated, run.record.session)


def typical_log(baseline: Rounds, candidate: Rounds, part: str = STEP, control: Rounds | None = None) -> float | None:
    """Median over rounds of log(candidate / baseline) and, where it ran in the same rounds, log(candidate / control).

    The A/A control is the baseline once more: with it the values of blocks scatter less than without (by how much here:
    results/reference/detection-power). Were the two averaged before dividing, a jump of the machine's speed under
    either would spoil the round. None where a side has no such time in half of the rounds.
    """
    logs = [
        np.log(pair[1][both] / pair[0][both])
        for one in (baseline, *([control] if control is not None and control.session == baseline.session else []))
        if (pair := _paired(one, candidate, part)) is not None
        and (both := (pair[0] > 0) & (pair[1] > 0)).sum() * 2 >= len(both)
        and both.any()
    ]
    return float(np.median(np.concatenate(logs))) if logs else None


def total_log(baseline: Rounds, candidate: Rounds) -> float | None:
    """Return the log of the ratio of total step times. A rare long step moves it. None if a side spent nothing."""
    pair = _paired(baseline, candidate, STEP)
    if pair is None or not pair[0].sum() > 0 or not pair[1].sum() > 0:
        return None
    return math.log(pair[1].sum() / pair[0].sum())


def _paired(baseline: Rounds, candidate: Rounds, part: str) -> tuple[Values, Values] | None:
    """The rounds of both; of runs that do not have as many, each side's own median instead of pairs."""
    first, second = baseline.parts.get(part), candidate.parts.get(part)
    if first is None or second is None:
        return None
    if len(first) == len(second):
        return first, second
    return np.array([np.median(first)]), np.array([np.median(second)])


KEPT = (
    "a-a",
    "ideal-data",
    "data-only",
)  # controls that are figures of their own, and the A/A control, which gives the noise
# Of the environment: another machine, or one that is set otherwise.
MACHINE = ("cpu", "cores", "cpu_quota_cores", "cpu_governor", "cpu_turbo", "nvidia_driver", "memory_bytes")
PROGRAM = "program_fingerprint"  # its code, which may be what is compared
# Facts of a run that say what it ran on and what it did.
FACTS = (
    "device", "device_count", "emulated", "threads", "parameters", "tokenizer_fingerprint", "corpus_fingerprint",
    "model_fingerprint", PROGRAM,
)  # fmt: skip


@dataclass(frozen=True)
class BlockSeries:
    """Typical values of every finished block: milliseconds per step by part (the step, phases, stages), and so on.

    ``twin_logs``: log of the A/A control's step time / its own, one a block; empty without one (baseline files in git
    have the name).
    """

    scenario: FolderName
    arm: FolderName
    created_utc: str
    blocks: list[int]
    part_ms: dict[str, list[float]]
    twin_logs: list[float] = field(default_factory=list)
    peak_memory_bytes: list[int] = field(default_factory=list)
    startup_ms: list[float] = field(default_factory=list)
    config: JsonObject = field(default_factory=dict)  # dotted keys; the first block's
    environment: JsonObject = field(default_factory=dict)
    facts: RunFactsField = field(default_factory=RunFacts)
    useful_fraction: float | None = None
    sm_clock_mhz: float | None = None
    other_cpu_cores: float | None = None
    failed_runs: int = 0
    interleave: str = "runs"
    arms: int | None = None  # of the study, controls among them: what is alive together shares caches and memory
    probes: JsonObject = field(default_factory=dict)  # dotted keys
    loss: float | None = None  # median over blocks, of the last measured steps
    diverged_runs: int = 0
    waiting_share: float | None = None  # of a program of others: share of the time that its main thread had no core
    started: str = "together"  # or one by one, where startup is what is judged

    @property
    def emulated(self) -> bool:
        return bool(self.facts.emulated)


def series_of(study: StudyRecord, runs: Sequence[RunData]) -> dict[str, BlockSeries]:
    """Every arm of a study that finished a block, by name, with the controls that are figures of their own."""
    by_arm: dict[str, dict[int, RunData]] = {}
    for run in runs:
        if run.record.control is None or run.record.control in KEPT:
            by_arm.setdefault(run.record.arm, {})[run.record.block] = run
    found = {}
    for arm, group in by_arm.items():
        control = next((b for b in by_arm.values() if _aa_control_of(b) == arm), {})
        one = None if _aa_control_of(group) else _series(study, arm, group, control)
        if one is not None:
            found[arm] = one
    return found


def _aa_control_of(group: Mapping[int, RunData]) -> str | None:
    record = next(iter(group.values())).record
    return record.of if record.control == "a-a" else None


def _series(
    study: StudyRecord, arm: str, group: Mapping[int, RunData], control: Mapping[int, RunData]
) -> BlockSeries | None:
    found = {block: one for block, run in sorted(group.items()) if (one := rounds(run)) is not None}
    ledgers: Blocks = {block: ledger for block, run in group.items() if (ledger := measure(run)) is not None}
    if not found:
        return None
    controls = {block: one for block, run in control.items() if (one := rounds(run)) is not None}
    records = [group[block].record for block in found]
    names = [part for part in (STEP, *PHASES, *STAGES) if all(part in one.parts for one in found.values())]
    clocks = [card.sm_clock_mhz for card in device_health({arm: list(group.values())}) if card.sm_clock_mhz]
    first = records[0]
    for record in records:
        differs = [
            key
            for key, value in first.environment.items()
            if not alike_environment(key, record.environment.get(key), value)
        ]
        if differs:
            raise InputError(
                f"{study.scenario}: {arm}: block {record.block} ran in another environment than block {first.block} "
                f"({', '.join(differs)}): no figures of one state"
            )
    return BlockSeries(
        scenario=study.scenario,
        arm=arm,
        created_utc=study.created_utc,
        blocks=list(found),
        part_ms={part: [round(one.typical_ms(part) or 0.0, MS_DIGITS) for one in found.values()] for part in names},
        twin_logs=[
            round(log, MS_DIGITS)
            for block in found
            if block in controls and (log := typical_log(found[block], controls[block])) is not None
        ],
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
        started="one by one" if any(one.contest is not None for one in study.arms) else "together",
    )


STARTUP = "startup"  # the name of the startup among the parts of a session


@dataclass(frozen=True)
class Session:
    """One study of a baseline: medians over its blocks, in milliseconds per step by part, and of the startup.

    ``level``: sessions of one level are of one state of the code, and scatter by the machine alone.
    """

    created_utc: str
    level: int = 0
    ms: dict[str, float] = field(default_factory=dict)
    git_commit: str | None = None


@dataclass(frozen=True)
class BetweenDays:
    """What a comparison across days allows for. ``allowance``: a fraction, at the level of the decision.

    ``sessions``: kept; ``known``: whether the allowance is theirs, else it is assumed. ``blocks_only``: the change with
    the interval of the blocks alone, as if no day differed from another.
    """

    allowance: float
    sessions: int
    known: bool
    blocks_only: Estimate | None = None


@dataclass(frozen=True)
class Days:
    """The sessions kept of one arm, oldest first. ``centred``: the newest level's mean is what is compared with.

    Else one study is, which is itself one day's draw.
    """

    sessions: tuple[Session, ...] = ()
    centred: bool = False

    @property
    def level(self) -> tuple[Session, ...]:
        """The sessions of the newest level."""
        newest = max((one.level for one in self.sessions), default=0)
        return tuple(one for one in self.sessions if one.level == newest)

    @property
    def more_sessions(self) -> int:
        """Number of sessions to keep until :meth:`between` is known; 0 where it is."""
        return max(MIN_SESSIONS - 1 - (len(self.sessions) - len(self._levels())), 0)

    def centre(self, part: str) -> float | None:
        """Log of the newest level's milliseconds; None where one session alone is compared with."""
        logs = _logs(self.level, part)
        return fmean(logs) if self.centred and len(logs) >= MIN_SESSIONS else None

    def between(self, part: str, confidence: float) -> tuple[float, bool]:
        """Half the width of the interval of a new day's log against the centre, and whether it is known.

        A prediction interval: the new day is one draw, and the centre a mean of few. Levels share a machine, so their
        scatter is pooled; days in a row that are alike say less than as many others, and widen it.
        """
        groups = [_logs([one for one in self.sessions if one.level == level], part) for level in self._levels()]
        squares = sum((log - fmean(logs)) ** 2 for logs in groups for log in logs)
        freedom = sum(len(logs) - 1 for logs in groups if logs)
        centre = len(_logs(self.level, part)) if self.centre(part) is not None else 1  # days that it is a mean of
        drawn = math.sqrt(1 + 1 / centre)
        tail = 1 - (1 - confidence) / 2
        if freedom < MIN_SESSIONS - 1:
            return NormalDist().inv_cdf(tail) * DAY_DEVIATION * drawn, False
        widened = max(widening(np.array(logs)) for logs in groups if logs)
        return student_t(tail, freedom) * math.sqrt(squares / freedom) * drawn * widened, True

    def _levels(self) -> list[int]:
        return sorted({one.level for one in self.sessions})


def _logs(sessions: Iterable[Session], part: str) -> list[float]:
    return [math.log(one.ms[part]) for one in sessions if one.ms.get(part, 0.0) > 0]


def session_of(series: BlockSeries, level: int) -> Session:
    """``series`` as one session."""
    parts = {part: median(values) for part, values in series.part_ms.items() if values}
    startup = {STARTUP: median(series.startup_ms)} if series.startup_ms else {}
    commit = series.environment.get("git_commit")
    return Session(series.created_utc, level, parts | startup, commit if isinstance(commit, str) else None)


def apart(one: str, other: str) -> bool:
    """Whether two times (UTC, ISO 8601) are of two sessions; False where either is not known."""
    try:
        first, second = (datetime.fromisoformat(text).replace(tzinfo=None) for text in (one, other))
    except ValueError:
        return False
    return abs((second - first).total_seconds()) >= SESSION_APART_H * 3600
