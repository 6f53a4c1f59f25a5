"""Writes what a reader needs to know besides a finding: an A/A control that differs, and what a median passes over."""

from __future__ import annotations

import math

from harness.judge.comparisons import Measured
from harness.judge.in_total import InTotal
from harness.judge.verdicts import is_apart
from harness.show.words import capitalised, count, ms, percent, percent_range, ratio


def same_again_text(m: Measured) -> str:
    """What an A/A control does that differs from its arm: the same program again."""
    same_again = m.same_again
    assert same_again is not None
    faster = same_again.median > 1
    ends = sorted(abs(end - 1) for end in (same_again.ci_low, same_again.ci_high) if end is not None)
    word = "faster" if faster else "slower"
    times = f"{percent(same_again.median - 1)} {word} ({percent_range(ends[0], ends[-1])})"
    return f"the A/A control of {m.noise_floor_of}, the same program again, was {times}"


def long_steps_text(found: InTotal) -> str:
    """Which long steps the median over blocks passes over, and what all time together says."""
    long = found.long
    whole = f"by total time the candidate is {ratio(found.ratio)} as fast"
    if long is None:
        return f"{whole}, as the {found.arm} is slower in {found.blocks} of {count(found.of, 'block')}"
    take = "takes" if long.steps == 1 else "take"
    where = f", mostly in {long.phase}" if long.phase not in ("", "other") else ""
    all_of = "all" if found.left_out == long.steps > 1 else f"{found.left_out:,}"
    begin = "begins" if found.left_out == 1 else "begin"
    unseen = f"; {all_of} of these {begin} a turn and are in no other figure" if found.left_out else ""
    low, high = long.range_ms
    took = ms(long.mean_ms) if high <= 2 * low else f"{ms(low)} to {ms(high)}"
    return (
        f"{long.steps:,} of {long.of:,} steps of the {found.arm} {take} {took}{where}, in {found.blocks} of "
        f"{count(found.of, 'block')}, and {whole}{unseen}"
    )


def also_noteworthy(m: Measured) -> list[str]:
    """What a reader of the finding needs to know that is not itself the reason of the verdict, a sentence each."""
    found = []
    if m.verdict in ("gain", "loss") and m.same_again is not None and is_apart(m.same_again):
        found.append(f"{capitalised(same_again_text(m))}: that much of the difference may be noise.")
    together = m.together or m.ratio
    inside = m.in_total is not None and (together.ci_low or 0) <= m.in_total.ratio <= (together.ci_high or math.inf)
    if m.in_total is not None and m.undecided != "long steps" and not inside:
        found.append(f"{capitalised(long_steps_text(m.in_total))}.")
    return found
