"""Define the records that the analysis of a study returns: one for the study, for each arm and for each comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.explain.bounds import BoundShares
from harness.explain.causes import SlowCause
from harness.explain.exposure import Dose, SyncCall
from harness.explain.lead_use import LeadUse, Loading
from harness.explain.ranks import GroupGain, RanksReport
from harness.explain.replay.attribution import PathLink, PathTime, Removal
from harness.explain.replay.prediction import Assumption
from harness.explain.replay.recording import ReplayGap
from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import EndedCost, LongSteps, StepKinds, StepTimes
from harness.explain.wall import StepPart, Wall
from harness.judge.claims import ArmUse, JudgedClaim
from harness.judge.comparisons import Absent, Measured, Missing
from harness.judge.confounds import Confound
from harness.judge.controls import DataPath, ProbeCost, Scaling
from harness.judge.doubts import Bar, Doubt, ProbeProblem, StudyProblem, Unseen
from harness.judge.learning import Learning
from harness.judge.losses import Learned
from harness.judge.waits import StepMeans, UnevenSpeed
from harness.study.records import StudyRecord
from trainer.json_types import JsonObject

AdviceBar = Bar | Literal["serial"]
AdviceCost = Literal["processes", "no processes", "memory", "pretokenized copy", "late check", "its data path"]


@dataclass(frozen=True)
class ArmTotals(StepMeans):
    """Totals of an arm's ledgers: medians over blocks with intervals, and means per step. None, empty: not measured."""

    steps: int = 0  # measured steps over all blocks
    tokens_per_s: Estimate | None = None
    trained_tokens_per_s: Estimate | None = None
    step_ms: Estimate | None = None
    p50_ms: float | None = None  # percentiles of single steps, over all blocks
    p95_ms: float | None = None
    long_steps: LongSteps | None = None  # the few steps that last far longer
    step_kinds: StepKinds | None = None  # set if steps are of two kinds and none is like their mean
    useful_fraction: float | None = None
    tokens_per_step: float | None = None
    ledger: Mapping[str, float] = field(default_factory=dict)  # share of the step's wall time by phase
    phase_ms: Mapping[str, float] = field(default_factory=dict)
    work_ms: Mapping[str, float] = field(default_factory=dict)  # all time of the stages, in any process
    during_wait_ms: Mapping[str, float] = field(default_factory=dict)  # while the step waited for this batch
    unsplit: str | None = None  # why exposed and hidden are empty, if they need a replay
    device_busy_ms: float | None = None  # unset also if running phase launches leave it open
    busy_from: Literal["ledger", "profiled window"] = "ledger"
    busy_at_least_ms: float | None = None  # bound by SM activity, if that is more than the events show
    device_launch_bound_ms: float | None = None  # within launch-bound phases: working or waiting for launches
    device_open_ms: float | None = None  # other phases, where the device worked or waited while the host launched
    launch_bound: Mapping[str, float] = field(default_factory=dict)  # share of steps, by piece of the device's work
    device_starved_ms: float | None = None
    bound_shares: BoundShares | None = None
    loss: float | None = None  # unset if not measured, or not finite in any run
    diverged: int = 0  # runs whose loss was NaN or infinite, or rose far above its start

    @property
    def mean_step_ms(self) -> float | None:
        """Mean measured step in ms, the sum of the phases; a few long steps separate it from the median."""
        return sum(self.phase_ms.values()) or (None if self.step_ms is None else self.step_ms.median)

    @property
    def device_unknown_ms(self) -> float:
        """Milliseconds per step in which the device either worked or waited for launches; events do not show which."""
        return (self.device_launch_bound_ms or 0.0) + (self.device_open_ms or 0.0)


@dataclass(frozen=True)
class NoMfu:
    """Reason why the share of the device's peak speed (MFU) is missing. ``detail``: the trainer's own reason, or ""."""

    kind: Literal["no run", "no compute", "no flops", "no profile"]
    device: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class ModelSpeed:
    """Model FLOP/s of an arm, and their share of the device's peak speed (MFU, 0 to 1)."""

    device: str | None = None
    emulation: str | None = None  # assumptions behind an emulated device's times
    flops_per_s: float | None = None  # of the model
    mfu: float | None = None
    mfu_of: str = ""  # the peak that MFU refers to
    convention: str = ""  # method by which the model's FLOPs were counted; "" if they were not
    no_mfu: NoMfu | None = None


