"""What watching a program costs it: a script alone, under ``harness exec``, torch.profiler and TraceML, in turns.

    python -m tests.benchmarks.attach_overhead --rounds 12 [--traceml PATH_OF_ITS_PROGRAM]

The script (tests/harness/attach/programs/timed.py) times its own loop of about half a millisecond a step, where every
microsecond shows; it marks its steps for TraceML, as that one's manual asks. A round runs each once; printed are
medians of the differences to the same round's run alone, in microseconds a step, with a 95 % interval of the median by
order statistics.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from math import comb
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "harness" / "attach" / "programs" / "timed.py"


def us_a_step(words: Sequence[str], folder: Path, **environment: str) -> float:
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600
    )
    found = re.search(r"us a step: ([\d.]+)", done.stdout + done.stderr)
    if found is None:
        sys.exit(f"{' '.join(words)}: printed no time\n{done.stdout}{done.stderr}")
    return float(found[1])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median, by order statistics: at least 95 % from 6 values on (the sixth of 6 and the first)."""
    ordered, n = sorted(values), len(values)
    rank = next((k for k in range(n // 2, 0, -1) if _coverage(n, k) >= 0.95), 1)
    return ordered[rank - 1], ordered[n - rank]


def _coverage(n: int, k: int) -> float:
    return 1 - 2 * sum(comb(n, i) for i in range(k)) / 2.0**n


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--traceml", help="its program, of an environment that has torch too: traceml")
    arguments = parser.parse_args()
    python = sys.executable
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        commands = {
            "alone": [python, str(SCRIPT)],
            "harness exec": [python, "-m", "harness", "exec", "--out", place, "--", python, str(SCRIPT)],
            "torch.profiler": [python, str(SCRIPT), "--torch-profiler"],
        }
        if arguments.traceml:
            commands["TraceML"] = [arguments.traceml, "run", str(SCRIPT), "--args", "--traceml"]
        for number in range(arguments.rounds):
            order = list(commands) if number % 2 == 0 else list(reversed(commands))
            for name in order:
                found.setdefault(name, []).append(us_a_step(commands[name], folder, PYTHONPATH=str(ROOT)))
                print(f"round {number}: {name} {found[name][-1]:.1f}", file=sys.stderr, flush=True)
    alone = found.pop("alone")
    print(f"alone: {statistics.median(alone):.1f} us a step, {len(alone)} rounds")
    for name, values in found.items():
        more = [one - other for one, other in zip(values, alone, strict=True)]
        low, high = interval(more)
        print(f"{name}: {statistics.median(more):+.1f} us a step [{low:.1f}, {high:.1f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
