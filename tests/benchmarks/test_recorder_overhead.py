"""What is always on costs: 10 ms steps with the recorder on and off, alternated, as a ratio; and with the sampler too,
which is all that a scenario has by default.

One process takes all repetitions, so its luck is in neither side; the probe-cost scenario compares whole processes.
`make bench` prints the ratios, they are in the benchmark's extra_info: nothing is asserted about a time.
"""

from __future__ import annotations

import os
import statistics
from time import perf_counter_ns

import pytest
import torch

from harness.probes.ledger.recorders import StepRecorder
from harness.probes.ledger.threads import RunQueue
from harness.probes.sampler.messages import SamplerSettings
from harness.probes.sampler.sampler import Sampler
from trainer import telemetry
from trainer.compute.base import InjectedCompute, NoCompute
from trainer.config import ComputeInject, TrainerConfig
from trainer.data.batch import Batch
from trainer.loop import train

STEPS_PER_REPETITION = 10
REPETITIONS = 80


@pytest.mark.slow
@pytest.mark.parametrize("what", [pytest.param("recorder", marks=pytest.mark.nightly), "all default probes"])
def test_overhead_on_a_10_ms_step(benchmark, what) -> None:
    config = TrainerConfig()
    compute = InjectedCompute(NoCompute(), ComputeInject(forward_ms=3, backward_ms=5, optimizer_ms=2), seed=0)
    batch = Batch(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long), None, 2, 1, 1)

    def batches():
        while True:
            with telemetry.span("read"):
                pass
            with telemetry.span("tokenize"):
                pass
            with telemetry.span("pack"):
                pass
            batch.trace = telemetry.take()
            yield batch

    steps = train(config, compute, batches())
    run_queue = RunQueue(compute_threads=True)
    run_queue.find_threads()
    recorder = StepRecorder(run_queue if run_queue.available else None)
    sampler = None if what == "recorder" else Sampler(SamplerSettings(), lambda: {os.getpid(): "main"})

    def repetition(on: bool) -> float:
        telemetry.attach(recorder if on else None)
        if on and sampler is not None:
            sampler.begin_steps()
        start = perf_counter_ns()
        for _ in range(STEPS_PER_REPETITION):
            next(steps)
        elapsed = perf_counter_ns() - start
        recorder.pause()
        telemetry.attach(None)
        if on and sampler is not None:
            sampler.end_repetition()
            sampler.wait()
        return elapsed / STEPS_PER_REPETITION

    repetitions = 4 if benchmark.disabled else REPETITIONS  # as a test: does it run

    def compare() -> list[float]:
        ratios = []
        for index in range(repetitions):
            first = bool(index % 2)  # ABBA: on-off, off-on
            times = {on: repetition(on) for on in (first, not first)}
            ratios.append(times[True] / times[False])
        return ratios

    ratios = benchmark.pedantic(compare, rounds=1)
    if sampler is not None:
        sampler.close()
    low, median, high = statistics.quantiles(ratios, n=4)
    benchmark.extra_info["on_over_off"] = {"q25": low, "median": median, "q75": high, "repetitions": repetitions}
    print(
        f"\n{what} on / off, 10 ms steps: median {median:.5f} (quartiles {low:.5f} to {high:.5f}, {repetitions} pairs)"
    )