@dataclass(frozen=True)
class ArmExplained:
    """Calls that block, slowdown injections and replays of an arm.

    Fields by replay are None if no replay is possible, fields by a control if the arm has no such control."""

    syncs: tuple[SyncCall, ...] = ()
    replay_error: float | None = None  # fraction: step time of the unedited replay / measured - 1
    resampled_error: float | None = None  # ``replay_error`` with resampled durations, as in predictions
    within_tolerance: bool = False  # True if both errors are typically small enough to trust a replay
    ideal_predicted: Estimate | None = None  # step time of the replay / of the replay without data work
    ideal_measured: Estimate | None = None  # step time / that of its ideal-data control
    no_ideal: Absent | None = None  # why ``ideal_measured`` is missing
    # Set if blocks wait for different shares of a step. The median of all then describes one kind of block, or none.
    predicted_in_blocks: UnevenSpeed | None = None
    measured_in_blocks: UnevenSpeed | None = None
    # Milliseconds per step by link of the critical path, longest first; the sum is the step.
    critical_path_ms: Mapping[PathLink, PathTime] = field(default_factory=dict)
    removals: tuple[Removal, ...] = ()  # saving by removal of each part, largest first; savings overlap
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
    "fewer processes", "no gradients", "no sync", "other ranks", "less exchange", "other process",
    "find the growth", "pad less", "batch alike", "model", "profile", "sample alone",
]  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """One cost in the time of a program run by ``harness exec``, with its cause and remedy."""

    kind: DiagnosisKind
    name: str  # stage, phase or place of its largest part
    ms: Estimate  # per step
    share: float  # fraction of a step without waits for a core; for such waits, of the whole step
    saving: Estimate | None  # speed-up without this cost; None: unknown, or no later step has it
    at_most: bool  # True if the saving is an upper bound
    remedy: DiagnosisRemedy  # "advice": use the replay's recommendation
    part: StepPart  # its largest part
    share_of_part: float = 1.0  # share of its largest part in ``ms``
    ended: EndedCost | None = None  # steps that had the cost, if no later step has it
    figures: Mapping[str, float] = field(default_factory=dict)  # figures in the text of the remedy, by name
    holder: SlowCause | None = None  # for a wait for a lock: where another thread holds it


@dataclass(frozen=True)
class ArmReport:
    """All findings about one arm or control of a study."""

    name: str
    control: str | None
    of: str | None
    declared: JsonObject  # dotted keys with their values
    blocks: int  # number of finished blocks with measured steps
    totals: ArmTotals
    speed: ModelSpeed
    explained: ArmExplained
    against_arm: Estimate | None = None  # for a control: its arm's step time / its own, paired
    # For attached programs: what was timed, what ended a step, and unseen time.
    attached: str | None = None
    step_ends: str | None = None
    unseen: Unseen | None = None
    wall: Wall | None = None  # parts of the wall clock of an attached program
    diagnoses: tuple[Diagnosis, ...] = ()  # for an attached program: most expensive first
    doubts: tuple[Doubt, ...] = ()  # sorted by precedence, including those that bar nothing
    causes: tuple[SlowCause, ...] = ()  # causes of slow steps of an attached program
    optimizer_steps: int = 0  # total of the runs that counted skipped steps, including warm-up steps
    # skipped in all runs after fp16 gradients overflowed; None: the loss is not scaled
    skipped_steps: int | None = None
    ranks: RanksReport | None = None  # for this repository's trainer
    lead_use: LeadUse | None = None  # gain from prefetched batches that the arm cannot sustain; None: unknown
    # Engine of a tokenizer that was chosen automatically, and its proof: see RunFacts.
    tokenizer_engine: str | None = None
    tokenizer_proof: str | None = None
    copies: int = 0  # number of loader workers that built the same batches; 0 if none did
    workers: int = 0  # number of loader workers
    loading: Loading = field(default_factory=Loading)  # set for an attached program
    ended: Mapping[str, EndedCost] = field(default_factory=dict)  # costs of an attached program that ended, by phase
    iterable: bool = False  # True if its dataset has no index
    free_cores: int | None = None  # cores for more loader workers, besides its main thread; None: unknown
    crowded: bool = False  # True if its busy threads and child processes on this machine outnumber its cores
    spare_threads: int = 0  # threads of its process beyond an equal share of the cores
    sampled: bool = False  # True if the lines of an attached program were sampled
    idle_workers: int = 0  # workers that delivered no batch in any block
    gave_no_items: bool = False  # True if the dataset had no items for the idle workers
    epoch_steps: float | None = None  # steps per epoch of its data, median over blocks; None: unknown

    @property
    def block_steps(self) -> int:
        """Measured steps per block, rounded down."""
        return self.totals.steps // self.blocks

    @property
    def waiting(self) -> float:
        """Share of the step (0 to 1) that the main thread waited for a core.

        The larger of two values: the sum of such :attr:`parts`, and the recorded mean over runs."""
        waits = sum(part.share for part in self.parts if part.kind == "core")
        return waits if self.unseen is None else max(waits, self.unseen.waiting)

    @property
    def parts(self) -> tuple[StepPart, ...]:
        """Parts of a step of an attached program; empty for others."""
        return () if self.wall is None else self.wall.parts


@dataclass(frozen=True)
class WhatIf:
    """Comparison under edits by replay, step times in ms; without a candidate's replay only the baseline's."""

    edits: str  # text such as "ranks=16"; empty: unedited
    baseline_ms: Estimate | None = None
    candidate_ms: Estimate | None = None
    ratio: Estimate | None = None  # baseline's / candidate's
    waits_ms: float | None = None  # predicted waits for data per step of the baseline
    measured_ms: Estimate | None = None  # step time of the candidate, if it ran the edited baseline
    reason: ReplayGap | None = None  # why the prediction is missing
    candidate_reason: ReplayGap | None = None  # why the candidate's prediction is missing
    doubts: tuple[Doubt, ...] = ()  # about the predictions of both arms, by precedence


