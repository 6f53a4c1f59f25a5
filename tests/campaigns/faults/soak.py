"""Soaks the harness: one long study beside a neighbour that comes and goes; asks that nothing of ours grows.

``python -m tests.campaigns faults.soak --minutes 60 --out DIR`` runs a small study for that long, ends it by SIGTERM,
and reports it. It writes ``samples.csv`` (a row every few seconds) and ``README.md``, and exits with 1 where the
launcher grew, left processes, or named two arms that are the same a gain or a loss.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

EVERY_S = 5.0
NEIGHBOUR_S = (15.0, 90.0)  # how long it stays, and how long it stays away
SETTLED = 0.25  # of the time: before that, caches fill
GROWTH_BYTES = 20 << 20  # over the rest of the time: more is no noise of an allocator
ENDING_S = 300.0
SCENARIO = """
name: soak
question: Do two arms that are the same stay the same while a neighbour comes and goes?
base:
  model: {preset: gpt2-tiny, layers: 1}
  data:
    tokenizer.train: {kind: bpe, vocab_size: 2048}
    path: text-padded
    sequence_length: 64
    batch_size: 2
    workers: 1
  compute.threads: 1
  steps: 48
  warmup_steps: 4
arms:
  one: {log_every: 10}
  same: {log_every: 11}
controls: [a-a]
repeats: 1000
slice_steps: 8
"""


@dataclass(frozen=True)
class Sample:
    seconds: float
    neighbour: bool
    launcher_bytes: int
    descendants: int
    descendants_bytes: int
    open_files: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out: Path = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / "soak.yaml").write_text(SCENARIO)
    command = [sys.executable, "-m", "harness", "run", str(out / "soak.yaml"), "--out", str(out / "results")]
    with (out / "log.txt").open("wb") as log:
        study = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            samples = _watch(study, 60 * arguments.minutes, random.Random(arguments.seed))
            left = _descendants(study.pid)
            study.send_signal(signal.SIGTERM)  # SIGINT is ignored by what a shell started in the background
            code = study.wait(ENDING_S)
        finally:
            study.kill()
    with (out / "samples.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, list(asdict(samples[0])))
        rows.writeheader()
        rows.writerows(asdict(one) for one in samples)
    alive = [pid for pid in left if Path(f"/proc/{pid}").exists()]
    (folder,) = (out / "results" / "soak").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    blocks = json.loads((folder / "study.json").read_text())
    verdicts = [one["verdict"] for one in summary["comparisons"]]
    failed = sum(json.loads(path.read_text())["status"] != "done" for path in folder.glob("runs/*/*/run.json"))
    grown = growth(samples)
    page = _page(
        samples, grown, code, alive, verdicts, failed, len({p.parent.name for p in folder.glob("runs/*/*/run.json")})
    )
    (out / "README.md").write_text(page)
    print(page)
    wrong = (
        grown > GROWTH_BYTES
        or bool(alive)
        or bool({"gain", "loss"} & set(verdicts))
        or blocks["status"] != "interrupted"
    )
    return int(wrong)


def _watch(study: subprocess.Popen[bytes], seconds: float, chance: random.Random) -> list[Sample]:
    """Sample the study's processes while a neighbour comes and goes."""
    begun = time.monotonic()
    samples: list[Sample] = []
    neighbour: subprocess.Popen[bytes] | None = None
    change = begun + chance.uniform(*NEIGHBOUR_S)
    try:
        while (now := time.monotonic()) - begun < seconds:
            if study.poll() is not None:
                raise SystemExit(f"the study ended by itself with status {study.returncode}")
            if now >= change:
                change = now + chance.uniform(*NEIGHBOUR_S)
                if neighbour is None:
                    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                else:
                    neighbour.kill()
                    neighbour.wait()
                    neighbour = None
            samples.append(_sample(study.pid, now - begun, neighbour is not None))
            time.sleep(EVERY_S)
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
    return samples


def _sample(pid: int, seconds: float, neighbour: bool) -> Sample:
    others = _descendants(pid)
    return Sample(
        seconds=round(seconds, 1),
        neighbour=neighbour,
        launcher_bytes=_resident_bytes(pid),
        descendants=len(others),
        descendants_bytes=sum(map(_resident_bytes, others)),
        open_files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
    )


def _resident_bytes(pid: int) -> int:
    """0 of a process that has gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _descendants(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except OSError:
        return []
    return [*children, *(one for child in children for one in _descendants(child))]


def growth(samples: list[Sample]) -> float:
    """Bytes by which the launcher grew over the settled part, by a straight line through it."""
    settled = samples[int(SETTLED * len(samples)) :]
    seconds, held = (np.array([getattr(one, name) for one in settled]) for name in ("seconds", "launcher_bytes"))
    return float(np.polyfit(seconds, held, 1)[0] * (seconds[-1] - seconds[0]))


def _page(
    samples: list[Sample], grown: float, code: int, alive: list[int], verdicts: list[str], failed: int, blocks: int
) -> str:
    minutes = samples[-1].seconds / 60
    beside = sum(one.neighbour for one in samples) / len(samples)
    held = [one.launcher_bytes / 1e6 for one in samples]
    quarter = len(samples) // 4
    return f"""# Soak

`python -m tests.campaigns faults.soak`: one study; a neighbour that burns a core comes and goes; SIGTERM ends it.

- {minutes:.0f} minutes, {blocks} blocks begun, {failed} runs not done; a neighbour {100 * beside:.0f} % of the time
- launcher: {held[quarter]:.0f} MB after a quarter of the time, {held[-1]:.0f} MB at the end, {max(held):.0f} MB
  at most; {grown / 1e6:+.1f} MB over the last three quarters (a straight line through them)
- open files of the launcher: {samples[quarter].open_files} after a quarter and {samples[-1].open_files} at the end
- processes: at most {max(one.descendants for one in samples)}; left over: {len(alive)}
- exit status {code}; verdict on two arms that are the same: {", ".join(verdicts)}
"""


if __name__ == "__main__":
    sys.exit(main())
