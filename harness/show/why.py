"""Writes the section "Why" (chains, device ledger, replays), and the predicted saving of removing each part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
from harness.show.chain import chain
from harness.show.names import ArmNames
from harness.show.policy import OPEN_SHARE, PATH_SHARE_MIN, SAVING_SHARE_MIN, SAVINGS_LISTED
from harness.show.sentences import either_way
from harness.show.tables import (
    NOT_MEASURED,
    bulleted,
    cell,
    code,
    column_table,
    estimate_cell,
    joined,
    number_cell,
    ratio_cell,
    safe,
    stages_cell,
)
from harness.show.text.doubts import GAPS
from harness.show.words import count, listing, ms, number, percent, ratio
from harness.study.contract import CAUSES, STAGES

PICTURE = "why.png"
LINK_NAMES = {"contended": "waiting for a core", "dose": "slowdown injection (dose)"}  # names of links on the page


def section(report: StudyReport, pictures: Sequence[str], names: ArmNames) -> str:
    """Return Markdown: chains of explanations, device time, blocking calls, what-if predictions, replay errors."""
    parts = []
    compared = report.compared
    arms = [arm for arm in report.arms if not arm.control]
    if compared:
        if PICTURE in pictures:
            parts.append(f"![From the gain in isolation to the gain in training](plots/{PICTURE})")
        parts += [_chain(c, names) for c in compared]
    if device := [arm for arm in arms if arm.totals.starved_ms]:
        lines = bulleted(launch_bound_lines(device))
        parts += ["### The device's ledger", _device_table(device, names), *([lines] if lines else []), DEVICE_NOTE]
    if audited := [arm for arm in arms if arm.explained.syncs]:
        parts += ["### Blocking calls", _sync_table(audited, names), SYNC_NOTE]
    if pairs := [(c, whatif) for c in compared for whatif in c.explained.whatifs]:
        parts += ["### What if", _whatif_table(pairs, names), _whatif_note([whatif for _, whatif in pairs])]
    if replayed := [arm for arm in arms if arm.explained.replay_error is not None]:
        parts += ["### Replay against measurement", _replay_table(replayed, names), REPLAY_NOTE]
    return "\n\n".join(parts)


def _whatif_table(asked: Sequence[tuple[Comparison, WhatIf]], names: ArmNames) -> str:
    def baseline(one: WhatIf) -> str:
        return estimate_cell(one.baseline_ms) if one.reason is None else GAPS[one.reason]

    def candidate(one: WhatIf) -> str:
        unknown = one.candidate_reason is not None and one.measured_ms is None
        return GAPS[one.candidate_reason or ""] if unknown else estimate_cell(one.candidate_ms)

    columns: dict[str, Callable[[tuple[Comparison, WhatIf]], str]] = {
        "candidate / baseline": lambda row: names.pair(row[0].candidate, row[0].baseline),
        "under": lambda row: row[1].edits or "as it is",
        "baseline step ms (median of blocks)": lambda row: baseline(row[1]),
        "waits for data ms": lambda row: number_cell(row[1].waits_ms),
        "candidate step ms (median of blocks)": lambda row: candidate(row[1]),
        "times as fast": lambda row: ratio_cell(row[1].ratio),
    }
    if any(whatif.measured_ms is not None for _, whatif in asked):
        columns["measured ms"] = lambda row: estimate_cell(row[1].measured_ms)
    return column_table(asked, columns)


def _whatif_note(asked: Sequence[WhatIf]) -> str:
    checked = any(entry.measured_ms is not None for entry in asked)
    doubted: dict[str, dict[str, None]] = {}  # predictions by the reason to doubt them
    for whatif in asked:
        for doubt in whatif.doubts:
            subject = ", ".join((whatif.edits or "as it is", *doubt.arms))
            doubted.setdefault(RULE_OF[doubt.kind].applies, {})[subject] = None
    listed = bulleted(f"{applies} {safe('; '.join(subjects))}" for applies, subjects in doubted.items())
    return joined(WHATIF_NOTE + WHATIF_MEASURED * checked, "Doubts about these predictions:" * bool(listed), listed)


WHATIF_MEASURED = (
    " *measured*: the candidate equals the baseline with the edits, and its step was measured: compare it with the "
    "baseline's prediction."
)
WHATIF_NOTE = (
    "Both arms replayed under the edits that the scenario asks about (`whatif`), block by block: predictions, not "
    "measurements. *waits for data* is a rank's own; what it waits for the slowest is in the "
    "step time. Ranks: every step waits for the slowest rank's data; their communication is left out."
)


def _chain(c: Comparison, names: ArmNames) -> str:
    lines = [f"**{safe(names.short(c.candidate))} against {safe(names.short(c.baseline))}**", ""]
    for index, link in enumerate(chain(names.shorten_compared(c)), start=1):
        figure = "" if link.ratio is None else f" {ratio(link.ratio)}"
        lines.append(f"{index}. *{LINK_NAMES.get(link.name, link.name)}*{figure}: {safe(link.text)}")
    return "\n".join(lines)


def _device_table(arms: Sequence[ArmReport], names: ArmNames) -> str:
    idle = [arm.totals.starved_ms for arm in arms]
    shown = [cause for cause in CAUSES if any(by_cause.get(cause, 0) >= 0.005 for by_cause in idle)] or ["python"]
    return column_table(arms, {
        "arm": lambda arm: names.short(arm.name),
        "busy ms": lambda arm: _busy(arm.totals),
        "idle ms": lambda arm: _idle(arm.totals),
        f"idle by {' / '.join(shown)}": lambda arm: stages_cell(arm.totals.starved_ms, shown),
        "slack ms": lambda arm: number_cell(arm.totals.slack_ms),
        "bound": lambda arm: _bound(arm.totals),
    })  # fmt: skip


def _bound(totals: ArmTotals) -> str:
    if totals.bound is not None:
        return totals.bound
    return listing([f"{name} in {count(blocks, 'block')}" for name, blocks in totals.bounds.items()]) or NOT_MEASURED


def _busy(totals: ArmTotals) -> str:
    """Format the device's busy time (ms per step): "unknown (LOW to HIGH)" if CUDA events leave it open."""
    if totals.device_busy_ms is not None:
        source = " (profiled window)" if totals.busy_from == "profiled window" else ""
        return f"{number(totals.device_busy_ms)}{source}"
    if totals.step_ms is None or totals.device_starved_ms is None or totals.device_launch_bound_ms is None:
        return NOT_MEASURED
    upper = max(0.0, sum(totals.phase_ms.values()) - totals.device_starved_ms)
    if totals.busy_at_least_ms is not None:
        return f"unknown ({number(totals.busy_at_least_ms)} by SM activity, to {number(upper)})"
    return f"unknown ({number(max(0.0, upper - totals.device_unknown_ms))} to {number(upper)})"


