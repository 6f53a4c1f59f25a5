"""Lists every reason to doubt a figure: when it applies, what it makes unknown, and what would settle it.

Detectors return :class:`Doubt` records. Each reader (report, ``whatif``, advice) asks :func:`barred` before it states a
verdict or a prediction. :data:`RULES` is the only precedence: where several doubts bar a claim, the first one is the
cause. A doubt bars only what it makes unknown, so most of them bar nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

# What a reader may state. A ratio is the measured figure itself; the next two are predictions of a loader's settings.
# A recommendation is a prediction that is offered unasked.
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
    "blocked", "device", "one stream", "ranks", "not replayable", "replay off",
    "no loader", "no items", "unequal", "sampler", "restarts", "contradicted", "serial",
    "too coarse", "lead", "diverged", "other loss", "a-a apart", "long steps",
    "explained loss", "ceilings apart", "uneven", "step kinds", "rare long steps", "drift", "all time apart",
    "used lead", "compiled", "evaluation left out", "probe problem", "profiled",
    "mixed data", "mixed code", "configuration", "fact", "environment", "useful tokens", "other batches", "other steps",
    "host load", "sessions", "unfinished", "block counts", "compared blocks", "SM clock", "throttled",
    "other processes",
]  # fmt: skip
# Why other numbers of workers, or of batches ahead, cannot be predicted.
Bar = Literal["no loader", "no items", "unequal", "sampler", "restarts"]
RemedyKind = Literal[
    "more blocks", "more steps", "more steps a block", "quiet machine", "free cores",
    "a-a control", "more a-a blocks", "longer slices", "more warm-up steps", "more --warmup steps", "alike losses",
    "finish the study", "try it", "same shapes", "alike arms", "all runs",
]  # fmt: skip


@dataclass(frozen=True)
class Remedy:
    """What would settle a doubt. ``blocks``: about how many in all, where that can be computed."""

    kind: RemedyKind
    blocks: int | None = None


@dataclass(frozen=True)
class Doubt:
    """One reason to doubt figures of ``arms``. ``share``: how much, in the unit of its rule; None: it has no size.

    ``where``: the place, key or fact that it is about. ``cores``: used by other processes, and how many there are.
    """

    kind: DoubtKind
    arms: tuple[str, ...] = ()
    share: float | None = None
    remedy: Remedy | None = None
    where: str = ""
    cores: tuple[float, float] | None = None

    @property
    def bars(self) -> Bars:
        """What it makes unknown."""
        return RULE_OF[self.kind].bars


@dataclass(frozen=True)
class DoubtRule:
    """``applies``: when, a sentence for the documentation. ``unit``: of ``Doubt.share``. ``remedy``: the usual one."""

    kind: DoubtKind
    applies: str
    bars: Bars
    remedy: RemedyKind | None = None
    unit: str = ""


RULES = (
    # A comparison or a prediction rests on too little.
    DoubtRule("too few blocks", "Fewer blocks than an interval takes.", "verdict and recommendation", "more blocks"),
    DoubtRule("no noise floor", "No A/A control and no declared noise floor.", "verdict", "a-a control"),
    DoubtRule("no core", "A main thread had no core for over 10 % of the time.", "all", "free cores", "time"),
    DoubtRule("too noisy", "A 2x change could not be seen.", "figure", "quiet machine", "speed"),
    # A replay does not know what a step waits for.
    DoubtRule("blocked", "Over 10 % of the time was spent where nothing was timed.", "prediction", unit="time"),
    DoubtRule("device", "The work of an asynchronous device was not recorded.", "prediction"),
    DoubtRule("one stream", "The device's work on other streams was not recorded.", "prediction"),
    DoubtRule("ranks", "Ranks wait for one another.", "prediction"),
    DoubtRule("not replayable", "The record lacks what a replay needs.", "prediction"),
    DoubtRule("replay off", "The unedited replay does not reproduce the run.", "recommendation", unit="step"),
    # A replay does not know what other loader settings would do.
    DoubtRule("no loader", "Batches come from a function, not from a DataLoader.", "loader settings"),
    DoubtRule("no items", "The dataset gave some workers no items.", "workers"),
    DoubtRule("unequal", "Some workers delivered far fewer batches than others.", "workers"),
    DoubtRule("sampler", "The sampler takes over 1 % of the time in the main thread.", "workers", unit="time"),
    DoubtRule("restarts", "Over 1 % of the time is waits for a loader to begin anew.", "loader settings", unit="time"),
    DoubtRule("contradicted", "An arm measured this setting otherwise.", "recommendation"),
    DoubtRule("serial", "No gain remains if workers share one resource.", "recommendation", "try it"),
    # A comparison has figures, and they decide nothing.
    DoubtRule("too coarse", "A 10 % change could not be seen.", "verdict", "more blocks", "speed"),
    DoubtRule("lead", "Steps used up prepared work by as much as the arms differ.", "verdict", unit="step"),
    DoubtRule("diverged", "A loss is NaN, infinite, or rose far above its start.", "gain", "alike losses"),
    DoubtRule("other loss", "Losses differ beyond what the A/A control shows.", "gain", "alike losses"),
    DoubtRule("a-a apart", "The A/A control differs from its arm by as much.", "difference", unit="speed"),
    DoubtRule("long steps", "All time together contradicts the median.", "verdict", "more steps a block", "speed"),
    # What a reader must know beside a figure.
    DoubtRule("explained loss", "Losses differ as other numbers of tokens explain.", "nothing"),
    DoubtRule("ceilings apart", "Control and replay disagree about the ceiling.", "nothing", unit="speed"),
    DoubtRule("uneven", "Some blocks wait for data much longer than others.", "nothing"),
    DoubtRule("step kinds", "Steps are of two kinds, and none is like the mean.", "nothing", unit="steps"),
    DoubtRule("rare long steps", "A few steps last over 3 times as long.", "nothing", unit="steps"),
    DoubtRule("drift", "The speed (next to a baseline's) changes within runs.", "nothing", unit="speed"),
    DoubtRule("all time apart", "All time together differs from the median.", "nothing", unit="speed"),
    DoubtRule("used lead", "Steps were faster than they can go on being.", "nothing", "more warm-up steps", "step"),
    DoubtRule("compiled", "torch.compile compiled within measured steps.", "nothing", "same shapes", "runs"),
    DoubtRule("evaluation left out", "Steps with an evaluation are in no figure.", "nothing", unit="time"),
    DoubtRule("probe problem", "A probe could not do its work.", "nothing"),
    DoubtRule("profiled", "A profiler slowed these steps.", "nothing"),
    # Differences between arms that the scenario does not declare.
    DoubtRule("mixed data", "Blocks of one arm read other data.", "nothing", "alike arms"),
    DoubtRule("mixed code", "Blocks of one arm ran other code.", "nothing", "alike arms"),
    DoubtRule("configuration", "A setting differs.", "nothing", "alike arms"),
    DoubtRule("fact", "A fact of the run differs.", "nothing", "alike arms"),
    DoubtRule("environment", "The environment differs.", "nothing", "alike arms"),
    DoubtRule("useful tokens", "The share of trained tokens differs.", "nothing", "alike arms"),
    DoubtRule("other batches", "Steps hold other numbers of tokens.", "nothing", "alike arms"),
    DoubtRule("other steps", "Blocks hold other numbers of steps.", "nothing", "alike arms"),
    DoubtRule("host load", "Other processes used over 0.1 cores.", "nothing", "quiet machine", "cores"),
    DoubtRule("sessions", "Arms that should alternate ran apart.", "nothing", "alike arms"),
    DoubtRule("unfinished", "Some blocks of an arm did not finish.", "nothing", "all runs"),
    DoubtRule("block counts", "Arms finished other numbers of blocks.", "nothing", "all runs"),
    DoubtRule("compared blocks", "Fewer blocks than planned are compared.", "nothing", "all runs"),
    DoubtRule("SM clock", "The device's clock differs.", "nothing", "quiet machine"),
    DoubtRule("throttled", "The device was slowed down.", "nothing", "quiet machine"),
    DoubtRule("other processes", "Other processes computed on the device.", "nothing", "quiet machine"),
)
RULE_OF: Mapping[DoubtKind, DoubtRule] = {rule.kind: rule for rule in RULES}
_PRECEDENCE = {rule.kind: place for place, rule in enumerate(RULES)}


def in_order(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    """Return ``doubts``, each once, by precedence."""
    return tuple(sorted(dict.fromkeys(doubts), key=lambda one: _PRECEDENCE[one.kind]))


def barred(doubts: Iterable[Doubt], claim: Claim) -> Doubt | None:
    """Return the first doubt by precedence that bars ``claim``; None if it may be stated."""
    return next((one for one in in_order(doubts) if claim in CLAIMS_OF[one.bars]), None)


def doubt(
    kind: DoubtKind,
    *arms: str,
    share: float | None = None,
    blocks: int | None = None,
    where: str = "",
    cores: tuple[float, float] | None = None,
    remedy: RemedyKind | None = None,
) -> Doubt:
    """Make a doubt with the remedy of its rule, or with another ``remedy``. ``blocks``: see :class:`Remedy`."""
    asked = remedy or RULE_OF[kind].remedy
    return Doubt(kind, arms, share, None if asked is None else Remedy(asked, blocks), where, cores)
