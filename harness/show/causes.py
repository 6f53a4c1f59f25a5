"""Tables of causes: what removing each part of a step would save, and where the time of data work ran."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.explain.replay.critical_path import MOST_STEPS, PathLink, PathTime
from harness.explain.replay.pipeline import MOST_STEPS as MOST_REPLAYED
from harness.explain.replay.prediction import TOLERANCE
from harness.explain.replay.removals import REPLICATES, Removal
from harness.judge.report_types import ArmReport
from harness.show.names import ArmNames
from harness.show.policy import PATH_SHARE_MIN, SAVING_SHARE_MIN, SAVINGS_LISTED
from harness.show.tables import estimate_cell, number_cell, ratio_cell, safe, stages_cell, table
from harness.show.words import listing, percent
from harness.study.contract import STAGES

CAUSES = {
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
    return CAUSES.get(one.name, one.name) if one.kind == "cause" else f"{one.name} ({one.kind})"


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
        f"Not said of {safe(listing(off))}: the unedited replay is off by more than {percent(TOLERANCE)}."
        if off
        else ""
    )
    if not rows:
        return left_out
    note = (
        "By replay of each run without that part, beside its unedited replay; medians over blocks. Savings overlap: "
        "they need not add up. A kernel is device time, a phase the host's. Where stages of several workers wait (a "
        "disk, a lock), the interval holds that one worker at a time is served. "
        f"Steps are replayed in the order in which they were recorded; a run of more than {MOST_REPLAYED:,} measured "
        f"steps is replayed in {REPLICATES} stretches of its order, each that long."
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
        f"first {MOST_STEPS} measured steps in their recorded order; links under {percent(PATH_SHARE_MIN)} are left "
        "out. Where events do not tell when the device worked: from least to most. A share is no saving (see above): "
        "that may be less, as another chain may be hardly shorter, or more, as a phase that blocks leaves its wait to "
        "what it waits for, and work that takes cores slows what runs beside it."
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
    return "\n\n".join(part for part in (_places(arms, names), _unsplit(arms, names)) if part)


def _places(arms: Sequence[ArmReport], names: ArmNames) -> str:
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
