"""List every reason to doubt a figure: when it applies, which claims it bars, and its remedy.

Each reader (report, ``whatif``, advice) asks :func:`barred` before it states a verdict or a prediction. The order of
:data:`RULES` is the precedence: the first doubt that bars a claim is the cause. Most bar nothing. Also detects unseen
time of a step (:class:`Unseen`) and problems of a study (:class:`StudyProblem`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.explain.causes import CODE, slow_causes
from harness.explain.lead_use import LeadUse
from harness.explain.ledger import RunLedger, arm_lead
from harness.explain.policy import MIN_BLOCKS
from harness.judge.policy import CORE_WAIT_SHARE_MAX, UNSEEN_SHARE_MAX
from harness.study.contract import PROFILED
from harness.study.records import COMMAND, ArmRecord, RunFacts, RunRecord, StudyRecord
from harness.study.run_data import RunData

# Claims that a reader may state. "ratio" is the measured figure. "workers" and "prefetch" are predictions of these
# settings. A "recommendation" is a prediction that the report offers unasked.
Claim = Literal["gain", "loss", "none", "ratio", "workers", "prefetch", "prediction", "recommendation"]
Bars = Literal[
    "nothing", "gain", "difference", "verdict", "figure", "workers", "loader settings", "recommendation", "prediction",
    "verdict and recommendation", "all",
]  # fmt: skip
_VERDICT: tuple[Claim, ...] = ("gain", "loss", "none")
_PREDICTION: tuple[Claim, ...] = ("workers", "prefetch", "prediction", "recommendation")
CLAIMS_OF: Mapping[Bars, tuple[Claim, ...]] = {
    "nothing": (),
    "gain": ("gain",),
    "difference": ("gain", "loss"),
    "verdict": _VERDICT,
    "figure": (*_VERDICT, "ratio"),
    "workers": ("workers",),
    "loader settings": ("workers", "prefetch"),
    "recommendation": ("recommendation",),
    "prediction": _PREDICTION,
    "verdict and recommendation": (*_VERDICT, "recommendation"),
    "all": (*_VERDICT, *_PREDICTION),
}

DoubtKind = Literal[
    "too few blocks", "no noise floor", "no core", "too noisy",
    "blocked", "ranks", "device", "one stream", "not replayable", "replay off",
    "no loader", "no items", "unequal", "row by row", "slow worker", "sampler", "restarts", "contradicted", "serial",
    "too coarse", "lead", "diverged", "other loss", "repeated data", "a-a apart", "long steps",
    "explained loss", "ceilings apart", "uneven", "step kinds", "rare long steps", "drift", "all time apart",
    "used lead", "compiled", "evaluation left out", "probe problem", "profiled",
    "mixed data", "mixed code", "configuration", "fact", "environment", "useful tokens", "other batches", "other steps",
    "host load", "sessions", "unfinished", "block counts", "compared blocks", "SM clock", "throttled",
    "other processes",
]  # fmt: skip
# Reasons why other numbers of workers, or of prefetched batches, cannot be predicted.
Bar = Literal["no loader", "no items", "unequal", "row by row", "slow worker", "sampler", "restarts"]
RemedyKind = Literal[
    "more blocks", "more steps", "more steps a block", "quiet machine", "free cores",
    "a-a control", "more a-a blocks", "longer slices", "more warm-up steps", "more --warmup steps", "alike losses",
    "same rows", "finish the study", "try it", "same shapes", "alike arms", "all runs",
]  # fmt: skip


@dataclass(frozen=True)
class Remedy:
    """Action that would settle a doubt."""

    kind: RemedyKind
    blocks: int | None = None  # estimated number to run; None: unknown
    steps: int | None = None  # estimated number per block; None: unknown


@dataclass(frozen=True)
class Doubt:
    """One reason to doubt figures of ``arms``; :func:`doubt` makes it."""

    kind: DoubtKind
    arms: tuple[str, ...] = ()
    share: float | None = None  # its size in the unit of its rule; None if it has no size
    remedy: Remedy | None = None
    where: str = ""  # place, key or fact concerned
    cores: tuple[float, float] | None = None  # (used by other processes, all cores)

    @property
    def bars(self) -> Bars:
        """Kind of claims that the doubt bars."""
        return RULE_OF[self.kind].bars


@dataclass(frozen=True)
class DoubtRule:
    """Properties of one kind of doubt: when it applies, which claims it bars, and what settles it.

    The most important kind comes first in :data:`RULES`."""

    kind: DoubtKind
    applies: str  # condition, as a sentence for the documentation
    bars: Bars  # kind of claims that it bars
    remedy: RemedyKind | None = None  # default remedy
    unit: str = ""  # unit of ``Doubt.share``


RULES = (
    # Too little data for a comparison or a prediction.
    DoubtRule("too few blocks", "Too few blocks for an interval.", "verdict and recommendation", "more blocks"),
    DoubtRule("no noise floor", "No A/A control and no declared noise floor.", "verdict", "a-a control"),
    DoubtRule("no core", "A main thread waited for a core for over 10 % of the time.", "all", "free cores", "time"),
    DoubtRule("too noisy", "A 2x change could not be seen.", "figure", "quiet machine", "speed"),
    # Replay does not know what a step waits for.
    DoubtRule("blocked", "Over 10 % of the time was spent in no timed phase.", "prediction", unit="time"),
    DoubtRule("ranks", "Ranks wait for one another.", "prediction"),
    DoubtRule("device", "The work of an asynchronous device was not recorded.", "prediction"),
    DoubtRule("one stream", "The device's work on other streams was not recorded.", "prediction"),
    DoubtRule("not replayable", "The record lacks what a replay needs.", "prediction"),
    DoubtRule("replay off", "The unedited replay does not reproduce the run.", "recommendation", unit="step"),
    # Replay does not know the effect of other loader settings.
    DoubtRule("no loader", "Batches come from a function, not from a DataLoader.", "loader settings"),
    DoubtRule("no items", "The dataset gave some workers no items.", "workers"),
    DoubtRule("unequal", "Some workers delivered far fewer batches than others.", "workers"),
    DoubtRule("row by row", "Rows are read one by one, and a row costs little more than its call.", "workers"),
    DoubtRule("slow worker", "One worker takes over 1.25 times as long per batch.", "workers", unit="factor"),
    DoubtRule("sampler", "The sampler takes over 1 % of the time in the main thread.", "workers", unit="time"),
    DoubtRule("restarts", "Waits for a restarted loader take over 1 % of the time.", "loader settings", unit="time"),
    DoubtRule("contradicted", "An arm's measurement contradicts the prediction.", "recommendation"),
    DoubtRule("serial", "No gain remains if workers share one resource.", "recommendation", "try it"),
    # A comparison has figures that decide nothing.
    DoubtRule("too coarse", "A 10 % change could not be seen.", "verdict", "more blocks", "speed"),
    DoubtRule("lead", "Prefetched batches or queued work may explain the difference.", "verdict", unit="step"),
    DoubtRule("diverged", "A loss is NaN, infinite, or rose far above its start.", "gain", "alike losses"),
    DoubtRule("other loss", "Losses differ beyond what the A/A control shows.", "gain", "alike losses"),
    DoubtRule("repeated data", "One arm trains on far more repeated rows.", "difference", "same rows", "rows"),
    DoubtRule("a-a apart", "The A/A control differs from its arm by as much.", "difference", unit="speed"),
    DoubtRule("long steps", "All time together contradicts the median.", "verdict", "more steps a block", "speed"),
    # Context that a reader needs beside a figure.
    DoubtRule("explained loss", "Different token counts explain the loss difference.", "nothing"),
    DoubtRule("ceilings apart", "Control and replay disagree about the ceiling.", "nothing", unit="speed"),
    DoubtRule("uneven", "Some blocks wait for data much longer than others.", "nothing"),
    DoubtRule("step kinds", "Steps are of two kinds; no step is near the mean.", "nothing", unit="steps"),
    DoubtRule("rare long steps", "A few steps last over 3 times as long.", "nothing", unit="steps"),
    DoubtRule(
        "drift", "The speed (next to a baseline's) changes within runs.", "nothing", "more steps a block", "speed"
    ),
    DoubtRule("all time apart", "All time together differs from the median.", "nothing", unit="speed"),
    DoubtRule("used lead", "Prefetched or queued work made steps faster.", "nothing", "more warm-up steps", "step"),
    DoubtRule("compiled", "torch.compile compiled within measured steps.", "nothing", "same shapes", "runs"),
    DoubtRule("evaluation left out", "Steps with an evaluation are excluded from all figures.", "nothing", unit="time"),
    DoubtRule("probe problem", "A probe failed.", "nothing"),
    DoubtRule("profiled", "A profiler slowed these steps.", "nothing"),
    # Differences between arms that the scenario does not declare.
    DoubtRule("mixed data", "Blocks of one arm read different data.", "nothing", "alike arms"),
    DoubtRule("mixed code", "Blocks of one arm ran different code.", "nothing", "alike arms"),
    DoubtRule("configuration", "A setting differs.", "nothing", "alike arms"),
    DoubtRule("fact", "A fact of the run differs.", "nothing", "alike arms"),
    DoubtRule("environment", "The environment differs.", "nothing", "alike arms"),
    DoubtRule("useful tokens", "The share of trained tokens differs.", "nothing", "alike arms"),
    DoubtRule("other batches", "Steps have different numbers of tokens.", "nothing", "alike arms"),
    DoubtRule("other steps", "Blocks have different numbers of steps.", "nothing", "alike arms"),
    DoubtRule("host load", "Other processes used over 0.1 cores.", "nothing", "quiet machine", "cores"),
    DoubtRule("sessions", "Arms that should alternate ran in different sessions.", "nothing", "alike arms"),
    DoubtRule("unfinished", "Some blocks of an arm did not finish.", "nothing", "all runs"),
    DoubtRule("block counts", "Arms finished different numbers of blocks.", "nothing", "all runs"),
    DoubtRule("compared blocks", "Fewer blocks than planned are compared.", "nothing", "all runs"),
    DoubtRule("SM clock", "The device's clock differs.", "nothing", "quiet machine"),
    DoubtRule("throttled", "The device was throttled.", "nothing", "quiet machine"),
    DoubtRule("other processes", "Other processes computed on the device.", "nothing", "quiet machine"),
)
RULE_OF: Mapping[DoubtKind, DoubtRule] = {rule.kind: rule for rule in RULES}
_PRECEDENCE = {rule.kind: rank for rank, rule in enumerate(RULES)}
# Kinds that can be the cause of "undecided".
UNDECIDED_KINDS = tuple(rule.kind for rule in RULES if not {*_VERDICT}.isdisjoint(CLAIMS_OF[rule.bars]))


def in_order(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    """Return ``doubts`` most important first (the order of :data:`RULES`), without duplicates."""
    return tuple(sorted(dict.fromkeys(doubts), key=lambda entry: _PRECEDENCE[entry.kind]))


def barred(doubts: Iterable[Doubt], claim: Claim) -> Doubt | None:
    """Return the most important doubt that bars ``claim``; None if the claim may be stated."""
    return next((entry for entry in in_order(doubts) if claim in CLAIMS_OF[entry.bars]), None)


def doubt(
    kind: DoubtKind,
    *arms: str,
    share: float | None = None,
    blocks: int | None = None,
    steps: int | None = None,
    where: str = "",
    cores: tuple[float, float] | None = None,
    remedy: RemedyKind | None = None,
) -> Doubt:
    """Return a doubt about ``arms``, see :class:`Doubt`, :class:`Remedy`. ``remedy``: instead of the rule's default."""
    action = remedy or RULE_OF[kind].remedy
    return Doubt(kind, arms, share, None if action is None else Remedy(action, blocks, steps), where, cores)


