"""Kills trainings at random: SIGKILL to ``harness train``, all its processes or a loader worker, then --resume.

``python -m tests.campaigns faults.kill_and_resume --count 30``. Each training is killed several times, on every data
path in turn. Every third kill waits until a checkpoint is being written, on a disk that this campaign makes slow.
Asked: no training is lost, and the resumed ones end with the losses and the weights of one that nobody disturbed, bit
for bit.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns.faults.common import Counts, Ended, _in_fork, _wait, kill_all, parser, still_there, tree, workplace

STEPS, KILLS = 120, 5  # of a training
PATHS = {  # workers with and without; mid-buffer of the packer, over the ends of epochs
    "text-stream-workers": {"data.path": "text-stream", "data.workers": 2, "data.access": "zero-copy"},
    "tokens-padded": {"data.path": "tokens-padded"},
    "tokens-stream": {"data.path": "tokens-stream", "checkpoint.asynchronous": False},
    "text-padded-workers": {"data.path": "text-padded", "data.workers": 2},
    "text-stream": {"data.path": "text-stream", "optimizer.accumulation": 2},
    "tokens-stream-workers": {"data.path": "tokens-stream", "data.workers": 2, "data.access": "zero-copy"},
}
SCENARIO = """\
name: kills
question: Does it go on as if it had never ended?
base:
  model: {layers: 1, width: 32, heads: 2}
  data:
    corpus: {builtin: python-docs, documents: 60}
    tokenizer: {train: {vocab_size: 512}}
    sequence_length: 16
    batch_size: 4
    inject: {pack_ms: 8, how: sleep, jitter: 0.5}
  compute: {device: cpu, threads: 1}
  checkpoint: {every_steps: 9}
  warmup_steps: 1
