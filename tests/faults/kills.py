"""Kills at random: SIGKILL to one process, or all, of a small study at a random moment; then it is resumed.

``python -m tests.faults.kills --count 20``. Asked: what is left ends by itself, no traceback, finished runs are
unchanged, and after ``harness run --resume`` every run is there with all its steps.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from pathlib import Path

from tests.faults.common import (
    RUNS,
    STEPS,
    Counts,
    finish,
    finished_study,
    harness_words,
    kill_all,
    measured,
    only_study,
    parser,
    run,
    start,
    steps_of,
    still_there,
    tree,
    workplace,
)

END_S = 120.0  # a killed study, or a resumed one, takes seconds; on a busy machine a minute
ORPHANS_S = 20.0  # what a killed launcher leaves must notice


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
    if left := still_there(pids, ORPHANS_S):
        counts.bad("processes left", f"{what}: {len(left)}")
        kill_all(left)
    study = only_study(out)
    if study is None:
        counts.good("killed before there was a study")
        return
    before = measured(study)
    again = run(harness_words("run", "--resume", str(study)), END_S)
    if not counts.of(again, {0}, f"resumed, killed {what}"):
        return
    after = measured(study)
    if any(after.get(name) != digest for name, digest in before.items()):
        counts.bad("a finished run changed", what)
    elif len(after) != RUNS or steps_of(study) != [STEPS] * RUNS:
        counts.bad("lost", f"{what}: {sorted(after)}, steps {steps_of(study)}")
    else:
        counts.good(f"nothing lost, {len(before)} runs kept")


def main() -> int:
    arguments = parser(__doc__, 20).parse_args()
    counts = Counts("kills")
    chance = random.Random(arguments.seed)
    with workplace() as folder:
        finished_study(folder)  # prepares the data, too
        shutil.rmtree(folder / "first")
        seconds = finished_study(folder)[1]
        for _ in range(arguments.count):
            one_kill(folder, chance, chance.uniform(0.2, seconds), counts)
    return counts.finish()


if __name__ == "__main__":
    sys.exit(main())