def core_doubts(waiting: float, *arms: str) -> Iterator[Doubt]:
    """Yield a doubt if the main thread waited for a core for too long: the share ``waiting`` of the time."""
    if waiting > CORE_WAIT_SHARE_MAX:
        yield doubt("no core", *arms, share=waiting)


@dataclass(frozen=True)
class Unseen:
    """Time of a program run by ``harness exec`` that no timer explains; means over blocks.

    Shares (0 to 1) are of the time of the measured steps, unless a field says otherwise."""

    blocked: float = 0.0  # time blocked outside of all timers, mostly at ``place``
    place: str | None = None
    waiting: float = 0.0  # time ready to run without a core
    device: bool = False  # An asynchronous device computed, so the cost of the host's waits there is unknown.
    ranks: int = 1  # If ranks wait for one another, the gain of one rank cannot be computed from its own steps.
    # share of the time waiting across the end of an epoch, or for the first batch of a restarted loader
    restarting: float = 0.0
    sampling: float = 0.0  # share of the time in a DataLoader's sampler, in the main thread
    workers: int = 0  # number of workers of its DataLoader
    persistent_workers: bool = False  # True if the workers outlive an epoch
    # Number of loader workers if no block restarted the loader in its measured steps; 0 if one did, or if unknown.
    never_restarted: int = 0
    # share of the time in the training loop itself, outside of fetches; not part of claims about data
    tokenizing: float = 0.0
    evaluating_steps: int = 0  # number in all blocks; dropped because an evaluation ran within them
    evaluating: float = 0.0  # share of the time of dropped and measured steps

    def doubts(self, arm: str = "", *, recorded: bool = False) -> tuple[Doubt, ...]:
        """Return the doubts that this unexplained time raises, most important first. ``arm``: its name, or "".

        ``recorded``: True if the device's work was recorded; an asynchronous device then only raises the doubt "one
        stream"."""
        arms = (arm,) if arm else ()
        entries = [*core_doubts(self.waiting, *arms)]
        if self.blocked > UNSEEN_SHARE_MAX:
            entries.append(doubt("blocked", *arms, share=self.blocked, where=self.place or ""))
        if self.ranks > 1:
            entries.append(doubt("ranks", *arms))
        if self.device:
            entries.append(doubt("one stream" if recorded else "device", *arms))
        if self.evaluating_steps:
            entries.append(doubt("evaluation left out", *arms, share=self.evaluating))
        return in_order(entries)

    @property
    def reason(self) -> DoubtKind | None:
        """Kind of the doubt for which the effect of a change cannot be predicted; None if it can."""
        first = barred(self.doubts(), "prediction")
        return None if first is None else first.kind


