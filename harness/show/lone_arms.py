"""Writes the lines on an arm without a comparison: waits for data, gain without data work, and timed calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.explain.causes import CODE, GC, GRADIENTS, SYNCHRONIZATION
from harness.explain.policy import KINDS_BETWEEN_MAX, LONG_STEPS_SHARE_MAX, REPLAY_ERROR_MAX
from harness.explain.ranks import GroupGain
from harness.explain.statistics import Estimate
from harness.explain.unusual_steps import LongSteps
from harness.judge.doubts import DoubtKind, Unseen
from harness.judge.policy import CORE_WAIT_SHARE_MAX, RESTART_SHARE_MAX, UNSEEN_SHARE_MAX, WITNESSES_WITHIN
from harness.judge.report_types import ArmReport, ArmTotals, DiagnosisRemedy
from harness.judge.waits import UnevenSpeed
from harness.show.dose import dose_line
from harness.show.names import ArmNames
from harness.show.policy import MEAN_APART_SHARE, WAIT_SHARE, WAITS_ALIKE_SHARE, WORTH_SHARE
from harness.show.sentences import either_way, in_blocks
from harness.show.text.findings import cause_texts
from harness.show.text.verdicts import reason
from harness.show.words import capitalised, count, interval, listing, part_of, percent, percent_over, ratio
from harness.study.contract import STAGES

SETTINGS_BY_REMEDY: Mapping[DiagnosisRemedy, str] = {"no sync": SYNCHRONIZATION, "no gradients": GRADIENTS}
DIAGNOSED = (CODE, GC, "compiled")  # Kinds of causes that are parts of a step.


@dataclass(frozen=True)
class Headline:
    """One line of the first screen, on a comparison or an arm: ``SUBJECT: FINDING. SUPPORT``."""

    subject: str
    finding: str
    support: str  # whole sentences or ""

    @property
    def text(self) -> str:
        return f"{self.subject}: {self.finding_text}"

    @property
    def finding_text(self) -> str:
        return f"{self.finding}." + (f" {self.support}" if self.support else "")


def lone_lines(arm: ArmReport, names: ArmNames) -> list[Headline]:
    """Return the first screen's lines about an arm of a study without comparisons; empty if no step was measured."""
    totals = arm.totals
    if totals.step_ms is None:
        return []
    name = names.short(arm.name)
    part = part_of(_mean_ms(arm))
    # Show the mean even if it is close to the median, because the following figures are parts of it.
    step = f"{part(_mean_ms(arm))} a step"
    # Blocks may be similar although steps are not (for example rare checkpoints), or the reverse.
    long = totals.long_steps
    typical_ms = long.others_ms if long is not None else totals.p50_ms or totals.step_ms.median
    if (kinds := _kinds(totals, part)) is not None:
        step = f"{part(_mean_ms(arm))} a step on average, {kinds}"
    elif abs(_mean_ms(arm) / typical_ms - 1) > MEAN_APART_SHARE:
        step = f"{part(_mean_ms(arm))} a step on average, typically {part(typical_ms)}{_long(long, part)}"
    served = "".join(f" {text}" for text in loader_texts(arm, name))
    data = _data(arm)
    if arm.ranks is not None:
        data = f"Rank 0: {data}"
    lines = [Headline(name, _with_evaluations(arm, step), f"{data}{_gain(arm)}{served}")]
    lines += [Headline(*texts) for texts in cause_texts(arm, _mean_ms(arm))]
    if arm.unseen is not None:
        lines += _unseen(arm, arm.unseen)
    lines += _dose_lines(arm)
    lines += [*skipped_lines([arm], names), *engine_lines([arm], names)]
    if arm.attached is not None:
        lines.append(Headline("Timed", arm.attached, f"A step ends with {arm.step_ends}." if arm.step_ends else ""))
    return lines


def cause_findings(arm: ArmReport) -> list[str]:
    """Return the recorded causes of slow steps that no diagnosis covers; the first diagnosis gives its own time."""
    diagnosed = {SETTINGS_BY_REMEDY.get(diagnosis.remedy) for diagnosis in arm.diagnoses}
    headline = arm.diagnoses[0].kind if arm.diagnoses else ""  # The diagnosis already gives this cost.
    causes = [cause for cause in arm.causes if cause.kind not in DIAGNOSED and cause.place not in diagnosed]
    unnamed = replace(
        arm, causes=tuple(replace(cause, ms=None) if cause.kind == headline else cause for cause in causes)
    )
    return [Headline(*texts).text for texts in cause_texts(unnamed, _mean_ms(arm))]


