"""Kills at random: SIGKILL to one process, or all, of a small study at a random moment; then it is resumed.

``python -m tests.campaigns faults.kills --count 20``. Asked: what is left ends by itself, no traceback, finished runs
are unchanged, and after ``harness run --resume`` every run is there with all its steps.
"""

from __future__ import annotations

import random
import shutil
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
    start,
    still_there,
    strike,
    tree,
)


def one_kill(folder: Path, chance: random.Random, after_s: float, counts: Counts) -> None:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    process = start(harness_words("run", str(folder / "faults.yaml"), "--out", str(out)))
    time.sleep(after_s)
    pids = tree(process.pid)
    victims = pids if chance.random() < 0.3 else [chance.choice(pids)]
    what = f"after {after_s:.1f} s {'all' if victims is pids else f'number {pids.index(victims[0])}'} of {len(pids)}"
    kill_all(victims)
    ended = finish(process, END_S)
    if ended.problem is not None:
        counts.bad(ended.problem, f"{what}\n{ended.err[-2000:]}")
    if left := still_there(pids, LEFT_S):
        counts.bad("processes left", f"{what}: {len(left)}")
        kill_all(left)
    check_resumed(out, f"killed {what}", counts)


def main() -> int:
    return strike(
        "kills", __doc__, 20, lambda folder, _, chance, after_s, counts: one_kill(folder, chance, after_s, counts)
    )


if __name__ == "__main__":
    sys.exit(main())
