"""Signals to the whole tree at random moments, as a terminal, a batch system or a lost connection sends them.

``python -m tests.campaigns faults.signals --count 12``: SIGINT, SIGTERM and SIGHUP in turn, to every process of a small
study at once. Asked: it ends in time with 130 (or, after its end had begun, with what it would have been), no
traceback, no process left, finished runs are kept, and ``harness run --resume`` completes the study.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

from tests.campaigns.faults.common import (
    END_S,
    LEFT_S,
    Counts,
    check_resumed,
    finish,
    harness_words,
    kill_all,
    only_study,
    start,
    still_there,
    strike,
    tree,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def one_signal(folder: Path, number: signal.Signals, after_s: float, counts: Counts) -> None:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    process = start(harness_words("run", str(folder / "faults.yaml"), "--out", str(out)))
    time.sleep(after_s)
    pids = tree(process.pid)
    kill_all(pids, number)
    ended = finish(process, END_S)
    what = f"{number.name} after {after_s:.1f} s to {len(pids)} processes"
    if ended.problem is not None:
        counts.bad(f"{number.name}: {ended.problem}", f"{what}\n{ended.err[-2000:]}")
    elif ended.code not in (130, 0, 1, -number):  # 1: the run that was hit failed; -number: Python had only just begun
        counts.bad(f"{number.name}: exit code {ended.code}", f"{what}: {ended.last_line}")
    elif ended.code == -number and only_study(out) is not None:
        counts.bad(f"{number.name}: not handled", what)
    else:
        counts.good(f"{number.name}: exit code {ended.code}")
    if left := still_there(pids, LEFT_S):
        counts.bad(f"{number.name}: processes left", f"{what}: {len(left)}")
        kill_all(left)
    check_resumed(out, what, counts)


def main() -> int:
    return strike(
        "signals",
        __doc__,
        12,
        lambda folder, number, _, after_s, counts: one_signal(folder, SIGNALS[number % len(SIGNALS)], after_s, counts),
    )


if __name__ == "__main__":
    sys.exit(main())