def waiting_share(facts: Sequence[RunFacts]) -> float | None:
    """Return the share of time (0 to 1) in which the main thread was ready but had no core, the mean over runs.

    None if no run recorded it: only programs run by ``harness exec`` do."""
    shares = [run.waiting_share for run in facts if run.waiting_share is not None]
    return sum(shares) / len(shares) if shares else None


def unseen(runs: Sequence[RunData]) -> Unseen | None:
    """Return :func:`unseen_of` the facts of ``runs``: their unexplained time. None if no run is attached."""
    return unseen_of([run.record.facts for run in runs])


def unseen_of(runs: Sequence[RunFacts]) -> Unseen | None:
    """Return the unexplained time of the attached runs among ``runs``, means over them; None if no run is attached."""
    facts = [run for run in runs if run.attached is not None]
    if not facts:
        return None
    blocked = sum(run.unseen_share or 0.0 for run in facts) / len(facts)
    return Unseen(
        blocked=blocked,
        place=_place(facts, blocked),
        waiting=sum(run.waiting_share or 0.0 for run in facts) / len(facts),
        sampling=sum(run.sampling_share or 0.0 for run in facts) / len(facts),
        workers=max(run.workers or 0 for run in facts),
        persistent_workers=all(run.persistent_workers for run in facts),
        restarting=sum(run.restarting_share or 0.0 for run in facts) / len(facts),
        never_restarted=max(run.workers or 0 for run in facts) if all(run.epoch_ends == 0 for run in facts) else 0,
        tokenizing=sum(run.tokenizing_share or 0.0 for run in facts) / len(facts),
        evaluating_steps=sum(run.evaluating_steps or 0 for run in facts),
        evaluating=sum(run.evaluating_share or 0.0 for run in facts) / len(facts),
        device=any(run.asynchronous for run in facts),
        ranks=max(run.ranks or 1 for run in facts),
    )


