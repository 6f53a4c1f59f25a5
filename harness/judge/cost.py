"""Predicts what a training or a study costs from a short measurement of its arms: seconds, and money by the hour.

A training of N steps takes, in seconds:

    start-up + step 0 + (N - 1) x step + passes x pass + checkpoints x checkpoint + ending

Each term was measured on the same configuration. Step 0 is left out of the step's time, and so are the steps after it
whose batches were built while the run was starting. The expected step is the median of those that are left, with its
interval; the worst case is the slowest of the last ten, or the interval's upper end where that is later. Where some of
them are long, many steps take the mean each, not the median: the total is then so many means, and its worst case the
slowest of all that may come again. Sums over arms and trials add intervals end to end: the arms share a machine, so
what makes one of them slower makes all of them slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Literal, overload

import numpy as np

from harness.explain.statistics import Estimate, from_amounts, from_blocks, reach_of_mean
from harness.explain.unusual_steps import NO_PHASE, long_steps, without_long
from harness.judge.doubts import Doubt, doubt, in_order
from harness.judge.policy import (
    CORE_WAIT_SHARE_MAX,
    COSTED_LONG_RATIO,
    DRIFT_MIN,
    DRIFT_STEPS_MIN,
    WORST_OF_STEPS,
)
from harness.study.contract import PHASES

HOUR_S = 3600.0
COST, BUDGET_SCHEMA = "cost.json", 1  # keeps a PredictedCost in the folder of its training or study

PriceSource = Literal["option", "scenario", "profile", "device"]
Undertaking = Literal["training", "study"]
Standing = Literal["unfinished", "stopped", "done"]


@dataclass(frozen=True)
class Spread:
    """Seconds, or US dollars: as expected, the bounds of their 95 % interval, and the worst case."""

    likely: float = 0.0
    low: float = 0.0
    high: float = 0.0
    worst: float = 0.0

    def __add__(self, other: Spread) -> Spread:
        return Spread(
            self.likely + other.likely, self.low + other.low, self.high + other.high, self.worst + other.worst
        )

    def times(self, count: float) -> Spread:
        """So many of them, one after the other."""
        return Spread(self.likely * count, self.low * count, self.high * count, self.worst * count)


NO_TIME = Spread()


def exactly(seconds: float) -> Spread:
    """What was measured once: nothing is known of its spread."""
    return Spread(seconds, seconds, seconds, seconds)


@dataclass(frozen=True)
class ArmMeasurement:
    """What one short run of an arm took, in seconds, and on which device.

    ``steps_s``: every step from step 0, in order. ``unsettled``: how many of them, step 0 among them, used batches that
    were built while the run was starting. ``checkpoint``: which step saved one, if any; the steps after it are there to
    show what the writing costs them.
    """

    arm: str
    steps_s: tuple[float, ...]
    unsettled: int
    startup_s: float  # from when its imports were done until step 0 begins
    ending_s: float  # from the last step until the process has ended, without what ``passes_s`` and saving took of it
    passes_s: tuple[float, ...] = ()
    answers_s: tuple[float, ...] = ()  # passes over multiple-choice questions
    checkpoint: int | None = None
    saving_s: float = 0.0  # within that step
    writing_s: float = 0.0  # until it was on the disk: of an asynchronous one after that step
    asynchronous: bool = True
    import_s: float = 0.0  # of torch and the model, before the start-up
    launcher_s: float = 0.0  # of the command, until it could begin
    waiting_share: float = 0.0  # of the steps' time: ready to run without a core, as others used the machine
    device: str = ""
    emulated: bool = False
    waits: bool = False  # its steps wait for data, so repetitions of it may take extra warm-up steps
    devices: int = 1  # that its ranks use
    profile: str | None = None  # of the device
    profile_usd: float | None = None  # the price per hour that this profile has

    @property
    def plain_s(self) -> tuple[float, ...]:
        """The steps whose time is what a step takes: no step 0, none on prefetched batches, none near a checkpoint."""
        end = len(self.steps_s) if self.checkpoint is None else self.checkpoint
        return self.steps_s[max(1, self.unsettled) : end]

    @property
    def step(self) -> Spread:
        """One step: median with interval, and the slowest of the last :data:`WORST_OF_STEPS` as the worst case."""
        found = from_amounts(self.plain_s)
        assert found is not None, "an arm is measured with at least one settled step"
        slowest = max(self.plain_s[-WORST_OF_STEPS:])
        low = found.median if found.ci_low is None else found.ci_low
        high = found.median if found.ci_high is None else found.ci_high
        return Spread(found.median, low, high, max(slowest, found.median))

    @property
    def slowest_step(self) -> int:
        """Return the number (from 0) of the slowest of the last :data:`WORST_OF_STEPS` steps."""
        end = max(1, self.unsettled) + len(self.plain_s)
        return max(range(max(end - WORST_OF_STEPS, end - len(self.plain_s)), end), key=self.steps_s.__getitem__)

    @property
    def recurring_s(self) -> tuple[float, ...]:
        """The same steps without the long ones before the first usual one: starting made these long, and comes once."""
        usual_s = COSTED_LONG_RATIO * self.step.likely
        first = next(place for place, seconds in enumerate(self.plain_s) if seconds <= usual_s)
        return self.plain_s[first:]

    @property
    def mean_step_s(self) -> float:
        """Of the steps that come again: what each of many takes. Above the median's interval, some steps are long."""
        return math.fsum(self.recurring_s) / len(self.recurring_s)

    @property
    def each_of_many(self) -> Spread:
        """What each step of a long training takes: the mean where some steps are long, else :attr:`step`.

        Of the mean: from the lower bound of the median, as fewer of them may be long, to the mean's own upper bound
        (Student's t). The worst case is then the slowest of all that may come again, wherever it was. No worst case is
        below the interval's upper end.
        """
        step, mean, found = self.step, self.mean_step_s, self.recurring_s
        if mean <= step.high:
            return replace(step, worst=max(step.worst, step.high))
        high = mean + reach_of_mean(found)
        return Spread(mean, step.low, high, max(*found, step.worst, high))

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """What a report of these steps would doubt. One of them may bar a prediction."""
        found = []
        if self.waiting_share > CORE_WAIT_SHARE_MAX:
            found.append(doubt("no core", self.arm, share=self.waiting_share))
        step_ms, typical_ms = np.array(self.recurring_s) * 1e3, self.step.likely * 1e3
        long = long_steps(step_ms, np.full(len(step_ms), NO_PHASE, dtype=np.int8), PHASES, typical_ms)
        if long is not None:
            found.append(doubt("rare long steps", self.arm, share=long.steps / long.of))
        if (drift := self._drift) is not None and abs(drift.median - 1) > DRIFT_MIN:
            found.append(doubt("drift", self.arm, share=drift.median - 1, remedy="more steps"))
        return in_order(found)

    @property
    def _drift(self) -> Estimate | None:
        """How many times as long the later half of the steps takes; None if that may be chance, or of few steps."""
        steps_s = without_long(np.array(self.plain_s))
        half = len(steps_s) // 2
        if len(steps_s) < DRIFT_STEPS_MIN:
            return None
        found = from_blocks(np.log(steps_s[-half:] / steps_s[:half]).tolist())
        if found is None or found.ci_low is None or found.ci_high is None or found.ci_low <= 1 <= found.ci_high:
            return None
        return found

    @property
    def evaluation_pass(self) -> Spread:
        """One pass: the last one as expected, as the first also makes what later ones find; the slowest as the worst.

        Nothing where none was measured.
        """
        return _last_and_slowest(self.passes_s)

    @property
    def answering_pass(self) -> Spread:
        """The same of a pass over multiple-choice questions."""
        return _last_and_slowest(self.answers_s)

    def one_checkpoint(self, every_s: float | None) -> Spread:
        """What a checkpoint within the training costs the steps, where the next is due ``every_s`` later.

        The step that saves waits for the copy (asynchronous) or for all of the writing. What the steps after it take
        longer is the writing beside them, at most all of it. Where checkpoints are due faster than they are written,
        each waits for the one before.
        """
        if self.checkpoint is None:
            return NO_TIME
        likely = worst = self.saving_s
        if self.asynchronous:
            usual = self.step.likely
            slowed_s = math.fsum(self.steps_s[self.checkpoint + 1 :]) - usual * len(self.steps_s[self.checkpoint + 1 :])
            waited = 0.0 if every_s is None else max(0.0, self.writing_s - every_s)
            likely += max(min(max(slowed_s, 0.0), self.writing_s), waited)
            worst += self.writing_s
        return Spread(likely, self.saving_s, worst, worst)

    @property
    def last_checkpoint(self) -> Spread:
        """What the checkpoint at a training's end takes: it is waited for."""
        if self.checkpoint is None:
            return NO_TIME
        return exactly(self.saving_s + (self.writing_s if self.asynchronous else 0.0))


