"""Makes the sentences of a sweep's report. They claim no more than the trials show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.show.words import count, percent
from harness.sweep import projection_sentences
from harness.sweep.findings import ChosenRate, DivergedRate, RateCurve, SweepFindings
from harness.sweep.fit import MIN_RATES, LearningRateOptimum, NoOptimum
from harness.sweep.messages import INTERVAL, all_diverged, rate
from harness.sweep.model import SweepConfig
from harness.sweep.store import SweepRecord
from harness.sweep.trials import Trial

FAR_BEYOND_TRIED = 100.0  # factor beyond the tried rates; an interval's end further out only counts as open


def interval(low: float | None, high: float | None, curve: RateCurve | None = None) -> str:
    """Format ``1.1e-03 to 2.3e-03``; an end far beyond ``curve``'s tried rates counts as open, like None."""
    tried = [learning_rate for learning_rate, _ in curve.points] if curve is not None else []
    if tried and low is not None and low < min(tried) / FAR_BEYOND_TRIED:
        low = None
    if tried and high is not None and high > max(tried) * FAR_BEYOND_TRIED:
        high = None
    if low is None and high is None:
        return "no interval"
    if low is None:
        return f"up to {rate(high)}, no lower end" if high is not None else ""
    return f"from {rate(low)}, no upper end" if high is None else f"{rate(low)} to {rate(high)}"


def why_no_optimum(found: NoOptimum, curve: RateCurve) -> str:
    """Return the reason why ``curve`` has no fitted optimum, as a clause."""
    below = "" if not curve.above else " below the lowest that diverged"
    return {
        "too-few": f"{count(found.rates, 'learning rate')}{below} finished, a fit needs {MIN_RATES}",
        "not-convex": "the losses have no minimum that a quadratic would show",
        "flat": "the losses around the lowest one are all the same",
    }[found.reason]


def conclusion(record: SweepRecord, settings: SweepConfig, found: SweepFindings, trials: Sequence[Trial]) -> list[str]:
    """Return the result of a sweep as lines: the chosen rate, how sure it is, and what limits it."""
    lines = [
        *_ending(record, trials),
        *map(_nothing_below, (curve for curve in found.curves if curve.above and not curve.points)),
    ]
    if found.projection is not None:
        return [*projection_sentences.conclusion(found.projection), *lines] if found.curves else lines
    if found.chosen is None or not found.curves:
        return lines or ["No trial has finished, so no learning rate is chosen."]
    curve, chosen = found.curves[0], found.chosen
    lowest = curve.lowest
    assert lowest is not None
    lines.insert(0, _chosen(chosen, curve))
    if chosen.at_edge is not None:
        lines.insert(1, f"**{_bound(chosen, curve, settings)}**")
    below = " below the lowest rate that diverged" if curve.above else ""
    lines.append(
        f"Of {count(len(curve.points), 'trial')} of {curve.steps:,} steps{below} one at {rate(lowest[0])} has the "
        f"lowest loss on held-out data: {lowest[1]:.4f}."
    )
    lines += _open_ends(chosen, curve)
    return lines


def of_seeds(one: DivergedRate) -> str:
    """Format how many seeds of a rate diverged: `` (1 of 2 seeds)``; "" if it had only one."""
    return "" if one.seeds < 2 else f" ({one.diverged} of {one.seeds} seeds)"


def _nothing_below(curve: RateCurve) -> str:
    """Return a sentence on why a curve has no chosen rate: all finished trials lie at or above a rate that diverged."""
    assert curve.ceiling is not None
    place, result = (
        (f"At {curve.group} a", "it has no best rate") if curve.group else ("A", "no learning rate is chosen")
    )
    trials_text = count(len(curve.above), "trial")
    return (
        f"**{place} learning rate of {rate(curve.ceiling.learning_rate)} diverged{of_seeds(curve.ceiling)}, and no "
        f"lower one finished: {result} ({trials_text} at or above it finished). "
        "Search below it (learning_rate.low), or look at data, precision and clipping.**"
    )


def _ending(record: SweepRecord, trials: Sequence[Trial]) -> list[str]:
    """Return a line on why the sweep is incomplete or chose no rate; empty if it is done."""
    flying = [trial for trial in trials if trial.status == "running"]
    in_flight = f" Trial {flying[0].number} is incomplete and resumes with the sweep." if flying else ""
    if all_diverged(trials) and record.status in ("diverged", "done"):
        counted = [trial for trial in trials if trial.plan.role != "probe"] or trials
        lowest = min(trial.plan.learning_rate for trial in counted)
        return [
            f"**Every trial diverged ({count(len(counted), 'trial')}, the lowest rate {rate(lowest)}): no learning "
            "rate is chosen. Search below that (learning_rate.low), or look at data, precision and clipping.**"
        ]
    texts = {
        "interrupted": "**The sweep was interrupted before its last trial.**",
        "failed": "**The sweep stopped at a failure, or no trial finished.**",
        "budget": "**The budget ended the sweep before its last trial.**",
        "running": "**The sweep has not ended, or its process was killed.**",
    }
    return [texts[record.status] + in_flight] if record.status in texts else []


