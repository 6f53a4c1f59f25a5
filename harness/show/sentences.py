"""Writes the verdict of a comparison: measured result and certainty, possible gain, and reasons. Every ratio has its
interval, and every disagreement between estimates is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from harness.explain.policy import REPLAY_ERROR_MAX
from harness.explain.statistics import Estimate
from harness.judge.comparisons import Measured
from harness.judge.doubts import DoubtKind, barred
from harness.judge.policy import COARSE_RESOLUTION, CORE_WAIT_SHARE_MAX, SAME_TOKENS_WITHIN, WITNESSES_WITHIN
from harness.judge.report_types import Comparison, NotCompared, PredictedRatio
from harness.judge.verdicts import Judged
from harness.judge.waits import UnevenWaits, Waits
from harness.show.dose import dose_line
from harness.show.policy import BEHIND_PHASES, BEHIND_SHARE, HARDLY_SHARE, WORTH_SHARE
from harness.show.text.verdicts import absent_text, also_noteworthy, finding, missing_text
from harness.show.words import (
    amount,
    capitalised,
    count,
    floor_percent,
    interval,
    listing,
    ms,
    part_of,
    percent,
    percent_limit,
    ratio,
    unit,
)

# Causes of "undecided" that leave a verdict on the step time possible.
OF_RATIO_ALONE: tuple[DoubtKind, ...] = (
    "too few blocks", "no noise floor", "too coarse", "diverged", "other loss", "repeated data"
)  # fmt: skip


def sentence(c: Comparison | NotCompared) -> str:
    """Return the verdict of ``c`` in full: ratio, interval, ceiling, reason, and disagreements of estimates."""
    return " ".join(part for part in sentence_parts(c) if part)


def sentence_parts(c: Comparison | NotCompared) -> tuple[str, str]:
    """Return the text of :func:`sentence` as two strings: the finding, and everything after it."""
    if isinstance(c, NotCompared):
        return f"{c.candidate} against {c.baseline}: not measured", f"({missing_text(c.missing)})."
    devices = emulated_devices(c)
    device = f" on an {devices}" if devices else ""
    verdict, figures = finding(c.measured, figures=False), _figures(c.measured, c.baseline)
    parts = [f"{figures}."] if figures else []
    steps = _steps(c.measured)
    if steps:
        parts.append(f"{steps}.")
    parts += [*also_noteworthy(c.measured), _isolated(c), data_text(c), *_candidate_waits(c), _without_data(c)]
    witnesses = _witnesses(c)
    if witnesses:
        parts.append(f"{witnesses}.")
    dissent = disagreements(c)
    if dissent:
        parts.append(f"Estimates disagree: {'; '.join(dissent)}.")
    return f"{c.candidate} against {c.baseline}{device}: {verdict}{'' if figures else '.'}", " ".join(parts)


def emulated_devices(c: Comparison) -> str | None:
    """Return the emulated devices for the text after "on an" (``emulated gh200``); None if all are real."""
    return " and an ".join(c.explained.emulated) or None


def believed_ratio(c: Comparison) -> Estimate | None:
    """Return the predicted ratio if replay reproduces the measured step time within tolerance; else None."""
    predicted = c.explained.predicted
    return predicted.ratio if isinstance(predicted, PredictedRatio) and predicted.within_tolerance else None


def predicted_ratio(c: Comparison) -> Estimate | None:
    """Return the predicted ratio, however large the replay's error; None if replay predicts none."""
    return c.explained.predicted.ratio if isinstance(c.explained.predicted, PredictedRatio) else None