def _place(facts: Sequence[RunFacts], blocked: float) -> str | None:
    """Return the line of code that explains at least half of the blocked time; else the place that the agent noted.

    Agent: the part of the harness in the program. None if neither is known. ``blocked``: share of time (0 to 1) blocked
    outside of all timers."""
    sampled = [cause for cause in slow_causes(facts) if cause.kind == CODE and not cause.phase and cause.place]
    costliest = max(sampled, key=lambda cause: cause.spent_share, default=None)
    if costliest is not None and costliest.spent_share >= blocked / 2:
        return f"{costliest.place} ({costliest.code})" if costliest.code else costliest.place
    return next((run.unseen_place for run in facts if run.unseen_place is not None), None)


StudyProblemKind = Literal[
    "nothing finished", "partial", "stray", "status", "ended", "no measured step", "few blocks", "few steps",
    "few parts", "diverged", "compiled", "lead", "left out",
]  # fmt: skip

LeadRemedy = Literal["slices", "runs", "command"]  # slices or whole runs of this trainer, or a user's command


@dataclass(frozen=True)
class RunFailure:
    """Unsuccessful end of a run of ``arm``. ``error``: first line of its message."""

    arm: str
    status: str
    error: str | None
    exit_code: int | None


@dataclass(frozen=True)
class StudyProblem:
    """Problem of a study: something is missing, failed or distorted. Each kind sets the fields that name it."""

    kind: StudyProblemKind
    # "partial": finished runs; "few blocks": blocks; "diverged", "compiled": affected runs
    count: int = 0
    planned: int = 0  # "partial": planned runs; "diverged", "compiled": all runs
    status: str = ""  # "status": status of the study
    arm: str = ""  # "no measured step", "diverged", "compiled", "lead", "left out": the arm
    # "partial": unfinished runs (``arm/block``); "stray": arms not in the study; "left out": missing packages
    names: tuple[str, ...] = ()
    lead_use: LeadUse | None = None  # "lead": extent to which its steps used batches that were prepared earlier
    remedy: LeadRemedy = "slices"  # "lead": change to make, depending on how the arm was measured
    failure: RunFailure | None = None  # "ended": how all these ``blocks`` ended
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProbeProblem:
    """Message of a probe about work that it could not do, and the affected runs (``arm/block``)."""

    text: str
    runs: tuple[str, ...]
    everywhere: bool  # True if all runs of the study are affected