@dataclass(frozen=True)
class PredictedRatio:
    """Speed ratio of a comparison, predicted by replay of the baseline's steps with the candidate's data path."""

    ratio: Estimate | None  # ratio in the unit of the comparison
    step_time: Estimate  # baseline's / the replay's
    error: float  # fraction: typical error of unedited replays of the baseline
    within_tolerance: bool  # True if the error is small enough to trust the prediction


@dataclass(frozen=True)
class Explained:
    """Explanation of a comparison by spans, slowdown injections (doses) and replays."""

    hidden_behind_ms: Mapping[str, float]  # the baseline's hidden data work by kernel or phase, largest first
    doses: tuple[Dose, ...]  # of the baseline
    predicted: PredictedRatio | Absent
    emulated: tuple[str, ...]  # emulated devices that the arms ran on
    whatifs: tuple[WhatIf, ...]  # unedited, then under each whatif edit of the scenario; empty without edits


@dataclass(frozen=True)
class Comparison:
    """One candidate compared with its baseline: figures, explanation and undeclared differences."""

    baseline: str
    candidate: str
    measured: Measured
    explained: Explained
    confounds: tuple[Confound, ...]
    scaling: Scaling | None = None  # set if the arms have different numbers of ranks
    drift: Estimate | None = None  # set if the candidate's speed relative to the baseline changes within runs
    enough_steps: int | None = None  # estimated steps per block that show where the drift ends


@dataclass(frozen=True)
class NotCompared:
    """Comparison without any figures, with the reason."""

    baseline: str
    candidate: str
    missing: Missing


@dataclass(frozen=True)
class Advice:
    """One change and its speed-up of a step, predicted by replay."""

    change: str  # text of an edit (``workers=2``); for "its data path" the arm that has it
    speedup: Estimate
    cost: AdviceCost
    worth: bool = False  # True if recommended
    measured: Estimate | None = None  # speed-up of the study's arm that has the change
    serial: float | None = None  # speed-up by more workers if what they share (a lock, a disk) serves one at a time
    contradicted: bool = False  # True if ``measured`` disagrees: no other value of the setting is recommended
    bar: AdviceBar | None = None  # why a large enough gain is not recommended; all changes: ``ArmAdvice.doubts``
    refusal: Doubt | None = None  # like ``bar``: why the prediction is not reliable


@dataclass(frozen=True)
class ArmAdvice:
    """Replayed changes of ``arm``, largest speed-up first."""

    arm: str
    options: tuple[Advice, ...] = ()
    error: float = 0.0  # fraction, absolute: typical error of the unedited replay
    within_tolerance: bool = False
    from_blocks: bool = False  # True if the intervals cover enough blocks
    noise_floor: float | None = None
    resolution: float | None = None  # fraction: smallest detectable change, if its comparisons found no difference
    assumptions: tuple[Assumption, ...] = ()
    refused: Doubt | None = None  # why none could be replayed
    iterable: bool = False  # Its dataset has no index, so each worker reads all of it unless it shards itself.
    barred: Bar | None = None  # why more workers are not predicted, if data work costs time
    doubts: tuple[Doubt, ...] = ()  # sorted by precedence: about its replay, and about single changes


@dataclass(frozen=True)
class StudyReport:
    """All findings of a study; :func:`harness.judge.study.analyse` makes it."""

    study: StudyRecord
    arms: tuple[ArmReport, ...]
    comparisons: tuple[Comparison | NotCompared, ...]
    problems: tuple[StudyProblem, ...]  # missing or failed runs and arms, most important first
    emulated: bool
    environment: JsonObject
    probe_costs: tuple[ProbeCost, ...] = ()
    probe_problems: tuple[ProbeProblem, ...] = ()
    advice: tuple[ArmAdvice, ...] = ()  # one for each baseline; without comparisons, for each arm
    step_times: tuple[StepTimes, ...] = ()
    learned: tuple[Learned, ...] = ()  # one per arm, if the scenario has a target_loss
    uses: tuple[ArmUse, ...] = ()  # one per arm, if the scenario names claims
    claims: tuple[JudgedClaim, ...] = ()
    learning: Learning | None = None  # set if runs evaluated
    group: GroupGain | None = None  # for a program whose ranks are the arms; None also if a doubt bars it
    data_paths: tuple[DataPath, ...] = ()  # one per arm, if the scenario has an isolated_baseline

    def arm(self, name: str) -> ArmReport | None:
        return next((arm for arm in self.arms if arm.name == name), None)

    @property
    def compared(self) -> tuple[Comparison, ...]:
        """Comparisons that have measurements."""
        return tuple(comparison for comparison in self.comparisons if isinstance(comparison, Comparison))
