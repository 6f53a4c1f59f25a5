"""Defines what the analysis of a study returns: one record for the study, one for each arm and each comparison.

Each record holds those of the stages that made it: totals of ledgers first, then what spans, doses and replays add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.explain.bounds import Bound, BoundShares, agreed
from harness.explain.exposure import Dose, SyncCall
from harness.explain.lead_use import LeadUse, Loading
from harness.explain.ranks import GroupGain, RanksReport
from harness.explain.replay.attribution import PathLink, PathTime, Removal
from harness.explain.replay.prediction import Assumption
from harness.explain.replay.recording import ReplayGap
from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import EndedCost, LongSteps, StepKinds, StepTimes
from harness.explain.wall import SlowCause, StepPart, Wall
from harness.judge.claims import ArmUse, JudgedClaim
from harness.judge.comparisons import Absent, Measured, Missing
from harness.judge.confounds import Confound
from harness.judge.controls import DataPath, ProbeCost, Scaling
from harness.judge.doubts import Bar, Doubt, ProbeProblem, StudyProblem, Unseen
from harness.judge.learning import Learning
from harness.judge.losses import Learned
from harness.judge.waits import UnevenSpeed, UnevenWaits
from harness.study.records import StudyRecord
from trainer.json_types import JsonObject

AdviceBar = Bar | Literal["serial"]
AdviceCost = Literal["processes", "no processes", "memory", "pretokenized copy", "late check", "its data path"]


@dataclass(frozen=True)
class ArmTotals:
    """An arm's ledgers: medians over blocks with intervals, and means per step. None and empty: not measured."""

    steps: int = 0  # measured steps over all blocks
    tokens_per_s: Estimate | None = None
    trained_tokens_per_s: Estimate | None = None
    step_ms: Estimate | None = None
    p50_ms: float | None = None  # of single steps, over all blocks
    p95_ms: float | None = None
    long_steps: LongSteps | None = None  # the few that last far longer
    step_kinds: StepKinds | None = None  # where steps are of two kinds, and none is as their mean
    useful_fraction: float | None = None
    tokens_per_step: float | None = None
    ledger: Mapping[str, float] = field(default_factory=dict)  # share of the step's wall time by phase
    phase_ms: Mapping[str, float] = field(default_factory=dict)
    exposed_ms: Mapping[str, float] = field(default_factory=dict)
    hidden_ms: Mapping[str, float] = field(default_factory=dict)
    work_ms: Mapping[str, float] = field(default_factory=dict)  # all time of the stages, wherever it ran
    during_wait_ms: Mapping[str, float] = field(default_factory=dict)  # ran while the step waited for that very batch
    parallel_ms: Mapping[str, float] = field(default_factory=dict)  # ran while it waited for another batch
    between_steps_ms: Mapping[str, float] = field(default_factory=dict)  # ran between training steps
    unsplit: str | None = None  # why exposed and hidden are empty, where a replay would be needed for them
    contended_ms: float | None = None
    waited_range_ms: tuple[float, float] | None = None  # by either reading of when the device worked; see the ledger
    device_busy_ms: float | None = None  # None also where phases that were still being launched leave it open
    busy_from: Literal["ledger", "profiled window"] = "ledger"
    busy_at_least_ms: float | None = None  # by SM activity, where that is more than the events know
    device_launch_bound_ms: float | None = None  # within launch-bound phases: working or waiting for launches
    device_open_ms: float | None = None  # the same within others: the device was at them while the host launched
    launch_bound: Mapping[str, float] = field(default_factory=dict)  # share of steps, by piece of the device's work
    device_starved_ms: float | None = None
    slack_ms: float | None = None
    starved_ms: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[Bound, int] = field(default_factory=dict)  # number of blocks by what bounds them
    uneven: UnevenWaits | None = None  # where blocks wait for unlike shares of a step
    bound_shares: BoundShares | None = None
    loss: float | None = None  # None where it was not measured, or is not finite in any run
    diverged: int = 0  # runs whose loss was NaN or infinite, or rose far above its start

    @property
    def mean_step_ms(self) -> float | None:
        """Mean of the measured steps, to which the phases sum. A few long steps set it apart from the median."""
        return sum(self.phase_ms.values()) or (None if self.step_ms is None else self.step_ms.median)

    @property
    def device_unknown_ms(self) -> float:
        """How long the device worked or waited for launches, and its events do not tell which."""
        return (self.device_launch_bound_ms or 0.0) + (self.device_open_ms or 0.0)

    @property
    def bound(self) -> Bound | None:
        """What limits the steps of all blocks; None where they differ in it."""
        return agreed(self.bounds)