def _idle(totals: ArmTotals) -> str:
    """Format the device's idle time (ms per step), with "at least" if CUDA events leave more open."""
    at_least = "at least " if totals.device_busy_ms is None and totals.device_unknown_ms else ""
    return f"{at_least}{number_cell(totals.device_starved_ms)}"


def launch_bound_lines(arms: Sequence[ArmReport]) -> list[str]:
    """Return a line for each arm whose device waited for the host to launch work, or may have done so."""
    lines = []
    for arm in arms:
        totals = arm.totals
        phases = [f"{name} ({percent(share)} of steps)" for name, share in totals.launch_bound.items() if share >= 0.05]
        if phases and (totals.device_launch_bound_ms or 0) > 0:
            work = "CUDA events do not show how much of each."
            if totals.busy_from == "profiled window" and totals.device_busy_ms is not None:
                work = (
                    f"the kernels of a profiled window take {ms(totals.device_busy_ms)} of a step, which is assumed to "
                )
                work += "hold for the measured steps."
            lines.append(
                f"{safe(arm.name)}: launch-bound in {listing(phases)}: the device ends them as the host ends launching "
                f"them. In {number_cell(totals.device_launch_bound_ms)} ms of a step it worked or waited for a launch; "
                f"{work}"
            )
        open_ms = totals.device_open_ms or 0.0
        if totals.device_busy_ms is None and open_ms > OPEN_SHARE * sum(totals.phase_ms.values()):
            addition = " also" if phases else ""
            blocks = any(call.site.endswith(UNANNOUNCED) for call in arm.explained.syncs)
            later = "ended them later, or an untimed call blocks within them" if blocks else "ended them later"
            unknown = either_way(totals.waited_range_ms, sum(totals.phase_ms.values()))
            data = f" Data work is {ms(sum(totals.work_ms.values()))} of the step. {unknown}" if unknown else ""
            lines.append(
                f"{safe(arm.name)}: for {ms(open_ms)} of a step the device{addition} was at phases that the host was "
                f"still launching, and {later}. It worked all that time, or waited for launches for some of it: CUDA "
                f"events do not show this, but the kernels of a profiled window do.{data}"
            )
    return lines


_LEAST = percent(LIMIT_SHARE_MIN)


DEVICE_NOTE = (
    "Means per step. *idle*: time without device work, by what the host did at that moment. *slack*: work still "
    "queued when the host began to fetch. Fetching and launching may take up that much once. *bound*: the largest of "
    "what data work costs the step (data), device idle time while the host did anything else (host), and time in "
    f"phases that the device ends with their launches (launch), where that is more than {_LEAST} of the step; and "
    f"data, whatever is largest, where that costs more than {_LEAST} of the step and loader workers are at work for "
    f"over {percent(LOADERS_BUSY_SHARE)} of the time. Otherwise device or launch, where the device was at other phases "
    f"for more than {_LEAST} of the step while the host was still launching them. Otherwise device where fetching "
    f"could last {_LEAST} of the step longer at a cost of {percent(ROOM_FELT_SHARE)} of that at most, else balanced."
)


