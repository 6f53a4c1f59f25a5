"""Words a sweep's messages outside its report: reasons for its end, plan and cost, a line per trial, progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from harness.judge.cost import HOUR_S, usd_of
from harness.launch.progress import PLAIN_INTERVAL_S, TERMINAL_INTERVAL_S, fitted, is_terminal
from harness.show.cost import hours, money
from harness.show.tables import aligned
from harness.show.words import count, duration, ms, number
from harness.sweep.budget import Resource, Shortage, Spending, TrialsNeed
from harness.sweep.trials import SearchSpace, Trial, TrialPlan, TrialStage

SIZES_SHOWN = 5  # sizes in one line

INTERVAL = (
    "These trials cannot distinguish the rates inside the interval (one-sided, 95 %). For a narrower one, add seeds or "
    "rates."
)


def rate(value: float) -> str:
    """Format a learning rate: ``2.15e-03``."""
    return f"{value:.2e}"


def amount(resource: Resource, value: float) -> str:
    """Format ``value`` of a resource: tokens, USD, or hours as a duration."""
    if resource == "tokens":
        return f"{value:,.0f} tokens"
    return money(value) if resource == "usd" else duration(value * HOUR_S)


def all_diverged(trials: Sequence[Trial]) -> bool:
    """Return True if there are trials and all diverged. Probes only count if there are no other trials."""
    full = [trial for trial in trials if trial.plan.role != "probe"] or trials
    return bool(full) and all(trial.status == "diverged" for trial in full)


def smaller_than_a_trial(short: Shortage, need: TrialsNeed, price: float | None) -> str:
    """Return the error message for a budget below one full trial. ``price``: US dollars per hour."""
    return (
        f"budget.{short.resource}: {amount(short.resource, short.budget)}, but one trial of {need.steps:,} steps needs "
        f"{amount(short.resource, short.needed)} ({_arithmetic(short.resource, need)}{_at(short.resource, price)}); "
        "give enough for one trial, or fewer steps"
    )


def smaller_than_the_sizes(short: Shortage, needs: Sequence[TrialsNeed], spent: Spending, price: float | None) -> str:
    """Return the error message for a budget that does not suffice for all trials of all sizes of a projection."""
    sizes = []
    for need in needs:
        total = amount("tokens", need.tokens) if short.resource == "tokens" else duration(need.seconds or 0.0)
        sizes.append(f"{need.group}: {count(need.trials, 'trial')}, {_arithmetic(short.resource, need)} = {total}")
    more = f"; and {len(sizes) - SIZES_SHOWN} more" if len(sizes) > SIZES_SHOWN else ""
    shown = "; ".join(sizes[:SIZES_SHOWN]) + more
    measured, whole = "", short.needed + short.budget - short.left  # ``whole`` includes the spent part
    if short.resource != "tokens" and spent.seconds:
        measured = f"; measuring the step time (already spent): {duration(spent.seconds)}"
    return (
        f"budget.{short.resource}: {amount(short.resource, short.budget)}, but {count(len(needs), 'size')} "
        f"{'needs' if len(needs) == 1 else 'need'} {amount(short.resource, whole)} if no trial ends early "
        f"({shown}{measured}{_at(short.resource, price)}); give enough for all sizes, fewer trials, or fewer steps"
    )


def _arithmetic(resource: Resource, need: TrialsNeed) -> str:
    """Format how a need arises: steps x time of a step + the rest; steps x tokens if times are unknown or unasked."""
    if resource == "tokens" or need.step_s is None or need.seconds is None:
        return f"{need.steps:,} steps x {need.tokens // max(1, need.steps):,} tokens"
    other_s = need.seconds - need.steps * need.step_s
    return f"{need.steps:,} steps x {ms(need.step_s * 1e3)} + {duration(other_s)} for the rest"


def _at(resource: Resource, price: float | None) -> str:
    return f", at {price:g} USD an hour" if resource == "usd" and price is not None else ""


def too_little_left(short: Shortage, plan: TrialPlan) -> str:
    """Return why a sweep stops before its next trial: the rest of the budget is smaller than its expected need."""
    return (
        f"only {amount(short.resource, max(0.0, short.left))} of the budget ({amount(short.resource, short.budget)}) "
        f"are left, and the next trial ({plan.steps:,} steps) needs about {amount(short.resource, short.needed)}"
    )


def stopped_within(trial: Trial, steps: int, limit_s: float) -> str:
    """Return that the budget (``limit_s`` seconds) was spent within a trial, after ``steps`` steps."""
    return (
        f"the budget ({duration(limit_s)}) was spent in trial {trial.number}, after {steps:,} of {trial.plan.steps:,} "
        "steps; its checkpoint is kept"
    )


def nothing_left(trial: Trial, limit_s: float) -> str:
    """Return why a resumed sweep does not continue its running trial: the budget (``limit_s`` seconds) is spent."""
    return f"the budget ({duration(limit_s)}) is spent; trial {trial.number} is incomplete"


def spent_on_the_pilot(seconds: float, steps: int) -> str:
    """Return why a sweep ends before its first trial: its pilot of ``steps`` steps spent the rest of the budget."""
    return (
        f"the rest of the budget was spent on the pilot: {duration(seconds)} for {count(steps, 'step')} to measure "
        "the time of a trial"
    )


def plan_lines(
    title: str, stages: Sequence[TrialStage], space: SearchSpace, step_tokens: int, parameters: int | None
) -> list[str]:
    """Return the plan: title, a table with a row per stage, totals. ``step_tokens``: of an optimizer step."""
    most = "" if all(stage.exact for stage in stages) else "at most "
    parameters_text = "" if parameters is None else f"{parameters:,} parameters, "
    lines = [
        title,
        f"{parameters_text}{step_tokens:,} tokens a step, learning rates from {rate(space.low)} to {rate(space.high)}",
    ]
    rows = [("stage", "trials", "steps each", "tokens each", "steps in all")]
    for stage in stages:
        name = f"{stage.of}, {stage.name}" if stage.of else stage.name
        trials = f"{stage.trials:,}" if stage.exact else f"at most {stage.trials:,}"
        tokens, total_steps = stage.steps * step_tokens, stage.trials * stage.steps
        rows.append((name, trials, f"{stage.steps:,}", f"{tokens:,}", f"{total_steps:,}"))
    lines += aligned(rows)
    steps = sum(stage.trials * stage.steps for stage in stages)
    number_of = sum(stage.trials for stage in stages)
    lines.append(
        f"{most}{number_of:,} trial{'' if number_of == 1 else 's'}, {steps:,} steps, {steps * step_tokens:,} tokens; "
        "trials that diverge or fall behind end earlier"
    )
    return lines


def warmup_lines(key: str, warmup_steps: int, stages: Sequence[TrialStage]) -> list[str]:
    """Return a warning if the warm-up is cut to half of some trials; else []. ``key``: name of the setting."""
    short = sorted({stage.steps for stage in stages if stage.steps // 2 < warmup_steps}, reverse=True)
    if not short:
        return []
    cut = ", ".join(f"{steps // 2:,} in trials of {count(steps, 'step')}" for steps in short[:SIZES_SHOWN])
    more = f", and {len(short) - SIZES_SHOWN} more lengths" if len(short) > SIZES_SHOWN else ""
    return [
        f"{key}: {count(warmup_steps, 'step')}, but the warm-up is at most half of a trial: {cut}{more}; give fewer "
        "warm-up steps, or longer trials"
    ]


def cost_lines(
    needs: Sequence[TrialsNeed], measuring_s: float, price: float | None, *, evaluated: bool = True
) -> list[str]:
    """Return the expected cost as a table by size. ``evaluated``: False on emulated devices, which have no loss."""
    header = ["size", "trials", "steps", "ms a step", "hours", *(["USD"] if price is not None else [])]
    seconds = [need.seconds or 0.0 for need in needs]
    rows = [
        [need.group or "all", f"{need.trials:,}", f"{need.steps:,}", _step_ms(need.step_s or 0.0), hours(duration_s)]
        for need, duration_s in zip(needs, seconds, strict=True)
    ]
    if len(rows) > 1:
        trials, steps = (sum(values) for values in zip(*((need.trials, need.steps) for need in needs), strict=True))
        rows.append(["together", f"{trials:,}", f"{steps:,}", "", hours(sum(seconds))])
        seconds.append(sum(seconds))
    if price is not None:
        rows = [
            [*row, money(usd_of(duration_s, price) or 0.0).removesuffix(" USD")]
            for row, duration_s in zip(rows, seconds, strict=True)
        ]
    money_text = "the price is unknown (set price_usd_per_hour)" if price is None else f"at {price:g} USD an hour"
    counted = "the start, the passes over held-out data and the checkpoints" if evaluated else "the start"
    lines = [
        *aligned([header, *rows]),
        f"expected if no trial ends early, from the median step of each size, {counted}; {money_text}; measured in "
        f"{duration(measuring_s)}",
    ]
    if not evaluated:
        lines.append(
            "step times are assumptions of the emulated device's profile, not measured; trials on it cannot be "
            "compared and have no passes over held-out data, because it has no loss"
        )
    return lines


def _step_ms(step_s: float) -> str:
    """Format milliseconds with three digits, also if very short, so that steps x time matches the hours beside it."""
    return number(step_s * 1e3) if step_s >= 1e-3 else f"{step_s * 1e3:.3g}"


def trial_line(trial: Trial) -> str:
    """Return a line on an ended trial: its number, learning rate, seed and steps, and how it ended."""
    plan = trial.plan
    result = {
        "done": f"validation loss {trial.loss:.4f}" if trial.loss is not None else "",
        "diverged": f"diverged after {trial.steps:,} of {plan.steps:,} steps",
        "behind": f"behind the others' median after {trial.steps:,} of {plan.steps:,} steps",
        "late": "exceeded the time limit (limits.trial_hours)",
    }.get(trial.status, trial.status)
    group = f", {plan.group}" if plan.group else ""
    return (
        f"trial {trial.number}{group}: learning rate {rate(plan.learning_rate)}, seed {plan.seed}, {plan.steps:,} "
        f"steps: {result}, {duration(trial.seconds)}"
    )


class SweepProgress:
    """Progress of a sweep on standard error. On a terminal, a trial's line is rewritten in place."""

    def __init__(self, stages: Sequence[TrialStage], trials: Sequence[Trial]) -> None:
        """Start the display. ``stages``: all planned trials. ``trials``: those of earlier starts of the sweep."""
        self._all = sum(stage.trials for stage in stages)
        self._exact = all(stage.exact for stage in stages)
        self._all_steps = sum(stage.trials * stage.steps for stage in stages)
        # Steps of a larger model take longer. Those of a smaller model do not predict the time left.
        self._is_alike = all(stage.overrides == stages[0].overrides for stage in stages)
        self._rewrites, self._line_open = is_terminal(), False
        self._begun_s = self._shown_s = time.monotonic()
        self._done_steps = 0  # planned steps of trials that ended in this part
        self._before = sum(trial.plan.steps for trial in trials if trial.status != "running")
        ended = sum(trial.status != "running" for trial in trials)
        if ended:
            self._say(f"{count(ended, 'trial')} of earlier parts kept")

    def measuring(self, steps: int, group: str) -> None:
        """Print that ``steps`` steps of a trial of ``group`` are trained as a pilot, to measure their time."""
        trial = f"a trial of {group}" if group else "a trial"
        self._say(f"measuring the time of {trial}: {count(steps, 'step')}")

    def begin(self, trial: Trial) -> None:
        """Show that a trial starts or is resumed."""
        self._show(trial, 0, None, force=self._rewrites)

    def step(self, trial: Trial, steps: int, loss: float | None) -> None:
        """Show how far the running trial is, at most every few seconds. ``loss``: None if not known."""
        self._show(trial, steps, loss)

    def ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        """Print how a trial ended, and the lowest loss so far. ``trials``: all trials of the sweep."""
        self._done_steps += trial.plan.steps
        best = min((done for done in trials if done.status == "done"), key=lambda done: done.score, default=None)
        so_far = "" if best is None else f"; lowest so far {best.score:.4f} at {rate(best.plan.learning_rate)}"
        self._say(f"{trial_line(trial)}{so_far}")

    def end(self) -> None:
        """Finish the line that was rewritten in place, so that later output starts on a new one."""
        if self._line_open:
            print(file=sys.stderr)
            self._line_open = False

    def _show(self, trial: Trial, steps: int, loss: float | None, force: bool = False) -> None:
        now_s = time.monotonic()
        if not force and now_s - self._shown_s < (TERMINAL_INTERVAL_S if self._rewrites else PLAIN_INTERVAL_S):
            return
        self._shown_s = now_s
        line = self.line(trial, steps, loss, now_s - self._begun_s)
        if self._rewrites:
            print(f"\r{fitted(line)}\x1b[K", end="", file=sys.stderr, flush=True)
            self._line_open = True
        else:
            print(line, file=sys.stderr, flush=True)

    def line(self, trial: Trial, steps: int, loss: float | None, seconds: float) -> str:
        """Return a trial's progress line with an estimate of the time left. ``seconds``: since this start."""
        all_trials = f"{'' if self._exact else 'at most '}{self._all}"
        value = "" if loss is None else f", loss {loss:.4f}"
        done, remaining = self._done_steps + steps, ""
        rest = self._all_steps - self._before - done
        if done and rest > 0 and self._is_alike:
            remaining = f", {'about' if self._exact else 'at most about'} {duration(seconds * rest / done)} left"
        return (
            f"trial {trial.number + 1} of {all_trials}: learning rate {rate(trial.plan.learning_rate)}, step {steps:,} "
            f"of {trial.plan.steps:,}{value} | {duration(seconds)} gone{remaining}"
        )

    def _say(self, line: str) -> None:
        start = "\r\x1b[K" if self._line_open else ""
        self._line_open = False
        print(f"{start}{line}", file=sys.stderr, flush=True)