def _with_evaluations(arm: ArmReport, step: str) -> str:
    """Return ``step`` (text on the time of a step), after sentences on evaluations if some steps contain them."""
    hidden = arm.unseen
    if hidden is None or not hidden.evaluating_steps or hidden.evaluating >= 1:
        return step
    steps = arm.totals.steps + hidden.evaluating_steps
    clock_ms = _mean_ms(arm) * arm.totals.steps / (1 - hidden.evaluating) / steps
    hold = "hold an evaluation and take" if hidden.evaluating_steps > 1 else "holds an evaluation and takes"
    return (
        f"{part_of(clock_ms)(clock_ms)} a step by the clock. {hidden.evaluating_steps:,} of {count(steps, 'step')} "
        f"{hold} {percent(hidden.evaluating)} of the time: evaluate less often, or on fewer batches. The others take "
        f"{step}"
    )


def _kinds(totals: ArmTotals, part: Callable[[float], str]) -> str | None:
    """Return a clause on the mean times of kinds of steps; None for one kind, or if :func:`_long` tells it."""
    kinds, long = totals.step_kinds, totals.long_steps
    exception = kinds is not None and kinds.above_share <= LONG_STEPS_SHARE_MAX
    if kinds is None or (exception and long is not None and 2 * long.steps >= kinds.above_share * kinds.of):
        return None
    number = "three" if kinds.longest_share else "two"
    none = "although few steps are like that" if kinds.like_mean <= KINDS_BETWEEN_MAX else f"of {number} kinds"
    spread = "" if kinds.slow_runs is None else f" (the long ones in {kinds.slow_runs} of {count(kinds.runs, 'block')})"
    shares = [(1 - kinds.above_share, kinds.fast_ms), (kinds.slow_share, kinds.slow_ms)]
    if kinds.longest_share:
        shares.append((kinds.longest_share, kinds.longest_ms))
    (share, ms), *slower = shares
    listed = listing([f"{percent(share)} {part(ms)}" for share, ms in slower])
    return f"{none}: {percent(share)} take {part(ms)} on average{',' if len(slower) > 1 else ' and'} {listed}{spread}"


def _long(found: LongSteps | None, part: Callable[[float], str]) -> str:
    """Return the long steps that raise the mean, as `` (10 of 240 steps take 1,530 ms, mostly in log)``; else ""."""
    if found is None:
        return ""
    phase = f", mostly in {found.phase}" if found.phase not in ("", "other") else ""
    steps = f"{found.steps:,} of {count(found.of, 'step')}"
    low, high = found.range_ms
    if high > 1.5 * low:
        return f" ({steps} take {part(low)} to {part(high)}, {part(found.mean_ms)} on average{phase})"
    return f" ({steps} {'takes' if found.steps == 1 else 'take'} {part(found.mean_ms)}{phase})"


def loader_texts(arm: ArmReport, name: str) -> list[str]:
    """Return warnings with remedies on loader workers that repeat batches or deliver none. ``name``: of the arm."""
    remedy = "split its items by worker (torch.utils.data.get_worker_info)"
    warnings = []
    if arm.copies:
        warnings.append(
            f"{arm.copies} of the {arm.workers} loader workers of {name} made the same batches, so each document is "
            f"trained on {arm.copies} times. Let its dataset {remedy}."
        )
    idle = f"{arm.idle_workers} of the {arm.workers} loader workers of {name}"
    if arm.idle_workers and arm.gave_no_items:
        warnings.append(
            f"{idle} made no batch: the dataset gave them too few items. Give it at least {arm.workers} shards, or let "
            f"it {remedy}."
        )
    elif arm.idle_workers:  # For example a slow worker, if the loader does not keep batches in order.
        warnings.append(f"{idle} delivered no batch in these steps.")
    return warnings


def left_out_lines(arms: Sequence[ArmReport], names: ArmNames) -> list[Headline]:
    """Return a line per arm with steps that contain an evaluation. All other figures exclude these steps."""
    arms_unseen = [(names.short(arm.name), arm.unseen) for arm in arms if arm.unseen is not None]
    return [
        Headline(name, f"evaluations take {percent(unseen.evaluating)} of the time, in "
                 f"{count(unseen.evaluating_steps, 'step')} that the other figures exclude", "")
        for name, unseen in arms_unseen
        if unseen.evaluating_steps
    ]  # fmt: skip


