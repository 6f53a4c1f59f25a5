"""Formats the results of slowdown injections (the scenario key ``dose``) and the assumptions of a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from harness.explain.exposure import Dose, Unfitted
from harness.explain.policy import DOSE_BLOCKS_MAX, EXPOSED_SLOPE_MIN, HANDOVER_TIMES_MAX, KINK_BEND_MIN, MIN_BLOCKS
from harness.explain.replay.prediction import Assumption, AssumptionKind
from harness.explain.statistics import Estimate
from harness.show.words import count, listing, ms, number


def dose_line(found: Dose) -> str:
    """Return a slowdown injection's slope (ms of step per added ms) with its interval, or why it has none."""
    if found.unfitted is not None:
        return f"the slowdown injection (dose) of {_subject(found)} shows nothing: {dose_reason(found)}"
    text = _fitted(found)
    if found.unfinished:
        text += f"; k = {listing([str(k) for k in found.unfinished])} did not finish"
    return text


def dose_reason(found: Dose) -> str | None:
    """Return why the injection decided nothing, and how many more blocks would decide; None if it decided."""
    if found.unfitted is not None:
        return _unfitted(found.unfitted)
    if found.kind != "undecided" or found.slope is None:
        return None
    if found.slope.ci_low is None:
        return f"fewer than {MIN_BLOCKS} blocks give no interval"
    if found.blocks_needed is None:
        return f"even {DOSE_BLOCKS_MAX} blocks would not decide: the effect is too small for steps that vary so much"
    return f"about {count(found.blocks_needed - found.slope.n, 'more block')} would decide"


def _unfitted(why: Unfitted) -> str:
    match why.kind:
        case "no run of the arm":
            return "no finished run of the arm itself"
        case "no dosed run":
            return "no finished run with a dose"
        case "no shared block":
            return f"no block in which k = {listing([str(k) for k in why.ks])} all finished"
        case "work not measured":
            return "its work was not measured"
        case "no work added":
            return f"the doses added no work ({ms(why.least_ms)} per step without, {ms(why.most_ms)} with the largest)"


_SUBJECTS = {"device": "device time", "data": "data work"}


def _subject(found: Dose) -> str:
    name = f"{_SUBJECTS.get(found.what, found.what)} of {found.arm}"
    return name if found.workers == 1 else f"{name} (the work of {found.workers} workers, divided by {found.workers})"


def _fitted(found: Dose) -> str:
    assert found.slope is not None
    subject, slope, waited = _subject(found), found.slope, found.waited_slope
    first, last = found.local_slope, found.last_slope
    undosed, largest = found.points[0], found.points[-1]
    added = f"up to {ms(largest.work_ms - undosed.work_ms)} added per step"
    cost = f"1 ms more of it costs {_two(slope.median)} ms of step time ({_interval(slope)}, {added})"
    waits = (
        ""
        if undosed.waited_ms is None
        else f"it takes {ms(undosed.work_ms)} and the step waits {ms(undosed.waited_ms)} for data"
    )
    if found.kind == "kink" and found.slack_ms and first and last and last.median - first.median > KINK_BEND_MIN:
        slack = f"{ms(max(0.0, found.slack_ms.median))} of added work per step ({_interval(found.slack_ms, ' ms')})"
        return (
            f"{subject} has slack that is used up at about {slack}: 1 ms more of it costs {_two(first.median)} ms of "
            f"step time at first and {_two(last.median)} ms in the end ({added})"
        )
    if found.kind == "kink":
        return f"{subject} just fits into the slack ({waits}), and {cost}"
    if found.kind == "exposed":
        partly = (
            found.what != "device"
            and undosed.waited_ms is not None
            and undosed.waited_ms < EXPOSED_SLOPE_MIN * undosed.work_ms
        )
        return f"{subject} is exposed: {cost}" + (f", though today {waits}" if partly else "")
    if found.kind == "partial":
        return f"{subject} is partly exposed: {cost}" + (f", {_two(waited.median)} ms by waiting" if waited else "")
    if found.kind == "contended":
        cores = ""
        if undosed.contended_ms is not None and largest.contended_ms is not None:
            cores = f" (the main thread waits for a core {number(undosed.contended_ms)} to {ms(largest.contended_ms)})"
        share = f"only {_two(waited.median)} ms by waiting for data" if waited else "not by waiting for data"
        return f"{subject} makes the step wait for a core: {cost}, {share}: hidden, it takes cores from the step{cores}"
    reason = dose_reason(found)
    return f"{subject} is {found.kind}: {cost}" + (f"; {reason}" if reason else "")


