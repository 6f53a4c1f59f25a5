"""Times this CPU's matrix products and memory copies, even if other processes use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

# Another process can only slow a repetition down, so slow repetitions do not describe this CPU. The single fastest may
# be a short boost that no training step can keep. The median of the five fastest lies between.
FASTEST = 5
WAITED = 0.05  # share of time with run-queue delay (ready to run, no core); above it, the rates are too low
LONGEST_S = 0.5  # limit of a product; longer ones are skipped, such as bf16 in a naive kernel: a minute at size 2048
# Forms of the matrix product in training: forward x @ w.T, gradient of x: y @ w, gradient of w: y.T @ x.
LAYOUTS = {"x @ w.T": (False, True), "y @ w": (False, False), "y.T @ x": (True, False)}


class Effort(NamedTuple):
    """Amount of measuring. The default takes about 5 seconds, and up to 20 if other processes use the cores."""

    sizes: tuple[int, ...] = (512, 1024, 2048)  # sizes of square products: from the second-level cache to memory
    copy_bytes: int = 256 * 2**20  # for each of source and target; more than most last-level caches
    rounds: int = 10
    timeout_s: float = 12.0  # rounds are added until FASTEST of them ran undisturbed, or until this limit


class Work(NamedTuple):
    """A computation to time. ``what``: its description; ``amount``: FLOPs or bytes per call."""

    what: str
    amount: float
    call: Callable[[], Any]


class Timing(NamedTuple):
    """Seconds of one call: wall time, and the time that all its threads together were ready but without a core."""

    wall_s: float
    waited_s: float


class Rate(NamedTuple):
    """Measured rate of ``what`` in FLOP/s or bytes/s, and the number of calls.

    ``waited``: share of the fastest calls' time in which threads were ready but without a core.
    """

    per_s: float
    what: str
    calls: int
    waited: float


def measure(threads: int, effort: Effort) -> dict[str, Rate]:
    """Return the rates of this CPU with ``threads``: fp32 and bf16 products (best layout and size), and a memory
    copy.
    """
    import torch

    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        works = {"fp32": _best(_products(torch.float32), effort), "bf16": _best(_products(torch.bfloat16), effort)}
        return _rates({**works, "copy": _copy(effort.copy_bytes)}, effort, threads)
    finally:
        torch.set_num_threads(threads_before)


def _products(dtype: Any) -> Callable[[int], Iterator[Work]]:
    import torch

    def product(a: Any, b: Any) -> Callable[[], Any]:
        return lambda: torch.mm(a, b)

    def of_size(size: int) -> Iterator[Work]:
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.rand(size, size, generator=generator).to(dtype) for _ in range(2))
        for layout, (turn_left, turn_right) in LAYOUTS.items():
            call = product(left.t() if turn_left else left, right.t() if turn_right else right)
            yield Work(f"{layout} of {size}x{size}", 2.0 * size**3, call)

    return of_size


def _copy(size_bytes: int) -> Work:
    import torch

    source = torch.rand(size_bytes // 4)
    target = torch.empty_like(source)
    target.copy_(source)  # The first write makes the kernel allocate the pages.
    # Each byte is read once and written once. As in STREAM, the cache line that a write may fetch first is not counted.
    return Work(f"copy of {size_bytes / 2**20:g} MiB", 2.0 * size_bytes, lambda: target.copy_(source))


def _best(products: Callable[[int], Iterator[Work]], effort: Effort) -> Work:
    """Return the product with the fastest layout and size.

    A product is skipped if it would take over :data:`LONGEST_S`, by the time of its layout at the last size.
    """
    rates: list[tuple[float, Work]] = []
    seconds: dict[int, tuple[int, float]] = {}  # key: layout; value: the last size and its time
    for size in sorted(effort.sizes):
        for layout, work in enumerate(products(size)):
            last_size, last_s = seconds.get(layout, (size, 0.0))
            if last_s * (size / last_size) ** 3 > LONGEST_S:
                continue
            work.call()  # The first call builds kernels and threads.
            took_s = min(_timed(work.call).wall_s for _ in range(3))
            seconds[layout] = (size, took_s)
            rates.append((work.amount / took_s, work))
    return max(rates, key=lambda rate: rate[0])[1]


def _rates(works: dict[str, Work], effort: Effort, threads: int) -> dict[str, Rate]:
    """Return the rate of each computation in ``works``.

    They are timed in turn, round by round, so that other load affects all. Rounds continue until the cores are free or
    the time limit has passed.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in works}
    start = time.perf_counter()
    rounds = 0
    while True:
        for name, work in works.items():
            timings[name].append(_timed(work.call))
        rounds += 1
        rates = {name: rate_of(works[name], all_of_it, threads) for name, all_of_it in timings.items()}
        in_peace = all(rate.waited <= WAITED for rate in rates.values())
        if rounds >= effort.rounds and (in_peace or time.perf_counter() - start > effort.timeout_s):
            return rates


def rate_of(work: Work, timings: list[Timing], threads: int) -> Rate:
    """Return the rate by the median of the fastest timings.

    ``threads``: number of threads, for the share of waiting.
    """
    kept = sorted(timings)[:FASTEST]
    waited = sum(timing.waited_s for timing in kept) / (threads * sum(timing.wall_s for timing in kept))
    return Rate(work.amount / median(timing.wall_s for timing in kept), work.what, len(timings), waited)


def _timed(call: Callable[[], Any]) -> Timing:
    waited, start = _run_delay_s(), time.perf_counter()
    call()
    wall_s = time.perf_counter() - start
    return Timing(wall_s, _run_delay_s() - waited)


def _run_delay_s() -> float:
    """Return the seconds that this process's threads were ready but without a core; 0 on other systems than Linux."""
    total_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[1])
        except (OSError, ValueError, IndexError):  # The thread has just ended, or the kernel lacks the statistic.
            continue
    return total_ns / 1e9