def skipped_lines(arms: Sequence[ArmReport], names: ArmNames) -> list[Headline]:
    """Return a line per arm in which loss scaling skipped optimizer steps (fp16 overflow)."""
    support = "A skipped step halves the loss scale and trains nothing. Warm-up steps are included."
    return [
        Headline(names.short(arm.name), f"{arm.skipped_steps:,} of {count(arm.optimizer_steps, 'optimizer step')} "
                 "skipped, because gradients overflowed in fp16", support)
        for arm in arms
        if arm.skipped_steps
    ]  # fmt: skip


def engine_lines(arms: Sequence[ArmReport], names: ArmNames) -> list[Headline]:
    """Return a line for each arm that tokenizes with another library, with the proof that it gives equal ids."""
    return [
        Headline(names.short(arm.name), f"encodes with {arm.tokenizer_engine}", capitalised(f"{arm.tokenizer_proof}."))
        for arm in arms
        if arm.tokenizer_engine is not None and arm.tokenizer_proof is not None
    ]


def group_lines(arms: Sequence[ArmReport], gain: GroupGain | None, names: ArmNames) -> list[Headline]:
    """Return a line on which rank waits longest for data, and if others wait for it; empty for fewer than two ranks."""
    ranks = [arm for arm in arms if arm.unseen is not None and arm.unseen.ranks > 1 and arm.totals.phase_ms]
    if len(ranks) < 2:
        return []
    waits = {arm.name: arm.totals.phase_ms.get("fetch", 0.0) for arm in ranks}
    last = max(ranks, key=lambda arm: waits[arm.name])
    step_ms = _mean_ms(last)
    most_ms = max(wait for name, wait in waits.items() if name != last.name)
    part = part_of(step_ms)
    support = []
    worked = sorted((arm.wall.worked_ms, arm.name) for arm in ranks if arm.wall is not None)
    similar = waits[last.name] - most_ms < WAITS_ALIKE_SHARE * step_ms
    if similar and len(worked) > 1 and worked[-1][0] - worked[-2][0] >= WAITS_ALIKE_SHARE * step_ms:
        (next_ms, _), (late_ms, late) = worked[-2:]
        finding = (
            f"the others wait for {names.short(late)}, which works {part(late_ms)} of a step; the next works "
            f"{part(next_ms)}"
        )
    elif similar and not any(waits.values()):
        return []
    elif similar:
        finding = f"all wait about as long for data, {part(min(waits.values()))} to {part(max(waits.values()))} a step"
    else:
        stage, exposed_ms = max(last.totals.exposed_ms.items(), key=lambda item: item[1], default=("", 0.0))
        mostly = f", mostly to {stage} ({part(exposed_ms)})" if exposed_ms > waits[last.name] / 2 else ""
        finding = f"{names.short(last.name)} waits {part(waits[last.name])} of {part(step_ms)} a step for data{mostly}"
        support.append(_others(part(most_ms), names.short(last.name), gain))
    if gain is None:
        support.append("The steps of one rank do not show the gain of a change.")
    else:
        support.append(_together(gain.without_data))
    return [Headline(f"{len(ranks)} ranks", finding, " ".join(support))]


def _others(longest: str, last: str, gain: GroupGain | None) -> str:
    """Return a sentence on whether the others, which wait ``longest`` at most, then wait for the rank ``last``."""
    text = f"The others wait {longest} at most"
    if gain is None:
        return f"{text}. It is unknown whether they then wait for {last}."
    gain_if_alike = gain.slowest_alike
    upper = gain_if_alike.median if gain_if_alike.ci_high is None else gain_if_alike.ci_high
    if upper <= 1 + WORTH_SHARE:
        return f"{text} and work while {last} still waits: none waits for it."
    if gain_if_alike.median <= 1 + WAIT_SHARE:
        return f"{text}. None was seen to wait for {last}; the record is incomplete (at most {ratio(upper)} as fast)."
    certainty = "and then for" if _surely(gain_if_alike) else "and then perhaps for"
    return (
        f"{text} {certainty} {last}. If {last} waited no longer than the next, all would be {_or_none(gain_if_alike)}."
    )


