"""Writes the verdict of a comparison: what was measured and how surely, what could have been gained, and why.

The reader bets a week of device time on these lines: never a bare ratio, and every witness that disagrees is named.
"""

from __future__ import annotations

from harness.explain.replay.prediction import TOLERANCE
from harness.explain.statistics import Estimate
from harness.judge.comparisons import AGREE, SAME, Measured, Waits
from harness.judge.doubts import barred
from harness.judge.report_types import Comparison, NotCompared, PredictedRatio
from harness.judge.uneven import UnevenWaits
from harness.judge.verdicts import COARSE, Judged
from harness.show.dose import dose_line
from harness.show.policy import HARDLY_SHARE, WORTH_SHARE
from harness.show.text.verdicts import absent_text, also_noteworthy, finding, missing_text
from harness.show.words import (
    amount,
    capitalised,
    count,
    interval,
    listing,
    ms,
    part_of,
    percent,
    percent_limit,
    ratio,
    unit,
)


def sentence(c: Comparison | NotCompared) -> str:
    """The verdict of ``c``: one sentence with number and interval, one with the ceiling and the reason, and dissent."""
    return " ".join(part for part in sentence_parts(c) if part)


def sentence_parts(c: Comparison | NotCompared) -> tuple[str, str]:
    """Return :func:`sentence` as its finding and what follows."""
    if isinstance(c, NotCompared):
        return f"{c.candidate} against {c.baseline}: not measured", f"({missing_text(c.missing)})."
    devices = emulated_devices(c)
    where = f" on an {devices}" if devices else ""
    found, figures = finding(c.measured, figures=False), _figures(c.measured, c.baseline)
    parts = [f"{figures}."] if figures else []
    steps = _steps(c.measured)
    if steps:
        parts.append(f"{steps}.")
    parts += [*also_noteworthy(c.measured), f"{_reason(c)}."]
    witnesses = _witnesses(c)
    if witnesses:
        parts.append(f"{witnesses}.")
    dissent = disagreements(c)
    if dissent:
        parts.append(f"Estimates disagree: {'; '.join(dissent)}.")
    return f"{c.candidate} against {c.baseline}{where}: {found}{'' if figures else '.'}", " ".join(parts)


def emulated_devices(c: Comparison) -> str | None:
    """``emulated gh200``: the devices that exist on paper only; None where all are real."""
    return " and an ".join(c.explained.emulated) or None


def believed_ratio(c: Comparison) -> Estimate | None:
    """:func:`predicted_ratio` where the unedited replay is within tolerance: the one to be shown without a word."""
    predicted = c.explained.predicted
    if barred(c.measured.doubts, "prediction") or not isinstance(predicted, PredictedRatio):
        return None
    return predicted.ratio if predicted.within_tolerance else None


def predicted_ratio(c: Comparison) -> Estimate | None:
    """What the replay predicts for the measured ratio; None where nothing was predicted."""
    return c.explained.predicted.ratio if isinstance(c.explained.predicted, PredictedRatio) else None


def _figures(m: Measured, baseline: str) -> str:
    """Return the figures that the finding rests on; "" if the runs were too noisy for any."""
    measured, together = m.ratio, m.together or m.ratio
    if barred(m.doubts, "ratio") is not None:
        return ""
    of = f", {count(measured.n, 'block')}" if measured.ci_low is not None else ""
    level = "95 % interval " if of else ""
    text = f"({ratio(measured.median)} the {m.measure}{_more_tokens(m)}, {level}{interval(measured)}{of}, "
    text += f"{_together(m)}{_floor(m, baseline)})"
    if m.verdict != "none" or m.undecided is not None or measured.ci_low is None:
        return text
    if (together.ci_low or 0) > 1 or (together.ci_high or 1) < 1:
        return f"{text}: the change is smaller than the noise floor"
    if measured.ci_low > 1 or (measured.ci_high or 1) < 1:
        return f"{text}: the interval for all {m.comparisons} comparisons together includes no change"
    return text


def _together(m: Measured) -> str:
    """The interval of the verdict, where the study has more comparisons than this one."""
    if m.together is None or m.comparisons < 2:
        return ""
    return f"{interval(m.together)} for all {m.comparisons} comparisons together, "


def _more_tokens(m: Measured) -> str:
    """Names a change of padding or batch size, which could pass as a change of speed."""
    per_step = m.measured_per_step
    return "" if per_step is None or abs(per_step - 1) <= SAME else f" with {ratio(per_step)} as many of them per step"