def _chosen(chosen: ChosenRate, curve: RateCurve) -> str:
    value = f"Chosen learning rate: {rate(chosen.learning_rate)}"
    optimum = curve.optimum
    if chosen.by == "fit" and isinstance(optimum, LearningRateOptimum):
        ends = [end for end in (chosen.ci_low, chosen.ci_high) if end is not None]
        within = f"95 % interval {interval(chosen.ci_low, chosen.ci_high, curve)}" if ends else "no 95 % interval"
        interval_note = f" {INTERVAL}" if len(ends) == 2 else ""
        fit = f"a quadratic in the logarithm of the rate through {count(optimum.points, 'trial')}"
        highest = max(learning_rate for learning_rate, _ in curve.points)
        if curve.ceiling is not None and math.isclose(chosen.learning_rate, highest):  # held within the rates
            place = "" if curve.trained_above else ", where training diverges"
            minimum = f"the highest below one that diverged: {fit} has its minimum there or above{place}"
        else:
            minimum = f"where {fit} has its minimum"
        return f"{value}, {minimum} ({within}; R2 {optimum.r2:.3f}).{interval_note}"
    if chosen.by == "bound":
        interval_text = "" if chosen.ci_low is None and chosen.ci_high is None else " (95 % interval "
        interval_text += f"{interval(chosen.ci_low, chosen.ci_high, curve)})" if interval_text else ""
        return f"{value}, the best within the rates of the trials of {count(curve.steps, 'step')}{interval_text}."
    seeded = len({learning_rate for learning_rate, _ in curve.points}) < len(curve.points)
    reason = "with the lowest mean loss" if seeded else "of the trial with the lowest loss"
    if isinstance(optimum, NoOptimum):
        return f"{value}, that {reason}; no optimum is fitted: {why_no_optimum(optimum, curve)}."
    beyond = "below the lowest" if optimum.at_edge == "low" else "above the highest"
    return (
        f"{value}, that {reason}; the best rate is unknown: a quadratic through "
        f"{count(optimum.points, 'trial')} has its minimum {beyond} rate, where the loss is already higher."
    )


def _bound(chosen: ChosenRate, curve: RateCurve, settings: SweepConfig) -> str:
    """Return the warning that the lowest loss is at an end of the tried rates, or of the search range."""
    tried = sorted(learning_rate for learning_rate, _ in curve.points)
    trials_text = f"of the trials of {count(curve.steps, 'step')}"  # The rates of shorter trials may have gone further.
    low = chosen.at_edge == "low"
    end, bound = (tried[0], settings.learning_rate.low) if low else (tried[-1], settings.learning_rate.high)
    extreme, beyond = ("lowest", "below") if low else ("highest", "above")
    is_bound = abs(end / bound - 1) < 1e-9
    place = (
        f"the {'lower' if low else 'upper'} bound of the search range"
        if is_bound
        else f"the {extreme} rate {trials_text}"
    )
    key = "learning_rate.low" if low else "learning_rate.high"
    return (
        f"The optimum may not be inside the rates {trials_text}: the loss is lowest at {rate(end)}, {place}. The best "
        f"rate may lie {beyond} it{_or_inside(chosen, curve, end)}. Search again with another {key}."
    )


def _or_inside(chosen: ChosenRate, curve: RateCurve, end: float) -> str:
    """Return a clause that noise may have made ``end`` the lowest; "" if the interval excludes that."""
    if isinstance(curve.optimum, NoOptimum):  # Without a fit, there is no estimate of noise.
        return ""
    low = chosen.at_edge == "low"
    side, direction = ("above", "up") if low else ("below", "down")
    last = chosen.ci_high if low else chosen.ci_low
    if last is None:
        return f", or {side}: the 95 % interval has no end there either"
    least, most = sorted((last, end))
    # The interval reaches to the next rate in any case.
    if not any(least < learning_rate < most for learning_rate, _ in curve.points):
        return ""
    return f", or {side}: the 95 % interval reaches {direction} to {rate(last)}"