def _together(without: Estimate) -> str:
    """Return a sentence on how fast all ranks would be without any data work. ``without``: that speedup."""
    if without.median <= 1 + WAIT_SHARE:
        return f"Without any data work all would be no faster: {ratio(without.median)}{_range(without)}."
    return f"Without any data work all would be {_or_none(without)}, if each has cores of its own."


def _surely(one: Estimate) -> bool:
    return (one.median if one.ci_low is None else one.ci_low) > 1 + WAIT_SHARE


def _or_none(one: Estimate) -> str:
    """Format ``1.298x as fast (1.290x to 1.302x)``, with "or no faster" if its lower end is not above 1."""
    return f"{ratio(one.median)} as fast{'' if _surely(one) else ' or no faster'}{_range(one)}"


def _range(one: Estimate) -> str:
    return f" ({interval(one)})" if one.ci_low is not None else ""


def _mean_ms(arm: ArmReport) -> float:
    return arm.totals.mean_step_ms or 0.0


def _data(arm: ArmReport) -> str:
    """Return sentences on how long steps wait for data, and how much data work is hidden behind the steps."""
    totals = arm.totals
    step_ms = _mean_ms(arm)
    part = part_of(step_ms)
    fetch_ms = totals.phase_ms.get("fetch")
    blocked_ms = 0.0 if arm.unseen is None or arm.unseen.reason == "blocked" else arm.unseen.blocked * step_ms
    unseen = blocked_ms >= WORTH_SHARE * step_ms
    if fetch_ms is None and arm.attached is not None:
        waits = f"; {part(blocked_ms)} of a step, blocked outside of all phases, may be the wait" if unseen else ""
        return f"Its data loading was not timed{waits}."
    if fetch_ms is None:
        return "Its wait for data was not measured."
    waited_ms = sum(totals.exposed_ms.values()) if totals.exposed_ms else fetch_ms
    parts = [f"{stage} {part(value)}" for stage, value in totals.exposed_ms.items() if value >= WAIT_SHARE * step_ms]
    hidden_ms = sum(totals.hidden_ms.values())
    hidden = ""
    if hidden_ms >= WAIT_SHARE * step_ms:  # Hidden work may take cores from the step; no replay models that.
        contended_ms = totals.contended_ms or 0.0
        cores = f"; a step waits {part(contended_ms)} for a core" if contended_ms >= WORTH_SHARE * step_ms else ""
        hidden = f" {part(hidden_ms)} of data work is hidden behind the step{cores}."
    if arm.unseen is not None and arm.unseen.device:
        return _device(arm, fetch_ms, step_ms)
    if unknown := either_way(totals.waited_range_ms, step_ms):
        work_ms = sum(totals.work_ms.values())
        return f"Data work takes {part(work_ms)}. {unknown}"
    if waited_ms < WAIT_SHARE * step_ms:
        upper = f", or up to {part(blocked_ms)} outside of timed phases" if unseen else ""
        return f"It hardly waits for data ({part(waited_ms)}{upper}).{hidden}"
    if totals.uneven is not None:
        return f"It waits for data {in_blocks(totals.uneven)}.{hidden}"
    by_stage = f": {listing(parts)}" if parts else ""
    return f"It waits {part(waited_ms)} of that for data ({percent(waited_ms / step_ms)}{by_stage}).{hidden}"