def _sync_table(arms: Sequence[ArmReport], names: ArmNames) -> str:
    def hidden(call: SyncCall) -> str:
        phases = [name for name, value in call.hid_behind.items() if value >= 0.05 * call.hid_ms >= 0.05 * 0.005]
        return f"{number(call.hid_ms)} ({', '.join(phases)})" if phases else number(call.hid_ms)

    return column_table([(arm, call) for arm in arms for call in arm.explained.syncs], {
        "arm": lambda row: names.short(row[0].name),
        "blocking call": lambda row: code(row[1].site),
        "per step": lambda row: number(row[1].calls_per_step),
        "blocked ms": lambda row: number_cell(row[1].blocked_ms),
        "then hidden ms (behind)": lambda row: hidden(row[1]),
        "then idle ms": lambda row: number_cell(row[1].idle_ms),
    })  # fmt: skip


SYNC_NOTE = (
    "Means per measured step. After a blocking call the device has no queued work. Until the next one, host work is "
    "hidden only behind work that it queues meanwhile; otherwise the device is idle. Launching of launch-bound phases "
    "is in neither column, because it is unknown which of the two it was. An *unannounced* call is one that was not "
    "timed: torch reported it in one step, and it is assumed to happen in each."
)


def _replay_table(arms: Sequence[ArmReport], names: ArmNames) -> str:
    def off(error: float | None) -> str:
        return cell(error, lambda value: f"{value * 100:+.1f} %")

    return column_table(arms, {
        "arm": lambda arm: names.short(arm.name),
        "unedited replay is off by": lambda arm: off(arm.explained.replay_error),
        "resampled": lambda arm: off(arm.explained.resampled_error),
        "without data work: predicted": lambda arm: ratio_cell(arm.explained.ideal_predicted),
        "measured (ideal data)": lambda arm: ratio_cell(arm.explained.ideal_measured),
    })  # fmt: skip


REPLAY_NOTE = (
    "The recorded durations, replayed in a simulation of loop, loader and device. Without edits it should give the "
    "measured step time. The difference is its validation error: in recorded order, which checks the simulation, and "
    "resampled, as for predictions. Without all data work it predicts the *ideal data* control (times as fast)."
)


def emulation(report: StudyReport) -> str:
    """Return a list of what each emulated device assumes; "" if no device is emulated."""
    notes: dict[str, list[str]] = {}
    for arm in report.arms:
        if report.emulated and arm.speed.emulation and not arm.control:
            notes.setdefault(arm.speed.emulation, []).append(safe(arm.name))
    return bulleted(f"{', '.join(arms)}: {safe(note)}" for note, arms in notes.items())


REMOVED = {
    "data": "all data work",
    "launching": "all host time beside the device",
    "sync": "blocking on the gradient norm",
    "queue limit": "the limit of the device's queue",
}
UNSPLIT = {
    "not replayable": "its tables do not hold enough for a replay",
    "replay is off": "the unedited replay is off by more than its tolerance",
    "above its work": "by replay a stage would cost the step more than all of its work",
    "device not recorded": "its device was not recorded",
    "no times": "its steps have no times",
    "spans missing": "its spans are missing or damaged",
}


def part_text(one: Removal) -> str:
    """Return the name of a removed part of the step: ``tokenize (stage)``, ``all data work``."""
    return REMOVED.get(one.name, one.name) if one.kind == "cause" else f"{one.name} ({one.kind})"


def savings(arms: Sequence[ArmReport], names: ArmNames) -> str:
    """Return a table of the parts whose removal saves most, by replay; a line names arms whose replay is off."""
    removable = [arm for arm in arms if arm.explained.removals]
    inexact = [names.short(arm.name) for arm in removable if not arm.explained.within_tolerance]
    rows = [
        (arm, removal)
        for arm in removable
        if arm.explained.within_tolerance
        for removal in arm.explained.removals[:SAVINGS_LISTED]
        if abs(removal.speedup.median - 1) >= SAVING_SHARE_MIN
    ]
    left_out = (
        f"Not shown for {safe(listing(inexact))}: the unedited replay is off by more than {percent(REPLAY_ERROR_MAX)}."
    )
    if not rows:
        return left_out if inexact else ""
    queues = any(
        removal.kind == "kernel" for arm in removable for removal in arm.explained.removals if not arm.speed.emulation
    )
    shown = column_table(rows, {
        "arm": lambda row: names.short(row[0].name),
        "without": lambda row: part_text(row[1]),
        "saved ms": lambda row: estimate_cell(row[1].saved_ms),
        "speed": lambda row: ratio_cell(row[1].speedup),
    })  # fmt: skip
    return joined(shown, SAVINGS_NOTE + QUEUE_NOTE * queues, left_out if inexact else "")


