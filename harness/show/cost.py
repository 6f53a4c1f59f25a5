"""Reports predicted and actual hours and money of trainings, studies and folders. No price: hours only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.judge.cost import HOUR_S, ArmCost, HourlyPrice, PredictedCost, SpendingLimit, Spread
from harness.judge.doubts import Doubt, barred
from harness.judge.policy import WORST_OF_STEPS
from harness.judge.report_types import ArmTotals
from harness.show.tables import (
    NOT_MEASURED,
    aligned,
    bulleted,
    cell,
    doubt_json,
    joined,
    plain_json,
    record_json,
    safe,
    table,
)
from harness.show.words import (
    MINUTE_S,
    capitalised,
    count,
    duration,
    listing,
    ms,
    number,
    percent,
    signed_percent,
    steps_read,
)
from trainer.json_types import Json

if TYPE_CHECKING:
    from harness.launch.budget import Expense

# Assumes that every step takes as long as the slowest measured one. Later steps may take even longer.
AT_SLOWEST = "at the slowest"
_NAMES = {
    "option": "--price",
    "scenario": "price_usd_per_hour",
    "profile": "--device-profile",
    "device": "the device's profile",
}


def money(usd: float) -> str:
    """Format US dollars: ``12.34 USD``; below one dollar with two significant digits, ``0.0042 USD``."""
    return f"{dollars(usd)} USD"


def dollars(usd: float) -> str:
    """Format US dollars as :func:`money` does, without "USD"."""
    return f"{usd:,.2f}" if usd >= 1 or not usd else f"{usd:.2g}"


def hours(seconds: float) -> str:
    """Format seconds as hours with three digits, without the unit: ``6.40``, ``0.0153``."""
    value = seconds / HOUR_S
    return number(value) if value >= 1 else f"{value:.3g}"


def lines(found: PredictedCost) -> list[str]:
    """Return the output of ``harness cost``: a sentence, a table with a row per arm, the arithmetic, and notes."""
    has_price = found.per_hour_usd is not None
    header = ["arm", "steps", "step [95 %]", f"slowest of {WORST_OF_STEPS}", "hours [95 %]", f"hours {AT_SLOWEST}"]
    header += ["USD", f"USD {AT_SLOWEST}"] * has_price
    rows = []
    for arm, price in zip(found.arms, found.prices, strict=True):
        low, high = (number(end * 1e3) for end in (arm.step.low, arm.step.high))
        step = [f"{ms(arm.step.likely * 1e3)} [{low}–{high}]", f"{ms(arm.step.worst * 1e3)} (step {arm.slowest_step})"]
        likely_and_worst = (arm.total.likely, arm.total.worst) if has_price else ()
        usd = [money(price.of_seconds(seconds)) for seconds in likely_and_worst if price is not None]
        rows.append([arm.arm, f"{arm.work.steps:,}", *step, *_hours(arm.total), *usd])
    if len(rows) > 1:
        steps = sum(entry.work.steps for entry in found.arms)
        usd = [] if found.total_usd is None else [money(found.total_usd.likely), money(found.total_usd.worst)]
        rows.append(["sum", f"{steps:,}", NOT_MEASURED, NOT_MEASURED, *_hours(found.total), *usd])
    subject = "training" if found.of == "training" else "run of the study"
    total, usd_total = found.total, found.total_usd
    cost = "" if usd_total is None else f" and {money(usd_total.likely)}"
    worst = duration(total.worst) + ("" if usd_total is None else f" and {money(usd_total.worst)}")
    measured = min(len(measurement.steps_s) for measurement in found.measured)
    epoch_steps = max(filter(None, (measurement.epoch_steps for measurement in found.measured)), default=None)
    all_steps = max(work.steps for work in found.work)
    share = f", of {all_steps:,}" if all_steps > measured and found.of == "training" else ""
    drifts = any(entry.kind == "drift" for entry in found.doubts)
    doubted = "unreliable, " if drifts or barred(found.doubts, "prediction") else ""
    return [
        f"{capitalised(subject)} of {found.scenario}: {doubted}about {duration(total.likely)}{cost}; {worst} if all "
        f"steps are like the slowest of those measured (predicted from the first "
        f"{steps_read(measured, epoch_steps)} of each arm{share})",
        "",
        *aligned([header, *rows]),
        "",
        *map(arithmetic, found.arms),
        *(f"note: {note}" for note in notes(found)),
    ]


def _hours(spread: Spread) -> list[str]:
    return [f"{hours(spread.likely)} [{hours(spread.low)}–{hours(spread.high)}]", hours(spread.worst)]


def arithmetic(arm: ArmCost) -> str:
    """Return the arm's time as one line: a sum of all its parts, such as start-up, steps and checkpoints."""
    work, parts = arm.work, []
    first = min(work.starts, work.steps)
    if work.steps > first:
        mean = " (mean)" if arm.has_long_steps else ""
        parts.append(f"{_many(work.steps - first, 'step')} x {ms(arm.each_of_many.likely * 1e3)}{mean}")
    parts.append(f"{'step 0' if first == 1 else f'{first:,} first steps'} {duration(arm.first_step_s * first)}")
    parts.append(f"start-up {duration(arm.startup.likely)}")
    if work.passes:
        parts.append(f"{_many(work.passes, 'pass', 'es')} over held-out data {duration(arm.evaluation.likely)}")
    if work.answers:
        parts.append(f"{_many(work.answers, 'pass', 'es')} over questions {duration(arm.answering.likely)}")
    if arm.checkpoints:
        parts.append(f"{count(arm.checkpoints, 'checkpoint')} {duration(arm.saving.likely)}")
    parts.append(f"ending {duration(arm.ending.likely)}")
    if work.other_s:
        parts.append(f"sampling stacks {duration(work.other_s)}")
    return f"{arm.arm}: {' + '.join(parts)} = {duration(arm.total.likely)}"


