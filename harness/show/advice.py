"""Recommends what to try next: the changes with a sufficient predicted gain, largest first, each with its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.explain.policy import HANDOVER_TIMES_MAX, MIN_BLOCKS, REPLAY_ERROR_MAX
from harness.explain.statistics import Estimate
from harness.judge.doubts import RULE_OF, Bar, Doubt, doubt
from harness.judge.policy import ADVISED_GAIN_MIN, AS_GOOD_WITHIN
from harness.judge.report_types import Advice, AdviceBar, AdviceCost, ArmAdvice
from harness.show.dose import assumption_lines
from harness.show.names import ArmNames
from harness.show.policy import STEPS_ADVISED
from harness.show.tables import NOT_MEASURED, ratio_cell, safe, table
from harness.show.text.doubts import doubt_text
from harness.show.words import capitalised, floor_percent, interval, listing, percent, percent_over, ratio

_WAITED_FOR = "a disk, a network, a lock, threads of a tokenizer"
COSTS: dict[AdviceCost, str] = {
    "processes": "a core and the memory of a process for each",
    "no processes": "no overlap of making batches and computing",
    "memory": "more batches in memory",
    "pretokenized copy": "a pretokenized copy of the corpus on disk",
    "late check": "detecting a non-finite loss one step later (compute.sync: late)",
    "its data path": "the requirements of that path",
}


@dataclass(frozen=True)
class NextSteps:
    """The section "What to try next" of a study's report."""

    ranked: tuple[str, ...]  # recommended changes, a line each, the largest gain first
    note: str  # certainty of these changes, or the reason why there are none


def next_steps(found: Sequence[ArmAdvice], names: ArmNames, ideal: Mapping[str, Estimate] | None = None) -> NextSteps:
    """Return the unmeasured changes, best first; a prediction above ``ideal`` (measured, by arm) gets a warning."""
    options = [
        (option, advice) for advice in found for option in advice.options if option.worth and option.measured is None
    ]
    options.sort(key=lambda pair: -pair[0].speedup.median)
    ranked = [
        advice_line(option, names.short(advice.arm), names)
        + _against_ideal(option, (ideal or {}).get(advice.arm), advice)
        for option, advice in options[:STEPS_ADVISED]
    ]
    notes = []
    if options:
        error = max(advice.error for _, advice in options)
        notes.append(
            f"Predicted step times, by replay (its error without a change: {percent(error)}). Savings do not add up."
        )
        without_workers = [
            advice.arm
            for option, advice in options[:STEPS_ADVISED]
            if option.cost == "processes" and any(entry.kind == "hand-over" for entry in advice.assumptions)
        ]
        if without_workers:
            notes.append(
                "No worker was recorded, so the time to receive a batch from one is unknown: the interval covers none "
                f"to {HANDOVER_TIMES_MAX} times the usual. Each worker is assumed to be as fast as the main thread."
            )
        notes += _iterable([advice for option, advice in options[:STEPS_ADVISED] if option.cost == "processes"], names)
        if any(advice.noise_floor is None for _, advice in options[:STEPS_ADVISED]):
            notes.append(
                "No noise floor is known: a small saving may be noise. Add an A/A control (controls: [a-a]; exec: "
                "--controls a-a)."
            )
        if len(options) > STEPS_ADVISED:
            notes.append(f"{len(options) - STEPS_ADVISED} more: see the details.")
    notes += _contradictions(found, names)
    notes += _reasons(found, {advice.arm for _, advice in options}, names)
    return NextSteps(tuple(ranked), " ".join(notes))


def change_text(one: Advice, names: ArmNames) -> str:
    """Return the change as a noun phrase, such as ``2 loader workers`` or ``pretokenizing``."""
    key, _, value = one.change.partition("=")
    match one.cost:
        case "processes":
            return f"{value} loader workers"
        case "no processes":
            return "no loader workers"
        case "memory":
            return f"{key} {value}"
        case "pretokenized copy":
            return "pretokenizing"
        case "late check":
            return "the sync on the gradient norm"
        case "its data path":
            return f"the data path of {names.short(one.change)}"


def advice_line(one: Advice, arm: str, names: ArmNames) -> str:
    """Return a recommendation: ``With 2 loader workers text-padded would be 1.38x as fast (...), at the cost of …``."""
    word = "Without" if one.cost == "late check" else "With"
    faster = f"{ratio(one.speedup.median)} as fast ({interval(one.speedup)})"
    text = f"{word} {change_text(one, names)} {arm} would be {faster}, at the cost of {COSTS[one.cost]}"
    if one.serial is not None:
        text += f"; only {ratio(one.serial)} if its store ({_WAITED_FOR}) serves one worker at a time"
    return text


def _iterable(advised: Sequence[ArmAdvice], names: ArmNames) -> list[str]:
    """Return a warning on arms with an iterable dataset, whose workers may each serve all items; empty without one."""
    arms = list(dict.fromkeys(entry.arm for entry in advised if entry.iterable))
    if not arms:
        return []
    return [
        f"The dataset of {_named(arms, names)} is iterable: every worker serves all items unless the dataset splits "
        "them (torch.utils.data.get_worker_info)."
    ]


