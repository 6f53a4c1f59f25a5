"""Explains how a gain in isolation becomes the gain in training: a line per link, with its number.

    isolated ratio -> share of the step -> hidden behind what -> waiting for a core -> ceiling -> slowdown injection
    -> predicted -> measured

Every ratio after the first is about the time of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.explain.bounds import Bound
from harness.explain.policy import LIMIT_SHARE_MIN
from harness.judge.comparisons import Measured
from harness.judge.policy import SAME_TOKENS_WITHIN
from harness.judge.report_types import Comparison, PredictedRatio
from harness.judge.waits import Waits
from harness.show.dose import dose_line
from harness.show.policy import WORTH_SHARE
from harness.show.sentences import between, ceiling_text, in_blocks, left_open, steps_text, whose
from harness.show.text.verdicts import absent_text, reason
from harness.show.words import interval, listing, part_of, percent, ratio

BOUNDS: Mapping[Bound, tuple[str, str]] = {  # its name, and why
    "data": ("bound by data work", "no other cause of device idle time is known to cost more"),
    "host": ("host-bound", "the device is idle while the host does other work than data"),
    "launch": ("launch-bound", "the device ends its work as the host ends launching it: it waits for launches"),
    "device or launch": (
        "device-bound or launch-bound",
        "while the host is still launching a phase, the device works or waits for launches: CUDA events do not show "
        "which; a profiled window does",
    ),
    "device": (
        "device-bound",
        "the device is idle for {idle} of the step, and fetching could take {more} of a step longer at almost no cost",
    ),
    "balanced": (
        "balanced",
        "the device is idle for {idle} of the step, and fetching could not take {more} of a step longer at almost no "
        "cost",
    ),
}
NEVER_REST = "its loader workers are at work nearly all the time, and the step waits for them"
HELD = (
    "the device is idle for {idle} of the step; a full queue of launches, or an untimed blocking call, may have "
    "blocked the host, so it is unknown how much longer fetching could take"
)


@dataclass(frozen=True)
class ChainLink:
    """One link of the chain that explains how the speedup of the data path alone becomes the speedup in training."""

    name: str
    ratio: float | None  # speedup of the step that this link allows
    text: str  # its line in the report


def chain(c: Comparison) -> list[ChainLink]:
    """Return the links from the isolated ratio to the measured one; a link without a figure says why."""
    measured, waits = c.measured, c.measured.baseline_waits
    return [*_isolated(c), *_share(c, waits), *_hidden(waits, c.explained.hidden_behind_ms), *_run_queue(waits),
            *_ceiling(c, waits), *_doses(c), *_predicted(c), *_measured(measured)]  # fmt: skip


def _isolated(c: Comparison) -> Iterator[ChainLink]:
    isolated = c.measured.isolated
    if isolated is None:
        yield ChainLink("isolated", None, f"not measured: {absent_text(c.measured, 'isolated')}")
        return
    text = f"alone, {c.candidate}'s data path is {ratio(isolated.median)} as fast ({interval(isolated)})"
    yield ChainLink("isolated", isolated.median, text)


def _share(c: Comparison, waits: Waits) -> Iterator[ChainLink]:
    if not waits.exposed_ms and not waits.hidden_ms:
        yield ChainLink("share of the step", None, "how long its data work takes was not measured")
        return
    work, candidate_work, part = waits.work_ms, c.measured.candidate_waits.work_ms, part_of(waits.step_ms)
    share = percent(work / waits.step_ms)
    candidate_waits = c.measured.candidate_waits
    text = f"{whose(c.baseline, waits)} spends {part(work)} of data work on each {part(waits.step_ms)} step ({share})"
    text += f", {whose(c.candidate, candidate_waits)} {part(candidate_work)}"
    if max(waits.ranks, candidate_waits.ranks) > 1:  # Another rank may determine the step's end.
        yield ChainLink("share of the step", None, text)
        return
    remaining = waits.step_ms - (work - candidate_work)
    if remaining <= 0 or work > waits.step_ms:  # Several workers work at once.
        yield ChainLink("share of the step", None, f"{text}: more than a step, so not all of it can be waited for")
        return
    limit = waits.step_ms / remaining
    yield ChainLink(
        "share of the step", limit, f"{text}: if the step waited for all of it, steps would be {ratio(limit)} as fast"
    )


def _hidden(waits: Waits, hidden_behind_ms: Mapping[str, float]) -> Iterator[ChainLink]:
    hidden = sum(waits.hidden_ms.values())
    waited, part = waits.waited_ms, part_of(waits.step_ms)
    if waited is None:
        return
    step = "the step" if waits.ranks == 1 else "rank 0"
    between_ms = sum(waits.between_steps_ms.values())
    between_text = f"; {part(between_ms)} ran between training steps, such as during an evaluation"
    between_text = between_text if between_ms >= WORTH_SHARE * waits.step_ms else ""
    if hidden < 1e-3:
        text = f"none of it is hidden; it costs {step} {_costs(waits, waited)}{between_text}"
        yield ChainLink("hidden", None, text)
        return
    phases = {name: value for name, value in hidden_behind_ms.items() if value >= 0.05 * hidden}
    behind_text = f" behind {listing([f'{name} ({part(value)})' for name, value in phases.items()])}" if phases else ""
    likely = "" if left_open(waits.waited_range_ms, waits.step_ms) is None else "likely "
    text = f"{part(hidden)} of it are {likely}hidden{behind_text}, and it costs {step} {_costs(waits, waited)}"
    parallel = sum(waits.parallel_ms.values())
    if parallel >= WORTH_SHARE * waits.step_ms:
        text += f"; {part(parallel)} ran while the step waited for another worker's batch"
    text += between_text
    if waits.slack_ms is not None:
        text += f"; when the host begins to fetch, the device still has {part(waits.slack_ms)} of work queued (slack)"
    yield ChainLink("hidden", None, text)


def _costs(waits: Waits, waited_ms: float) -> str:
    """Format the step's mean wait; the least and the most if CUDA events do not show when the device worked."""
    if (open_ms := left_open(waits.waited_range_ms, waits.step_ms)) is None:
        text = part_of(waits.step_ms)(waited_ms)
        return text if waits.uneven is None else f"{text} on average, {in_blocks(waits.uneven)}"
    return between(open_ms, waits.step_ms)