def failures(names: Iterable[str], records: Mapping[str, Sequence[RunRecord]]) -> tuple[RunFailure, ...]:
    """Return the first failure of each arm of ``names`` that has one. ``records``: all runs, by arm."""
    unfinished = ([record for record in records.get(name, ()) if record.status != "done"] for name in names)
    return tuple(_failure(group[0]) for group in unfinished if group)


def study_problems(
    study: StudyRecord,
    arms: Sequence[ArmRecord],
    records: Mapping[str, Sequence[RunRecord]],
    ledgers: Mapping[str, Mapping[int, RunLedger]],
    blocks: int,
) -> tuple[StudyProblem, ...]:
    """Return failed or missing runs and distorted figures, most important first. ``blocks``: finished ones."""
    problems = []
    profiled = {arm.name for arm in arms if arm.control == PROFILED}
    names = {arm.name for arm in study.arms}
    stray = [arm.name for arm in arms if names and arm.name not in names]
    planned = _planned(study, [arm for arm in arms if arm.name not in stray], records)
    done = {(name, block) for name, group in ledgers.items() for block in group}
    done |= {
        (name, attempt.block) for name in profiled for attempt in records.get(name, ()) if attempt.status == "done"
    }
    absent = [f"{name}/{block}" for name, block in planned if (name, block) not in done]
    finished = len(planned) - len(absent)
    if not finished:
        problems.append(StudyProblem("nothing finished"))
    elif absent:
        problems.append(StudyProblem("partial", finished, len(planned), names=tuple(absent)))
    if stray:
        problems.append(StudyProblem("stray", names=tuple(stray)))
    if study.status != "done":
        problems.append(StudyProblem("status", status=study.status))
    endings: dict[RunFailure | str, list[int]] = {}  # one entry for all blocks of an arm that ended alike
    for name, group in records.items():
        for record in group if name not in stray else ():
            if record.status != "done":
                endings.setdefault(_failure(record), []).append(record.block)
            elif name not in profiled and record.block not in ledgers.get(name, {}):
                endings.setdefault(name, []).append(record.block)
    for ending, block_list in endings.items():
        if isinstance(ending, RunFailure):
            problems.append(StudyProblem("ended", failure=ending, blocks=tuple(block_list)))
        else:
            problems.append(StudyProblem("no measured step", arm=ending, blocks=tuple(block_list)))
    problems += _diverged(study, arms, ledgers)
    problems += _compiled(records)
    problems += _lead(study, arms, ledgers)
    problems += [StudyProblem("left out", arm=arm, names=tuple(missing)) for arm, missing in study.left_out.items()]
    if finished and blocks < MIN_BLOCKS:
        attached = any(record.facts.attached is not None for group in records.values() for record in group)
        one_run = attached and not any(COMMAND in arm.declared for arm in arms)  # Its blocks are parts of one run.
        kind: StudyProblemKind = "few parts" if study.is_training else "few steps" if one_run else "few blocks"
        problems.append(StudyProblem(kind, blocks))
    return tuple(problems)


