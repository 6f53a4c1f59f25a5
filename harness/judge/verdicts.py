"""Decides what a comparison's figures allow to be said: a verdict needs an interval, a noise floor and like losses.

All comparisons of a study together err at most once in twenty: each is judged by an interval of 1 - 5 % / N, so that
by the union bound all N hold together with 95 %, whatever they share (the baseline's runs, its A/A control). The noise
floor is one draw that all of them share, and may be small by luck: so no verdict rests on it. It only takes some away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from harness.explain.statistics import CONFIDENCE, Estimate
from harness.judge.losses import Losses

Verdict = Literal["gain", "loss", "none", "undecided"]
# fewer blocks than an interval takes; no A/A control and no allowance; nothing seen where much would go unnoticed; a
# loss that is NaN or rose; losses that differ; a program that was ready to run but had no core; steps that used up
# batches which lay ready; an A/A control that itself differs, by as much; a few long steps, or slow blocks, that
# outweigh the others
UndecidedKind = Literal[
    "too few blocks",
    "no noise floor",
    "too coarse",
    "diverged",
    "other loss",
    "no core",
    "lead",
    "a-a apart",
    "long steps",
]
APART = 0.005  # an A/A control whose interval stays this far from 1 differs from its arm, which is the same program
COARSE = 0.1  # a difference this large is worth knowing of: a study that could not see it has not seen "no difference"


@dataclass(frozen=True)
class Judged:
    """``resolution``: a difference up to this fraction would have gone unnoticed; None: nothing can be resolved.

    ``of``: the ratio with the interval that was judged; None where it is not kept.
    """

    verdict: Verdict
    resolution: float | None = None
    undecided: UndecidedKind | None = None
    of: Estimate | None = None


def confidence_of_each(comparisons: int) -> float:
    """The level of each interval that keeps ``comparisons`` of them together at 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(comparisons, 1)


def judge(
    ratio: Estimate,
    noise_floor: float | None,
    losses: Losses | None = None,
    *,
    no_core: bool = False,
    used_lead: tuple[float, float] = (0.0, 0.0),
    same_again: Estimate | None = None,
    in_total: float | None = None,
) -> Judged:
    """``ratio``: with the interval that holds for all comparisons of the study together.

    Gain or loss: only where that interval excludes 1 and the median clears the floor. A gain also needs finite losses
    that are alike: what does not train may well be fast. None: only where more than :data:`COARSE` would have shown.
    ``no_core``: other processes took so many cores that the times say more of them.
    ``used_lead``: by which share of a step the baseline's and the candidate's may have been faster than they can go on
    being. That explains a loss or a gain that is no larger. It hides a difference as large: no difference is seen only
    where that of the steps as they go on could be seen.
    ``same_again``: the ratio of the A/A control to its arm. Where its interval excludes 1, the same arm again is faster
    or slower by something other than luck, which the candidate may have as well: only an interval all of which lies
    beyond that is a difference.
    ``in_total``: the ratio in all time together, whichever block is left out, where that is not about the median: no
    verdict stands that it contradicts.
    """
    judged = _judge(ratio, noise_floor, losses, no_core=no_core, used_lead=used_lead)
    if judged.verdict == "undecided":
        return judged
    if judged.verdict != "none" and is_apart(same_again) and not _beyond(ratio, same_again):
        return Judged("undecided", judged.resolution, "a-a apart")
    if in_total is not None and _contradicts(in_total, judged, noise_floor or 0.0):
        return Judged("undecided", judged.resolution, "long steps")
    return judged


def is_apart(same_again: Estimate | None) -> bool:
    """Whether an A/A control differs from its arm, surely and by more than :data:`APART`."""
    if same_again is None or same_again.ci_low is None or same_again.ci_high is None:
        return False
    return same_again.ci_low > 1 + APART or same_again.ci_high < 1 / (1 + APART)


def _beyond(ratio: Estimate, same_again: Estimate | None) -> bool:
    """Whether all of the interval of ``ratio`` is further from 1 than any of that of ``same_again``."""
    assert ratio.ci_low is not None
    assert ratio.ci_high is not None
    assert same_again is not None
    assert same_again.ci_low is not None
    assert same_again.ci_high is not None
    near = math.log(ratio.ci_low if ratio.median > 1 else 1 / ratio.ci_high)
    return near > max(abs(math.log(end)) for end in (same_again.ci_low, same_again.ci_high))


def _contradicts(in_total: float, judged: Judged, noise_floor: float) -> bool:
    match judged.verdict:
        case "gain":
            return in_total <= 1 + noise_floor
        case "loss":
            return in_total >= 1 - noise_floor
        case _:
            return abs(in_total - 1) > (judged.resolution or 0.0)


def _judge(
    ratio: Estimate,
    noise_floor: float | None,
    losses: Losses | None,
    *,
    no_core: bool,
    used_lead: tuple[float, float],
) -> Judged:
    if ratio.ci_low is None or ratio.ci_high is None or ratio.distance is None:
        return Judged("undecided", None, "too few blocks")
    if noise_floor is None:
        return Judged("undecided", None, "no noise floor")
    resolution = max(ratio.distance, noise_floor)
    if no_core:
        return Judged("undecided", resolution, "no core")
    if abs(ratio.median - 1) <= noise_floor or ratio.ci_low <= 1 <= ratio.ci_high:
        if resolution > COARSE:
            return Judged("undecided", resolution, "too coarse")
        with_lead = resolution + max(used_lead)
        hidden = 0 < max(used_lead) >= resolution or with_lead > COARSE
        return Judged("undecided", resolution, "lead") if hidden else Judged("none", with_lead)
    if ratio.median * (1 + used_lead[0]) >= 1 > ratio.median or ratio.median / (1 + used_lead[1]) <= 1 < ratio.median:
        return Judged("undecided", resolution, "lead")
    if ratio.median < 1:
        return Judged("loss", resolution)
    if losses is not None and losses.diverged:
        return Judged("undecided", resolution, "diverged")
    if losses is not None and losses.unlike:
        return Judged("undecided", resolution, "other loss")
    return Judged("gain", resolution)
