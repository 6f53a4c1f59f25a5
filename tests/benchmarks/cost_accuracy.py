"""Predicts what trainings cost, runs them, and prints predicted against actual: one table.

``python -m tests.benchmarks.cost_accuracy [--minutes 5] [--only NAME]`` takes about the minutes for each of three
trainings of different kinds, and half a minute for each prediction. Each command is one that a user calls:
``harness cost`` gives the time of a step, of which the number of steps follows; ``harness train`` with a budget
predicts once more, trains, and says what it took: from its start until all is written, without the prediction.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.launch.budget import read_cost
from harness.show.cost import duration
from harness.show.words import ms, signed_percent

BASE = {
    "model": {"layers": 2, "width": 128, "heads": 4},
    "data": {"corpus": {"builtin": "python-docs"}, "tokenizer": {"train": {"vocab_size": 2048}}, "sequence_length": 128,
     "batch_size": 4},
    "compute": {"device": "cpu", "threads": 1},
}  # fmt: skip
# What differs: where the time goes. Inline tokenization with passes and checkpoints; workers; gradient accumulation.
TRAININGS: dict[str, dict[str, Any]] = {
    "inline": {"data.path": "text-padded", "evaluation": {"every_steps": 500, "batches": 8},
     "checkpoint": {"every_steps": 500}},
    "workers": {"data.path": "text-stream", "data.workers": 1},
    "accumulated": {"data.path": "tokens-mmap", "data.access": "zero-copy", "optimizer.accumulation": 8,
     "checkpoint": {"every_steps": 20, "asynchronous": False}},
}  # fmt: skip


def _call(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "harness", *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"harness {words[0]} ended with {done.returncode}")
    return done.stdout


def compare(name: str, minutes: float, folder: Path) -> list[str]:
    """Predict and train one of :data:`TRAININGS`; the row of the table."""
    scenario = folder / f"{name}.json"  # JSON is YAML
    content = {"name": name, "question": "What does it cost?", "base": {**BASE}, "arms": {name: TRAININGS[name]}}
    scenario.write_text(json.dumps(content))
    asked = json.loads(_call("cost", str(scenario), "--json", "--out", str(folder / "cost")))
    steps = max(100, round(60 * minutes / asked["arms"][0]["step_s"]["likely"]))
    out = folder / f"training-{name}"
    _call("train", str(scenario), "--steps", str(steps), "--out", str(out), "--set", "budget={hours: 24}")
    found = read_cost(out)
    assert found.error is not None
    report = json.loads(_call("report", str(out), "--format", "json"))["arms"][name]
    step_ms, waited_ms = report["step_ms"]["median"], report["contended_ms"] or 0.0
    total = found.total
    interval = f"{duration(total.low)} to {duration(total.high)}"
    times = [duration(total.likely), interval, duration(total.worst), duration(found.spent_s - found.measuring_s)]
    steps_ms = f"{ms(found.arms[0].step.likely * 1e3)} | {ms(step_ms)}, {ms(waited_ms)} without a core"
    return [name, f"{steps:,}", *times, signed_percent(found.error), steps_ms]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="of each training (default: %(default)s)")
    parser.add_argument("--only", choices=TRAININGS, help="one of them")
    arguments = parser.parse_args()
    header = ["training", "steps", "predicted", "95 %", "worst case", "actual", "off by", "step", "actual step"]
    print(" | ".join(header), flush=True)
    with TemporaryDirectory(prefix="harness-cost-") as folder:
        for name in [arguments.only] if arguments.only else TRAININGS:
            print(" | ".join(compare(name, arguments.minutes, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