def _figures(m: Measured, baseline: str) -> str:
    """Return ratio, interval, blocks and noise floor in parentheses; "" if the runs were too noisy for a ratio."""
    measured, together = m.ratio, m.together or m.ratio
    if barred(m.doubts, "ratio") is not None:
        return ""
    blocks = f", {count(measured.n, 'block')}" if measured.ci_low is not None else ""
    level = "95 % interval " if blocks else ""
    tokens = _more_tokens(m) if m.verdict in ("none", "undecided") else ""  # Otherwise the finding includes it.
    text = f"({ratio(measured.median)} the {m.measure}{tokens}, {level}{interval(measured)}{blocks}, "
    if m.together is not None and m.comparisons > 1:
        text += f"{interval(m.together)} for all {m.comparisons} comparisons together, "
    text += f"{_floor(m, baseline)})"
    if m.verdict != "none" or m.undecided is not None or measured.ci_low is None:
        return text
    if (together.ci_low or 0) > 1 or (together.ci_high or 1) < 1:
        return f"{text}: the change is smaller than the noise floor"
    if measured.ci_low > 1 or (measured.ci_high or 1) < 1:
        return f"{text}: the interval for all {m.comparisons} comparisons together includes no change"
    return text


def _more_tokens(m: Measured) -> str:
    """Return a clause on how many more tokens a step has, which is no change of speed; "" if as many."""
    per_step = m.measured_per_step
    return (
        ""
        if per_step is None or abs(per_step - 1) <= SAME_TOKENS_WITHIN
        else f" with {ratio(per_step)} as many of them per step"
    )


def _floor(m: Measured, baseline: str) -> str:
    if m.noise_floor is None:
        return f"noise floor unknown: {absent_text(m, 'noise_floor')}"
    if m.noise_floor_of is None:
        return f"noise floor {percent(m.noise_floor)}, declared in the scenario and not measured"
    source = "" if m.noise_floor_of == baseline else f" measured on {m.noise_floor_of}"
    return f"noise floor {floor_percent(m.noise_floor)}{source}"


def _steps(m: Measured) -> str | None:
    """Return a clause on the change of step time; None if steps hold as many tokens, or if it is unknown."""
    positions = m.positions_per_step
    trained = positions if m.trained_per_step is None else m.trained_per_step
    if trained is None or positions is None or max(abs(trained - 1), abs(positions - 1)) <= SAME_TOKENS_WITHIN:
        return None
    if m.undecided is not None and m.undecided not in OF_RATIO_ALONE:  # The doubt bars these times too.
        return None
    text = capitalised(steps_text(m.step_time, m.steps) or "the time of a step was not measured")
    if (
        abs(trained / positions - 1) <= SAME_TOKENS_WITHIN
        or abs(positions - 1) <= SAME_TOKENS_WITHIN
        or m.tokens_ratio is None
    ):
        return text
    rate = f"{ratio(m.tokens_ratio.median)} the tokens/s, {interval(m.tokens_ratio)}"
    return f"{text} for {ratio(positions)} as many positions, padding included ({rate})"


def steps_text(speed: Estimate | None, judged: Judged | None) -> str | None:
    """Return a clause such as ``steps take 9.1 % less time (1.100x as fast, 1.080x to 1.120x)``; None if unknown."""
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
    """Return the name for the owner of ``waits``: the arm, or ``rank 0 of ARM`` with several ranks."""
    return arm if waits.ranks == 1 else f"rank 0 of {arm}"


def left_open(range_ms: tuple[float, float] | None, step_ms: float) -> tuple[float, float] | None:
    """Return ``range_ms`` (least and most wait per step) if it is at least :data:`WORTH_SHARE` of a step wide."""
    return None if range_ms is None or range_ms[1] - range_ms[0] < WORTH_SHARE * step_ms else range_ms


def between(range_ms: tuple[float, float], step_ms: float) -> str:
    """Format a range of ms in the unit that suits a step of ``step_ms``: ``between 1.04 ms and 6.08 ms``."""
    return f"between {part_of(step_ms)(range_ms[0])} and {part_of(step_ms)(range_ms[1])}"


def either_way(range_ms: tuple[float, float] | None, step_ms: float) -> str:
    """Return a sentence on the least and the most wait, if CUDA events leave that open; else ""."""
    if (open_ms := left_open(range_ms, step_ms)) is None:
        return ""
    return (
        f"A step waits {between(open_ms, step_ms)} for it: CUDA events do not show whether the device worked or "
        "waited for launches."
    )