def _last_and_slowest(seconds: Sequence[float]) -> Spread:
    if not seconds:
        return NO_TIME
    slowest, last = max(seconds), seconds[-1]
    return Spread(last, min(seconds), slowest, slowest)


@dataclass(frozen=True)
class ArmWork:
    """What is to be done with an arm: ``starts`` processes, one after the other, that take ``steps`` steps in all.

    ``imports`` and ``launches``: how often the libraries are imported and the command is started; runs of a study's
    block share both. ``passes``: over held-out data; ``answers``: over multiple-choice questions. Checkpoints are due
    every so many steps or seconds within a process; ``last_checkpoint``: and one at its end. ``other_s``: what else it
    takes, in all. ``passed_over``: steps before those, whose data is made and dropped, which was not measured.
    ``most_extra``: warm-up steps more, at most, of an arm that waits for data: the worst case has them.
    """

    steps: int
    starts: int = 1
    imports: int = 1
    launches: int = 1
    passes: int = 0
    answers: int = 0
    checkpoint_every_steps: int | None = None
    checkpoint_every_s: float | None = None
    last_checkpoint: bool = False
    other_s: float = 0.0
    passed_over: int = 0
    most_extra: int = 0


def training_work(
    steps: int, evaluates: bool, evaluate_every: int | None, save_every: int | None, save_every_s: float | None
) -> ArmWork:
    """A training of ``steps`` steps: a pass at its end in any case where it evaluates, and a last checkpoint."""
    return ArmWork(
        steps,
        passes=passes_within(steps, evaluate_every) if evaluates else 0,
        checkpoint_every_steps=save_every,
        checkpoint_every_s=save_every_s,
        last_checkpoint=True,
    )