def _floor(m: Measured, baseline: str) -> str:
    if m.noise_floor is None:
        return f"noise floor unknown: {absent_text(m, 'noise_floor')}"
    if m.noise_floor_of is None:
        return f"noise floor {percent(m.noise_floor)}, declared in the scenario and not measured"
    other = "" if m.noise_floor_of == baseline else f" measured on {m.noise_floor_of}"
    return f"noise floor {percent(m.noise_floor)}{other}"


def _steps(m: Measured) -> str | None:
    """What became of the steps themselves, where each of them trains or computes another amount of tokens."""
    positions = m.positions_per_step
    trained = positions if m.trained_per_step is None else m.trained_per_step
    if trained is None or positions is None or (abs(trained - 1) <= SAME and abs(positions - 1) <= SAME):
        return None
    if m.undecided in (
        "long steps",
        "a-a apart",
        "no core",
        "too noisy",
        "lead",
    ):  # what bars the verdict bars these times as well
        return None
    text = capitalised(steps_text(m.step_time, m.steps) or "the time of a step was not measured")
    if abs(trained / positions - 1) <= SAME or abs(positions - 1) <= SAME or m.tokens_ratio is None:
        return text
    rate = f"{ratio(m.tokens_ratio.median)} the tokens/s, {interval(m.tokens_ratio)}"
    return f"{text} for {ratio(positions)} as many positions, padding included ({rate})"


def steps_text(speed: Estimate | None, judged: Judged | None) -> str | None:
    """Return ``steps take 9 % less time (…)``, by the verdict on step time; None if step time was not measured."""
    if speed is None or judged is None:
        return None
    figures = f"({ratio(speed.median)} as fast, {interval(judged.of or speed)})"
    match judged.verdict:
        case "undecided":
            return f"the change in step time is undecided {figures}"
        case "none":
            return f"step time shows no difference above {percent_limit(judged.resolution or 0.0)} {figures}"
        case verdict:
            return (
                f"steps take {percent(1 / speed.median - 1)} {'less' if verdict == 'gain' else 'more'} time {figures}"
            )


def whose(arm: str, waits: Waits) -> str:
    """The arm, or of several ranks the one whose figures ``waits`` are."""
    return arm if waits.ranks == 1 else f"rank 0 of {arm}"


def left_open(range_ms: tuple[float, float] | None, step_ms: float) -> tuple[float, float] | None:
    """``range_ms``, what data costs a step by either reading of the device; None where the readings hardly differ."""
    return None if range_ms is None or range_ms[1] - range_ms[0] < WORTH_SHARE * step_ms else range_ms


def between(range_ms: tuple[float, float], step_ms: float) -> str:
    """``between 1.04 ms and 6.08 ms``."""
    return f"between {part_of(step_ms)(range_ms[0])} and {part_of(step_ms)(range_ms[1])}"


def either_way(range_ms: tuple[float, float] | None, step_ms: float) -> str:
    """What data may cost a step where the record leaves open when the device worked; nothing where that is little."""
    if (open_ms := left_open(range_ms, step_ms)) is None:
        return ""
    return (
        f"A step waits {between(open_ms, step_ms)} for it: CUDA events do not tell whether the device worked or "
        "waited for launches."
    )


def in_blocks(uneven: UnevenWaits) -> str:
    """``15.3 ms of each 45.2 ms step in 2 of 5 blocks and 0.00 ms in the others``: no block is as their mean."""
    part = part_of(uneven.step_ms)
    waits, others = (
        part(mean) if most - least < WORTH_SHARE * uneven.step_ms else f"{part(least)} to {part(most)}"
        for mean, (least, most) in (
            (uneven.waited_ms, uneven.waited_range_ms),
            (uneven.others_ms, uneven.others_range_ms),
        )
    )
    in_some = f"in {len(uneven.blocks)} of {count(uneven.of, 'block')}"
    return f"{waits} of each {part(uneven.step_ms)} step {in_some} and {others} in the others"