def in_blocks(uneven: UnevenWaits) -> str:
    """Return ``15.3 ms of each 45.2 ms step in 2 of 5 blocks and 0.00 ms in the others``."""
    part = part_of(uneven.step_ms)
    waits, other_waits = (
        part(mean) if high - low < WORTH_SHARE * uneven.step_ms else f"{part(low)} to {part(high)}"
        for mean, (low, high) in (
            (uneven.waited_ms, uneven.waited_range_ms),
            (uneven.others_ms, uneven.others_range_ms),
        )
    )
    some_blocks = f"in {len(uneven.blocks)} of {count(uneven.of, 'block')}"
    return f"{waits} of each {part(uneven.step_ms)} step {some_blocks} and {other_waits} in the others"


def data_text(c: Comparison) -> str:
    """Return sentences on the time of the baseline's data work per step, and how much of it the step waits for."""
    waits = c.measured.baseline_waits
    baseline = whose(c.baseline, waits)
    owner = "" if waits.ranks == 1 else f"{baseline} "
    length = f"{_amount(waits.step_ms, waits)} {unit(waits.step_ms)}"
    step = f"{length} a step"
    if not waits.exposed_ms and not waits.hidden_ms:
        if waits.waited_ms is None:
            return f"The wait of {baseline} for data was not measured."
        return f"{baseline} waits {_amount(waits.waited_ms, waits)} of {step} for data."
    work = waits.work_ms
    if work < HARDLY_SHARE * waits.step_ms:
        return f"Data work takes {baseline} under {percent(HARDLY_SHARE)} of {step}."
    several = work > waits.step_ms  # Several workers work at once.
    takes = f"{_amount(work, waits)} {f'{unit(waits.step_ms)} for each {length} step' if several else f'of {step}'}"
    work_text = f"Data work{f' of {baseline}' if owner else ''} is {takes}"
    if unknown := either_way(waits.waited_range_ms, waits.step_ms):
        return f"{work_text}. {unknown}"
    costs = work_text if several else f"Data work takes {owner}{takes}"
    if (uneven := waits.uneven) is not None:
        hidden = sum(waits.hidden_ms.values())
        hidden_text = f", {_amount(hidden, waits)} are hidden" if hidden >= 0.05 * work else ""
        return f"{costs}; {baseline} waits for {in_blocks(uneven)}{hidden_text}{_for_a_core(waits)}."
    return f"{costs}; {_where(c, waits, work)}{_for_a_core(waits)}."


def _where(c: Comparison, waits: Waits, work: float) -> str:
    waited, hidden = waits.waited_ms, sum(waits.hidden_ms.values())
    if waited is None:
        return "how long the step waits for it was not measured"
    behind_text = f"behind {_behind(c.explained.hidden_behind_ms, hidden)}"
    parallel, between_steps = (sum(by_stage.values()) for by_stage in (waits.parallel_ms, waits.between_steps_ms))
    between_text = (
        f", {_amount(between_steps, waits)} run between training steps" if between_steps >= 0.05 * work else ""
    )
    # Compare with the step, because a small share of the work may be a large share of the step.
    if waited < HARDLY_SHARE * waits.step_ms:
        if not between_text:
            return f"the step waits for none of it: it is hidden {behind_text}"
        return f"the step waits for none of it{between_text}" + (
            f", the rest is hidden {behind_text}" if hidden >= 0.05 * work else ""
        )
    if parallel >= 0.05 * work:
        text = f"the step waits {_amount(waited, waits)} for it, while {_amount(parallel, waits)} of it run in parallel"
        return (
            text if hidden < 0.05 * work else f"{text}, {_amount(hidden, waits)} are hidden {behind_text}"
        ) + between_text
    if hidden < 0.05 * work:
        return (
            f"the step waits {_amount(waited, waits)} for it{between_text}"
            if between_text
            else "the step waits for all of it"
        )
    return f"the step waits {_amount(waited, waits)} for it{between_text}, the rest is hidden {behind_text}"