def _many(number_of: int, noun: str, ending: str = "s") -> str:
    return f"{number_of:,} {noun}{'' if number_of == 1 else ending}"


def notes(found: PredictedCost) -> list[str]:
    """Return notes on the prediction, a line each: price, exclusions, long steps, emulated devices, doubts."""
    noted = [price_line(found)]
    for arm in found.arms:
        if arm.work.passed_over:
            noted.append(
                f"{arm.arm}: it begins at step {arm.work.passed_over:,}; making and dropping the data of earlier "
                "steps is not included"
            )
        if arm.has_long_steps:
            noted.append(
                f"{arm.arm}: some of its steps are long: the mean ({ms(arm.each_of_many.likely * 1e3)}) is above the "
                f"median's interval, so the {arm.work.steps:,} steps are predicted by the mean; the slowest "
                f"after the start took {ms(arm.each_of_many.worst * 1e3)}"
            )
    noted += [
        f"{measurement.arm}: {measurement.device} is emulated; start-up, passes and checkpoints are this machine's, "
        "and an emulated device saves no checkpoint"
        for measurement in found.measured
        if measurement.emulated
    ]
    noted += [text for entry in found.doubts if (text := _doubt_note(entry))]
    if found.of == "study":
        noted.append("it does not include preparing the data and writing the report")
    fewest = min(len(measurement.plain_s) for measurement in found.measured)
    noted.append(
        "the interval covers the few measured steps. It does not cover later load, or a long step rarer than "
        f"1 in {fewest}: measure again on a quiet machine if others use this one"
    )
    return noted


def _doubt_note(one: Doubt) -> str:
    """Return a doubt on measured steps (waits for a core, or drift) with its remedy; "" for any other kind."""
    share = percent(abs(one.share or 0.0))
    match one.kind:
        case "no core":
            return (
                f"{one.arms[0]}: for {share} of the measured steps' time it waited for a core: other work slowed it. "
                "Measure again on a quiet machine"
            )
        case "drift":
            change = "longer" if (one.share or 0.0) > 0 else "less"
            return (
                f"{one.arms[0]}: the last third of the measured steps took {share} {change} than those before. The "
                "prediction is by this third, and the change may continue: a short harness train shows later steps"
            )
    return ""


def price_line(found: PredictedCost) -> str:
    """Return the price per hour and device, or how to give it; adds a note if another device was measured."""
    priced = list(zip(found.measured, found.prices, strict=True))
    if found.per_hour_usd is None:
        unpriced = [arm.arm for arm, price in priced if price is None]
        subset = "" if len(unpriced) == len(found.measured) else f" of {listing(unpriced)}"
        return (
            f"the price is unknown{subset}, so only hours are predicted; give --price USD, --device-profile NAME or "
            "price_usd_per_hour"
        )
    line = f"price: {listing([*dict.fromkeys(_price_text(price) for _, price in priced if price is not None)])}"
    devices = dict.fromkeys(
        arm.device
        for arm, price in priced
        if price is not None and price.source == "profile" and arm.profile != price.name
    )
    if devices:
        line += f"; the hours were measured on {listing([*devices])}, not on that device"
    return line


def _price_text(price: HourlyPrice) -> str:
    devices = "" if price.devices == 1 else f" for each of {price.devices} devices"
    name = f" {price.name}" if price.name else ""
    rounded = (
        "" if price.given_usd is None or price.given_usd == price.usd else f", rounded up from {price.given_usd:g}"
    )
    return f"{price.usd:g} USD an hour{devices} ({_NAMES[price.source]}{name}{rounded})"


