"""Writes the section "Why", and what removing each part of a step would save: chains, device ledger, replays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.explain.exposure import SyncCall
from harness.explain.policy import (
    LIMIT_SHARE_MIN,
    LOADERS_BUSY_SHARE,
    PREDICTED_STEPS_MAX,
    REMOVAL_REPLICATES,
    REPLAY_ERROR_MAX,
    ROOM_FELT_SHARE,
)
from harness.explain.replay.attribution import PathLink, PathTime, Removal
from harness.explain.spans import UNANNOUNCED
from harness.judge.doubts import RULE_OF
from harness.judge.report_types import ArmReport, ArmTotals, Comparison, StudyReport, WhatIf
from harness.show.chain import ChainLink, chain
from harness.show.names import ArmNames
from harness.show.policy import OPEN_SHARE, PATH_SHARE_MIN, SAVING_SHARE_MIN, SAVINGS_LISTED
from harness.show.sentences import either_way
from harness.show.tables import NOT_MEASURED, code, estimate_cell, number_cell, ratio_cell, safe, stages_cell, table
from harness.show.text.doubts import GAPS
from harness.show.words import count, listing, ms, number, percent, ratio
from harness.study.contract import CAUSES, STAGES

PICTURE = "why.png"
LINK_NAMES = {"contended": "waiting for a core", "dose": "slowdown injection (dose)"}  # as the page shows them


def section(report: StudyReport, pictures: Sequence[str], names: ArmNames) -> str:
    """Everything between a gain in isolation and the gain in training; empty where nothing was compared."""
    parts = []
    compared = report.compared
    if compared:
        if PICTURE in pictures:
            parts.append(f"![From the gain in isolation to the gain in training](plots/{PICTURE})")
        parts += [_chain(c, names) for c in compared]
    device = [arm for arm in report.arms if arm.totals.starved_ms and not arm.control]
    if device:
        parts += [
            "### The device's ledger",
            _device_table(device, names),
            *_listed(launch_bound_lines(device)),
            _device_note(),
        ]
    audited = [arm for arm in report.arms if arm.explained.syncs and not arm.control]
    if audited:
        parts += ["### Blocking calls", _sync_table(audited, names), SYNC_NOTE]
    asked = [c for c in compared if c.explained.whatifs]
    if asked:
        parts += ["### What if", _whatif_table(asked, names), _whatif_note(asked)]
    replayed = [arm for arm in report.arms if arm.explained.replay_error is not None and not arm.control]
    if replayed:
        parts += ["### Replay against measurement", _replay_table(replayed, names), REPLAY_NOTE]
    return "\n\n".join(parts)


def _listed(lines: Sequence[str]) -> list[str]:
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def _whatif_table(comparisons: Sequence[Comparison], names: ArmNames) -> str:
    header = [
        "candidate / baseline",
        "under",
        "baseline step ms (median of blocks)",
        "waits for data ms",
        "candidate step ms (median of blocks)",
        "times as fast",
    ]
    asked = [(c, one) for c in comparisons for one in c.explained.whatifs]
    checked = any(one.measured_ms is not None for _, one in asked)
    rows = [
        [
            names.pair(c.candidate, c.baseline),
            one.edits or "as it is",
            estimate_cell(one.baseline_ms) if one.reason is None else GAPS[one.reason],
            _ms(one.waits_ms),
            _whatif_candidate(one),
            ratio_cell(one.ratio),
            *([estimate_cell(one.measured_ms)] if checked else []),
        ]
        for c, one in asked
    ]
    return table([*header, *(["measured ms"] if checked else [])], rows)


def _whatif_candidate(one: WhatIf) -> str:
    if one.candidate_reason is None or one.measured_ms is not None:  # it ran under these edits already
        return estimate_cell(one.candidate_ms)
    return GAPS[one.candidate_reason]


def _whatif_note(comparisons: Sequence[Comparison]) -> str:
    checked = any(one.measured_ms is not None for c in comparisons for one in c.explained.whatifs)
    doubted: dict[str, dict[str, None]] = {}  # by reason: the predictions that it is about
    for one in (one for c in comparisons for one in c.explained.whatifs):
        for doubt in one.doubts:
            about = ", ".join((one.edits or "as it is", *doubt.arms))
            doubted.setdefault(RULE_OF[doubt.kind].applies, {})[about] = None
    listed = "".join(f"\n- {applies} {safe('; '.join(about))}" for applies, about in doubted.items())
    lines = f"\n\nDoubts about these predictions:\n{listed}" if listed else ""
    return WHATIF_NOTE + (WHATIF_MEASURED if checked else "") + lines


WHATIF_MEASURED = (
    " *measured*: the candidate is what the edits make of the baseline; it was run, and this was its step: hold the "
    "baseline's prediction against it."
)
WHATIF_NOTE = (
    "Both arms replayed under the edits that the scenario asks about (`whatif`), block by block: predictions, not "
    "measurements. *waits for data* is a rank's own; what it waits for the slowest is in the "
    "step time. Ranks: every step waits for the slowest rank's data; their communication is left out."
)


def _chain(c: Comparison, names: ArmNames) -> str:
    lines = [f"**{safe(names.short(c.candidate))} against {safe(names.short(c.baseline))}**", ""]
    lines += [f"{place}. {_link(link)}" for place, link in enumerate(chain(names.shorten_compared(c)), start=1)]
    return "\n".join(lines)


def _link(link: ChainLink) -> str:
    figure = "" if link.ratio is None else f" {ratio(link.ratio)}"
    return f"*{LINK_NAMES.get(link.name, link.name)}*{figure}: {safe(link.text)}"


def _device_table(arms: Sequence[ArmReport], names: ArmNames) -> str:
    idle = [arm.totals.starved_ms for arm in arms]
    shown = [cause for cause in CAUSES if any(by_cause.get(cause, 0) >= 0.005 for by_cause in idle)] or ["python"]
    header = ["arm", "busy ms", "idle ms", f"idle by {' / '.join(shown)}", "slack ms", "bound"]
    rows = [
        [
            names.short(arm.name),
            _busy(arm.totals),
            _idle(arm.totals),
            stages_cell(arm.totals.starved_ms, shown),
            _ms(arm.totals.slack_ms),
            _bound(arm.totals),
        ]
        for arm in arms
    ]
    return table(header, rows)


def _bound(totals: ArmTotals) -> str:
    if totals.bound is not None:
        return totals.bound
    return listing([f"{name} in {count(blocks, 'block')}" for name, blocks in totals.bounds.items()]) or NOT_MEASURED


def _busy(totals: ArmTotals) -> str:
    """Busy time; where phases that were still being launched leave it open, its least and most."""
    if totals.device_busy_ms is not None:
        source = " (profiled window)" if totals.busy_from == "profiled window" else ""
        return f"{number(totals.device_busy_ms)}{source}"
    if totals.step_ms is None or totals.device_starved_ms is None or totals.device_launch_bound_ms is None:
        return NOT_MEASURED
    most = max(0.0, sum(totals.phase_ms.values()) - totals.device_starved_ms)
    if totals.busy_at_least_ms is not None:
        return f"unknown ({number(totals.busy_at_least_ms)} by SM activity, to {number(most)})"
    return f"unknown ({number(max(0.0, most - totals.device_unknown_ms))} to {number(most)})"


def _idle(totals: ArmTotals) -> str:
    """Idle time; what lies within phases that were still being launched comes on top."""
    at_least = "at least " if totals.device_busy_ms is None and totals.device_unknown_ms else ""
    return f"{at_least}{_ms(totals.device_starved_ms)}"


def launch_bound_lines(arms: Sequence[ArmReport]) -> list[str]:
    """One line for each arm whose device waited for launches."""
    lines = []
    for arm in arms:
        phases = [
            f"{name} ({percent(share)} of steps)" for name, share in arm.totals.launch_bound.items() if share >= 0.05
        ]
        if phases and (arm.totals.device_launch_bound_ms or 0) > 0:
            lines.append(
                f"{safe(arm.name)}: launch-bound in {listing(phases)}: the device ends them as the host ends launching "
                f"them. In {_ms(arm.totals.device_launch_bound_ms)} ms of a step it worked or waited for a launch; "
                f"{_work_in_launches(arm.totals)}"
            )
        open_ms = arm.totals.device_open_ms or 0.0
        if arm.totals.device_busy_ms is None and open_ms > OPEN_SHARE * sum(arm.totals.phase_ms.values()):
            also = " also" if phases else ""
            blocks = any(one.site.endswith(UNANNOUNCED) for one in arm.explained.syncs)
            later = "ended them later, or a call that nobody timed blocks within them" if blocks else "ended them later"
            lines.append(
                f"{safe(arm.name)}: for {ms(open_ms)} of a step the device{also} was at phases that the host was still "
                f"launching, and {later}. It worked all that time, or waited for launches for some of it: its "
                f"events do not tell, the kernels of a profiled window do.{_either_way(arm.totals)}"
            )
    return lines


def _work_in_launches(totals: ArmTotals) -> str:
    """Write how much of launch-bound phases was work, if a profiled window shows it."""
    if totals.busy_from != "profiled window" or totals.device_busy_ms is None:
        return "how much of each, its events do not tell."
    return (
        f"the kernels of a profiled window take {ms(totals.device_busy_ms)} of a step, which is taken to hold for the "
        "measured steps."
    )


def _either_way(totals: ArmTotals) -> str:
    """What that means for data work, where it means much."""
    unknown = either_way(totals.waited_range_ms, sum(totals.phase_ms.values()))
    return f" Data work is {ms(sum(totals.work_ms.values()))} of the step. {unknown}" if unknown else ""


def _device_note() -> str:
    least = percent(LIMIT_SHARE_MIN)
    return (
        "Means per step. *idle*: the device had nothing to do, by what the host did at that moment. *slack*: "
        "work still queued when the host began to fetch. Fetching and launching may take up that much once; whether "
        "every step may take so much longer is what *bound* says: the largest "
        "of what data work costs the step (data), device idle time while the host did anything else (host), and time "
        "in phases that the device ends with their launches (launch), where that is more than "
        f"{least} of the step; and "
        f"data, whatever is largest, where that costs more than {least} of the step and loader "
        f"workers are at work for over {percent(LOADERS_BUSY_SHARE)} of the time. "
        f"Otherwise device or launch, where the device was at other phases for more than {least} of the step "
        "while the host was still launching them: it worked, or waited for launches. Otherwise device where "
        f"fetching could last {least} of the step longer "
        f"at a cost of {percent(ROOM_FELT_SHARE)} of that at most, else balanced."
    )


def _sync_table(arms: Sequence[ArmReport], names: ArmNames) -> str:
    header = ["arm", "blocking call", "per step", "blocked ms", "then hidden ms (behind)", "then idle ms"]
    rows = [
        [
            names.short(arm.name),
            code(call.site),
            number(call.calls_per_step),
            _ms(call.blocked_ms),
            _hid(call),
            _ms(call.idle_ms),
        ]
        for arm in arms
        for call in arm.explained.syncs
    ]
    return table(header, rows)


def _hid(call: SyncCall) -> str:
    if call.hid_ms < 0.005:
        return number(call.hid_ms)
    behind = [name for name, value in call.hid_behind.items() if value >= 0.05 * call.hid_ms]
    return f"{number(call.hid_ms)} ({', '.join(behind)})" if behind else number(call.hid_ms)


SYNC_NOTE = (
    "Means per measured step. A blocking call lets the device run dry of queued work: what the host does from there to "
    "the next blocking call is hidden only behind what it queues meanwhile, and leaves the device idle otherwise. "
    "Launching of launch-bound phases is in neither column: it is not known which of the two it was. An *unannounced* "
    "call is one that nobody timed: torch told of it in one step, and it is taken to come in each."
)


def _replay_table(arms: Sequence[ArmReport], names: ArmNames) -> str:
    header = ["arm", "unedited replay is off by", "resampled", "without data work: predicted", "measured (ideal data)"]
    rows = [
        [
            names.short(arm.name),
            NOT_MEASURED if arm.explained.replay_error is None else f"{arm.explained.replay_error * 100:+.1f} %",
            NOT_MEASURED if arm.explained.resampled_error is None else f"{arm.explained.resampled_error * 100:+.1f} %",
            ratio_cell(arm.explained.ideal_predicted),
            ratio_cell(arm.explained.ideal_measured),
        ]
        for arm in arms
    ]
    return table(header, rows)


REPLAY_NOTE = (
    "The recorded durations played through a simulation of loop, loader and device. Unedited it must give the measured "
    "step time, and how far it is off is its validation error: in the order recorded, which checks the simulation, and "
    "resampled, as predictions are made. With all data work taken out it predicts what the *ideal data* control "
    "measures (times as fast)."
)


def _ms(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value)


def emulation(report: StudyReport) -> str:
    """By which assumptions a device takes its times; empty where everything ran."""
    notes: dict[str, list[str]] = {}
    for arm in report.arms:
        if arm.speed.emulation and not arm.control:
            notes.setdefault(arm.speed.emulation, []).append(safe(arm.name))
    if not report.emulated or not notes:
        return ""
    return "\n".join(f"- {', '.join(arms)}: {safe(note)}" for note, arms in notes.items())


REMOVED = {
    "data": "all data work",
    "launching": "all host time beside the device",
    "sync": "blocking on the gradient norm",
    "queue limit": "the limit of the device's queue",
}
UNSPLIT = {
    "not replayable": "its tables do not hold enough for a replay",
    "replay is off": "the replay of the run as it was is off by more than its tolerance",
    "above its work": "by replay a stage would cost the step more than all of its work",
    "device not recorded": "what its device did was not recorded",
    "no times": "its steps have no times",
    "spans missing": "its spans are missing or damaged",
}


def part_text(one: Removal) -> str:
    """``tokenize (stage)``, ``all data work``."""
    return REMOVED.get(one.name, one.name) if one.kind == "cause" else f"{one.name} ({one.kind})"


def savings(arms: Sequence[ArmReport], names: ArmNames) -> str:
    off = [names.short(arm.name) for arm in arms if arm.explained.removals and not arm.explained.within_tolerance]
    rows = [
        [names.short(arm.name), part_text(one), estimate_cell(one.saved_ms), ratio_cell(one.speedup)]
        for arm in arms
        if arm.explained.within_tolerance
        for one in arm.explained.removals[:SAVINGS_LISTED]
        if abs(one.speedup.median - 1) >= SAVING_SHARE_MIN
    ]
    left_out = (
        f"Not said of {safe(listing(off))}: the unedited replay is off by more than {percent(REPLAY_ERROR_MAX)}."
        if off
        else ""
    )
    if not rows:
        return left_out
    note = (
        "By replay of each run without that part, beside its unedited replay; medians over blocks. Savings overlap: "
        "they need not add up. A kernel is device time, a phase the host's. Where stages of several workers wait (a "
        "disk, a lock), the interval holds that one worker at a time is served. "
        f"Steps are replayed in the order in which they were recorded; a run of more than {PREDICTED_STEPS_MAX:,} "
        f"measured steps is replayed in {REMOVAL_REPLICATES} stretches of its order, each that long."
        + _receiving([arm for arm in arms if arm.explained.removals and arm.explained.within_tolerance], names)
        + (
            " A real device's queue may be full (CUDA's takes about 1,000 launches), and the host's wait for it counts "
            "as launching here: where much was queued, the interval of a kernel holds all of its time, and that of a "
            "phase that launches nothing saved."
            if any(one.kind == "kernel" for arm in arms for one in arm.explained.removals if not arm.speed.emulation)
            else ""
        )
    )
    parts = [table(["arm", "without", "saved ms", "speed"], rows), note, left_out]
    return "\n\n".join(part for part in parts if part)


def _receiving(arms: Sequence[ArmReport], names: ArmNames) -> str:
    """Where replay has from what receiving a worker's batch costs; empty without workers."""
    unknown = [names.short(arm.name) for arm in arms if arm.explained.receiving == "not recorded"]
    if unknown:
        of = listing(unknown) if len(unknown) <= 3 else f"{len(unknown)} arms"
        return (
            f" What receiving a worker's batch costs was not recorded of {safe(of)}: it is what batches that lay ready "
            "show, or else assumed."
        )
    if any(arm.explained.receiving == "recorded" for arm in arms):
        return " What receiving a worker's batch costs is recorded (spans of role `receive`)."
    return ""