def _behind(hidden_behind_ms: Mapping[str, float], hidden_ms: float) -> str:
    """Return the one or two phases that hide at least :data:`BEHIND_SHARE` of the hidden work, else "the step"."""
    phases = sorted(hidden_behind_ms.items(), key=lambda item: -item[1])
    sums = list(accumulate(value for _, value in phases))
    enough = next((index + 1 for index, value in enumerate(sums) if value >= BEHIND_SHARE * hidden_ms), len(phases) + 1)
    if enough > min(BEHIND_PHASES, len(phases)):
        return "the step"
    return listing([_BEHIND.get(name, name) for name, _ in phases[:enough]])


def _for_a_core(waits: Waits) -> str:
    """Return "; a step waits N ms for a core" if that is much; with hidden work, which may take it, if any."""
    share_min = WORTH_SHARE if sum(waits.hidden_ms.values()) else CORE_WAIT_SHARE_MAX
    if waits.contended_ms is None or waits.contended_ms < share_min * waits.step_ms:
        return ""
    return f"; a step waits {_amount(waits.contended_ms, waits)} {unit(waits.step_ms)} for a core"


def _amount(value_ms: float, waits: Waits) -> str:
    return amount(value_ms, waits.step_ms)


_BEHIND = {"optimizer": "the optimizer", "sync": "the sync", "norm": "the gradient norm", "other": "Python"}


def _isolated(c: Comparison) -> str:
    if (isolated := c.measured.isolated) is None:
        return f"Isolated ratio unknown: {absent_text(c.measured, 'isolated')}."
    return f"In isolation the data path of {c.candidate} is {ratio(isolated.median)} as fast ({interval(isolated)})."


def _candidate_waits(c: Comparison) -> Iterator[str]:
    """Yield a sentence on how long the candidate's steps wait for data; nothing if that was not measured."""
    waits = c.measured.candidate_waits
    if waits.waited_ms is not None:
        part, open_ms = part_of(waits.step_ms), left_open(waits.waited_range_ms, waits.step_ms)
        waited = part(waits.waited_ms) if open_ms is None else between(open_ms, waits.step_ms)
        yield f"{whose(c.candidate, waits)} waits {waited} of {part(waits.step_ms)} for data."


def _without_data(c: Comparison) -> str:
    """Return a sentence on the speedup of the baseline without any data work (the ceiling), or on why it is unknown."""
    m, waits = c.measured, c.measured.baseline_waits
    if m.ceiling is None:
        return f"No ceiling ({absent_text(m, 'ceiling')})."
    gain = max(m.ceilings or (m.ceiling.median,)) - 1
    figures = f"ceiling, {interval(m.ceiling)}"
    subject, change = c.baseline, "Without any data work"
    if waits.ranks > 1:  # The waits of rank 0 do not show what all of them would save.
        change += " of any rank"
    elif waits.uneven is not None:
        subject += ", halfway between these blocks and the others," if waits.uneven.half else " in the median block"
    if gain < HARDLY_SHARE:
        # A replay does not know the cores and the memory bandwidth that hidden work takes.
        core = (
            ", except for cores and memory bandwidth that hidden work takes"
            if m.ideal is None and _hides(waits)
            else ""
        )
        return f"{change} {subject} would be no faster{core} ({ratio(m.ceiling.median)}: {figures})."
    small = m.verdict in ("none", "undecided") and m.resolution is not None and gain < m.resolution
    return (
        f"{change} {subject} would be {ceiling_text(m)} as fast ({figures})"
        f"{', too small for this study to detect' if small else ''}."
    )


def ceiling_text(m: Measured) -> str:
    """Format the ceiling, which must exist: ``1.100x``; ``1.025x to 1.154x`` if control and replay disagree."""
    assert m.ceiling is not None
    return ratio(m.ceiling.median) if m.ceilings is None else " to ".join(map(ratio, m.ceilings))


def _witnesses(c: Comparison) -> str:
    """Return clauses on what replay predicts and what slowdown injections showed; "" without either."""
    witnesses = []
    predicted = c.explained.predicted
    if isinstance(predicted, PredictedRatio) and predicted.ratio is not None:
        witnesses.append(
            f"replay of {c.baseline} with {c.candidate}'s data path predicts {ratio(predicted.ratio.median)} "
            f"({interval(predicted.ratio)})"
            + ("" if predicted.within_tolerance else f", outside tolerance: unedited {percent(predicted.error)} off")
        )
    witnesses += [dose_line(dose) for dose in c.explained.doses if dose.slope is not None]
    return capitalised("; ".join(witnesses))