def limit_text(found: PredictedCost) -> str:
    """Format the budget, an amount of money with the time that it lasts: ``6 h``, ``20.00 USD, which is 6.67 h``."""
    assert found.limit is not None
    return amounts_text(found.limit, found.limit_s)


def amounts_text(limit: SpendingLimit, limit_s: float | None) -> str:
    """Format a budget as :func:`limit_text` does. ``limit_s``: seconds that it lasts; None without a known price."""
    amounts = [] if limit.usd is None else [money(limit.usd)]
    amounts += [] if limit.hours is None else [f"{limit.hours:g} h"]
    text = " and ".join(amounts)
    seconds = limit_s is not None and (limit.usd is not None or limit_s < MINUTE_S)
    return f"{text}, which is {duration(limit_s)}" if seconds and limit_s is not None else text


def refusal(found: PredictedCost, done: float = 0.0) -> str:
    """Return why the work does not start, with the arithmetic. ``done``: finished share of the steps (0 to 1)."""
    left_s = found.left_s(done)
    whole_s = found.spent_s + left_s
    if done or found.spent_s > found.measuring_s:
        sums = f"{duration(found.spent_s)} spent + {duration(left_s)} for the rest = {duration(whole_s)}"
    else:
        arms = [arithmetic(arm) for arm in found.arms]
        parts = [*arms[:3], *([f"and {count(len(arms) - 3, 'more arm')}"] if len(arms) > 3 else [])]
        if found.measuring_s:
            parts.insert(0, f"measuring the first steps, which is spent: {duration(found.measuring_s)}")
        sums = "; ".join(parts) + (f"; together {duration(whole_s)}" if len(parts) > 1 else "")
    usd = found.usd(whole_s)
    price = "" if usd is None else f", {money(usd)} at {found.per_hour_usd:g} USD an hour"
    return f"budget: {limit_text(found)}, but it is expected to take {duration(whole_s)}{price}: {sums}"


def worst_warning(found: PredictedCost) -> str | None:
    """Return a warning if the worst case exceeds the budget. None without a budget, or if the worst case fits in it."""
    worst_s = found.spent_s + found.total.worst
    if found.limit_s is None or worst_s <= found.limit_s:
        return None
    return (
        f"budget: {limit_text(found)}: it is expected to take {duration(found.spent_s + found.total.likely)}, and "
        f"{duration(worst_s)} if every step is as slow as the slowest{_longer(found)}; it stops at the limit, with "
        "everything kept"
    )


def _longer(found: PredictedCost) -> str:
    """Return a clause on longer warm-up, part of the worst case, if an arm waits for data and may need it; else ""."""
    warms_up_longer = any(
        measurement.waits and work.most_extra for measurement, work in zip(found.measured, found.work, strict=True)
    )
    return " and arms that wait for data use the longest warm-up" if warms_up_longer else ""


def section(found: PredictedCost | None, totals: Mapping[str, ArmTotals] | None = None) -> str:
    """Return Markdown with predicted and actual time and cost, and step times per arm; "" without a prediction."""
    if found is None:
        return ""
    total, usd = found.total, found.total_usd
    rows = [
        ("predicted", f"{duration(total.likely)} [{duration(total.low)}–{duration(total.high)}]", total.likely),
        (f"predicted, all steps {AT_SLOWEST}", duration(total.worst), total.worst),
    ]
    actual = "actual"
    if found.measuring_s:
        measuring = "measuring the first steps, for the prediction"
        rows.append((measuring, duration(found.measuring_s), found.measuring_s))
        actual = "actual, including that"
    rows.append((actual, duration(found.spent_s), found.spent_s))
    cells = [[name, time, *([] if usd is None else [_usd_of(found, seconds)])] for name, time, seconds in rows]
    return joined(
        table(["", "time", *([] if usd is None else ["cost"])], cells),
        outcome(found),
        bulleted(map(safe, step_lines(found, totals or {}))),
    )


def _usd_of(found: PredictedCost, seconds: float) -> str:
    return cell(found.usd(seconds), money)


def step_lines(found: PredictedCost, totals: Mapping[str, ArmTotals]) -> list[str]:
    """Return a line per measured arm: predicted and measured step time, and a step's wait for a core (all in ms)."""
    lines = []
    for arm in found.arms:
        actual = totals.get(arm.arm)
        if actual is None or actual.step_ms is None:
            continue
        predicted = ms(arm.each_of_many.likely * 1e3)
        line = f"{arm.arm}: a step was predicted to take {predicted} and took {ms(actual.step_ms.median)}"
        if actual.contended_ms is not None:
            line += f", {ms(actual.contended_ms)} of it ready to run without a core (run-queue delay)"
        lines.append(f"{line}.")
    return lines