def _run_queue(waits: Waits) -> Iterator[ChainLink]:
    part = part_of(waits.step_ms)
    if waits.contended_ms is None:
        text = "whether hidden work took cores was not measured (no schedstat)"
    elif waits.contended_ms < WORTH_SHARE * waits.step_ms:
        text = f"the main thread hardly waited for a core ({part(waits.contended_ms)} per step)"
    else:
        text = f"the main thread waited {part(waits.contended_ms)} per step for a core"
    yield ChainLink("contended", None, text)


def _ceiling(c: Comparison, waits: Waits) -> Iterator[ChainLink]:
    idle = sum(waits.starved_ms.values()) / waits.step_ms if waits.step_ms else 0.0
    bound = ""
    if waits.bound is not None:
        name, explanation = BOUNDS[waits.bound]
        if waits.bound == "data" and waits.busy_loader:
            explanation = NEVER_REST
        if waits.bound == "device" and waits.room_unknown:
            explanation = HELD
        bound = f"; its steps are {name} ({explanation.format(idle=percent(idle), more=percent(LIMIT_SHARE_MIN))})"
    elif waits.bounds:  # Averages of idle time and room describe no single block.
        kinds = [f"{BOUNDS[kind][0]} in {n} of {sum(waits.bounds.values())}" for kind, n in waits.bounds.items()]
        bound = f"; blocks differ in what bounds their steps: {listing(kinds)}"
    open_share = (waits.open_ms or 0.0) / waits.step_ms if waits.step_ms else 0.0
    if waits.bound in ("data", "host", "launch") and open_share > LIMIT_SHARE_MIN:
        bound += f", and for {percent(open_share)} of the step the device worked or waited for launches (unknown which)"
    # The time of waits for launches is no saving: faster data work may save more than fewer launches.
    step_ms = waits.step_ms or math.inf
    low, high = (bound_ms / step_ms for bound_ms in waits.waited_range_ms or (waits.waited_ms or 0.0,) * 2)
    if waits.bound in ("host", "launch") and high > LIMIT_SHARE_MIN:
        share = percent(high) if high - low < WORTH_SHARE else f"{percent(low)} to {percent(high)}"
        bound += f"; ending data work alone would save {share} of the step"
    ceiling = c.measured.ceiling
    if ceiling is None:
        yield ChainLink("ceiling", None, f"none: {absent_text(c.measured, 'ceiling')}{bound}")
        return
    text = f"without any data work {c.baseline} would be {ceiling_text(c.measured)} as fast ({interval(ceiling)})"
    yield ChainLink("ceiling", ceiling.median, f"{text}{bound}")


def _doses(c: Comparison) -> Iterator[ChainLink]:
    for dose in c.explained.doses:
        yield ChainLink("dose", None, dose_line(dose))


def _predicted(c: Comparison) -> Iterator[ChainLink]:
    prediction = c.explained.predicted
    if not isinstance(prediction, PredictedRatio):
        yield ChainLink("predicted", None, f"not predicted: {reason(prediction)}")
        return
    predicted = prediction.step_time
    text = f"{c.baseline}'s recorded steps, replayed with {c.candidate}'s data path, are "
    text += f"{ratio(predicted.median)} as fast ({interval(predicted)})"
    text += f"; replayed as they are, they come out {percent(prediction.error)} off"
    text += "" if prediction.within_tolerance else ": outside tolerance, do not rely on it"
    yield ChainLink("predicted", predicted.median if prediction.within_tolerance else None, text)


def _measured(m: Measured) -> Iterator[ChainLink]:
    if m.step_time is not None and (text := steps_text(m.step_time, m.steps)) is not None:
        yield ChainLink("measured", m.step_time.median, text)
    tokens_ratio = m.measured_per_step
    if m.figure is not None and tokens_ratio is not None and abs(tokens_ratio - 1) > SAME_TOKENS_WITHIN:
        trains = m.measure == "trained tokens/s"
        padding = trains and m.positions_per_step is not None and abs(m.positions_per_step - 1) <= SAME_TOKENS_WITHIN
        yield ChainLink(
            "trained tokens" if trains else "tokens",
            m.ratio.median,
            f"and each {'trains' if trains else 'computes'} {ratio(tokens_ratio)} as many tokens on average, which "
            f"makes {ratio(m.ratio.median)} the {m.measure} (median over blocks): that part is "
            f"{'padding' if padding else 'the size of a step'}, not time",
        )