@dataclass(frozen=True)
class NoMfu:
    """Why a share of a peak (MFU) is not given; ``detail``: the trainer's own reason, where it recorded one."""

    kind: Literal["no run", "no compute", "no flops", "no profile"]
    device: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class ModelSpeed:
    """How much of its device's peak an arm used."""

    device: str | None = None
    emulation: str | None = None  # the assumptions an emulated device's times rest on
    flops_per_s: float | None = None  # of the model
    mfu: float | None = None
    mfu_of: str = ""  # the peak that MFU is a share of
    convention: str = ""  # by which the model's FLOPs were counted; "" where they were not
    no_mfu: NoMfu | None = None


@dataclass(frozen=True)
class ArmExplained:
    """An arm's blocking calls, its slowdown injections, and its replays: as it ran, and without data work. None: it
    cannot be replayed.
    """

    syncs: tuple[SyncCall, ...] = ()
    replay_error: float | None = None  # fraction: the unedited replay's step time / the measured one - 1
    resampled_error: float | None = None  # the same from resampled durations, as predictions are made
    within_tolerance: bool = False  # whether both are typically small enough to believe what is replayed
    ideal_predicted: Estimate | None = None  # its replay / the same without data work; both replayed
    ideal_measured: Estimate | None = None  # step time / that of its ideal-data control
    no_ideal: Absent | None = None  # why not
    # Both where blocks wait for unlike shares of a step: the median of all is then that of one kind, or of none.
    predicted_in_blocks: UnevenSpeed | None = None
    measured_in_blocks: UnevenSpeed | None = None
    # Milliseconds per step by link of the critical path, the longest first; they sum to the step.
    critical_path_ms: Mapping[PathLink, PathTime] = field(default_factory=dict)
    removals: tuple[Removal, ...] = ()  # what removing each part would save, largest first; savings overlap
    doses: tuple[Dose, ...] = ()  # its slowdown injections


DiagnosisKind = Literal[
    "input-bound", "checkpoint-bound", "own code", "garbage collection", "evaluation-bound", "recompiling",
    "cores too few", "synchronization-bound", "interpreter lock", "growing", "padding", "compute-bound", "unknown",
]  # fmt: skip
DiagnosisRemedy = Literal[
    "advice", "persistent workers", "fewer restarts", "faster sampler", "tokenize before", "even workers",
    "load ahead", "use workers", "use one worker", "less work", "faster storage", "loading first", "whole batches",
    "more workers", "more shards", "fewer objects", "save less often", "less often", "other thread", "shorter lock",
    "freeze", "evaluate less often", "fewer shapes", "free cores", "values in tensors", "fewer threads",
    "fewer processes", "no gradients", "no sync", "other ranks", "other process",
    "find the growth", "pad less", "batch alike", "model", "profile", "sample alone",
]  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """One answer to where the wall clock of an attached program goes: what it costs, and what to do.

    ``saving``: times as fast a step would be without it; None: not known, or no later step has the cost.
    ``at_most``: it is a bound.
    """

    kind: DiagnosisKind
    name: str  # of its largest part: a stage, a phase, a place
    ms: Estimate  # a step
    share: float  # of a step without waits for a core; of these waits, of the step by the clock
    saving: Estimate | None
    at_most: bool
    remedy: DiagnosisRemedy  # "advice": what replay found worth trying
    part: StepPart  # its largest part
    share_of_part: float = 1.0  # of ``ms``, by its largest part
    ended: EndedCost | None = None  # steps that had the cost, if no later one has
    figures: Mapping[str, float] = field(default_factory=dict)  # that the text of the remedy has, by name


