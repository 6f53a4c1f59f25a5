"""What the hooks of ``harness exec`` add to a step, within one process: they are switched off and on by turns.

    python -m tests.benchmarks.attach_hooks --rounds 200 --processes 5

The program (tests/harness/attach/programs/timed_by_turns.py) has steps of about half a millisecond. Between processes
its steps differ by more than the hooks cost; within one, turns of 45 steps alternate. Printed are, for each process,
medians over rounds of what a turn's median and mean step took more than those of the same round's turn with hooks off,
which still asks in each hook whether they are on.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

from tests.benchmarks.attach_overhead import ROOT, interval

SCRIPT = ROOT / "tests" / "harness" / "attach" / "programs" / "timed_by_turns.py"
LINE = re.compile(r"^(off|on|on without run queue): ([\d.]+) ([\d.]+)$", re.MULTILINE)


def differences(rounds: int) -> tuple[float, dict[str, tuple[list[float], list[float]]]]:
    """The median step without hooks, and by state what each turn's median and mean took more, in microseconds."""
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "exec", "--out", place, "--", sys.executable, str(SCRIPT), str(rounds)],
            cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
    turns: dict[str, list[tuple[float, float]]] = {}
    for state, middle, mean in LINE.findall(done.stdout):
        turns.setdefault(state, []).append((float(middle), float(mean)))
    if {len(one) for one in turns.values()} != {rounds} or len(turns) != 3:
        sys.exit(f"the program printed other turns\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    off = turns.pop("off")
    more = {
        state: tuple([one[at] - other[at] for one, other in zip(found, off, strict=True)] for at in (0, 1))
        for state, found in turns.items()
    }
    return statistics.median(middle for middle, _ in off), more  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, metavar="N", help="in a process (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=5, metavar="N", help="(default: %(default)s)")
    arguments = parser.parse_args()
    for number in range(arguments.processes):
        step, more = differences(arguments.rounds)
        print(f"process {number}: {step:.0f} us a step with hooks off", flush=True)
        for state, (middles, means) in more.items():
            low, high = interval(middles)
            print(
                f"  {state}: {statistics.median(middles):+.1f} us of the median step [{low:.1f}, {high:.1f}], "
                f"{statistics.median(means):+.1f} us of the mean step",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
