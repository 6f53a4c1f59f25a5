"""What the sampling process costs a step: 10 steps of about 10 ms with it and without, alternated, as one ratio.

Once with all cores busy, where it takes its time from the step, and once with the trainer on one core. Repetitions as
short as `slice_steps` makes them by default are the dearest: each begins and ends with a full reading. `make bench`
prints the ratio and the sampler's own CPU; nothing is asserted about a time.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from time import perf_counter_ns

import pytest
import torch

from harness.explain.probes.samples import split, total
from harness.probes.sampler.messages import SamplerSettings
from harness.probes.sampler.sampler import Sampler
from harness.study.contract import SAMPLE_COLUMNS, arrow_schema
from trainer.inject import spend

STEPS_PER_REPETITION = 10
REPETITIONS = 60
STEP_NS = 10_000_000


def all_cores() -> Callable[[], object]:
    """A step that keeps every core busy: products of matrices, as many as take about 10 ms."""
    matrix = torch.randn(384, 384)

    def products(count: int) -> int:
        start = perf_counter_ns()
        for _ in range(count):
            torch.mm(matrix, matrix)
        return perf_counter_ns() - start

    products(100)
    fastest_ns = min(products(20) for _ in range(20)) / 20  # neighbours can only slow it down
    count = max(round(STEP_NS / fastest_ns), 1)
    return lambda: products(count)


def one_core() -> Callable[[], object]:
    return lambda: spend(STEP_NS / 1e6, "busy")


@pytest.mark.slow
@pytest.mark.parametrize("make_step", [pytest.param(all_cores, marks=pytest.mark.nightly), one_core])
def test_sampler_cost_of_a_10_ms_step(benchmark, make_step) -> None:
    import pyarrow as pa

    step = make_step()
    sampler = Sampler(SamplerSettings(), lambda: {os.getpid(): "main"})
    sampler.wait()

    def repetition(on: bool) -> float:
        if on:
            sampler.begin_steps()
        start = perf_counter_ns()
        for _ in range(STEPS_PER_REPETITION):
            step()
        elapsed = perf_counter_ns() - start
        if on:
            sampler.end_repetition()
            sampler.wait()
        return elapsed / STEPS_PER_REPETITION

    repetitions = 4 if benchmark.disabled else REPETITIONS  # as a test: does it run

    def compare() -> list[dict[bool, float]]:
        # ABBA: on-off, off-on
        return [{on: repetition(on) for on in (bool(index % 2), not index % 2)} for index in range(repetitions)]

    pairs = benchmark.pedantic(compare, rounds=1)
    ratios = [pair[True] / pair[False] for pair in pairs]
    fastest = [statistics.quantiles([pair[on] for pair in pairs], n=10)[0] for on in (True, False)]
    sampler.close()
    samples = [split(pa.table(sampler.samples, schema=arrow_schema(SAMPLE_COLUMNS)))]
    own = (total(samples, "host:sampler", "cpu_s") or 0.0) / (total(samples, "host", "interval_s") or 1.0)
    low, median, high = statistics.quantiles(ratios, n=4)
    undisturbed = fastest[0] / fastest[1]  # of the fastest tenth: what neighbours do is in neither
    found = {"q25": low, "median": median, "q75": high, "fastest_tenth": undisturbed, "repetitions": repetitions}
    benchmark.extra_info["sampler_on_over_off"] = found
    benchmark.extra_info["sampler_cpu_s_per_s"] = own
    print(
        f"\nsampler on / off, 10 ms steps, {make_step.__name__}: median {median:.5f} "
        f"(quartiles {low:.5f} to {high:.5f}, {repetitions} pairs), of the fastest tenth {undisturbed:.5f}; "
        f"its own CPU {own:.5f} s per s"
    )