@dataclass(frozen=True)
class ArmReport:
    """One arm or control."""

    name: str
    control: str | None
    of: str | None
    declared: JsonObject  # dotted keys with their values
    blocks: int  # finished, with measured steps
    totals: ArmTotals
    speed: ModelSpeed
    explained: ArmExplained
    against_arm: Estimate | None = None  # of a control: its arm's step time / its own, paired
    # Of a program that nobody here wrote: what of it was timed, what ended a step, and what could not be seen.
    attached: str | None = None
    step_ends: str | None = None
    unseen: Unseen | None = None
    wall: Wall | None = None  # where the wall clock of such a program goes
    diagnoses: tuple[Diagnosis, ...] = ()  # what costs most of that, then other findings, ranked by cost
    doubts: tuple[Doubt, ...] = ()  # by precedence, those that bar nothing among them
    causes: tuple[SlowCause, ...] = ()  # what slowed the steps of such a program
    optimizer_steps: int = 0  # of the runs that counted what was skipped, warm-up steps too
    skipped_steps: int | None = None  # of all its runs, as gradients overflowed in fp16; None: the loss is not scaled
    ranks: RanksReport | None = None  # of this trainer
    lead_use: LeadUse | None = None  # how much faster its steps were than they can go on being; None: not known
    # What encodes where it was chosen, and what it proved: see RunFacts.
    tokenizer_engine: str | None = None
    tokenizer_proof: str | None = None
    copies: int = 0  # loader workers that made the same batches; 0 if none did
    workers: int = 0  # number of loader workers
    loading: Loading = field(default_factory=Loading)  # of an attached program
    ended: Mapping[str, EndedCost] = field(default_factory=dict)  # costs of an attached program that ended, by phase
    iterable: bool = False  # True if its dataset has no index
    free_cores: int | None = None  # for more loader workers, beside its main thread; None: not known
    crowded: bool = False  # True if busy threads and child processes of all its ranks here are more than its cores
    spare_threads: int = 0  # threads of its process beyond an equal part of the cores
    sampled: bool = False  # True if the lines of such a program were sampled
    idle_workers: int = 0  # workers that delivered no batch in any block
    gave_no_items: bool = False  # True if the dataset had no items for the idle workers
    epoch_steps: float | None = None  # steps of an epoch of its data, median over blocks; None: not known

    @property
    def block_steps(self) -> int:
        """Measured steps of a block."""
        return self.totals.steps // self.blocks

    @property
    def waiting(self) -> float:
        """Share of the time in which the main thread of such a program waited for a core.

        Its part of the mean step is larger than the median over blocks if few blocks waited most.
        """
        waits = sum(one.share for one in self.parts if one.kind == "core")
        return waits if self.unseen is None else max(waits, self.unseen.waiting)

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """The parts of a step of such a program; empty of others."""
        return () if self.wall is None else self.wall.parts


@dataclass(frozen=True)
class WhatIf:
    """A comparison under edits, by replay of both arms. Step times in ms; ``ratio``: baseline's / candidate's.

    Of a candidate that cannot be replayed the baseline's part is there all the same.
    """

    edits: str  # as they are written: "ranks=16"; empty: unedited
    baseline_ms: Estimate | None = None
    candidate_ms: Estimate | None = None
    ratio: Estimate | None = None
    waits_ms: float | None = None  # per step of the baseline: what it would wait for data
    measured_ms: Estimate | None = None  # of the candidate, where it ran what the edits make of the baseline
    reason: ReplayGap | None = None  # why nothing could be predicted
    candidate_reason: ReplayGap | None = None  # why nothing could be predicted of the candidate
    doubts: tuple[Doubt, ...] = ()  # about the predictions of both arms, by precedence


@dataclass(frozen=True)
class PredictedRatio:
    """The replay of the baseline's steps with the candidate's data path."""

    ratio: Estimate | None  # of what the comparison measures
    step_time: Estimate  # baseline's / the replay's
    error: float  # fraction: how far unedited replays of the baseline typically are off
    within_tolerance: bool  # whether that is little enough to believe the prediction