def passes_within(steps: int, every: int | None) -> int:
    """So many passes does a training make that has one every so many steps, and one at its end in any case."""
    return 1 if every is None else -(-steps // every)


@dataclass(frozen=True)
class ArmCost:
    """What ``work`` with an arm takes, in seconds, by part."""

    arm: str
    work: ArmWork
    step: Spread
    each_of_many: Spread  # of the steps: ``step`` unless some of them are long
    first_step_s: float
    startup: Spread
    steps: Spread
    evaluation: Spread
    answering: Spread
    checkpoints: int
    saving: Spread  # of all of them
    ending: Spread
    slowest_step: int  # number of the step that is the worst case of ``step``, unless the median is above it

    @property
    def total(self) -> Spread:
        """All parts together."""
        found = self.startup + self.steps + self.evaluation + self.answering + self.saving + self.ending
        return found + exactly(self.work.other_s)

    @property
    def has_long_steps(self) -> bool:
        """Whether the mean of the steps is above the median's interval: each of many then takes the mean."""
        return self.each_of_many.likely != self.step.likely


def arm_cost(measured: ArmMeasurement, work: ArmWork) -> ArmCost:
    """Multiply what was measured by what is to be done."""
    each, first_s = measured.each_of_many, measured.steps_s[0]
    first = min(work.starts, work.steps)
    steps = exactly(first_s).times(first) + each.times(work.steps - first)
    if measured.waits:
        steps = replace(steps, worst=steps.worst + each.worst * work.most_extra)
    evaluation = measured.evaluation_pass.times(work.passes)
    answering = measured.answering_pass.times(work.answers)
    startup = exactly(
        measured.startup_s * work.starts + measured.import_s * work.imports + measured.launcher_s * work.launches
    )
    ending = exactly(measured.ending_s * work.starts)
    every_s = work.checkpoint_every_s
    if work.checkpoint_every_steps is not None:
        every_s = work.checkpoint_every_steps * each.likely
        within = (work.steps - work.last_checkpoint) // work.checkpoint_every_steps  # one at the end is the last one
    else:
        within = 0 if every_s is None else int((steps + evaluation + answering).likely // every_s)
    saving = measured.one_checkpoint(every_s).times(within)
    if work.last_checkpoint:
        saving += measured.last_checkpoint.times(work.starts)
    count = within + (work.starts if work.last_checkpoint else 0)
    count = 0 if measured.checkpoint is None else count
    return ArmCost(
        measured.arm, work, measured.step, each, first_s, startup, steps, evaluation, answering, count, saving,
        ending, measured.slowest_step,
    )  # fmt: skip


def cost_of_trials(measured: ArmMeasurement, trials: int, work: ArmWork) -> Spread:
    """Seconds of a sweep of ``trials`` trials, one after the other, each of which does ``work`` in its own process."""
    return arm_cost(measured, work).total.times(trials)


def sum_of(spreads: Iterable[Spread]) -> Spread:
    """One after the other."""
    found = NO_TIME
    for one in spreads:
        found += one
    return found


@dataclass(frozen=True)
class HourlyPrice:
    """US dollars per hour of one machine or device, and how many of them are paid for.

    ``name``: of the profile, where it is from one. ``given_usd``: before it was rounded up.
    """

    usd: float
    source: PriceSource
    devices: int = 1
    name: str = ""
    given_usd: float | None = None

    @property
    def per_hour_usd(self) -> float:
        """Of all of them."""
        return self.usd * self.devices

    def of_seconds(self, seconds: float) -> float:
        """US dollars for so long."""
        return usd_of(seconds, self.per_hour_usd)


@overload
def usd_of(seconds: float, per_hour_usd: float) -> float: ...
@overload
def usd_of(seconds: float, per_hour_usd: float | None) -> float | None: ...
def usd_of(seconds: float, per_hour_usd: float | None) -> float | None:
    """US dollars for so long; None without a price."""
    return None if per_hour_usd is None else seconds / HOUR_S * per_hour_usd


def rounded_up(price: HourlyPrice, to_usd: float | None) -> HourlyPrice:
    """``price`` at the next multiple of ``to_usd``: 1.29 to 0.50 is 1.50, and 1.50 stays 1.50."""
    if to_usd is None:
        return price
    usd, unit = Decimal(str(price.usd)), Decimal(str(to_usd))
    rounded = float((usd / unit).to_integral_value(ROUND_CEILING) * unit)
    return HourlyPrice(rounded, price.source, price.devices, price.name, price.usd)


@dataclass(frozen=True)
class SpendingLimit:
    """What may be spent: US dollars, hours, or both, of which the first that is reached counts. Neither: no limit."""

    usd: float | None = None
    hours: float | None = None

    def seconds(self, per_hour_usd: float | None) -> float | None:
        """How long that lasts; None where nothing limits it, or dollars do and there is no price."""
        found = [] if self.hours is None else [self.hours * HOUR_S]
        if self.usd is not None:
            if per_hour_usd is None:
                return None
            found.append(self.usd / per_hour_usd * HOUR_S)
        return min(found, default=None)


@dataclass(frozen=True)
class PredictedCost:
    """What trainings or a study are predicted to take and to cost, what may be spent, and what has been by now.

    ``measured``, ``work`` and ``prices`` are by arm, in the same order. ``spent_s``: of all parts, from one resumption
    to the next. ``measuring_s``: how much of that the measuring of the first steps took, which is no part of the
    prediction. ``standing``: stopped is at the limit.
    """

    of: Undertaking
    scenario: str
    measured: tuple[ArmMeasurement, ...]
    work: tuple[ArmWork, ...]
    prices: tuple[HourlyPrice | None, ...]
    limit: SpendingLimit | None = None
    spent_s: float = 0.0
    measuring_s: float = 0.0
    standing: Standing = "unfinished"

    def __post_init__(self) -> None:
        same = len(self.measured) == len(self.work) == len(self.prices)
        if not same or not all(one.plain_s for one in self.measured):
            raise ValueError("its arms do not belong together")

    @property
    def arms(self) -> tuple[ArmCost, ...]:
        """By arm."""
        return tuple(arm_cost(one, work) for one, work in zip(self.measured, self.work, strict=True))

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Those of every arm, by precedence."""
        return in_order(found for one in self.measured for found in one.doubts)

    @property
    def total(self) -> Spread:
        """All arms, one after the other."""
        return sum_of(one.total for one in self.arms)

    @property
    def per_hour_usd(self) -> float | None:
        """What an hour costs, on average where arms differ in that; None where the price of any is not known."""
        found = [one.per_hour_usd for one in self.prices if one is not None]
        if len(found) < len(self.prices):
            return None
        if len(set(found)) == 1:
            return found[0]
        seconds = [one.total.likely for one in self.arms]
        return math.fsum(usd * one for usd, one in zip(found, seconds, strict=True)) / math.fsum(seconds)

    @property
    def total_usd(self) -> Spread | None:
        """US dollars of all arms, each at its own price; None where the price of any is not known."""
        found = [
            arm.total.times(one.per_hour_usd / HOUR_S)
            for arm, one in zip(self.arms, self.prices, strict=True)
            if one is not None
        ]
        return sum_of(found) if len(found) == len(self.prices) else None

    @property
    def prices_differ(self) -> bool:
        """Whether arms differ in what an hour costs: of time that is not told by arm, the price is an average."""
        return len({None if one is None else one.per_hour_usd for one in self.prices}) > 1

    def usd(self, seconds: float) -> float | None:
        """US dollars for so long, at the average price of the arms; None without a price."""
        return usd_of(seconds, self.per_hour_usd)

    @property
    def limit_s(self) -> float | None:
        """How long it may take in all; None where nothing limits it, or the limit is in dollars without a price."""
        return None if self.limit is None else self.limit.seconds(self.per_hour_usd)

    def left_s(self, done: float) -> float:
        """What the rest is expected to take, where the share ``done`` of the steps is done.

        A training that goes on starts and ends once more, however few steps are left; of a study that is complete runs.
        """
        total = self.total.likely
        once = sum_of(one.startup + one.ending for one in self.arms).likely if self.of == "training" else 0.0
        return once + (total - once) * (1 - done) if done < 1 else 0.0

    def exceeds(self, done: float = 0.0) -> bool:
        """Whether what was spent and what the rest is expected to take are more than may be spent."""
        return self.limit_s is not None and self.spent_s + self.left_s(done) > self.limit_s

    @property
    def error(self) -> float | None:
        """By which fraction the actual time, without the measuring of the first steps, is above the predicted one,
        negative: below; None unless it is done."""
        likely = self.total.likely
        return (self.spent_s - self.measuring_s) / likely - 1 if self.standing == "done" and likely else None
