"""A large profile: our reader and analysis beside HolisticTraceAnalysis loading the same file, alternated.

    python -m tests.benchmarks.large_profile --work DIR [--hta PYTHON] [--rounds 5] [--out FILE]

PYTHON is the interpreter of an environment with ``pip install HolisticTraceAnalysis==0.5.0``, which is no dependency of
this project. Every reading is a process of its own; memory is the most that it ever held resident (VmHWM).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.large_trace import write_large_trace

COMMAND = "python -m tests.benchmarks.large_profile --work DIR --hta PYTHON"
EVENTS = 250_000
LEAST_TIMES_FASTER, MOST_SHARE_OF_MEMORY = 5, 1 / 3

# What each process runs; it prints one line of JSON. Import time counts apart: a report pays it once.
OURS = """
import json, sys, time
begin = time.perf_counter()
from pathlib import Path
from harness.explain.probes.torch_profile import torch_profile
from harness.study.run_data import TorchProfilerRecord
from harness.study.traces.kineto import read_profile
import numpy, pyarrow.compute, pyarrow.json
imported, spent = time.perf_counter(), time.process_time()
table = read_profile(Path(sys.argv[1]), 0)
loaded = time.perf_counter()
found = torch_profile("large", [table], TorchProfilerRecord())
done = time.perf_counter()
cpu = time.process_time()
times = {"import": imported - begin, "load": loaded - imported, "analysis": done - loaded, "cpu": cpu - spent}
print(json.dumps({**times, "events": len(table), "device_ms": round(found.operators.device_ms, 3)}))
"""
HTA = """
import json, sys, time
begin = time.perf_counter()
from importlib.metadata import version
from hta.trace_analysis import TraceAnalysis
imported, spent = time.perf_counter(), time.process_time()
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2])
loaded = time.perf_counter()
cpu = time.process_time()
frame = trace.t.get_trace(0)
times = {"import": imported - begin, "load": loaded - imported, "analysis": 0.0, "cpu": cpu - spent}
print(json.dumps({**times, "events": len(frame), "version": version("HolisticTraceAnalysis")}))
"""
PEAK = """
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


def measure(python: str, program: str, path: Path) -> dict[str, Any]:
    """Run ``program`` on ``path`` in a process of its own: what it printed, and peak_mb."""
    command = [python, "-c", program + PEAK, str(path), str(path.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python}: {done.stderr.strip().splitlines()[-1]}")
    told, peak_kb = done.stdout.strip().splitlines()[-2:]
    return {**json.loads(told), "peak_mb": int(peak_kb) * 1024 / 1e6}


def row(name: str, runs: list[dict[str, Any]]) -> str:
    middle = {
        key: statistics.median(run[key] for run in runs) for key in ("import", "load", "analysis", "cpu", "peak_mb")
    }
    spread = f"{min(run['load'] for run in runs):.2f} to {max(run['load'] for run in runs):.2f}"
    analysis = f"{middle['analysis']:.2f}" if middle["analysis"] else "–"
    cells = [name, f"{middle['import']:.2f}", f"{middle['load']:.2f} ({spread})", analysis]
    cells += [f"{middle['cpu']:.2f}", f"{middle['peak_mb']:.0f}"]
    return f"| {' | '.join(cells)} |"


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """What was asked for and what came out, from medians."""

    def middle(runs: list[dict[str, Any]], *keys: str) -> float:
        return statistics.median(sum(run[key] for key in keys) for run in runs)

    faster = middle(theirs, "load") / middle(ours, "load", "analysis")
    cpu = middle(theirs, "cpu") / middle(ours, "cpu")
    whole = middle(theirs, "import", "load") / middle(ours, "import", "load", "analysis")
    memory = middle(ours, "peak_mb") / middle(theirs, "peak_mb")
    kept = {True: "kept", False: "**missed**"}
    return "\n".join(
        [
            f"- Reading and analysis together are {faster:.1f} times as fast as its loading alone (asked: at least "
            f"{LEAST_TIMES_FASTER}): {kept[faster >= LEAST_TIMES_FASTER]}. "
            f"In CPU time {cpu:.1f} times; with imports {whole:.1f} times.",
            f"- They need {memory * 100:.0f} % of its memory (asked: at most a third): "
            f"{kept[memory <= MOST_SHARE_OF_MEMORY]}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.large_profile")
    parser.add_argument("--work", type=Path, required=True, help="folder for the trace")
    parser.add_argument("--hta", help="interpreter with HolisticTraceAnalysis 0.5.0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the result here, too")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    path = arguments.work / "large_profile.json"
    events, kernels_ns = write_large_trace(path, EVENTS)
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        ours.append(measure(sys.executable, OURS, path))
        if arguments.hta:
            theirs.append(measure(arguments.hta, HTA, path))
    lines = [
        f"{path.stat().st_size / 1e6:.0f} MB of Chrome JSON, {events:,} events besides arrows (made up, like a real "
        "profile of a transformer on a CUDA device: `tests/benchmarks/large_trace.py`). "
        f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}. Medians of {arguments.rounds} "
        "processes each, alternated.",
        "",
        "| reader | import s | load s (range) | analysis s | CPU s of both | peak memory MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        row("harness: read, operators by self time, kernels by launcher, memory", ours),
    ]
    if theirs:
        lines += [row(f"HolisticTraceAnalysis {theirs[0]['version']}: load", theirs), "", compare(ours, theirs)]
    found = ours[0]
    if (found["events"], found["device_ms"]) != (events, round(kernels_ns / 1e6, 3)):
        raise SystemExit(
            f"wrong: {found['events']} events, {found['device_ms']} ms of kernels; {kernels_ns} ns written"
        )
    lines += ["", f"Ours found what was written: {events:,} events, {kernels_ns / 1e6:,.3f} ms of kernels."]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(f"# A large profile\n\n`{COMMAND}`\n\n{text}")


if __name__ == "__main__":
    main()
