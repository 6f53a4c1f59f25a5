"""Texts for the verdicts of comparisons: results, reasons for being undecided, caveats, and why a figure is missing."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from harness.explain.policy import MIN_BLOCKS
from harness.explain.statistics import Estimate
from harness.judge.comparisons import Absent, Figure, Measured, Missing
from harness.judge.doubts import barred
from harness.judge.policy import CORE_WAIT_SHARE_MAX, SAME_TOKENS_WITHIN
from harness.judge.report_types import NoMfu
from harness.judge.verdicts import InTotal, Verdict, holds_other_work, is_apart
from harness.show.policy import LOPSIDED_RATIO, LOPSIDED_SHARE, SMALL_CEILING
from harness.show.text.doubts import (
    ASK_FOR,
    GAPS,
    doubt_text,
    ending_text,
    more_blocks_text,
    remedy_text,
    too_noisy_text,
    unseen_text,
)
from harness.show.words import (
    capitalised,
    count,
    floor_percent,
    horizon,
    interval,
    listing,
    ms,
    percent,
    percent_limit,
    percent_range,
    ratio,
)

VERDICTS: dict[Verdict, str] = {"gain": "gain", "loss": "loss", "none": "no difference seen", "undecided": "undecided"}


def finding(m: Measured, once: Collection[str] = (), *, figures: bool = True) -> str:
    """Return a comparison's result as a clause, or why it is undecided. ``once``: remedies to leave out."""
    estimate, verdict = m.ratio, m.verdict
    if verdict == "undecided":
        because = undecided_because(m, remedy=more_blocks(m) not in once)
        if (noisy := barred(m.doubts, "ratio")) is not None:
            return f"undecided: {because}" + ("" if m.undecided == noisy.kind else f"; {too_noisy_text(noisy)}")
        return f"undecided{f', {_change(estimate)}' if figures else ''}: {because}"
    if verdict == "none":
        phrase = "detectable difference"
        if (ends := _lopsided(m)) is not None:
            slower, faster = map(percent_limit, ends)
            counts = _counts_more(m)
            less, greater = (f"fewer {m.measure}", "more") if counts else ("slower", "faster")
            return f"no {phrase} (between {slower} {less} and {faster} {greater})"
        limit = percent_limit(m.resolution or 0)
        return f"no {phrase} (under {limit})" if figures else f"no {phrase} above {limit}"
    if not figures:
        estimate = replace(estimate, ci_low=None, ci_high=None)
    tokens_ratio = m.measured_per_step
    if _counts_more(m):  # A change of padding or batch size, even a possible one, is no change of speed.
        counted = "training" if m.measure == "trained tokens/s" else "computing"
        times = (
            "trained tokens were not counted"
            if tokens_ratio is None
            else f"{counted} {ratio(tokens_ratio)} as many in each step"
        )
        return f"{_change(estimate, 'more' if verdict == 'gain' else 'fewer', m.measure)}, {times}"
    return _change(estimate, "faster" if verdict == "gain" else "slower")


def _counts_more(m: Measured) -> bool:
    """Return True if steps of both arms hold different numbers of the counted tokens, or unknown ones."""
    return m.measured_per_step is None or abs(m.measured_per_step - 1) > SAME_TOKENS_WITHIN


def _lopsided(m: Measured) -> tuple[float, float] | None:
    """Return the largest undetectable loss and gain of speed, as fractions; None unless the loss is far larger."""
    together, floor = m.together or m.ratio, m.noise_floor or 0.0
    if together.ci_low is None or together.ci_high is None:
        return None
    # Steps that used up prefetched batches were faster than later steps can be.
    baseline, candidate = m.used_lead
    slower, faster = max(1 - together.ci_low, floor) + candidate, max(together.ci_high - 1, floor) + baseline
    return (slower, faster) if slower > max(LOPSIDED_SHARE, LOPSIDED_RATIO * faster) else None


def _change(estimate: Estimate, word: str = "", measure: str = "") -> str:
    """Format ``14 % faster (6.2 to 17 %)``; from 2x ``4.20x as fast (3.90x to 4.40x)``; without ``word`` the ratio."""
    low, high = estimate.ci_low, estimate.ci_high
    if estimate.median >= 2 or not word:
        ends = "" if low is None or high is None else f" ({ratio(low)} to {ratio(high)})"
        return f"{ratio(estimate.median)}{f' the {measure}' if measure else ' as fast' if word else ''}{ends}"
    text = f"{percent(estimate.median - 1)} {word}{f' {measure}' if measure else ''}"
    if low is None or high is None:
        return text
    return f"{text} ({percent_range(*sorted((abs(low - 1), abs(high - 1))))})"