def critical_paths(arms: Sequence[ArmReport], names: ArmNames) -> str:
    lines = []
    for arm in arms:
        path = arm.explained.critical_path_ms
        whole_ms = sum(spent.likely_ms for spent in path.values())
        worth = [
            f"{_link_text(one)} {_share_text(spent, whole_ms)}"
            for one, spent in path.items()
            if spent.most_ms >= PATH_SHARE_MIN * whole_ms > 0
        ]
        shares = arm.totals.bound_shares
        held = shares is not None and math.isnan(shares.room)  # by a queue that nobody saw
        if worth and arm.explained.within_tolerance and not held:
            lines.append(f"- {safe(names.short(arm.name))}: {safe(listing(worth))}")
    if not lines:
        return ""
    note = (
        "The one chain of work without slack that the time of the steps consists of, in shares of it, by replay of the "
        f"first {PREDICTED_STEPS_MAX} measured steps in their recorded order; links under {percent(PATH_SHARE_MIN)} "
        "are left out. Where events do not tell when the device worked: from least to most. A share is no saving (see "
        "above): that may be less, as another chain may be hardly shorter, or more, as a phase that blocks leaves its "
        "wait to what it waits for, and work that takes cores slows what runs beside it."
    )
    return "\n\n".join(("\n".join(lines), note))