"""
END_S = 180.0
SAVE_S = 60.0  # for a save to begin
FSYNC_S = 0.15  # of the slow disk
START_S = 1.0
EVERY = 9  # steps between checkpoints, as in the scenario


@dataclass
class Trained:
    """What a training must end with."""

    losses: bytes
    weights: str

    @classmethod
    def of(cls, out: Path) -> Trained | None:
        path = out / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors"
        if not path.exists():
            return None
        return cls((out / "losses.csv").read_bytes(), hashlib.sha256(path.read_bytes()).hexdigest())


def main() -> int:
    arguments = parser(__doc__, 30).parse_args()
    counts, chance = Counts("kill_and_resume"), random.Random(arguments.seed)
    with workplace() as folder:
        import torch  # noqa: F401  # so that a fork takes milliseconds, where a start takes seconds
        import transformers  # noqa: F401

        write_scenario(folder / "kills.yaml")
        begin(folder, next(iter(PATHS)), folder / "unmeasured").end()  # prepares the data, too
        undisturbed: dict[str, Trained] = {}
        number, training = 0, arguments.seed * 2  # seeds 0, 1 and 2 with --count 10 take every path between them
        while number < arguments.count:
            name = list(PATHS)[training % len(PATHS)]
            if name not in undisturbed:
                undisturbed[name] = reference(folder, name)
            kills = min(KILLS, arguments.count - number)
            one_training(folder, name, range(number, number + kills), chance, undisturbed[name], counts)
            number, training = number + kills, training + 1
    return counts.finish()


def write_scenario(path: Path) -> None:
    arms = "".join(f"  {name}: {{{', '.join(f'{k}: {v}' for k, v in keys.items())}}}\n" for name, keys in PATHS.items())
    path.write_text(f"{SCENARIO}arms:\n{arms}".replace("False", "false"))


@dataclass
class Running:
    """A command in a fork of this process."""

    pid: int
    out: Path
    err: Path

    def end(self) -> Ended:
        code = _wait(self.pid, END_S)
        return Ended(code, self.out.read_text(errors="replace"), self.err.read_text(errors="replace"))


def begin(folder: Path, arm: str, out: Path, slow_disk: bool = False) -> Running:
    words = ["train", str(folder / "kills.yaml"), "--arm", arm, "--steps", str(STEPS), "--out", str(out), "--resume"]
    running = Running(0, folder / "stdout", folder / "stderr")
    sys.stdout.flush()
    running.pid = os.fork()
    if running.pid == 0:
        _in_fork(words, running.out, running.err, slow_down if slow_disk else None)
    return running


def slow_down() -> None:
    """From here on every fsync of this process takes a while, as that of a slow disk does."""
    fsync: Callable[[int], None] = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(FSYNC_S)
        fsync(descriptor)

    os.fsync = slow


def reference(folder: Path, arm: str) -> Trained:
    """What a training ends with that nobody disturbs."""
    out = folder / f"undisturbed-{arm}"
    ended = begin(folder, arm, out).end()
    found = Trained.of(out)
    if ended.code != 0 or found is None:
        sys.exit(f"{arm}: the training does not even work undisturbed: {ended.err[-3000:]}")
    return found


def one_training(
    folder: Path, arm: str, kills: range, chance: random.Random, expected: Trained, counts: Counts
) -> None:
    """Kill and resume one training, then let it end, and compare."""
    out = folder / "killed"
    shutil.rmtree(out, ignore_errors=True)
    for number in kills:
        one_kill(folder, arm, out, number, chance, counts)
    ended = begin(folder, arm, out).end()
    if not counts.of(ended, {0}, f"{arm}: resumed after {len(kills)} kills"):
        return
    found = Trained.of(out)
    if found is None:
        counts.bad("lost", f"{arm}: no checkpoint after its last step")
    elif found.losses != expected.losses:
        counts.bad("other losses", f"{arm}: {first_difference(found.losses, expected.losses)}")
    elif found.weights != expected.weights:
        counts.bad("other weights", arm)
    else:
        counts.good("trainings with the same losses and weights, bit for bit")


def one_kill(folder: Path, arm: str, out: Path, number: int, chance: random.Random, counts: Counts) -> None:
    in_a_save = number % 3 == 2
    # Soon after the start, or after the next checkpoint or two: so the training is not over before its last kill.
    target = newest(out) + EVERY * chance.choice([0, 1, 2]) if not in_a_save else 0
    running = begin(folder, arm, out, slow_disk=in_a_save)
    until = time.monotonic() + SAVE_S
    while time.monotonic() < until and not (half_written(out) if in_a_save else newest(out) >= target):
        time.sleep(0.01)
    # Also while it starts, which takes about as long as a few checkpoints.
    time.sleep(chance.uniform(0, 6 * FSYNC_S if in_a_save else START_S))
    pids = tree(running.pid)
    victims = chance.choice([pids, pids[:1], pids[-1:]])
    kill_all(victims)
    ended = running.end()
    what = "all processes" if victims == pids else "the trainer" if victims == pids[:1] else "a loader worker"
    if ended.problem is not None:
        counts.bad(ended.problem, f"{arm}: killed {what}\n{ended.err[-2000:]}")
    if left := still_there(pids, 20.0):
        counts.bad("processes left", f"{arm}: {len(left)}")
        kill_all(left)
    if ended.code == 0:
        counts.good("kills that came too late")
    else:
        counts.good(f"kills of {what}")
    if half_written(out):
        counts.good("kills that left a half-written checkpoint")
    if ended.code not in (0, 1, -9):
        counts.bad(f"exit code {ended.code}", f"{arm}: {ended.last_line}")


def newest(out: Path) -> int:
    """Steps of the newest checkpoint, 0 where there is none."""
    return max((int(path.name.removeprefix("step-")) for path in out.glob("checkpoints/step-*")), default=0)


def half_written(out: Path) -> bool:
    return any(out.glob("checkpoints/.step-*.tmp"))


def first_difference(found: bytes, expected: bytes) -> str:
    pairs = zip(found.splitlines(), expected.splitlines(), strict=False)
    for place, (left, right) in enumerate(pairs):
        if left != right:
            return f"line {place + 1}: {left!r} in place of {right!r}"
    return f"{len(found.splitlines())} lines in place of {len(expected.splitlines())}"


if __name__ == "__main__":
    sys.exit(main())