def undecided_because(m: Measured, *, remedy: bool = True) -> str | None:
    """Return why the comparison is undecided; None if it is decided. ``remedy``: True adds what to do."""
    match m.undecided:
        case None:
            return None
        case "too few blocks":
            return f"an interval needs {MIN_BLOCKS} blocks; {more_blocks_text(m.cause)}"
        case "no noise floor":
            absent = m.absent.get("noise_floor")
            too_few = absent is not None and absent.kind == "too few a-a blocks"
            problem = absent_text(m, "noise_floor") if too_few else "no A/A control on this device"
            enough = "let more of its blocks finish" if m.ratio.n >= ASK_FOR else more_blocks_text(m.cause)
            action = enough if too_few else "add controls: [a-a]"
            return f"{problem}; {action}, or declare noise_floor"
        case "too noisy":
            return too_noisy_text(m.cause) + (_repeat(m, "repeat on a quieter machine") if remedy else "")
        case "too coarse":
            if (ask := more_blocks(m)) is None:
                return f"{_unseen(m)}{_padding(m)}; repeat with more steps a block, as blocks hold different batches"
            return _unseen(m) + (_repeat(m, ask) if remedy else "")
        case "diverged":
            return f"the loss of {listing(list(m.losses.diverged))} diverged, so its speed is no gain"
        case "other loss":
            assert m.losses.baseline is not None
            assert m.losses.candidate is not None
            extent = "" if m.losses.some_blocks is None else " in {} of {} blocks".format(*m.losses.some_blocks)
            return (
                f"the losses differ{extent} ({m.losses.baseline:.3f} against {m.losses.candidate:.3f}), "
                "so the speed of the candidate is no gain"
            )
        case "repeated data":
            assert m.repeated is not None
            base_share, other_share = map(percent, m.repeated)
            return (
                f"{base_share} of the training rows of the baseline are repeats, and {other_share} of those of the "
                "candidate, so they do not train the same"
            )
        case "no core":
            return (
                f"a main thread waited for a core for over {percent(CORE_WAIT_SHARE_MAX)} of the time; repeat when it "
                "has a free core"
            )
        case "lead":
            lead_max = percent(max(m.used_lead))
            return (
                f"the measured steps used up prefetched batches or queued work, and were up to {lead_max} faster than "
                "later steps: as much as the difference; use more warm-up steps"
            )
        case "a-a apart":
            return f"{same_again_text(m)}, as much as the difference"
        case "long steps":
            assert m.in_total is not None
            ask = "; repeat with more steps a block" if remedy and not m.in_total.left_out else ""
            return f"{long_steps_text(m.in_total)}{ask}"
    assert m.cause is not None
    action = f"; {remedy_text(m.cause.remedy)}" if remedy and m.cause.remedy is not None else ""
    return f"{listing([*m.cause.arms]) or 'an arm'}: {doubt_text(m.cause)}{action}"


def more_blocks(m: Measured) -> str | None:
    """Return the advice to measure more blocks; None unless they would help against a coarse resolution."""
    if m.undecided != "too coarse":
        return None
    if m.cause is not None and m.cause.remedy is not None and m.cause.remedy.kind == "finish the study":
        return remedy_text(m.cause.remedy)
    if holds_other_work(m.step_time, m.ratio):
        return None
    return f"repeat with more than {count(m.ratio.n, 'block')}, or on a quieter machine"


def _repeat(m: Measured, ask: str) -> str:
    """Return ``ask`` as a clause; only for other changes if the data loading can gain under :data:`SMALL_CEILING`."""
    if m.ceiling is None or max(m.ceilings or (m.ceiling.median,)) - 1 >= SMALL_CEILING:
        return f"; {ask}"
    upper = ratio(max(*(m.ceilings or ()), m.ceiling.median, 1.0))
    return f"; changes of the data loading can gain {upper} at most: {ask} only for another change"


def _padding(m: Measured) -> str:
    """Return a clause that a step trains more or fewer tokens because of padding; "" if it explains no difference."""
    trained, positions = m.trained_per_step, m.positions_per_step
    if trained is None or positions is None or abs(positions - 1) > SAME_TOKENS_WITHIN or not _counts_more(m):
        return ""
    return f"; for {'less' if trained > 1 else 'more'} padding, a step trains {ratio(trained)} as many tokens"


def _unseen(m: Measured) -> str:
    """Return why no difference was detected: it is below the noise floor or within the interval, as a clause."""
    together = m.together or m.ratio
    if (together.ci_low or 0) > 1 or (together.ci_high or 1) < 1:
        return f"the change is smaller than the noise floor of {floor_percent(m.noise_floor or 0)}"
    if m.together is not None and ((m.ratio.ci_low or 0) > 1 or (m.ratio.ci_high or 1) < 1):
        return f"the interval for all {m.comparisons} comparisons together includes no change ({interval(m.together)})"
    return unseen_text(m.resolution or 0)


def same_again_text(m: Measured) -> str:
    """Return a clause on how far the A/A control, which must be measured, differs from its arm."""
    same_again = m.same_again
    assert same_again is not None
    faster = same_again.median > 1
    ends = sorted(abs(end - 1) for end in (same_again.ci_low, same_again.ci_high) if end is not None)
    word = "faster" if faster else "slower"
    times = f"{percent(same_again.median - 1)} {word} ({percent_range(ends[0], ends[-1])})"
    return f"the A/A control of {m.noise_floor_of}, the same program again, was {times}"