def _device(arm: ArmReport, fetch_ms: float, step_ms: float) -> str:
    """Return sentences on the device's idle time in all and during the host's waits (``fetch_ms`` per step)."""
    totals, part = arm.totals, part_of(step_ms)
    if totals.device_starved_ms is None:
        return (
            f"The host waits {part(fetch_ms)} for data. The device was not recorded, so the cost for the step is "
            "unknown."
        )
    idle = {stage: totals.starved_ms.get(stage, 0.0) for stage in STAGES}
    idle_ms = sum(idle.values())
    parts = listing([f"{stage} {part(value)}" for stage, value in idle.items() if value >= WAIT_SHARE * step_ms])
    if idle_ms >= WAIT_SHARE * step_ms:
        idle_text = f"{part(idle_ms)} while the host waits for data" + (f" ({parts})" if parts else "")
        text = f"The device is idle for {part(totals.device_starved_ms)} of that, {idle_text}."
    else:
        text = (
            f"The host waits {part(fetch_ms)} for data while the device has work: the device is idle for "
            f"{part(idle_ms)} then, and for {part(totals.device_starved_ms)} in all."
        )
    open_ms = totals.device_unknown_ms
    if open_ms >= WAIT_SHARE * step_ms and totals.busy_from == "profiled window" and totals.device_busy_ms is not None:
        launching_ms = step_ms - totals.device_starved_ms - totals.device_busy_ms
        waited = f" and waits for launches for {part(launching_ms)}" if launching_ms >= WAIT_SHARE * step_ms else ""
        text += f" It works for {part(totals.device_busy_ms)}{waited}, by the kernels of a profiled window."
    elif open_ms >= WAIT_SHARE * step_ms:
        text += f" For {part(open_ms)} it worked or waited for launches: CUDA events do not show which."
    waits = "" if any(cause.place for cause in arm.causes) else " and waits of the host for the device"
    return (
        f"{text} No saving is predicted: work on other streams, work launched within a fetch{waits} are not recorded."
    )


def _gain(arm: ArmReport) -> str:
    """Return sentences on the speedup without data work, measured and predicted, and on a disagreement; else ""."""
    explained = arm.explained
    measured, replayed = explained.ideal_measured, explained.ideal_predicted if explained.within_tolerance else None
    parts = []
    if measured is not None:
        parts.append(f" {_measured_gain(arm, measured, explained.measured_in_blocks)}")
    elif explained.no_ideal is not None and explained.no_ideal.kind == "ideal-data of another length":
        parts.append(f" {capitalised(reason(explained.no_ideal))}.")
    if replayed is not None:
        faster = _as_fast(arm, replayed, explained.predicted_in_blocks)
        hides = measured is None and sum(arm.totals.hidden_ms.values()) >= WORTH_SHARE * _mean_ms(arm)
        launch_bound = measured is None and arm.totals.bound == "launch"
        if launch_bound and explained.predicted_in_blocks is None:
            faster = f"about {replayed.median:.2f}x as fast"  # Three decimals would be too precise.
        cores = "; hidden work may also take cores and memory bandwidth" if hides else ""
        parts.append(f" Without any data work it would be {faster}, by replay{cores}.")
        if launch_bound:  # Beside loader workers of an H200, forward took 18 % longer.
            slowed = ", and hidden work may slow them" if hides else ""
            parts.append(f" Launches limit its step{slowed}: measure with ideal-data.")
    if measured is not None and replayed is not None and _apart(measured, replayed):
        parts.append(f" {_disagreement(arm, measured, replayed)}")
    return "".join([*parts, _restarts(arm), _sampler(arm)])


def control_findings(arm: ArmReport) -> list[str]:
    """Return what an arm's controls measured: the speedup without data work, and the slowdown injections."""
    measured = arm.explained.ideal_measured
    return [*([] if measured is None else [_measured_gain(arm, measured)]), *(line.text for line in _dose_lines(arm))]


def _dose_lines(arm: ArmReport) -> list[Headline]:
    return [Headline("Slowdown injection", dose_line(dose), "") for dose in arm.explained.doses]


def _measured_gain(arm: ArmReport, measured: Estimate, kinds: UnevenSpeed | None = None) -> str:
    return f"Without data work (ideal-data) it is {_as_fast(arm, measured, kinds)}, measured."


def _as_fast(arm: ArmReport, one: Estimate, kinds: UnevenSpeed | None) -> str:
    """Format ``1.020x as fast (1.010x to 1.030x)``. ``kinds``: two kinds of blocks, formatted instead if given."""
    uneven = arm.totals.uneven
    if kinds is None or uneven is None:
        return f"{ratio(one.median)} as fast{_range(one)}"
    blocks_text = f"those {len(uneven.blocks)} blocks" if len(uneven.blocks) > 1 else "that block"
    text = f"{ratio(kinds.more)} as fast in {blocks_text} and {ratio(kinds.others)} in the others"
    if uneven.half:
        return text  # The median lies between both kinds, so no block has it.
    return f"{text} (median block: {ratio(one.median)}{f', {interval(one)}' if one.ci_low is not None else ''})"


