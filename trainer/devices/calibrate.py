"""Measures the rates of this CPU once, and caches them as a device profile, of which the peak is measured."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

from trainer.data.cache import cache_root, fingerprint
from trainer.devices.profiles import DeviceProfile, find_profile, matmul_dtype, profile_names, read_profile
from trainer.errors import InputError, cannot_write
from trainer.files import write_text
from trainer.json_types import Json

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
    """Rate of ``what`` in FLOP/s or bytes/s. ``waited``: share of its time that threads waited for a core."""

    per_s: float
    what: str
    calls: int
    waited: float


def measure(threads: int, effort: Effort) -> dict[str, Rate]:
    """Return the rates of ``threads`` threads: ``fp32``, ``bf16`` (best product, FLOP/s), ``copy`` (bytes/s)."""
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
    """Return the fastest product of all sizes. Skip a layout that a smaller size predicts above LONGEST_S."""
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
    """Return rates by name, all timed once a round, for ``effort.rounds`` and more while cores are shared."""
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
    """Return the rate by the median of the FASTEST timings; ``threads`` share the time waited for a core."""
    kept = sorted(timings)[:FASTEST]
    waited = sum(timing.waited_s for timing in kept) / (threads * sum(timing.wall_s for timing in kept))
    return Rate(work.amount / median(timing.wall_s for timing in kept), work.what, len(timings), waited)


def _timed(call: Callable[[], Any]) -> Timing:
    waited, start = _run_delay_s(), time.perf_counter()
    call()
    wall_s = time.perf_counter() - start
    return Timing(wall_s, _run_delay_s() - waited)


def _run_delay_s() -> float:
    """Return the seconds that living threads waited for a core since they began; 0 on others than Linux."""
    total_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[1])
        except (OSError, ValueError, IndexError):  # The thread has just ended, or the kernel lacks the statistic.
            continue
    return total_ns / 1e9


EFFORT = Effort()


def calibrate(threads: int, effort: Effort | None = None) -> DeviceProfile:
    """Measure this CPU with ``threads`` threads of torch, write its profile to the cache, and return it."""
    content = _content(threads, measure(threads, effort or EFFORT))
    profile = DeviceProfile.model_validate(content)
    path = profile_path(threads)
    try:
        write_text(path, yaml.safe_dump(content, sort_keys=False, width=120))
    except OSError as error:
        raise cannot_write(path, error, "HARNESS_CACHE=DIR chooses another cache") from error
    return profile


def cpu_profile(threads: int) -> DeviceProfile | None:
    """Return the cached profile for ``threads`` threads and this torch; None if missing or damaged."""
    path = profile_path(threads)
    try:
        return read_profile(path) if path.is_file() else None
    except InputError:
        return None


def not_calibrated(threads: int) -> str:
    """Return the reason why a CPU has no peak, with the command that measures it."""
    return f"not calibrated: run harness doctor --calibrate --threads {threads}"


def profile_path(threads: int) -> Path:
    """Return the path of the profile of this CPU, its cores, ``threads`` and torch's version in the cache."""
    key = [cpu_identity(), core_count(), threads, importlib.metadata.version("torch")]
    return cache_root() / "profiles" / f"cpu-{fingerprint(key)}.yaml"


def cpu_identity() -> str:
    """Return the CPU's name. On x86 with family and model, because virtual machines share names."""
    facts: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                facts.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    name = facts.get("model name") or platform.processor() or platform.machine()
    details = [f"{label} {facts[key]}" for label, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    return f"{name} ({', '.join(details)})" if details else name


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _content(threads: int, rates: dict[str, Rate]) -> dict[str, Json]:
    """Return the content of the profile's YAML file for the measured ``rates``."""
    today = datetime.datetime.now(datetime.UTC).date()
    torch_version, cores = importlib.metadata.version("torch"), core_count()
    counted = f"{threads} thread{'s' if threads > 1 else ''}"
    origin = f"measured by harness doctor --calibrate, {today}, torch {torch_version}, {counted}"

    def figure(name: str) -> dict[str, Json]:
        rate = rates[name]
        method = f"{rate.what}, median of the {min(FASTEST, rate.calls)} fastest of {rate.calls}"
        return {"value": float(f"{rate.per_s:.6g}"), "source": f"{origin}: {method}"}

    copy = figure("copy")
    return {
        "name": "cpu",
        "title": f"{cpu_identity()}, {cores} core{'s' if cores > 1 else ''}, {counted}",
        "device_names": ["cpu"],
        "device_names_source": "the trainer calls every CPU so; this file is found by the CPU's identity instead",
        "measured": True,
        "peak_flops_per_s": {dtype: figure(dtype) for dtype in ("fp32", "bf16")},
        "achievable_matmul_flops_per_s": {dtype: figure(dtype) for dtype in ("fp32", "bf16")},
        "memory_bytes": {
            "value": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "source": f"physical memory by the operating system, {today}",
        },
        "memory_bandwidth_bytes_per_s": copy,
        "link": {
            "name": "none: the CPU computes in host memory",
            "bandwidth_bytes_per_s": {"value": copy["value"], "source": f"a copy in memory, {copy['source']}"},
        },
        "price_per_hour_usd": {"value": None, "why": "a measured machine has no list price"},
        "notes": _disturbed(rates),
    }


def _disturbed(rates: dict[str, Rate]) -> list[str]:
    """Return a note if other processes used the cores during the measurement, else an empty list."""
    waited = max(rate.waited for rate in rates.values())
    if waited <= WAITED:
        return []
    return [
        f"other processes used the cores (waited for a core for {waited:.0%} of the time): "
        "the rates are too low, and an MFU against them too high; calibrate again when the machine is idle"
    ]


@dataclass(frozen=True)
class ProfileFacts:
    """Peak, price and sources at one precision; without a known peak only ``profile_reason`` is given."""

    profile: str | None = None  # name of the profile
    profile_reason: str | None = None  # reason for a missing profile
    peak_flops_per_s: float | None = None
    dtype: str | None = None  # number format of the peak
    peak_source: str | None = None
    peak_measured: bool | None = None
    price_per_hour_usd: float | None = None  # missing without a price in the profile


def profile_facts(device_name: str, device_is_cpu: bool, precision: str, threads: int) -> ProfileFacts:
    """Return peak and price of a device, or of this CPU, measured with ``threads`` threads, by its profile."""
    profile = cpu_profile(threads) if device_is_cpu else find_profile(device_name)
    if profile is None:
        names = ", ".join(profile_names())
        unknown = f"no device profile for {device_name!r}; there are: {names}"
        return ProfileFacts(profile_reason=not_calibrated(threads) if device_is_cpu else unknown)
    return facts_of(profile, precision)


def facts_of(profile: DeviceProfile, precision: str) -> ProfileFacts:
    """Return the peak and price in ``profile`` for one precision; without a peak only ``profile_reason``."""
    dtype = matmul_dtype(precision)
    try:
        peak = profile.peak_flops_per_s(dtype)
    except InputError as error:
        return ProfileFacts(profile_reason=str(error))
    return ProfileFacts(
        profile=profile.name,
        peak_flops_per_s=peak,
        dtype=dtype,
        peak_source=profile.peak_source(dtype),
        peak_measured=profile.measured,
        price_per_hour_usd=profile.price_per_hour_usd,
    )
