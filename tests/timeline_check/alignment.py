"""How well two witnesses of the same run agree on time: the ledger's spans, and torch.profiler's record of them.

The profiler's mark "phase: forward" opens before the ledger's forward begins and closes after that has ended (``probes.
torch_spans``). So a shift of the profiler's clock by e against the ledger's is bounded from both sides by every span:

    profiler    |==== phase: forward ====|      e >= mark's start - forward's start
    ledger        |---- forward -----|          e <= mark's end - forward's end
"""

from __future__ import annotations

import statistics
from typing import Any

LIMIT_NS = 50_000
MARKS = {"phase: ": "phase", "stage: ": "stage"}  # how a mark begins: the category of its span
Rows = list[tuple[int, int, str, Any]]


def alignment(threads: dict[tuple[int, int], tuple[str, Rows]]) -> dict[str, dict[str, Any]]:
    """By row of marks: the bounds of the profiler's shift, how far edges lie apart, and what is beyond the limit."""
    found = {}
    for (pid, tid), (name, rows) in threads.items():
        marks = [(row[0], row[1], category, row[2].removeprefix(mark))
                 for row in rows for mark, category in MARKS.items() if row[2].startswith(mark)]  # fmt: skip
        others = [rows for (process, thread), (_, rows) in threads.items() if process == pid and thread != tid]
        spans = [row for other in others for row in other]
        if marks:
            found[f"process {pid}, {name}"] = _compare(marks, spans)
    return found


def _compare(marks: list[tuple[int, int, str, str]], spans: Rows) -> dict[str, Any]:
    starts, ends = [], []
    for since, until, category, name in marks:
        same = [row for row in spans if row[2] == name and row[3].get("cat") == category]
        overlapping = [row for row in same if row[0] < until and row[1] > since]
        if len(overlapping) == 1:  # not of a step that is not shown, nor of two
            starts.append(since - overlapping[0][0])
            ends.append(until - overlapping[0][1])
    if not starts:
        return {"marks": len(marks), "spans": 0, "problems": ["torch.profiler marks spans that the ledger lacks"]}
    low, high = max(starts), min(ends)
    problems = []
    if low > LIMIT_NS or high < -LIMIT_NS or low - high > LIMIT_NS:
        problems.append(f"profiler and ledger disagree: its clock is {low} to {high} ns ahead")
    elif high - low > 2 * LIMIT_NS:
        problems.append(f"how far profiler and ledger disagree is not known: its clock is {low} to {high} ns ahead")
    return {
        "marks": len(marks),
        "spans": len(starts),
        "ahead_at_least_us": low / 1000,
        "ahead_at_most_us": high / 1000,
        "median_start_us": statistics.median(starts) / 1000,
        "median_end_us": statistics.median(ends) / 1000,
        "problems": problems,
    }