def _contradictions(found: Sequence[ArmAdvice], names: ArmNames) -> list[str]:
    """Return a sentence per setting that is not advised because an arm measured another gain than predicted."""
    lines = []
    for advice in found:
        for option in advice.options:
            untried = [
                alternative
                for alternative in advice.options
                if alternative.cost == option.cost and alternative.measured is None
            ]
            if option.contradicted and option.measured is not None and untried and option.cost in _NUMBERS:
                predicted, measured = (
                    f"{ratio(estimate.median)} ({interval(estimate)})" for estimate in (option.speedup, option.measured)
                )
                lines.append(
                    f"No other number of {_NUMBERS[option.cost]} is recommended for {names.short(advice.arm)}: for "
                    f"{change_text(option, names)} replay predicts {predicted}, but {measured} was measured."
                )
    return lines


def _against_ideal(one: Advice, ideal: Estimate | None, advice: ArmAdvice) -> str:
    """Return a warning if the predicted speedup surely exceeds ``ideal``, measured without data work; else ""."""
    if one.cost == "late check" or ideal is None or ideal.ci_high is None or one.speedup.ci_low is None:
        return ""
    if one.speedup.ci_low <= ideal.ci_high * (1 + max(advice.noise_floor or 0.0, ADVISED_GAIN_MIN)):
        return ""
    measured = f"{ratio(ideal.median)} as fast ({interval(ideal)})"
    return f"; do not rely on it: without any data work, {measured} was measured"


def _reasons(found: Sequence[ArmAdvice], advised: set[str], names: ArmNames) -> list[str]:
    """Return why nothing is recommended for the arms outside ``advised``, one sentence per reason."""
    refused: dict[str, list[str]] = {}
    for entry in found:
        if entry.refused is not None:
            refused.setdefault(doubt_text(entry.refused), []).append(entry.arm)
    replayed = [advice for advice in found if advice.refused is None]
    inexact = [advice for advice in replayed if not advice.within_tolerance]
    few_blocks = [advice.arm for advice in replayed if advice.within_tolerance and not advice.from_blocks]
    remaining = [
        advice.arm
        for advice in replayed
        if advice.within_tolerance and advice.from_blocks and advice.arm not in advised
    ]
    lines = []
    if inexact:
        worst = max(advice.error for advice in inexact)
        lines.append(
            f"No recommendation for {_named([advice.arm for advice in inexact], names)}: the replay reproduces its "
            f"step time with an error of {percent_over(worst, REPLAY_ERROR_MAX)}, above {percent(REPLAY_ERROR_MAX)}."
        )
    if few_blocks:
        lines.append(f"No recommendation for {_named(few_blocks, names)}: an interval needs {MIN_BLOCKS} blocks.")
    lines += [cannot_be_replayed(_named(arms, names), reason) for reason, arms in refused.items()]
    lines += [text for advice in found if advice.arm in remaining for text in _barred(advice, names)]
    refused_alone = {advice.arm for advice in found if any(option.refusal is not None for option in advice.options)}
    explained = refused_alone | {advice.arm for advice in found if _barred(advice, names)}
    if remaining := [arm for arm in remaining if arm not in explained]:
        lines.append(
            f"No further change of the data loading is worth trying for {_named(remaining, names)}: no predicted gain "
            f"is surely larger than {_least_gain([advice for advice in found if advice.arm in remaining])}."
        )
    return lines


def _least_gain(found: Sequence[ArmAdvice]) -> str:
    """Return the gain that a recommendation must exceed, with its reason: ``the noise floor (8.6 %)``."""
    bars = [
        (max(advice.noise_floor or 0.0, advice.resolution or 0.0, advice.error, ADVISED_GAIN_MIN), advice)
        for advice in found
    ]
    low, high = min(bar for bar, _ in bars), max(bar for bar, _ in bars)
    if percent(low) != percent(high):
        return f"its bar ({percent(low)} to {floor_percent(high)}: noise floor, smallest change seen or replay error)"
    _, first = bars[0]
    if (first.resolution or 0.0) > max(first.noise_floor or 0.0, first.error, ADVISED_GAIN_MIN):
        return f"the smallest change that this study can see ({percent(low)})"
    if (first.noise_floor or 0.0) >= max(first.error, ADVISED_GAIN_MIN):
        return f"the noise floor ({floor_percent(low)})"
    return f"the error of the replay ({percent(low)})" if first.error >= ADVISED_GAIN_MIN else percent(low)


def cannot_be_replayed(named: str, why: str) -> str:
    """Return the sentence that ``named`` arms have no prediction, and why. ``harness whatif`` prints it too."""
    return f"No prediction for {named}: {why}."