def outcome(found: PredictedCost) -> str:
    """Return sentences on the prediction's error and the spent share of the budget. A partial run has no error."""
    if found.error is not None:
        subject = "Without the measuring, the actual time" if found.measuring_s else "The actual time"
        text = f"{subject} differs from the predicted one by {signed_percent(found.error)}."
    else:
        end = "was stopped at its budget" if found.standing == "stopped" else "has not run to its end"
        text = f"It {end}: the actual time is that of a part, the predicted one of the whole."
    if found.limit is not None and found.limit_s:
        text += f" Budget: {limit_text(found)}; {percent(found.spent_s / found.limit_s)} of it is spent."
    if found.prices_differ and found.per_hour_usd is not None:
        text += (
            " Arms cost differently by the hour; the spending is not recorded per arm, and is charged at the average "
            f"of {found.per_hour_usd:.4g} USD an hour that was predicted."
        )
    return text


def cost_json(found: PredictedCost) -> dict[str, Json]:
    """Return the cost section of summary.json, which ``harness cost --json`` also prints."""
    parts = {
        "steps": "steps", "startup": "startup", "passes": "evaluation", "answers": "answering",
        "checkpoints": "saving", "ending": "ending",
    }  # fmt: skip
    return {
        "of": found.of,
        "scenario": found.scenario,
        "usd_per_hour": found.per_hour_usd,
        "seconds": record_json(found.total),
        "usd": plain_json(found.total_usd),
        "arms": [
            {
                "arm": arm.arm,
                "seconds": record_json(arm.total),
                "step_s": record_json(arm.step),
                "each_of_many_s": record_json(arm.each_of_many),
                "slowest_step": arm.slowest_step,
                "parts": {name: getattr(arm, part).likely for name, part in parts.items()},
                "usd": None if price is None else price.of_seconds(arm.total.likely),
                "arithmetic": arithmetic(arm),
            }
            for arm, price in zip(found.arms, found.prices, strict=True)
        ],
        "limit_s": found.limit_s,
        "spent_s": found.spent_s or None,
        "measuring_s": found.measuring_s or None,
        "standing": found.standing,
        "error": found.error,
        "notes": list(notes(found)),
        "doubts": [doubt_json(entry) for entry in found.doubts],
    }


def actual_line(found: PredictedCost) -> str:
    """Return one line for the terminal: predicted and actual time and cost, and the prediction's error."""
    total = found.total
    priced = f" ({_usd_of(found, total.likely)} against {_usd_of(found, found.spent_s)})"
    measuring = f", {duration(found.measuring_s)} of it measuring the first steps" if found.measuring_s else ""
    actual = f"actual {duration(found.spent_s)}{measuring}{'' if found.per_hour_usd is None else priced}"
    return f"cost: predicted {duration(total.likely)}, {actual}. {outcome(found)}"


def spending_lines(found: Sequence[Expense]) -> list[str]:
    """Return the table of ``harness spent``, with a sum per kind of folder; sums of money omit unpriced folders."""
    rows = [["folder", "kind", "hours", "USD"]]
    rows += [[str(expense.folder), expense.kind, hours(expense.seconds), _sum_usd([expense])] for expense in found]
    kinds = list(dict.fromkeys(expense.kind for expense in found))
    for kind in kinds if len(kinds) > 1 else ():
        same_kind = [expense for expense in found if expense.kind == kind]
        rows.append(
            [
                "sum",
                count(len(same_kind), kind),
                hours(sum(expense.seconds for expense in same_kind)),
                _sum_usd(same_kind),
            ]
        )
    rows.append(["sum", "all", hours(sum(expense.seconds for expense in found)), _sum_usd(found)])
    lines = aligned(rows)
    unpriced = [expense for expense in found if expense.usd is None]
    if unpriced:
        gap = f"{count(len(unpriced), 'folder')} of {len(found)} without a price"
        lines.append(f"{gap}: the sums of money exclude them; give --price USD to price all")
    return lines


def spending_json(found: Sequence[Expense]) -> dict[str, Json]:
    """Return the JSON output of ``harness spent --json``."""
    priced = [expense.usd for expense in found if expense.usd is not None]
    return {
        "expenses": [
            {"folder": str(expense.folder), "kind": expense.kind, "seconds": expense.seconds, "usd": expense.usd}
            for expense in found
        ],
        "seconds": sum(expense.seconds for expense in found),
        "usd": sum(priced) if priced else None,
        "without_price": len(found) - len(priced),
    }


def _sum_usd(found: Sequence[Expense]) -> str:
    priced = [expense.usd for expense in found if expense.usd is not None]
    return dollars(sum(priced)) if priced else NOT_MEASURED
