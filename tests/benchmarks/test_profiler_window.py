"""Only torch.profiler's declared window pays: steps before and after it run at the speed of bare ones.

Steps of a real model of small operators (the profiler costs by operator, and what stays in a core's caches is the least
disturbed by neighbours), alternated: bare, then a whole TorchProfiler.run whose ``wait`` steps count, then the same
number of steps after it. From each step's start to the next one's, so that what happens between them counts. The
medians of the ratios with their 95 % intervals are in the benchmark's extra_info, beside those of the recorded steps.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict
from itertools import count
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from harness.explain.statistics import from_block_values
from harness.probes.ledger.recorders import StepRecorder
from harness.probes.profilers.torch_profiler import TorchProfiler
from harness.probes.profilers.torch_session import TorchProfilerSettings
from trainer import telemetry

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # measurements

STEPS, WARMUP, ACTIVE = 10, 2, 4
ROUNDS = 200
SETTINGS = TorchProfilerSettings(wait=STEPS, warmup=WARMUP, active=ACTIVE, workers=False)


def test_steps_outside_the_window_run_at_bare_speed(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(48)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    numbers, batch = count(), torch.randn(8, 32)
    starts_ns: list[int] = []

    def step() -> int:
        number = next(numbers)
        starts_ns.append(perf_counter_ns())
        telemetry.step(number)
        with telemetry.span("forward"):
            loss = model(batch).square().mean()
        with telemetry.span("backward"):
            loss.backward()
        with telemetry.span("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        return number

    def period(first: int, last: int) -> float:
        """The lower quartile from one step's start to the next one's: a neighbour's load only ever adds."""
        return statistics.quantiles(np.diff(starts_ns[first:last]), n=4)[0]

    def bare() -> float:
        starts_ns.clear()
        for _ in range(STEPS):
            step()
        return period(0, STEPS)

    recorder = StepRecorder()
    telemetry.attach(recorder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a thread that waits for another measures the neighbours

    rounds = 2 if benchmark.disabled else ROUNDS  # as a test: does it run

    def compare() -> dict[str, list[float]]:
        ratios: dict[str, list[float]] = {"bare again": [], "before": [], "recorded": [], "after": []}
        for _ in range(rounds):
            first = bare()
            starts_ns.clear()
            TorchProfiler(SETTINGS, tmp_path).run_window(step, recorder)
            found = {
                "before": period(0, STEPS),
                "recorded": period(STEPS + WARMUP, len(starts_ns)),
                "after": bare(),
                "bare again": bare(),
            }
            # Each is compared with the bare repetitions before and after it: a machine that slows down favours none.
            around = (first + found["bare again"]) / 2
            for name, value in found.items():
                ratios[name].append(value / (first if name == "bare again" else around))
        return ratios

    try:
        ratios = benchmark.pedantic(compare, rounds=1)
    finally:
        telemetry.attach(None)
        torch.set_num_threads(threads)
    for name, values in ratios.items():
        found = from_block_values(values)
        benchmark.extra_info[f"{name} / bare"] = asdict(found)
        if found.ci_low is not None and found.ci_high is not None:
            interval = f"[{found.ci_low:.4f}, {found.ci_high:.4f}]"
            print(f"\nsteps {name} / bare: median {found.median:.4f} {interval} of {found.n} rounds", end="")