@dataclass(frozen=True)
class Explained:
    """What a comparison's spans, doses and replays add to its ledgers."""

    hidden_behind_ms: Mapping[str, float]  # the baseline's hidden data work by kernel or phase, largest first
    doses: tuple[Dose, ...]  # of the baseline
    predicted: PredictedRatio | Absent
    emulated: tuple[str, ...]  # the devices that both ran on, where they exist on paper only
    whatifs: tuple[WhatIf, ...]  # as it is, then under each of the scenario's whatif edits; empty where it has none


@dataclass(frozen=True)
class Comparison:
    """One candidate against its baseline."""

    baseline: str
    candidate: str
    measured: Measured
    explained: Explained
    confounds: tuple[Confound, ...]
    scaling: Scaling | None = None  # where they have different numbers of ranks
    drift: Estimate | None = None  # where the candidate's speed, next to the baseline's, changes in the runs
    enough_steps: int | None = None  # of a block: about how many show where such a change ends


@dataclass(frozen=True)
class NotCompared:
    """A comparison of which nothing was measured."""

    baseline: str
    candidate: str
    missing: Missing


@dataclass(frozen=True)
class Advice:
    """One change and the speed-up of a step that replay predicts for it.

    ``change``: as an edit is written (``workers=2``); for "its data path" the name of the arm that has it.
    ``measured``: what an arm of the same study that already is so measured. ``serial``: of more workers, times as fast
    where what their stages wait for (a lock, a disk) serves one of them at a time; None where that is as fast.
    ``contradicted``: ``measured`` is not what was predicted, so no other value of that setting is worth trying.
    ``bar``, ``refusal``: why it is not recommended although the prediction promises enough. Both None: it is
    recommended, promises too little, or the doubt is about all changes of the arm (``ArmAdvice.doubts``).
    """

    change: str
    speedup: Estimate
    cost: AdviceCost
    worth: bool = False
    measured: Estimate | None = None
    serial: float | None = None
    contradicted: bool = False
    bar: AdviceBar | None = None
    refusal: Doubt | None = None


@dataclass(frozen=True)
class ArmAdvice:
    """What was tried on paper for ``arm``, largest first; ``refused``: why nothing could be."""

    arm: str
    options: tuple[Advice, ...] = ()
    error: float = 0.0  # fraction, without sign: how far the unedited replay typically is off; what is judged
    within_tolerance: bool = False
    from_blocks: bool = False  # whether the intervals are over enough blocks to mean something
    noise_floor: float | None = None
    resolution: float | None = None  # fraction: smallest change seen, where its comparisons saw no difference
    assumptions: tuple[Assumption, ...] = ()
    refused: Doubt | None = None
    iterable: bool = False  # its dataset has no index: each loader worker has all of it, unless it shares itself out
    barred: Bar | None = None  # reason that more workers are not predicted, if data work costs time
    doubts: tuple[Doubt, ...] = ()  # by precedence: about its replay, and about single changes


@dataclass(frozen=True)
class StudyReport:
    """What a study found. ``problems``, most important first: what is missing or went wrong."""

    study: StudyRecord
    arms: tuple[ArmReport, ...]
    comparisons: tuple[Comparison | NotCompared, ...]
    problems: tuple[StudyProblem, ...]
    emulated: bool
    environment: JsonObject
    probe_costs: tuple[ProbeCost, ...] = ()
    probe_problems: tuple[ProbeProblem, ...] = ()
    advice: tuple[ArmAdvice, ...] = ()  # one for each baseline; of a study without comparisons, for each arm
    step_times: tuple[StepTimes, ...] = ()
    learned: tuple[Learned, ...] = ()  # by arm, where the scenario has a target_loss
    uses: tuple[ArmUse, ...] = ()  # by arm, where the scenario names claims
    claims: tuple[JudgedClaim, ...] = ()
    learning: Learning | None = None  # of runs with evaluation
    group: GroupGain | None = None  # of a program whose ranks are the arms
    data_paths: tuple[DataPath, ...] = ()  # by arm, where the scenario has an isolated_baseline

    def arm(self, name: str) -> ArmReport | None:
        return next((arm for arm in self.arms if arm.name == name), None)

    @property
    def compared(self) -> tuple[Comparison, ...]:
        """The comparisons of which something was measured."""
        return tuple(one for one in self.comparisons if isinstance(one, Comparison))
