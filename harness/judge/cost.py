"""Predict what a training or a study costs from a short measurement of its arms: seconds, and dollars by the hour.

A training of N steps takes, in seconds, with each term measured on the same configuration:

    start-up + step 0 + (N - 1) x step + passes x pass + checkpoints x checkpoint + ending

- The step is the median without step 0 and steps on batches built during start-up, with its interval. The worst case is
  the slowest of the last ten, or the interval's upper end if that is larger.
- If these steps get faster or slower, the prediction is doubted. Without long steps, only their last third counts.
- If some steps are long, many steps take the mean each. The worst case is then the slowest step that may recur.
- Sums over arms and trials add intervals end to end. The arms share a machine, so what slows one slows all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from statistics import NormalDist
from typing import Literal, overload

import numpy as np

from harness.explain.policy import CONFIDENCE
from harness.explain.statistics import from_amounts, reach_of_mean
from harness.explain.unusual_steps import NO_PHASE, long_steps, without_long
from harness.judge.doubts import Doubt, core_doubts, doubt, in_order
from harness.judge.policy import COSTED_LONG_RATIO, DRIFT_MIN, WORST_OF_STEPS
from harness.study.contract import PHASES

HOUR_S = 3600.0
# file in the folder of a training or study that stores a PredictedCost, and its schema version
COST, BUDGET_SCHEMA = "cost.json", 1

PriceSource = Literal["option", "scenario", "profile", "device"]
Undertaking = Literal["training", "study"]
Standing = Literal["unfinished", "stopped", "done"]


@dataclass(frozen=True)
class Spread:
    """Expected value, bounds of its 95 % interval, and worst case of a time in seconds or of a cost in US dollars."""

    likely: float = 0.0
    low: float = 0.0
    high: float = 0.0
    worst: float = 0.0

    def __add__(self, other: Spread) -> Spread:
        return Spread(
            self.likely + other.likely, self.low + other.low, self.high + other.high, self.worst + other.worst
        )

    def times(self, count: float) -> Spread:
        """Return the spread of ``count`` such durations in sequence."""
        return Spread(self.likely * count, self.low * count, self.high * count, self.worst * count)


NO_TIME = Spread()


def exactly(seconds: float) -> Spread:
    """Return a spread whose four values are ``seconds``: a duration measured once, so its variation is unknown."""
    return Spread(seconds, seconds, seconds, seconds)


@dataclass(frozen=True)
class ArmMeasurement:
    """Durations of one short run of an arm, in seconds, and its device."""

    arm: str
    steps_s: tuple[float, ...]  # every step from step 0, in order
    unsettled: int  # number of first steps whose batches were built during start-up
    startup_s: float  # end of the imports to beginning of step 0
    ending_s: float  # last step to end of the process, excluding ``passes_s`` and saving
    passes_s: tuple[float, ...] = ()
    answers_s: tuple[float, ...] = ()  # passes over multiple-choice questions
    checkpoint: int | None = None  # number of the step that saved one; later steps slow down by the writing
    saving_s: float = 0.0  # within that step
    writing_s: float = 0.0  # until the checkpoint is on disk; an asynchronous one is written after that step
    asynchronous: bool = True
    import_s: float = 0.0  # import of torch and the model, before the start-up
    launcher_s: float = 0.0  # start-up of the command
    waiting_share: float = 0.0  # share of the steps' time ready to run without a core, because others used the machine
    device: str = ""
    emulated: bool = False
    waits: bool = False  # True if its steps wait for data, so that repetitions may take extra warm-up steps
    devices: int = 1  # number of devices that its ranks use
    profile: str | None = None  # of the device
    profile_usd: float | None = None  # US dollars per hour in this profile
    epoch_steps: float | None = None  # steps of an epoch of its data; None if unknown

    @property
    def plain_s(self) -> tuple[float, ...]:
        """Seconds of each step after start-up and before step :attr:`checkpoint`, in order.

        Without step 0, and without the first ``unsettled`` steps, whose batches were built during start-up."""
        end = len(self.steps_s) if self.checkpoint is None else self.checkpoint
        return self.steps_s[max(1, self.unsettled) : end]

    @property
    def drift(self) -> float | None:
        """Ratio (median of the last third of :attr:`plain_s`) / (median of all seconds before it).

        None unless Kendall's test finds a trend, and the ratio is further from 1 than :data:`DRIFT_MIN`."""
        steps_s = without_long(np.array(self.plain_s))
        count = len(steps_s)
        if count < WORST_OF_STEPS:
            return None
        pairs = np.sign(steps_s[None, :] - steps_s[:, None])[np.triu_indices(count, 1)]
        deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
        ratio = float(np.median(steps_s[-(count // 3) :]) / np.median(steps_s[: -(count // 3)]))
        is_trend = abs(pairs.sum()) > NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviation
        return ratio if is_trend and abs(ratio - 1) > DRIFT_MIN else None

    @property
    def _settled_s(self) -> tuple[float, ...]:
        """Seconds of those :attr:`plain_s` that predict later steps: the last third if step times drift, else all.

        All, too, if some steps are long: the last third may have too many long steps, or none."""
        has_long = len(without_long(np.array(self.plain_s))) < len(self.plain_s)
        return self.plain_s if has_long or self.drift is None else self.plain_s[-(len(self.plain_s) // 3) :]

    @property
    def step(self) -> Spread:
        """Seconds of one step: median with interval; worst case: slowest of the last :data:`WORST_OF_STEPS`."""
        estimate = from_amounts(self._settled_s)
        assert estimate is not None, "an arm is measured with at least one settled step"
        slowest = max(self.plain_s[-WORST_OF_STEPS:])
        low = estimate.median if estimate.ci_low is None else estimate.ci_low
        high = estimate.median if estimate.ci_high is None else estimate.ci_high
        return Spread(estimate.median, low, high, max(slowest, estimate.median))

    @property
    def slowest_step(self) -> int:
        """Return the number (from 0) of the slowest of the last :data:`WORST_OF_STEPS` steps."""
        end = max(1, self.unsettled) + len(self.plain_s)
        return max(range(max(end - WORST_OF_STEPS, end - len(self.plain_s)), end), key=self.steps_s.__getitem__)

    @property
    def recurring_s(self) -> tuple[float, ...]:
        """Seconds of each settled step from the first one that is not long: start-up causes long steps before it.

        Long: above :data:`COSTED_LONG_RATIO` x the median step."""
        usual_s = COSTED_LONG_RATIO * self.step.likely
        settled_s = self._settled_s
        first = next(position for position, seconds in enumerate(settled_s) if seconds <= usual_s)
        return settled_s[first:]

    @property
    def mean_step_s(self) -> float:
        """Mean of :attr:`recurring_s`, in seconds. If it is above the median's interval, some steps are long."""
        return math.fsum(self.recurring_s) / len(self.recurring_s)

    @property
    def each_of_many(self) -> Spread:
        """Seconds of one step of a long training: based on the mean if some steps are long, else :attr:`step`. The
        lower bound of the mean is that of the median, because later steps may be long less often. The upper bound of
        the mean is by Student's t. Worst case: the slowest of :attr:`recurring_s`, and at least the upper bound."""
        step, mean, recurring_s = self.step, self.mean_step_s, self.recurring_s
        if mean <= step.high:
            return replace(step, worst=max(step.worst, step.high))
        high = mean + reach_of_mean(recurring_s)
        return Spread(mean, step.low, high, max(*recurring_s, step.worst, high))

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Doubts that a report of these steps would have, most important first. Some bar a prediction of the cost."""
        doubts = [*core_doubts(self.waiting_share, self.arm)]
        step_ms, typical_ms = np.array(self.recurring_s) * 1e3, self.step.likely * 1e3
        long = long_steps(step_ms, np.full(len(step_ms), NO_PHASE, dtype=np.int8), PHASES, typical_ms)
        if long is not None:
            doubts.append(doubt("rare long steps", self.arm, share=long.steps / long.of))
        if (drift := self.drift) is not None:
            doubts.append(doubt("drift", self.arm, share=drift - 1, remedy="more steps"))
        return in_order(doubts)

    @property
    def evaluation_pass(self) -> Spread:
        """Seconds of one pass over held-out data; all zero if no pass was measured.

        Expected: the last pass, because the first one also builds data. Worst case: the slowest pass."""
        return _last_and_slowest(self.passes_s)

    @property
    def answering_pass(self) -> Spread:
        """Seconds of one pass over multiple-choice questions; all zero if no pass was measured.

        Expected: the last pass. Worst case: the slowest pass."""
        return _last_and_slowest(self.answers_s)

    def one_checkpoint(self, every_s: float | None) -> Spread:
        """Return the seconds that one checkpoint within the training adds to its steps; all zero if none was measured.

        ``every_s``: seconds between two checkpoints; None if not due at fixed times. The step that saves waits for a
        copy (if ``asynchronous``) or for the whole write. While an asynchronous checkpoint is written, later steps are
        slower; this counts up to the duration of the write. If checkpoints are due faster than they are written, each
        one waits for the one before.
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
        """Seconds of the checkpoint at the end of a training, which waits until it is written; all zero without one."""
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
    """Work whose cost is predicted: ``starts`` processes in sequence that take ``steps`` steps in all."""

    steps: int
    starts: int = 1
    imports: int = 1  # number of imports of the libraries, shared by the runs of one block
    launches: int = 1  # number of starts of the command, shared by the runs of one block
    passes: int = 0  # number over held-out data
    answers: int = 0  # passes over multiple-choice questions
    checkpoint_every_steps: int | None = None
    checkpoint_every_s: float | None = None
    last_checkpoint: bool = False  # True: one more at the end of each process
    other_s: float = 0.0  # other time in all, in seconds
    passed_over: int = 0  # earlier steps whose data is built and dropped, unmeasured
    most_extra: int = 0  # maximum of extra warm-up steps that wait for data; worst case only


def training_work(
    steps: int, evaluates: bool, evaluate_every: int | None, save_every: int | None, save_every_s: float | None
) -> ArmWork:
    """Return the work of a training of ``steps`` steps, with a checkpoint and, if it ``evaluates``, a pass at its end.

    ``evaluate_every``, ``save_every``: steps; ``save_every_s``: seconds in between; None: not due by this measure."""
    return ArmWork(
        steps,
        passes=passes_within(steps, evaluate_every) if evaluates else 0,
        checkpoint_every_steps=save_every,
        checkpoint_every_s=save_every_s,
        last_checkpoint=True,
    )


def passes_within(steps: int, every: int | None) -> int:
    """Return the number of evaluation passes: every ``every`` steps (None: never) and at the end."""
    return 1 if every is None else -(-steps // every)


@dataclass(frozen=True)
class ArmCost:
    """Predicted time of an arm's ``work`` by part, in seconds; :func:`arm_cost` makes it."""

    arm: str
    work: ArmWork
    step: Spread
    each_of_many: Spread  # per step; equals ``step`` unless some steps are long
    first_step_s: float
    startup: Spread
    steps: Spread
    evaluation: Spread
    answering: Spread
    checkpoints: int
    saving: Spread  # all checkpoints
    ending: Spread
    slowest_step: int  # number of the step that is the worst case of ``step``, unless the median is larger

    @property
    def total(self) -> Spread:
        """Seconds of all parts, and of ``work.other_s``, which belongs to no part."""
        spread = self.startup + self.steps + self.evaluation + self.answering + self.saving + self.ending
        return spread + exactly(self.work.other_s)

    @property
    def has_long_steps(self) -> bool:
        """True if the mean of the steps is above the median's interval. Many steps are then costed by the mean."""
        return self.each_of_many.likely != self.step.likely


def arm_cost(measured: ArmMeasurement, work: ArmWork) -> ArmCost:
    """Return the predicted time of ``work`` by part, at the durations in ``measured``."""
    later_s, first_s = measured.each_of_many, measured.steps_s[0]
    first = min(work.starts, work.steps)
    steps = exactly(first_s).times(first) + later_s.times(work.steps - first)
    if measured.waits:
        steps = replace(steps, worst=steps.worst + later_s.worst * work.most_extra)
    evaluation = measured.evaluation_pass.times(work.passes)
    answering = measured.answering_pass.times(work.answers)
    startup = exactly(
        measured.startup_s * work.starts + measured.import_s * work.imports + measured.launcher_s * work.launches
    )
    ending = exactly(measured.ending_s * work.starts)
    every_s = work.checkpoint_every_s
    if work.checkpoint_every_steps is not None:
        every_s = work.checkpoint_every_steps * later_s.likely
        # A checkpoint at the end is the last one.
        saves = (work.steps - work.last_checkpoint) // work.checkpoint_every_steps
    else:
        saves = 0 if every_s is None else int((steps + evaluation + answering).likely // every_s)
    saving = measured.one_checkpoint(every_s).times(saves)
    if work.last_checkpoint:
        saving += measured.last_checkpoint.times(work.starts)
    count = saves + (work.starts if work.last_checkpoint else 0)
    count = 0 if measured.checkpoint is None else count
    return ArmCost(
        measured.arm, work, measured.step, later_s, first_s, startup, steps, evaluation, answering, count, saving,
        ending, measured.slowest_step,
    )  # fmt: skip


def cost_of_trials(measured: ArmMeasurement, trials: int, work: ArmWork) -> Spread:
    """Return the seconds of ``trials`` sequential trials with ``work`` each, in separate processes."""
    return arm_cost(measured, work).total.times(trials)


def sum_of(spreads: Iterable[Spread]) -> Spread:
    """Return the sum of ``spreads``: expected values, both bounds and worst cases are each added."""
    total = NO_TIME
    for spread in spreads:
        total += spread
    return total


@dataclass(frozen=True)
class HourlyPrice:
    """US dollars per hour of one machine or device, and how many (``devices``) are paid for."""

    usd: float
    source: PriceSource
    devices: int = 1
    name: str = ""  # profile that the price comes from; "" for another source
    given_usd: float | None = None  # price before it was rounded up; None if it was not

    @property
    def per_hour_usd(self) -> float:
        """US dollars per hour of all devices."""
        return self.usd * self.devices

    def of_seconds(self, seconds: float) -> float:
        """Return the US dollars for ``seconds`` of all devices."""
        return usd_of(seconds, self.per_hour_usd)


@overload
def usd_of(seconds: float, per_hour_usd: float) -> float: ...
@overload
def usd_of(seconds: float, per_hour_usd: float | None) -> float | None: ...
def usd_of(seconds: float, per_hour_usd: float | None) -> float | None:
    """Return the US dollars for ``seconds``; None without a price."""
    return None if per_hour_usd is None else seconds / HOUR_S * per_hour_usd


def rounded_up(price: HourlyPrice, to_usd: float | None) -> HourlyPrice:
    """Return ``price`` rounded up to a multiple of ``to_usd`` (None: unchanged): 1.29 to 0.50 is 1.50."""
    if to_usd is None:
        return price
    usd, unit = Decimal(str(price.usd)), Decimal(str(to_usd))
    rounded = float((usd / unit).to_integral_value(ROUND_CEILING) * unit)
    return HourlyPrice(rounded, price.source, price.devices, price.name, price.usd)


@dataclass(frozen=True)
class SpendingLimit:
    """Limit in US dollars, hours, or both. The first one reached counts. Neither means no limit."""

    usd: float | None = None
    hours: float | None = None

    def seconds(self, per_hour_usd: float | None) -> float | None:
        """Return the seconds until the limit; None without a limit, or for a limit in dollars without a price."""
        limits = [] if self.hours is None else [self.hours * HOUR_S]
        if self.usd is not None:
            if per_hour_usd is None:
                return None
            limits.append(self.usd / per_hour_usd * HOUR_S)
        return min(limits, default=None)


@dataclass(frozen=True)
class PredictedCost:
    """Predicted time and cost of a training or a study, stored in cost.json; tuples have one entry per arm."""

    of: Undertaking
    scenario: str
    measured: tuple[ArmMeasurement, ...]
    work: tuple[ArmWork, ...]
    prices: tuple[HourlyPrice | None, ...]
    limit: SpendingLimit | None = None
    spent_s: float = 0.0  # seconds spent so far, across resumes
    measuring_s: float = 0.0  # part of ``spent_s`` on first steps; not in the prediction
    standing: Standing = "unfinished"  # "stopped": the limit was reached

    def __post_init__(self) -> None:
        same_length = len(self.measured) == len(self.work) == len(self.prices)
        if not same_length or not all(arm.plain_s for arm in self.measured):
            raise ValueError("measured, work and prices must list the same arms, each with a settled step")

    @property
    def arms(self) -> tuple[ArmCost, ...]:
        """Predicted cost of each arm, in the order of ``measured``."""
        return tuple(arm_cost(measurement, work) for measurement, work in zip(self.measured, self.work, strict=True))

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """Doubts about the measured steps of every arm, most important first."""
        return in_order(entry for measurement in self.measured for entry in measurement.doubts)

    @property
    def total(self) -> Spread:
        """Predicted seconds of all arms together."""
        return sum_of(arm.total for arm in self.arms)

    @property
    def per_hour_usd(self) -> float | None:
        """US dollars per hour, averaged by expected time if arms differ; None if any price is unknown."""
        rates = [price.per_hour_usd for price in self.prices if price is not None]
        if len(rates) < len(self.prices):
            return None
        if len(set(rates)) == 1:
            return rates[0]
        seconds = [arm.total.likely for arm in self.arms]
        return math.fsum(usd * amount_s for usd, amount_s in zip(rates, seconds, strict=True)) / math.fsum(seconds)

    @property
    def total_usd(self) -> Spread | None:
        """US dollars of all arms, each at its own price; None if any price is unknown."""
        totals = [
            arm.total.times(price.per_hour_usd / HOUR_S)
            for arm, price in zip(self.arms, self.prices, strict=True)
            if price is not None
        ]
        return sum_of(totals) if len(totals) == len(self.prices) else None

    @property
    def prices_differ(self) -> bool:
        """True if arms differ in price per hour. Time that is not recorded by arm then costs the average price."""
        return len({None if price is None else price.per_hour_usd for price in self.prices}) > 1

    def usd(self, seconds: float) -> float | None:
        """Return the US dollars for ``seconds`` at the average price of the arms; None without a price."""
        return usd_of(seconds, self.per_hour_usd)

    @property
    def limit_s(self) -> float | None:
        """Spending limit in seconds; None without a limit, or for a limit in dollars without a price."""
        return None if self.limit is None else self.limit.seconds(self.per_hour_usd)

    def left_s(self, done: float) -> float:
        """Return the expected seconds left when the share ``done`` (0 to 1) is done; 0 if all is.

        Of a training, start-up and end count in full, because a resumed training has both again."""
        total = self.total.likely
        fixed_s = sum_of(arm.startup + arm.ending for arm in self.arms).likely if self.of == "training" else 0.0
        return fixed_s + (total - fixed_s) * (1 - done) if done < 1 else 0.0

    def exceeds(self, done: float = 0.0) -> bool:
        """True if time spent and expected to remain (share ``done`` of the steps done) exceed the limit."""
        return self.limit_s is not None and self.spent_s + self.left_s(done) > self.limit_s

    @property
    def error(self) -> float | None:
        """Error of the prediction, a fraction: (``spent_s`` - ``measuring_s``) / predicted seconds - 1.

        None unless the training or study ran to its end."""
        likely = self.total.likely
        return (self.spent_s - self.measuring_s) / likely - 1 if self.standing == "done" and likely else None