def long_steps_text(found: InTotal) -> str:
    """Return a clause on long steps, which the median over blocks hides, with the ratio by total time."""
    long = found.long
    total_text = f"by total time the candidate is {ratio(found.ratio)} as fast"
    if long is None:
        return f"{total_text}, as the {found.arm} is slower in {found.blocks} of {count(found.of, 'block')}"
    verb = "takes" if long.steps == 1 else "take"
    phase = f", mostly in {long.phase}" if long.phase not in ("", "other") else ""
    all_of = "all" if found.left_out == long.steps > 1 else f"{found.left_out:,}"
    begin = "begins" if found.left_out == 1 else "begin"
    unseen = f"; {all_of} of these {begin} a repetition and are in no other figure" if found.left_out else ""
    low, high = long.range_ms
    range_text = ms(long.mean_ms) if high <= 2 * low else f"{ms(low)} to {ms(high)}"
    return (
        f"{long.steps:,} of {long.of:,} steps of the {found.arm} {verb} {range_text}{phase}, in {found.blocks} of "
        f"{count(found.of, 'block')}, and {total_text}{unseen}"
    )


def also_noteworthy(m: Measured) -> list[str]:
    """Return caveats of a result that its reason does not name: a noisy A/A control, or long steps."""
    notes = []
    if m.verdict in ("gain", "loss") and m.same_again is not None and is_apart(m.same_again):
        notes.append(f"{capitalised(same_again_text(m))}: that much of the difference may be noise.")
    together = m.together or m.ratio
    total_agrees = m.in_total is not None and (together.ci_low or 0) <= m.in_total.ratio <= (
        together.ci_high or math.inf
    )
    if m.in_total is not None and m.undecided != "long steps" and not total_agrees:
        notes.append(f"{capitalised(long_steps_text(m.in_total))}.")
    return notes


def reason(absent: Absent) -> str:
    """Return why a figure is missing, as a clause without a full stop."""
    match absent.kind:
        case "no data-only control":
            return f"no finished data-only control of {' or '.join(absent.arms)}"
        case "data-only controls apart":
            return "the data-only controls share no finished block"
        case "no ideal-data control":
            return f"no finished ideal-data control of {absent.arms[0]}"
        case "ideal-data of another length":
            times = ratio(absent.positions)
            return (
                f"the ideal-data control of {absent.arms[0]} computes {times} as many positions a step, "
                "so it does not show the cost of data work"
            )
        case "no finite ceiling":
            return "the steps only wait for data, or their waits were not measured"
        case "ranks":
            return "its ranks wait for one another for an unknown reason"
        case "no a-a control":
            return "no finished a-a control"
        case "too few a-a blocks":
            return f"the a-a control needs {MIN_BLOCKS} blocks and has {absent.blocks}"
        case "too noisy":
            return f"the ideal-data control of {absent.arms[0]} was too noisy to see even a 2x change"
        case "no tables":
            return "no tables to replay"
        case "more than the data path differs":
            return f"the arms differ in {absent.detail}, which changes more than the data path"
        case "replay refused":
            return GAPS.get(absent.detail, absent.detail)
        case "doubted":
            return "a doubt excludes it" if absent.doubt is None else doubt_text(absent.doubt)


def absent_text(measured: Measured, figure: Figure) -> str:
    """Return why ``figure`` of a comparison is missing; "not measured" if no reason is recorded."""
    absent = measured.absent.get(figure)
    return "not measured" if absent is None else reason(absent)


def horizon_text(blocks: int, steps: int, epoch_steps: float | None) -> str:
    """Return sentences on how much was measured, and that costs of rarer steps may be missing. ``steps``: per block."""
    return f"Measured: {horizon(blocks, steps, epoch_steps)}. {rarer_text(steps)}"


def rarer_text(steps: int) -> str:
    """Return the sentence that costs which occur less often than every ``steps`` steps may be missing."""
    return f"Costs that come less often than every {count(steps, 'step')} may be missing: set more steps."


def missing_text(missing: Missing) -> str:
    """Return why a comparison has no result at all, such as a missing finished run, as a clause."""
    match missing.kind:
        case "no finished run":
            text = f"no finished run of {' and of '.join(missing.arms)}"
        case "no shared block":
            text = "no block in which both finished"
        case "no throughput":
            text = "no throughput in the tables"
        case "nothing trained":
            text = f"{' and '.join(missing.arms)} trained on no token, as no position has a label"
    return text + "".join(f"; {failed.arm}: {ending_text(failed)}" for failed in missing.failures)


def mfu_reason(none: NoMfu | None) -> str | None:
    """Return why an arm has no model FLOPs utilization (MFU); None if ``none`` is None, which means that it has one."""
    if none is None:
        return None
    match none.kind:
        case "no run":
            return "no finished run"
        case "no compute":
            return "this control computes nothing"
        case "no flops":
            return "the FLOPs per token are unknown, or no model is computed"
        case "no profile":
            return none.detail or f"no device profile for {none.device or 'an unnamed device'}"