SAVINGS_NOTE = (
    "By replay of each run without that part, beside its unedited replay; medians over blocks. Savings overlap: they "
    "need not add up. A kernel is device time, a phase the host's. If stages of several workers wait (a disk, a "
    "lock), the interval includes the case that one worker at a time is served. A run of more than "
    f"{PREDICTED_STEPS_MAX:,} measured steps is replayed in {REMOVAL_REPLICATES} stretches of its order, each that "
    "long."
)


QUEUE_NOTE = (
    " A real device's queue may be full, and the host's wait for it counts as launching here: where much was queued, "
    "the interval of a kernel holds all of its time, and that of a phase that launches nothing saved."
)


def critical_paths(arms: Sequence[ArmReport], names: ArmNames) -> str:
    """Return a line per arm with the shares of its critical path, if its replay is within tolerance."""
    lines = []
    for arm in arms:
        path = arm.explained.critical_path_ms
        whole_ms = sum(spent.likely_ms for spent in path.values())
        links = [
            f"{_link_text(link)} {_share_text(spent, whole_ms)}"
            for link, spent in path.items()
            if spent.most_ms >= PATH_SHARE_MIN * whole_ms > 0
        ]
        shares = arm.totals.bound_shares
        # True if a queue that was not recorded held the host.
        host_was_held = shares is not None and math.isnan(shares.room)
        if links and arm.explained.within_tolerance and not host_was_held:
            lines.append(f"{safe(names.short(arm.name))}: {safe(listing(links))}")
    return joined(bulleted(lines), PATH_NOTE) if lines else ""


PATH_NOTE = (
    "The one chain of work without slack that the time of the steps consists of, in shares of it, by replay of the "
    f"first {PREDICTED_STEPS_MAX} measured steps in their recorded order; links under {percent(PATH_SHARE_MIN)} are "
    "left out. If CUDA events do not show when the device worked: from least to most. A share is not a saving (see "
    "above): another chain may be hardly shorter, and the wait of a blocking phase counts for what it waits for."
)


def _share_text(spent: PathTime, whole_ms: float) -> str:
    """Format a link's share of the critical path: ``60 %``, or ``12 % to 60 %`` if its time is uncertain."""
    low, high = spent.least_ms / whole_ms, spent.most_ms / whole_ms
    if high - low < SAVING_SHARE_MIN:
        return percent(spent.likely_ms / whole_ms)
    return f"{percent(low)} to {percent(high)}"


def places(arms: Sequence[ArmReport], names: ArmNames) -> str:
    """Return a table of when data work ran, by stage: in the wait for its batch, in other waits, between steps."""
    unknown = bulleted(
        f"The cost of each stage of {safe(names.short(arm.name))} is unknown: {UNSPLIT.get(cause, cause)}."
        for arm in arms
        if (cause := arm.totals.unsplit) is not None
    )
    return joined(_places_table([arm for arm in arms if arm.totals.during_wait_ms], names), unknown)


def _link_text(one: PathLink) -> str:
    """Return the name of a link of the critical path: ``tokenize (stage)``, ``launching forward``."""
    if one.kind == "launch":
        return f"launching {one.name}"
    return f"return of a {one.name}" if one.kind == "return" else f"{one.name} ({one.kind})"


def _places_table(shown: Sequence[ArmReport], names: ArmNames) -> str:
    if not shown:
        return ""
    columns: dict[str, Callable[[ArmReport], str]] = {
        "arm": lambda arm: names.short(arm.name),
        "work ms": lambda arm: stages_cell(arm.totals.work_ms, STAGES),
        "ran during the wait ms": lambda arm: stages_cell(arm.totals.during_wait_ms, STAGES),
        "during waits for others ms": lambda arm: number_cell(sum(arm.totals.parallel_ms.values())),
    }
    note = (
        f"{' / '.join(STAGES)} per step; of waits for other batches all stages together. This shows where data work "
        "ran, not its cost: earlier work also causes waits."
    )
    between_steps = [(sum(arm.totals.between_steps_ms.values()), arm.totals.p50_ms or 0.0) for arm in shown]
    if any(spent_ms >= SAVING_SHARE_MIN * step_ms > 0 for spent_ms, step_ms in between_steps):
        columns["between steps ms"] = lambda arm: number_cell(sum(arm.totals.between_steps_ms.values()))
        note += (
            " *Between steps*, all stages together: between training steps (such as during an evaluation), so it was "
            "neither waited for nor hidden behind one."
        )
    return f"{column_table(shown, columns)}\n\n{note}"