def _open_ends(chosen: ChosenRate, curve: RateCurve) -> list[str]:
    """Return sentences on what limits the chosen rate: open ends, rates that diverged, and trials behind."""
    lines = []
    if chosen.by == "fit" and (chosen.ci_low is None or chosen.ci_high is None):
        sides = [name for name, end in (("below", chosen.ci_low), ("above", chosen.ci_high)) if end is None]
        sides_text = "that side" if len(sides) == 1 else "both sides"
        lines.append(f"The trials do not bound the optimum {' or '.join(sides)}: it is a guess on {sides_text}.")
    if (ceiling := curve.ceiling) is not None:
        text = f"The lowest rate that diverged is {rate(ceiling.learning_rate)}{of_seeds(ceiling)}."
        tried = [learning_rate for learning_rate, _ in curve.points] + [
            learning_rate for learning_rate in curve.behind if learning_rate < ceiling.learning_rate
        ]
        if curve.lowest_mean == max(tried):
            text += (
                " The best rate below it is the highest one there. A rate above it finished, too, so it is unknown "
                "if divergence limits the range."
                if curve.trained_above
                else " The best rate that trained is the highest below it: divergence limits the range above."
            )
        if curve.above:
            text += f" Excluded from fits and choice: {count(len(curve.above), 'trial')} at or above it that finished."
        lines.append(text)
    if curve.behind:
        lines.append(
            f"{count(len(curve.behind), 'trial')} ended early, because they were behind the others. They are excluded "
            "from all fits, assuming that they would have stayed behind."
        )
    return lines


# Notes on the report's column of multiple-choice scores, and on its times of trials.
QUESTIONS = (
    "Multiple choice (such as HellaSwag): share of questions answered right by the likelihood of an ending per "
    "character, or per token for questions without text."
)
TIME = (
    "Time is that of the trials from start to end, including the imports of the first trial. For a killed part it "
    "ends at its last heartbeat: about ten seconds before the kill, or earlier if its start or a step took longer."
)


def transfer(record: SweepRecord, settings: SweepConfig, found: SweepFindings) -> str:
    """Return what must be true to use the chosen rate for the full training, or another model, length or batch size."""
    size = "" if record.parameters is None else f" of {record.parameters:,} parameters"
    if found.projection is not None:
        return projection_sentences.hypothesis(found.projection)
    if found.chosen is None:
        return "No rate is chosen, so nothing is transferred."
    steps = found.curves[0].steps if found.curves else record.steps
    tokens = steps * record.step_tokens
    text = (
        f"The rate is that of a model{size} trained on {tokens:,} tokens ({steps:,} steps of {record.step_tokens:,}), "
        "with this data, schedule, warm-up, weight decay and precision."
    )
    if steps < record.steps:
        text += (
            f" Transfer hypothesis: the best rate of the full training of {record.steps:,} steps is the same. The "
            f"trials had {percent(steps / record.steps)} of its steps, and this sweep does not test the hypothesis: "
            "with more steps the best rate is often lower."
        )
    else:
        text += (
            " For that training nothing is transferred. For a larger model, more tokens or another batch size the same "
            "rate is a hypothesis that this sweep does not test."
        )
    if len(settings.seeds) == 1:
        predicate = (
            "in the interval" if found.chosen.ci_low is not None or found.chosen.ci_high is not None else "known"
        )
        text += f" Each rate had one seed: the effect of another seed is not {predicate}."
    return text


def _setting(value: object) -> str:
    """Format the value of a strategy's setting. A model size becomes layers/width/heads."""
    if isinstance(value, list):
        return " and ".join(map(_setting, value))
    if isinstance(value, dict):
        return "/".join(str(item) for item in value.values() if item is not None)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def method(settings: SweepConfig) -> str:
    """Return a paragraph on how the sweep searched: strategy, its settings, range, seeds, and when a trial diverged."""
    divergence = settings.divergence
    rule = "a loss or gradient norm that is not finite"
    if divergence.above_start is not None:
        rule += (
            f", or a mean loss of {count(divergence.window, 'step')} more than {divergence.above_start:.0%} above the "
            "loss of the first step"
        )
    rates = settings.learning_rate
    paragraphs = (type(settings.strategy).__doc__ or "").split("\n\n")
    summary = " ".join(paragraphs[0].split()).removesuffix(".")
    values = settings.strategy.model_dump(exclude={"name"})
    options = ", ".join(f"{key} {_setting(value)}" for key, value in values.items() if value is not None)
    return (
        f"Strategy `{settings.strategy.name}`: {summary}{f' ({options})' if options else ''}. Range "
        f"{rate(rates.low)} to {rate(rates.high)}, {count(len(settings.seeds), 'seed')}. A trial ends as "
        f"diverged at {rule}."
    )