def _apart(measured: Estimate, replayed: Estimate) -> bool:
    """Return True if intervals are over :data:`WITNESSES_WITHIN` apart, or medians over :data:`REPLAY_ERROR_MAX`."""
    ends = [
        (estimate.ci_low or estimate.median, estimate.ci_high or estimate.median) for estimate in (measured, replayed)
    ]
    have_intervals = all(estimate.ci_low is not None for estimate in (measured, replayed))
    (low, high), (other_low, other_high) = ends
    return max(low, other_low) > min(high, other_high) * (
        1 + (WITNESSES_WITHIN if have_intervals else REPLAY_ERROR_MAX)
    )


def _disagreement(arm: ArmReport, measured: Estimate, replayed: Estimate) -> str:
    """Return a sentence on why measured and replayed speedup may disagree: hidden data work, or other waits."""
    if measured.median < replayed.median:
        possible_reason = "part of the wait may have another cause than data work"
    elif sum(arm.totals.hidden_ms.values()) > 0:
        possible_reason = (
            "hidden data work can take cores and memory bandwidth from the step; or the few batches of the control "
            "are faster to compute than others"
        )
    else:
        possible_reason = "the few batches of the control may be faster to compute than others"
    return f"The two disagree: {possible_reason}."


def _restarts(arm: ArmReport) -> str:
    """Return a sentence on what restarts of the loader take, or that no epoch ended; "" if little or unknown."""
    if arm.unseen is not None and arm.unseen.never_restarted:
        return " No epoch ends in these steps, so no figure includes the cost of restarting the loader."
    if arm.unseen is None or arm.unseen.restarting <= RESTART_SHARE_MAX:
        return ""
    part, step_ms = part_of(_mean_ms(arm)), _mean_ms(arm)
    restarting = part(arm.unseen.restarting * step_ms)
    waits = f" A step waits {restarting} on average for the loader to restart at the ends of epochs"
    if arm.unseen.workers:
        advice = "" if arm.unseen.persistent_workers else ". persistent_workers=True keeps them alive"
        return f"{waits}, and more workers are not predicted{advice}."
    return f"{waits}; replay removes only the reading in it."


def _sampler(arm: ArmReport) -> str:
    """Return a sentence on a slow sampler, which runs in the main thread, so workers do not help; "" if fast."""
    if arm.unseen is None or arm.unseen.sampling <= RESTART_SHARE_MAX:
        return ""
    step_ms = _mean_ms(arm)
    return (
        f" Its sampler takes {part_of(step_ms)(arm.unseen.sampling * step_ms)} of a step in the main thread, and "
        "loader workers cannot take it over: draw fewer items, or draw them faster."
    )


def _unseen(arm: ArmReport, one: Unseen) -> Iterator[Headline]:
    step_ms = _mean_ms(arm)
    if one.tokenizing >= WAIT_SHARE:
        yield Headline(
            "Tokenizing in the loop",
            f"{part_of(step_ms)(one.tokenizing * step_ms)} of a step, after the batch was fetched",
            "The figures for data above do not include it.",
        )
    if one.reason in UNSEEN_LINES:
        yield UNSEEN_LINES[one.reason](arm, one)


def _no_core(arm: ArmReport, _one: Unseen) -> Headline:
    return Headline(
        "Not to be trusted",
        f"the main thread waited for a core for {percent_over(arm.waiting, CORE_WAIT_SHARE_MAX)} of the time (at "
        f"most {percent(CORE_WAIT_SHARE_MAX)} is trusted)",
        "Other processes, more threads than cores, or a CPU quota took the core. Repeat on a free machine: until "
        "then replay predicts nothing. Costs, shares and savings of the step's parts are without these waits.",
    )


def _blocked(arm: ArmReport, one: Unseen) -> Headline:
    step_ms = _mean_ms(arm)
    phase = f", mostly in {one.place}" if one.place else ""
    return Headline(
        "Not timed",
        f"the main thread is blocked for {part_of(step_ms)(one.blocked * step_ms)} of a step outside of all "
        f"phases{phase}",
        f"That is over {percent(UNSEEN_SHARE_MAX)}. If it is a wait for data, the figures above leave it out: no "
        "saving is predicted.",
    )


# Lines of an arm for which nothing is predicted. They state the reason, so the advice does not repeat it.
UNSEEN_LINES: Mapping[DoubtKind | None, Callable[[ArmReport, Unseen], Headline]] = {
    "no core": _no_core,
    "blocked": _blocked,
}
