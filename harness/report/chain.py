"""Why a gain in isolation is what it is in training: one line per link of the chain, each with its number.

    isolated ratio -> share of the step -> hidden behind what -> contended -> ceiling -> dose -> predicted -> measured

Every ratio after the first is about the time of a step, so that the chain can be read downwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.comparisons import SAME, ChainLink, Comparison, Waits
from harness.report.words import interval, listing, ms, percent, ratio

WORTH = 0.01  # share of a step below which hidden or contended time is called nothing
BOUND_WORDS = {
    "device": "device-bound (the device never runs dry)",
    "host": "host-bound (the device runs dry)",
    "balanced": "balanced (the device hardly runs dry, with no room before it would)",
}


def chain(c: Comparison) -> list[ChainLink]:
    """The links that could be measured, in order; empty where nothing was compared."""
    if c.measured is None or c.baseline_waits is None:
        return []
    return [*_isolated(c), *_share(c, c.baseline_waits), *_hidden(c.baseline_waits), *_contended(c.baseline_waits),
            *_ceiling(c, c.baseline_waits), *_doses(c), *_predicted(c), *_measured(c)]  # fmt: skip


def _isolated(c: Comparison) -> Iterator[ChainLink]:
    if c.isolated is None:
        yield ChainLink("isolated", None, f"not measured: {c.reasons.get('isolated', 'no data-only control')}")
        return
    yield ChainLink(
        "isolated",
        c.isolated.median,
        f"alone, {c.candidate}'s data path is {ratio(c.isolated.median)} as fast ({interval(c.isolated)})",
    )


def _share(c: Comparison, waits: Waits) -> Iterator[ChainLink]:
    if not waits.exposed_ms and not waits.hidden_ms:
        yield ChainLink("share of the step", None, "how long its data work takes was not measured")
        return
    work, other = waits.work_ms, c.candidate_waits.work_ms if c.candidate_waits is not None else 0.0
    text = (
        f"{c.baseline} spends {ms(work)} of data work on each {ms(waits.step_ms)} step ({percent(work / waits.step_ms)}"
    )
    text += f"), {c.candidate} {ms(other)}"
    left = waits.step_ms - (work - other)
    if left <= 0:
        yield ChainLink("share of the step", None, f"{text}: more than a step, so most of it must be hidden")
        return
    limit = waits.step_ms / left
    yield ChainLink(
        "share of the step", limit, f"{text}: were all of it waited for, steps would be {ratio(limit)} as fast"
    )


def _hidden(waits: Waits) -> Iterator[ChainLink]:
    hidden = sum(waits.hidden_ms.values())
    waited = waits.waited_ms
    if waited is None:
        return
    if hidden < 1e-3:
        yield ChainLink("hidden", None, f"nothing of it is hidden: all {ms(waited)} are waited for")
        return
    behind = {name: value for name, value in waits.hidden_behind.items() if value >= 0.05 * hidden}
    where = f" behind {listing([f'{name} ({ms(value)})' for name, value in behind.items()])}" if behind else ""
    text = f"{ms(hidden)} of it are hidden{where}, {ms(waited)} are waited for"
    if waits.slack_ms is not None:
        text += f"; when the host begins to fetch, the device still has {ms(waits.slack_ms)} of work queued (slack)"
    yield ChainLink("hidden", None, text)


def _contended(waits: Waits) -> Iterator[ChainLink]:
    if waits.contended_ms is None:
        yield ChainLink("contended", None, "whether hidden work took cores was not measured (no schedstat)")
    elif waits.contended_ms < WORTH * waits.step_ms:
        yield ChainLink(
            "contended", None, f"the main thread hardly waited for a core ({ms(waits.contended_ms)} per step)"
        )
    else:
        yield ChainLink("contended", None, f"the main thread waited {ms(waits.contended_ms)} per step for a core")


def _ceiling(c: Comparison, waits: Waits) -> Iterator[ChainLink]:
    bound = f"; its steps are {BOUND_WORDS[waits.bound]}" if waits.bound is not None else ""
    if c.ceiling is None:
        yield ChainLink("ceiling", None, f"none: {c.reasons.get('ceiling', 'not measured')}{bound}")
        return
    text = f"without any wait for data {c.baseline} could be {ratio(c.ceiling.median)} as fast ({interval(c.ceiling)})"
    yield ChainLink("ceiling", c.ceiling.median, f"{text}{bound}")


def _doses(c: Comparison) -> Iterator[ChainLink]:
    for dose in c.doses:
        yield ChainLink("dose", None, dose.words)


def _predicted(c: Comparison) -> Iterator[ChainLink]:
    if c.predicted is None:
        yield ChainLink("predicted", None, f"not predicted: {c.reasons.get('predicted', 'no replay')}")
        return
    text = f"{c.baseline}'s recorded steps, replayed with {c.candidate}'s data path, are "
    predicted = c.predicted_step or c.predicted
    text += f"{ratio(predicted.median)} as fast ({interval(predicted)})"
    if c.validation is not None:
        text += f"; replayed as they are, they come out {percent(c.validation)} off"
        text += "" if c.within_tolerance else ": NOT LICENSED, do not rely on it"
    yield ChainLink("predicted", predicted.median, text)


def _measured(c: Comparison) -> Iterator[ChainLink]:
    assert c.measured is not None
    if c.step_time is not None:
        yield ChainLink(
            "measured", c.step_time.median, f"steps are {ratio(c.step_time.median)} as fast ({interval(c.step_time)})"
        )
    trained = c.trained_per_step
    if trained is not None and abs(trained - 1) > SAME:
        yield ChainLink(
            "trained tokens",
            c.measured.median,
            f"and each trains {ratio(trained)} as many tokens on average, which makes {ratio(c.measured.median)} the "
            f"{c.measure} (median over blocks): that part is padding, not time",
        )