def _interval(estimate: Estimate, unit: str = "") -> str:
    """Format an interval in ``unit`` with its number of blocks: ``95 % interval 0.91 to 1.04, 5 blocks``."""
    if estimate.ci_low is None or estimate.ci_high is None:
        return f"no interval from {count(estimate.n, 'block')}"
    bounds = f"{_two(estimate.ci_low)} to {_two(estimate.ci_high)}{unit}"
    return f"95 % interval {bounds}, {count(estimate.n, 'block')}"


def _two(value: float) -> str:
    """Format with two decimals, never as ``-0.00``."""
    return f"{round(value, 2) + 0.0:.2f}"


def assumption_lines(found: Iterable[Assumption]) -> list[str]:
    """Return a line for each assumption that a replay makes, without a full stop."""
    return [ASSUMPTIONS[assumption.kind](assumption) for assumption in found]


def _busy_unknown(one: Assumption) -> str:
    text = (
        f"while {listing(list(one.names))} {'was' if len(one.names) == 1 else 'were'} still being launched the device "
        "worked or waited for launches: the interval includes both; launching is assumed to take as long as recorded"
    )
    return f"{text}, so the step may take longer than this if that work gets longer" if one.scaled else text


def _device_speed(one: Assumption) -> str:
    scope = "" if one.asynchronous else ", and forward, backward and optimizer are all of it"
    held_up = (
        "; launching is assumed to take as long as recorded: if a full queue delayed it, a faster device gains more"
    )
    return f"all work on the device changes speed alike{scope}{held_up if one.asynchronous else ''}"


ASSUMPTIONS: Mapping[AssumptionKind, Callable[[Assumption], str]] = {
    "loader alone": lambda _: (
        "the loader is assumed to cost as much as in the other arm's data-only runs, where it ran alone"
    ),
    "receive not observed": lambda assumption: (
        f"no batch was ready early: receiving one is assumed to cost {_cost(assumption.cost_ms)}, and intervals cover "
        "from nothing to a whole hand-over"
    ),
    "hand-over not observed": lambda assumption: (
        f"no batch was awaited: its hand-over is assumed to take {_cost(assumption.cost_ms)}, and intervals cover "
        f"from the time of receiving the batch to {HANDOVER_TIMES_MAX} times the assumed time, as far as the recorded "
        "order allows"
    ),
    "device not recorded": lambda _: (
        "the device was not recorded: times of the host are used instead, including its waits"
    ),
    "busy not known": _busy_unknown,
    "hand-over": lambda assumption: (
        "the recording has no workers: handing a batch over to the main thread is assumed to cost "
        f"{assumption.tensor_ms} ms for each of its {assumption.tensors} tensors"
        f"{', as data.transport is ring' if assumption.ring else ''} (transfer=... sets it otherwise)"
    ),
    "stages inline": lambda _: (
        "without workers the stages are assumed to take as long inline as in the workers, with no hand-over"
    ),
    "prefetch without workers": lambda _: "prefetch has no effect without workers",
    "batch size": lambda _: (
        "stages, h2d, forward and backward grow in proportion to the batch (consecutive recorded batches are joined), "
        "gradient norm and optimizer do not, nor does the hand-over"
    ),
    "device speed": _device_speed,
    "sync on a synchronous device": lambda _: (
        "sync=off changes little here: on a synchronous device there is no queue to wait for"
    ),
    "deep queue": lambda _: "the device's queue is assumed to be deep enough for all launches between two syncs",
    "ranks": lambda assumption: (
        f"each of {assumption.ranks} ranks draws its own stretch of the recording and has cores of its own; backward "
        "ends when the slowest rank's does, and the communication itself takes no time"
    ),
    "side by side": lambda _: (
        "stages are assumed to wait for a resource (a disk, a network, a lock) that serves several workers at once; "
        "if it serves one at a time, a step takes longer, or less long with fewer workers"
    ),
    "shared cores": lambda assumption: (
        f"{assumption.cores} cores are shared fairly among {assumption.threads} compute threads and "
        f"{assumption.workers} workers, which use them independently of one another (mean field); other processes are "
        "ignored"
    ),
}


def _cost(value_ms: float) -> str:
    return f"{value_ms:.1f} ms" if value_ms >= 0.1 else ms(value_ms)