def _share_text(spent: PathTime, whole_ms: float) -> str:
    """``60 %``, or ``12 % to 60 %``."""
    least, most = spent.least_ms / whole_ms, spent.most_ms / whole_ms
    return (
        percent(spent.likely_ms / whole_ms)
        if most - least < SAVING_SHARE_MIN
        else f"{percent(least)} to {percent(most)}"
    )


def _link_text(one: PathLink) -> str:
    """``tokenize (stage)``, ``launching forward``."""
    if one.kind == "launch":
        return f"launching {one.name}"
    return f"return of a {one.name}" if one.kind == "return" else f"{one.name} ({one.kind})"


def places(arms: Sequence[ArmReport], names: ArmNames) -> str:
    """Return where the time of data work lay, and which arms have stages of unknown cost."""
    return "\n\n".join(part for part in (_places_table(arms, names), _unsplit(arms, names)) if part)


def _places_table(arms: Sequence[ArmReport], names: ArmNames) -> str:
    shown = [arm for arm in arms if arm.totals.during_wait_ms]
    if not shown:
        return ""
    between = {arm.name: sum(arm.totals.between_steps_ms.values()) for arm in shown}
    header = ["arm", "work ms", "ran during the wait ms", "during waits for others ms"]
    note = (
        f"{' / '.join(STAGES)} per step; of waits for other batches all stages together. Where the time of data work "
        "lay, not what it cost: a wait is caused by work that ran before it as well."
    )
    rows = [
        [
            names.short(arm.name),
            stages_cell(arm.totals.work_ms, STAGES),
            stages_cell(arm.totals.during_wait_ms, STAGES),
            number_cell(sum(arm.totals.parallel_ms.values())),
        ]
        for arm in shown
    ]
    if any(between[arm.name] >= SAVING_SHARE_MIN * (arm.totals.p50_ms or 0.0) > 0 for arm in shown):
        header.append("between steps ms")
        rows = [[*row, number_cell(between[arm.name])] for row, arm in zip(rows, shown, strict=True)]
        note += (
            " *Between steps*, all stages together: between training steps (beside an evaluation, say), so that "
            "it was neither waited for nor hidden behind one."
        )
    return f"{table(header, rows)}\n\n{note}"


def _unsplit(arms: Sequence[ArmReport], names: ArmNames) -> str:
    lines = [
        f"- What each stage of {safe(names.short(arm.name))} cost is not known: {UNSPLIT.get(why, why)}."
        for arm in arms
        if (why := arm.totals.unsplit) is not None
    ]
    return "\n".join(lines)