def disagreements(c: Comparison) -> list[str]:
    """Return a clause for each contradiction between estimates, beyond noise floor and :data:`WITNESSES_WITHIN`."""
    m, waits = c.measured, c.measured.baseline_waits
    dissent = [*_prediction_against_measurement(c), *_doses_against_ledger(c)]
    floor = 1 + max(m.noise_floor or 0.0, WITNESSES_WITHIN)
    if m.ceiling is None:
        return dissent
    core = "" if waits.contended_ms is None else f" (waiting for a core: {ms(waits.contended_ms)} per step)"
    ideal, replayed = m.ideal, m.from_waits
    if m.ceilings_apart and replayed is not None and ideal is not None:
        measured_text = f"{c.baseline} with ideal data is {ratio(ideal.median)} as fast ({interval(ideal)})"
        if ideal.median > replayed.median:
            dissent.append(
                f"{measured_text}, more than the {ratio(replayed.median)} that its data work costs by replay, "
                + (
                    f"so hidden data work may slow the step as well{core}"
                    if _hides(waits)
                    else f"for an unknown reason{core}"
                )
            )
        else:
            dissent.append(
                f"{measured_text}, less than the {ratio(replayed.median)} that its data work costs by replay, "
                "so part of the wait is not caused by data work"
            )
    step = m.step_time
    same_positions = m.positions_per_step is None or abs(m.positions_per_step - 1) <= SAME_TOKENS_WITHIN
    top = (m.ceiling.ci_high or m.ceiling.median) * floor
    if step is not None and step.ci_low is not None and same_positions and step.ci_low > top:
        # A ceiling also covers hidden work, which may slow the step by taking cores and bandwidth.
        cause = "the waits for data" if _hides(waits) else "the data work"
        dissent.append(
            f"steps are {ratio(step.median)} as fast ({interval(step)}), more than the ceiling of "
            f"{ratio(m.ceiling.median)} without any data work, so more than {cause} changed{core}"
        )
    return dissent


def _hides(waits: Waits) -> bool:
    return sum(waits.hidden_ms.values()) > 0


def _prediction_against_measurement(c: Comparison) -> list[str]:
    measured, replayed = c.measured.figure, c.explained.predicted
    predicted = predicted_ratio(c)
    if (
        predicted is None
        or measured is None
        or measured.ci_low is None
        or measured.ci_high is None
        or c.measured.agree(predicted, measured)
    ):
        return []
    text = (
        f"replay predicts {ratio(predicted.median)} ({interval(predicted)}) and {ratio(measured.median)} "
        f"({interval(measured)}) was measured, so more than the data path changed"
    )
    if isinstance(replayed, PredictedRatio) and replayed.error > REPLAY_ERROR_MAX:
        text += f", or the replay is wrong (unedited it is {percent(replayed.error)} off)"
    return [text]


def _doses_against_ledger(c: Comparison) -> list[str]:
    """Return a clause for each slowdown injection that contradicts the measured waits."""
    waits, contradictions = c.measured.baseline_waits, []
    for dose in c.explained.doses:
        exposed = waits.waited_ms if dose.what == "data" else waits.exposed_ms.get(dose.what)
        if exposed is None or dose.slope is None or dose.slope.ci_low is None:
            continue
        share, low, high = exposed / waits.step_ms, dose.slope.ci_low, dose.slope.ci_high or dose.slope.median
        if dose.kind == "hidden" and share > max(COARSE_RESOLUTION / 2, c.measured.noise_floor or 0.0):
            contradictions.append(
                f"the step waits {ms(exposed)} for {dose.what}, but more of it costs nothing "
                f"(slope of the injected slowdown {low:.2f} to {high:.2f})"
            )
        elif dose.kind == "contended":
            contradictions.append(
                f"the step waits {ms(exposed)} for {dose.what}, but each further millisecond costs {low:.2f} to "
                f"{high:.2f} ms: hidden work takes cores from the step"
            )
    return contradictions
