"""Draws shapes of training loops on a CUDA stream on paper, and says how well warm-up ends in each.

``python -m tests.warmup_shapes`` prints the table of results/reference/gpu/warm-up.md. A repetition begins on an idle
device, as one in a study does. Its measured steps are compared with the same steps (the same jitter, the same slow
batches) of a run that went on for a long time before them: what differs is the warm-up alone.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from harness.launch.more_warmup import MAX_ADDED_STEPS, take_more, wait_period
from tests.cuda_stream import MS, Declared, Stream, driven

LONG = 160  # steps after which a run goes on as it will for ever
FIRST = 10_000  # number of a repetition's first step: the steps of a long run come before it
MEASURED = 10  # steps of a repetition, as many as a study takes
# By kind of shape: time of the host over that of the device in a step, and the number of kernels in a step.
KINDS = {
    "balanced": ((0.94, 1.04), (20, 300)),
    "device-bound": ((0.25, 0.94), (20, 300)),
    "launch-bound": ((1.04, 2.5), (20, 300)),
    "CUDA graphs": ((0.01, 0.1), (4, 12)),
    "small full queue": ((0.25, 0.98), (300, 900)),
    "CUDA's full queue": ((0.25, 0.98), (1050, 1500)),
    "value within the step": ((0.5, 0.98), (20, 300)),
}
SHARES = {"forward": 0.32, "backward": 0.6, "norm": 0.02, "optimizer": 0.06}  # of a step's kernels
CUDA_QUEUE = 1022  # launches


@dataclass(frozen=True)
class Ending:
    """How the warm-up of one shape ended."""

    declared: Declared
    kind: str
    extra: int
    """Warm-up steps beyond the fixed one, those up to a log line included."""
    too_fast: float
    """By how much the measured steps were faster than those of a long run, as a share of these."""


def draw_shape(number: int) -> tuple[str, Declared]:
    """Return the kind of shape ``number``, and the shape. The kinds take turns; everything else is drawn."""
    drawn = random.Random(number)
    kind = list(KINDS)[number % len(KINDS)]
    ratios, counts = KINDS[kind]
    device_ms, ratio, kernels = drawn.uniform(8, 90), drawn.uniform(*ratios), drawn.randint(*counts)
    data_ms = min(drawn.choice([0.05, 0.3, 1.5, 6.0]), 0.5 * ratio * device_ms)
    accumulation = drawn.choice([1, 1, 1, 2, 4])
    queue = {"small full queue": drawn.choice([64, 128, 256]), "CUDA's full queue": CUDA_QUEUE}
    sync, check_finite = drawn.choice(
        [("late", True), ("late", True), ("late", False), ("norm", True), ("norm", False)]
    )
    phases = _phases(drawn, kernels / accumulation, device_ms, ratio * device_ms - data_ms, accumulation)
    return kind, Declared(
        phases,
        data_ms / accumulation,
        sync="every-step" if drawn.random() < 0.05 else sync,
        check_finite=check_finite,
        accumulation=accumulation,
        queue=queue.get(kind, drawn.choice([None, CUDA_QUEUE])),
        item={"forward": max(1, phases["forward"][0] // 2)} if kind == "value within the step" else {},
        jitter=(drawn.choice([0.0, 0.02, 0.05, 0.1]), drawn.choice([0.0, 0.005, 0.02])),
        rare=drawn.choice([(0.0, 0.0), (0.0, 0.0), (0.1, 0.5 * device_ms), (0.03, 2 * device_ms)]),
        log_every=drawn.choice([10, 10, 25, 1_000_000]),
        seed=number,
        warmup=1,
        steps=MEASURED,
    )


def _phases(
    drawn: random.Random, kernels: float, device_ms: float, launching_ms: float, accumulation: int
) -> dict[str, tuple[int, float, float]]:
    """``kernels`` of a micro-batch by phase, as ``Declared`` has them. Milliseconds are of a whole step."""
    heavy = drawn.uniform(0.6, 1.4)  # the forward pass takes more of the device's time than of the host's
    others = (1 - SHARES["forward"] * heavy) / (1 - SHARES["forward"])
    phases = {"h2d": (1, 25.0, 20.0)}
    for name, share in SHARES.items():
        count = max(1, round(share * kernels))
        times = accumulation if name in ("forward", "backward") else 1
        us = share * 1e3 / count / times
        phases[name] = (count, launching_ms * us, device_ms * us * (heavy if name == "forward" else others))
    return phases


def ending_of(kind: str, declared: Declared, most: int = MAX_ADDED_STEPS) -> Ending:
    """Run one repetition of ``declared`` as a study does, and the same steps at the end of a long run.

    ``most``: extra warm-up steps.
    """
    config = declared.config
    period = wait_period(config, asynchronous=True)
    stream = Stream(declared)
    with driven(stream, None, FIRST) as (compute, take, _):
        take(declared.warmup)
        extra = take_more(take, most, compute, config, lambda: False)
        if before := -(FIRST + declared.warmup + extra) % period:
            take(before)
        steps_ms = _measured_ms(stream, take)
    first = FIRST + declared.warmup + extra + before
    stream = Stream(declared)
    with driven(stream, None, first - LONG) as (_, take, _):
        take(LONG)
        long_ms = _measured_ms(stream, take)
    return Ending(declared, kind, extra + before, 1 - steps_ms / long_ms)


def _measured_ms(stream: Stream, take: Callable[[int], None]) -> float:
    began_ns = stream.now_ns
    take(MEASURED)
    return (stream.now_ns - began_ns) / MEASURED / MS


def print_table(endings: Iterable[Ending]) -> None:
    """Print how warm-up ended, by kind and for all."""
    every = list(endings)
    print("| shapes | number | too fast: mean | p95 | worst | extra steps: median | p95 | worst |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    groups = [(kind, [one for one in every if one.kind == kind]) for kind in KINDS]
    for name, group in [*groups, ("all", every)]:
        fast = np.array([one.too_fast for one in group])
        extra = np.array([one.extra for one in group])
        shares = [f"{value:.2%}" for value in (fast.mean(), np.percentile(fast, 95), fast.max())]
        steps = [f"{value:.0f}" for value in (np.median(extra), np.percentile(extra, 95), extra.max())]
        print(f"| {name} | {len(group)} | {' | '.join([*shares, *steps])} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.warmup_shapes", description=__doc__)
    parser.add_argument("--shapes", type=int, default=350)
    parser.add_argument("--most", type=int, default=MAX_ADDED_STEPS, help="extra warm-up steps; 0: the fixed one alone")
    arguments = parser.parse_args()
    print_table([ending_of(*draw_shape(number), arguments.most) for number in range(arguments.shapes)])


if __name__ == "__main__":
    main()
