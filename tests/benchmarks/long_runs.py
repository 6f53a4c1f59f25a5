"""Makes and analyses studies of very long runs: how long that takes, and how much memory.

``python -m tests.benchmarks.long_runs all --runs 8 --steps 1000000 [--asynchronous]`` does all of it in a temporary
folder, each part in a process of its own, and prints a line each. The parts: ``make FOLDER`` writes a study with made
up durations; ``analyse FOLDER`` builds its report; ``write`` records one asynchronous run in a loop without any
work, in repetitions of ``--repetition`` steps, and writes its tables.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from harness.launch.tables import RunTables
from harness.probes.ledger.recorders import StepRecorder
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS
from harness.study.records import ArmRecord, ComparisonRecord, RunFacts, RunRecord, StudyRecord
from harness.study.store import StudyFolder
from harness.study.tables import TableFile
from trainer.telemetry import BatchTrace, Blocked, Kernel

MS = 1_000_000
AT_ONCE = 100_000  # steps of a portion
REPETITION = 11  # steps: ten that are measured after one of warm-up, as slices are by default
PHASES = {"fetch": 2.0, "h2d": 0.1, "forward": 4.0, "backward": 8.0, "sync": 0.5, "optimizer": 2.0, "log": 0.05}
STAGES = {"read": 0.2, "tokenize": 6.0, "pack": 0.3}
KERNELS = ("h2d", "forward", "backward", "norm", "optimizer")


def make(folder: Path, runs: int, steps: int, *, asynchronous: bool) -> None:
    """A study of ``runs`` arms of one block each; two workers; every repetition begins 0.2 s after the one before."""
    names = [f"arm{number}" for number in range(runs)]
    study = StudyFolder(folder)
    arms = [ArmRecord(name) for name in names]
    pairs = [ComparisonRecord(names[0], name) for name in names[1:]]
    study.write_study(
        StudyRecord("long-runs", "How long does it take?", "done", blocks=1, arms=arms, comparisons=pairs)
    )
    for number, name in enumerate(names):
        facts = RunFacts(asynchronous=asynchronous, workers=2, threads=1, cores=8, device="made up")
        config = {"data": {"workers": 2, "prefetch": 2, "batch_size": 8, "path": "text-padded"}}
        record = RunRecord(name, 0, "done", session="0", interleave="slices", config=config, facts=facts)
        _tables(study.run(name, 0), steps, number, asynchronous=asynchronous)
        study.write_samples(name, 0, {})
        study.write_whole_run(record)


def _tables(folder: Path, steps: int, seed: int, *, asynchronous: bool) -> None:
    generator = np.random.default_rng(seed)
    step_file = TableFile(folder / "steps.parquet", STEP_COLUMNS)
    span_file = TableFile(folder / "spans.parquet", SPAN_COLUMNS)
    now = 10**12
    for first in range(0, steps, AT_ONCE):
        number = np.arange(first, min(first + AT_ONCE, steps))
        count = len(number)
        costs = {
            name: (cost * MS * generator.lognormal(0, 0.1, count)).astype(np.int64) for name, cost in PHASES.items()
        }
        wall = sum(costs.values()) + 20_000
        starts = now + np.append(0, np.cumsum(wall)[:-1]) + number // REPETITION * 200 * MS
        now = int(starts[-1] + wall[-1]) - number[-1] // REPETITION * 200 * MS
        counts = {"tokens": 1024, "trained_tokens": 1000, "samples": 8}
        step_file.append(
            {
                "step": number,
                "turn": (number // REPETITION).astype(np.int32),
                "warmup": number % REPETITION == 0,
                "start_ns": starts,
                "wall_ns": wall,
                **{f"{name}_ns": cost for name, cost in costs.items()},
                "other_ns": np.full(count, 20_000),
                "contended_ns": np.zeros(count, dtype=np.int64),
                **{name: np.full(count, value) for name, value in counts.items()},
                "loss": np.full(count, 3.0),
            }
        )
        parts, moment = [], starts.copy()
        for name, cost in costs.items():
            parts.append(("main", name, number, moment, moment + cost, 1))
            moment = moment + cost
        built = starts + costs["fetch"] - 300_000
        for name, cost in reversed(STAGES.items()):
            spent = (cost * MS * generator.lognormal(0, 0.2, count)).astype(np.int64)
            parts.append(("loader", name, number, built - spent, built, 1))
            built = built - spent
        if asynchronous:
            queued = starts + costs["fetch"]
            edges = np.linspace(0, 1, len(KERNELS) + 1)
            for place, name in enumerate(KERNELS):
                begin, end = (queued + (wall * 0.9 * edge).astype(np.int64) for edge in edges[place : place + 2])
                parts.append(("launch", name, number, queued + place * 10_000, queued + place * 10_000 + 5_000, 0))
                parts.append(("device", name, number, begin, end, 0))
            parts.append(("sync", "loop.py:1: item", number, moment - costs["log"], moment, 0))
        for role, name, batch, since, until, timed in parts:
            roles = np.array(["loader-0", "loader-1"])[batch % 2] if role == "loader" else np.full(count, role)
            ids = {"pid": np.ones(count, dtype=np.int64), "tid": np.ones(count, dtype=np.int64)}
            span_file.append(
                {
                    **ids,
                    "role": roles,
                    "rank": np.zeros(count, dtype=np.int32),
                    "name": np.full(count, name),
                    "batch": batch,
                    "start_ns": since,
                    "end_ns": until,
                    **({"cpu_ns": until - since} if timed else {}),
                }
            )
    step_file.close()
    span_file.close()


def analyse(folder: Path) -> dict[str, float]:
    """Build the report; seconds, and the most memory that this process ever had."""
    from harness.show.build import build_report

    begun = time.perf_counter()
    build_report(folder)
    own = resource.getrusage(resource.RUSAGE_SELF)
    cpu = own.ru_utime + own.ru_stime
    return {"seconds": time.perf_counter() - begun, "cpu_seconds": cpu, "peak_bytes": peak_bytes()}


def write(steps: int, repetition: int = REPETITION) -> dict[str, float]:
    """Record one asynchronous run of ``steps`` and write its tables, in portions as a run does.

    ``bytes_per_step``: by how much the memory after a repetition grew with the steps, over the second half of the run.
    """
    recorder = StepRecorder()
    held: list[tuple[int, int]] = []  # steps, and memory when their repetition was over
    with TemporaryDirectory() as folder:
        tables = RunTables(recorder, Path(folder), 1, 1, 0)
        seconds = 0.0
        for step in range(steps):
            recorder.step(step)
            for name in PHASES:
                recorder.enter(name)
                recorder.exit(name)
                if name == "fetch":
                    spans = tuple((stage, step, step + 1, 1) for stage in STAGES)
                    recorder.received(BatchTrace(7, 7, "loader-0", step, spans), 1024, 1000, 8)
            for kernel in KERNELS:
                recorder.device(Kernel(kernel, step, step + 1, step + 2, step + 3))
            recorder.blocked(Blocked("loop.py:1: item", step, step + 1))
            recorder.loss(step, 3.0)
            if step % repetition == repetition - 1:
                recorder.pause()
                begun = time.perf_counter()
                tables.collect()
                seconds += time.perf_counter() - begun
                if recorder.pending_events == 0:
                    held.append((step, resident_bytes()))
        recorder.pause()
        begun = time.perf_counter()
        tables.write()
        seconds += time.perf_counter() - begun
    later = held[len(held) // 2 :]
    grown = (later[-1][1] - later[0][1]) / (later[-1][0] - later[0][0]) if len(later) > 1 else 0.0
    return {"seconds": seconds, "peak_bytes": peak_bytes(), "bytes_per_step": grown}


def everything(runs: int, steps: int, *, asynchronous: bool) -> None:
    """All parts, each in a process of its own: the peak of one is not that of another."""
    with TemporaryDirectory() as folder:
        size = ["--runs", str(runs), "--steps", str(steps), *(["--asynchronous"] if asynchronous else [])]
        for part in (["make", folder, *size], ["analyse", folder], ["analyse", folder], ["write", *size]):
            print(*part, flush=True)
            subprocess.run([sys.executable, "-m", "tests.benchmarks.long_runs", *part], check=True)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("all", "make", "analyse", "write"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--repetition", type=int, default=REPETITION, help="steps of a repetition (write)")
    arguments = parser.parse_args()
    if arguments.action == "all":
        everything(arguments.runs, arguments.steps, asynchronous=arguments.asynchronous)
    elif arguments.action == "make":
        make(arguments.folder, arguments.runs, arguments.steps, asynchronous=arguments.asynchronous)
    else:
        analysing = arguments.action == "analyse"
        found = analyse(arguments.folder) if analysing else write(arguments.steps, arguments.repetition)
        print(json.dumps({name: round(value, 1) for name, value in found.items()}), flush=True)


if __name__ == "__main__":
    main()
