"""Tables of causes: what removing each part of a step would save, and where the time of data work ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.replay.removals import Removal
from harness.analysis.report_types import ArmReport
from harness.report.tables import estimate_cell, ratio_cell, stages_cell, table
from harness.study.contract import STAGES

WORTH = 0.001  # share of a step: smaller savings are not listed
MOST = 8  # savings listed of an arm
CAUSES = {
    "data": "all data work",
    "launching": "all host time beside the device",
    "sync": "blocking on the gradient norm",
    "queue limit": "the limit of the device's queue",
}
UNSPLIT = {
    "not replayable": "its tables do not hold enough for a replay",
    "replay is off": "the replay of the run as it was is off by more than its tolerance",
    "device not recorded": "what its device did was not recorded",
    "no times": "its steps have no times",
    "spans missing": "its spans are missing",
}


def section(arms: Sequence[ArmReport]) -> str:
    """Both tables; empty without data."""
    return "\n\n".join(part for part in (_savings(arms), _places(arms), _unsplit(arms)) if part)


def part_text(one: Removal) -> str:
    """``tokenize (stage)``, ``all data work``."""
    return CAUSES.get(one.name, one.name) if one.kind == "cause" else f"{one.name} ({one.kind})"


def _savings(arms: Sequence[ArmReport]) -> str:
    rows = [
        [arm.name, part_text(one), estimate_cell(one.saved_ms), ratio_cell(one.speedup)]
        for arm in arms
        for one in arm.explained.removals[:MOST]
        if abs(one.speedup.median - 1) >= WORTH
    ]
    if not rows:
        return ""
    note = (
        "By replay of each run without that part, beside its unedited replay; medians over blocks. Savings overlap: "
        "they need not add up. A kernel is device time, a phase the host's."
    )
    return f"## What removing a part would save\n\n{table(['arm', 'without', 'saved ms', 'speed'], rows)}\n\n{note}"


def _places(arms: Sequence[ArmReport]) -> str:
    rows = [
        [arm.name, *(stages_cell(values, STAGES) for values in _of(arm))] for arm in arms if arm.totals.during_wait_ms
    ]
    if not rows:
        return ""
    header = ["arm", "work ms", "ran during the wait ms", "ran during waits for other batches ms"]
    note = (
        f"{' / '.join(STAGES)} per step. Where the time of data work lay, not what it cost: a wait is caused by work "
        "that ran before it as well."
    )
    return f"## Where data work ran\n\n{table(header, rows)}\n\n{note}"


def _of(arm: ArmReport) -> tuple[Mapping[str, float], ...]:
    return arm.totals.work_ms, arm.totals.during_wait_ms, arm.totals.parallel_ms


def _unsplit(arms: Sequence[ArmReport]) -> str:
    lines = [
        f"- What each stage of {arm.name} cost is not known: {UNSPLIT.get(arm.totals.unsplit, arm.totals.unsplit)}."
        for arm in arms
        if arm.totals.unsplit is not None
    ]
    return "\n".join(lines)
