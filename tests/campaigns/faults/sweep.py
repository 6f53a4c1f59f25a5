"""SIGKILL to ``harness sweep`` at random moments, then ``--resume``: no trial is lost or run twice.

    python -m tests.campaigns faults.sweep --count 20 [--seed N]

Sweeps of eight trials with checkpoints every few steps are killed, the sweep alone or with all its processes, until one
ends by itself; then the next is begun. In the end each must hold exactly the trials of a sweep that nobody disturbed,
with the same losses bit for bit, each in one folder, and no training may have taken a step again that lay before one of
its checkpoints.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harness.sweep.store import FILE, TrialJournal
from tests.campaigns.faults.common import (
    Counts,
    Ended,
    _in_fork,
    _wait,
    kill_all,
    parser,
    still_there,
    tree,
    workplace,
)

TRIALS, STEPS, EVERY = 8, 40, 5
SWEEP = f"""\
name: kills
base:
  model: {{layers: 1, width: 32, heads: 1}}
  data:
    corpus: {{builtin: python-docs, documents: 60}}
    tokenizer: {{train: {{vocab_size: 512}}}}
    path: tokens-mmap
    sequence_length: 16
    batch_size: 4
    inject: {{pack_ms: 10, how: sleep}}
  compute: {{device: cpu, threads: 1}}
  checkpoint: {{every_steps: {EVERY}}}
  evaluation: {{documents: 8, batches: 2}}
learning_rate: {{low: 1.0e-3, high: 10}}
strategy: {{name: early-stopping, trials: {TRIALS}, fraction: 1}}
steps: {STEPS}
warmup_fraction: 0.1
schedule: cosine
keep: all
"""
END_S = 300.0
KILLS_OF_ONE = 5  # then the sweep may end, and is compared


@dataclass
class Running:
    """A sweep in a fork of this process, which has everything imported but torch."""

    pid: int
    out: Path
    err: Path

    def end(self) -> Ended:
        code = _wait(self.pid, END_S)
        return Ended(code, self.out.read_text(errors="replace"), self.err.read_text(errors="replace"))


def begin(folder: Path, out: Path) -> Running:
    """Begin the sweep below ``out``, or go on with the one that lies there."""
    found = sweep_in(out)
    words = ["sweep", "--resume", str(found)] if found else ["sweep", str(folder / "kills.yaml"), "--out", str(out)]
    running = Running(0, folder / "stdout", folder / "stderr")
    sys.stdout.flush()
    running.pid = os.fork()
    if running.pid == 0:
        _in_fork(words, running.out, running.err, None)
    return running


def sweep_in(out: Path) -> Path | None:
    """The one sweep below ``out`` that has its sweep.json."""
    found = list(out.glob("kills/*/sweep.json"))
    return found[0].parent if found else None


Outcome = tuple[float, str, float | None, int, tuple[tuple[int, float], ...]]


def outcomes(sweep: Path) -> list[Outcome]:
    """What each trial came to, without its times."""
    return [
        # One that a kill kept from being ended as behind is ended a few steps later.
        (
            one.plan.learning_rate,
            one.status,
            one.loss,
            one.steps if one.status == "done" else 0,
            tuple(sorted(one.milestones.items())),
        )
        for one in TrialJournal(sweep).trials()
    ]


def main() -> int:
    arguments = parser(__doc__, 20).parse_args()
    chance, counts = random.Random(f"sweep/{arguments.seed}"), Counts("kills of a sweep")
    with workplace() as folder:
        (folder / "kills.yaml").write_text(SWEEP)
        undisturbed = folder / "undisturbed"
        begun_s = time.monotonic()
        ended = begin(folder, undisturbed).end()
        took_s = time.monotonic() - begun_s
        sweep = sweep_in(undisturbed)
        if ended.code != 0 or sweep is None:
            sys.exit(f"the sweep does not even work undisturbed: {ended.err[-3000:]}")
        expected = outcomes(sweep)
        print(f"undisturbed: {took_s:.0f} s, {[one[1] for one in expected]}", flush=True)
        kills = 0
        while kills < arguments.count:
            out = folder / "killed"
            shutil.rmtree(out, ignore_errors=True)
            for _ in range(min(KILLS_OF_ONE, arguments.count - kills)):
                kills += 1
                if not one_kill(folder, out, chance, took_s, counts):
                    break
            check(folder, out, expected, counts)
    return counts.finish()


def one_kill(folder: Path, out: Path, chance: random.Random, took_s: float, counts: Counts) -> bool:
    """Kill it at a random moment; False where it had ended before."""
    running = begin(folder, out)
    end_s = time.monotonic() + chance.uniform(0.2, 0.6 * took_s)
    pids: list[int] = []
    while time.monotonic() < end_s and os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.005)
    pids = tree(running.pid)
    victims, what = chance.choice([(pids, "all its processes"), (pids[:1], "the sweep alone"), (pids[-1:], "a trial")])
    kill_all(victims)
    ended = running.end()
    if ended.problem is not None:
        counts.bad(ended.problem, f"killed {what}\n{ended.err[-2000:]}")
    if left := still_there(pids, 30.0):
        counts.bad("processes left", f"{len(left)} after {what}")
        kill_all(left)
    if ended.code == 0:
        counts.good("kills that came too late")
        return False
    counts.good(f"kills of {what}")
    if ended.code not in (1, -9):
        counts.bad(f"exit code {ended.code}", f"{what}: {ended.last_line}")
    sweep = sweep_in(out)
    if sweep is None:
        counts.good("kills before there was a sweep")
    elif not (sweep / FILE).exists():
        counts.good("kills before there was a journal")
    return True


def check(folder: Path, out: Path, expected: list[Outcome], counts: Counts) -> None:
    """Let the sweep end, and compare its trials with those of the undisturbed one."""
    if not counts.of(begin(folder, out).end(), {0}, "resumed"):
        return
    sweep = sweep_in(out)
    assert sweep is not None
    found = outcomes(sweep)
    if found != expected:
        counts.bad("other trials", f"{found}\nin place of {expected}")
    elif len(list(sweep.glob("trials/*"))) != len(expected):
        counts.bad("a trial in two folders, or in none", str(list(sweep.glob("trials/*"))))
    elif again := steps_again(sweep):
        counts.bad("steps taken again before a checkpoint", str(again))
    else:
        counts.good("sweeps with exactly the trials of the undisturbed one")


def steps_again(sweep: Path) -> list[str]:
    """Trainings that have parts in their ledger which overlap by more than the way to a checkpoint."""
    import pyarrow.parquet as pq

    found = []
    for study in sweep.glob("trials/*/study.json"):
        blocks = json.loads(study.read_text())["blocks"]
        ends: list[int] = []
        for block in range(blocks):
            table = study.parent / "runs" / "trial" / str(block) / "steps.parquet"
            if table.exists() and (steps := pq.read_table(table, columns=["step"])["step"].to_pylist()):
                if ends and ends[-1] - steps[0] >= 2 * EVERY:  # one more checkpoint may have been half written
                    found.append(f"{study.parent.name}: step {steps[0]} after {ends[-1]}")
                ends.append(steps[-1] + 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