def _reason(c: Comparison) -> str:
    m, waits, other = c.measured, c.measured.baseline_waits, c.measured.candidate_waits
    arm = whose(c.baseline, waits)
    isolated = ""
    if m.isolated is not None:
        isolated = f"In isolation its data path is {ratio(m.isolated.median)} as fast ({interval(m.isolated)})"
    if waits.waited_ms is None:
        return f"{isolated + '; ' if isolated else ''}the wait of {arm} for data was not measured"
    share = waits.waited_ms / waits.step_ms if waits.step_ms else 0.0
    part, others_part = part_of(waits.step_ms), part_of(other.step_ms)
    open_ms = left_open(waits.waited_range_ms, waits.step_ms)
    contrast = _contrast(m)
    link = f"{isolated}, {'but' if contrast else 'and'} " if isolated else ""
    if open_ms is not None:
        open_text = between(open_ms, waits.step_ms)
        text = f"{link}{arm} waits for data {open_text} of each {part(waits.step_ms)} step, as "
        text += "CUDA events do not tell whether the device worked or waited for launches (a range"
    elif waits.uneven is not None:
        text = f"{link}{arm} waits for data {in_blocks(waits.uneven)} ({percent(share)} on average"
    elif share < HARDLY_SHARE:
        text = f"{link}{arm} hardly waits for data (under {percent(HARDLY_SHARE)} of each {part(waits.step_ms)} step"
    else:
        text = f"{link}{arm} waits for data {'only ' if contrast else ''}{part(waits.waited_ms)} of each "
        text += f"{part(waits.step_ms)} step ({percent(share)}"
    text += ")" if open_ms is not None else f"{_stages(waits)})"
    if other.waited_ms is not None and abs(other.waited_ms - waits.waited_ms) >= 0.05:
        others_open_ms = left_open(other.waited_range_ms, other.step_ms)
        waited = others_part(other.waited_ms) if others_open_ms is None else between(others_open_ms, other.step_ms)
        text += f" and {whose(c.candidate, other)} {waited} of {others_part(other.step_ms)}"
    if m.ceiling is None:
        return f"{text}; no ceiling ({absent_text(m, 'ceiling')})"
    gain = max(m.ceilings or (m.ceiling.median,)) - 1
    known = f"ceiling, {interval(m.ceiling)}"
    subject, so = c.baseline, ", so without any data work"
    if waits.ranks > 1:  # what rank 0 waits for does not say what all of them would save
        so = "; without any data work of any rank"
    elif waits.uneven is not None:
        subject += ", halfway between these blocks and the others," if waits.uneven.half else " in the median block"
    if gain < HARDLY_SHARE:
        core = ""
        if m.ideal is None and _hides(waits):  # no replay knows which cores and memory bandwidth hidden work takes
            core = ", except for cores and memory bandwidth that hidden work takes"
        text += f"{so} {subject} would be no faster{core} ({ratio(m.ceiling.median)}: {known})"
    else:
        text += f"{so} {subject} would be {ceiling_text(m)} as fast ({known})"
    if gain >= HARDLY_SHARE and m.verdict in ("none", "undecided") and m.resolution is not None and gain < m.resolution:
        text += ", too small for this study to detect"
    if not isolated:
        text += f"; isolated ratio unknown: {absent_text(m, 'isolated')}"
    return text


def ceiling_text(m: Measured) -> str:
    """``1.100x``; where the witnesses disagree ``1.025x to 1.154x``. There must be a ceiling."""
    assert m.ceiling is not None
    return ratio(m.ceiling.median) if m.ceilings is None else " to ".join(map(ratio, m.ceilings))


def _contrast(m: Measured) -> bool:
    """Whether isolation promises far more than waiting allows: then the sentence says "but … only"."""
    if m.isolated is None or m.ceiling is None:
        return False
    return m.isolated.median > 1 and (m.isolated.median - 1) > 2 * (m.ceiling.median - 1)


def _stages(waits: Waits) -> str:
    """``: read 0.1, tokenize 0.1 ms; 2.4 ms of tokenize hidden behind the step``: the parts large enough to name."""
    step_ms, part = waits.step_ms, part_of(waits.step_ms)
    worth = max(0.005 if unit(step_ms) == "ms" else HARDLY_SHARE * step_ms, 0.05 * (waits.waited_ms or 0))
    exposed = [f"{stage} {amount(value, step_ms)}" for stage, value in waits.exposed_ms.items() if value >= worth]
    text = f": {', '.join(exposed)} {unit(step_ms)}" if exposed else ""
    hidden = {stage: value for stage, value in waits.hidden_ms.items() if value >= 0.01 * step_ms}
    if hidden:
        text += f"; {part(sum(hidden.values()))} of {listing(list(hidden))} hidden behind the step"
    if waits.contended_ms is not None and waits.contended_ms >= WORTH_SHARE * step_ms:
        text += f"; {part(waits.contended_ms)} waiting for a core"
    return text