def barred_text(bar: Bar, name: str, known: Sequence[Doubt] = ()) -> str:
    """Return a sentence on why other loader settings of ``name`` are not predicted; ``known``: the arm's doubts."""
    barring = next((entry for entry in known if entry.kind == bar), doubt(bar))
    settings = "numbers of workers" if RULE_OF[bar].bars == "workers" else "loader settings (workers, prefetch)"
    return f"No prediction of other {settings} for {name}: {doubt_text(barring)}."


def _barred(found: ArmAdvice, names: ArmNames) -> list[str]:
    """Return a sentence per reason why changes of an arm are not advised although their predicted gain suffices."""
    name = names.short(found.arm)
    bars: dict[AdviceBar, Advice] = {}
    # Sorted, because a larger number of workers must be better to replace a smaller one.
    for option in sorted(found.options, key=lambda advice: advice.speedup.median):
        if option.bar is not None and option.measured is None:
            best = bars.get(option.bar)
            if best is None or option.speedup.median > best.speedup.median * (1 + AS_GOOD_WITHIN):
                bars[option.bar] = option
    lines = [barred_text(found.barred, name, found.doubts)] if found.barred is not None else []
    for bar, option in bars.items():
        if bar != "serial":
            lines += [barred_text(bar, name, found.doubts)] if bar != found.barred else []
        elif option.serial is not None:
            lines.append(
                f"{change_text(option, names)} would make {name} {ratio(option.speedup.median)} as fast "
                f"({interval(option.speedup)}) if its store ({_WAITED_FOR}) serves several workers at a time, and "
                f"{ratio(option.serial)} if it serves one. Try it: which one holds was not measured."
            )
    # _contradictions reports changes that a measured arm contradicts.
    refused = [entry for entry in found.options if entry.refusal is not None and entry.refusal.kind != "contradicted"]
    if untried := [entry for entry in refused if entry.measured is None]:
        best = max(untried, key=lambda entry: entry.speedup.median)
        assert best.refusal is not None
        lines.append(
            f"{capitalised(change_text(best, names))} would make {name} {ratio(best.speedup.median)} as fast "
            f"({interval(best.speedup)}), but is not recommended: {doubt_text(best.refusal)}."
        )
    return lines


def _named(arms: Sequence[str], names: ArmNames) -> str:
    return listing([names.short(arm) for arm in arms]) if len(arms) <= 3 else f"{len(arms)} arms"


def section(found: Sequence[ArmAdvice], names: ArmNames) -> str:
    """Return the Markdown table of replayed changes with predicted and measured speedups; "" if there are none."""
    rows = [
        [
            names.short(advice.arm),
            _cell(option, advice.arm, names),
            ratio_cell(option.speedup if advice.from_blocks else replace(option.speedup, ci_low=None, ci_high=None))
            + ("" if option.serial is None else f", or {ratio(option.serial)}"),
            ratio_cell(option.measured),
            "yes" if option.worth else "no",
        ]
        for advice in found
        for option in advice.options
    ]
    if not rows:
        return ""
    has_no_workers = any(option.cost == "no processes" for advice in found for option in advice.options)
    kinds = {name: kind for name, kind in _KINDS.items() if kind != "no processes" or has_no_workers}
    assumed = assumption_lines(dict.fromkeys(text for advice in found for text in advice.assumptions))
    parts = [table(["arm", "change", "predicted", "measured here", "worth it"], rows)]
    parts.append(
        "Each arm replayed under one change at a time, times as fast [95 % interval], for the time of a step. *worth "
        "it*: the interval lies above 1, the median exceeds the noise floor, the error of the unedited replay and "
        f"{percent(ADVISED_GAIN_MIN)}, and that error is within {percent(REPLAY_ERROR_MAX)}; of several numbers of "
        "workers, the smallest that is as good as the best. "
        + (_OR if any(option.serial is not None for advice in found for option in advice.options) else "")
        + f"{NOT_MEASURED}: no arm of this study has this change. Costs: "
        + "; ".join(f"{name}: {COSTS[kind]}" for name, kind in kinds.items())
        + "."
    )
    parts += map(
        safe,
        _iterable([advice for advice in found if any(option.cost == "processes" for option in advice.options)], names),
    )
    if assumed:
        parts.append("The replay assumes:")
        parts.append("\n".join(f"- {safe(line)}" for line in assumed))
    return "\n\n".join(parts)


def _cell(one: Advice, arm: str, names: ArmNames) -> str:
    match one.cost:
        case "its data path":
            return f"data path: {names.apart(one.change, arm)}"
        case "late check":
            return "no sync on the norm"
        case _:
            return change_text(one, names)


_NUMBERS: Mapping[AdviceCost, str] = {"processes": "loader workers", "memory": "batches ahead"}
_OR = f"*or*: if the resource that stages wait for ({_WAITED_FOR}) serves one worker at a time. "
_KINDS: dict[str, AdviceCost] = {
    "workers": "processes",
    "no workers": "no processes",
    "prefetch": "memory",
    "pretokenizing": "pretokenized copy",
    "the sync": "late check",
}