def _planned(
    study: StudyRecord, arms: Sequence[ArmRecord], records: Mapping[str, Sequence[RunRecord]]
) -> list[tuple[str, int]]:
    """Return (arm, block) of every planned run of ``study``, in the order of the blocks. An arm is profiled once."""
    blocks = (
        range(study.blocks)
        if study.blocks
        else sorted({record.block for group in records.values() for record in group})
    )
    return [(arm.name, block) for block in blocks for arm in arms if block == blocks[0] or arm.control != PROFILED]


def _diverged(
    study: StudyRecord, arms: Sequence[ArmRecord], ledgers: Mapping[str, Mapping[int, RunLedger]]
) -> list[StudyProblem]:
    """Return a problem for each diverged arm outside of all comparisons, but not for its control as well."""
    times = {name: sum(run.diverged for run in group.values()) for name, group in ledgers.items()}
    compared = {name for pair in study.comparisons for name in (pair.baseline, pair.candidate)}
    return [
        StudyProblem("diverged", times[arm.name], len(ledgers[arm.name]), arm=arm.name)
        for arm in arms
        if times.get(arm.name) and arm.name not in compared and not (arm.of and times.get(arm.of))
    ]


def _lead(
    study: StudyRecord, arms: Sequence[ArmRecord], ledgers: Mapping[str, Mapping[int, RunLedger]]
) -> Iterator[StudyProblem]:
    """Yield a problem for each arm that was faster than it can sustain, as it used up batches made ahead of time.

    If an arm has the problem, its A/A control yields none."""
    uses = {arm.name: arm_lead(ledgers.get(arm.name, {})) for arm in arms}
    affected = {name for name, use in uses.items() if use is not None and use.is_worth_saying}
    for arm in arms:
        if arm.name in affected and not (arm.control == "a-a" and arm.of in affected):
            attached = any(run.record.facts.attached is not None for run in ledgers[arm.name].values())
            remedy: LeadRemedy = "command" if attached else "runs" if study.interleave == "runs" else "slices"
            yield StudyProblem("lead", arm=arm.name, lead_use=uses[arm.name], remedy=remedy)


def _compiled(records: Mapping[str, Sequence[RunRecord]]) -> Iterator[StudyProblem]:
    """Yield a problem for each arm with runs whose measured steps include compile time."""
    for name, group in records.items():
        if compiled := sum(bool(record.facts.measured_compilations) for record in group):
            yield StudyProblem("compiled", compiled, len(group), arm=name)


def probe_problems(runs: Sequence[RunData]) -> tuple[ProbeProblem, ...]:
    """Return the problems that probes reported in ``runs``, each message once with its runs."""
    runs_by_text: dict[str, list[str]] = {}
    for run in runs:
        for problem in dict.fromkeys(run.probes.problems):
            runs_by_text.setdefault(problem, []).append(f"{run.record.arm}/{run.record.block}")
    return tuple(ProbeProblem(text, tuple(names), len(names) == len(runs)) for text, names in runs_by_text.items())


def _failure(record: RunRecord) -> RunFailure:
    error = record.error.splitlines()[0] if record.error else None
    return RunFailure(record.arm, record.status, error, record.exit_code)