def _witnesses(c: Comparison) -> str:
    """What replay predicted and what slowdown injections showed."""
    found = []
    predicted = c.explained.predicted
    if isinstance(predicted, PredictedRatio) and predicted.ratio is not None:
        found.append(
            f"replay of {c.baseline} with {c.candidate}'s data path predicts {ratio(predicted.ratio.median)} "
            f"({interval(predicted.ratio)})"
            + ("" if predicted.within_tolerance else f", outside tolerance: unedited {percent(predicted.error)} off")
        )
    found += [dose_line(dose) for dose in c.explained.doses if dose.slope is not None]
    return capitalised("; ".join(found))


def disagreements(c: Comparison) -> list[str]:
    """List pairs of witnesses that differ by more than their intervals, the noise floor and :data:`AGREE` allow."""
    m, waits = c.measured, c.measured.baseline_waits
    found = [*_prediction_against_measurement(c), *_doses_against_ledger(c)]
    floor = 1 + max(m.noise_floor or 0.0, AGREE)
    if m.ceiling is None:
        return found
    core = "" if waits.contended_ms is None else f" (waiting for a core: {ms(waits.contended_ms)} per step)"
    ideal, replayed = m.ideal, m.from_waits
    if m.ceilings_apart and replayed is not None and ideal is not None:
        what = f"{c.baseline} with ideal data is {ratio(ideal.median)} as fast ({interval(ideal)})"
        if ideal.median > replayed.median:
            found.append(
                f"{what}, more than the {ratio(replayed.median)} that its data work costs by replay, "
                + (
                    f"so hidden data work may slow the step as well{core}"
                    if _hides(waits)
                    else f"for an unknown reason{core}"
                )
            )
        else:
            found.append(
                f"{what}, less than the {ratio(replayed.median)} that its data work costs by replay, "
                "so part of the wait is not caused by data work"
            )
    step = m.step_time
    same_positions = m.positions_per_step is None or abs(m.positions_per_step - 1) <= SAME
    top = (m.ceiling.ci_high or m.ceiling.median) * floor
    if step is not None and step.ci_low is not None and same_positions and step.ci_low > top:
        found.append(
            f"steps are {ratio(step.median)} as fast ({interval(step)}), more than the ceiling of "
            f"{ratio(m.ceiling.median)} without any data work, so more than {_more_than(waits)} changed{core}"
        )
    return found


def _more_than(waits: Waits) -> str:
    """What a ceiling holds: hidden work may slow the step by the cores and memory bandwidth that it takes."""
    return "the waits for data" if _hides(waits) else "the data work"


def _hides(waits: Waits) -> bool:
    """Whether any data work runs behind the step: only then can hidden work be blamed for anything."""
    return sum(waits.hidden_ms.values()) > 0


def _prediction_against_measurement(c: Comparison) -> list[str]:
    measured, replayed = c.measured.ratio, c.explained.predicted
    predicted = predicted_ratio(c)
    if (
        predicted is None
        or measured.ci_low is None
        or measured.ci_high is None
        or c.measured.agree(predicted, measured)
    ):
        return []
    found = (
        f"replay predicts {ratio(predicted.median)} ({interval(predicted)}) and {ratio(measured.median)} "
        f"({interval(measured)}) was measured, so more than the data path changed"
    )
    if isinstance(replayed, PredictedRatio) and replayed.error > TOLERANCE:
        found += f", or the replay is wrong (unedited it is {percent(replayed.error)} off)"
    return [found]


def _doses_against_ledger(c: Comparison) -> list[str]:
    """Find slowdown injections that contradict the ledger: work costs nothing but is waited for, or the reverse."""
    waits, found = c.measured.baseline_waits, []
    for dose in c.explained.doses:
        exposed = waits.waited_ms if dose.what == "data" else waits.exposed_ms.get(dose.what)
        if exposed is None or dose.slope is None or dose.slope.ci_low is None:
            continue
        share, low, high = exposed / waits.step_ms, dose.slope.ci_low, dose.slope.ci_high or dose.slope.median
        if dose.kind == "hidden" and share > max(COARSE / 2, c.measured.noise_floor or 0.0):
            found.append(
                f"the step waits {ms(exposed)} for {dose.what}, but more of it costs nothing "
                f"(slope of the injected slowdown {low:.2f} to {high:.2f})"
            )
        elif dose.kind == "contended":
            found.append(
                f"the step waits {ms(exposed)} for {dose.what}, but each further millisecond costs {low:.2f} to "
                f"{high:.2f} ms: hidden work takes cores from the step"
            )
    return found
