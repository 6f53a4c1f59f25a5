"""Measures the rates of this CPU once, and caches them as a device profile.

A CPU's theoretical peak is not useful: clocks depend on the instructions, and bf16 may be emulated. So the peak of a
CPU profile is the best *measured* rate, and is marked so. An MFU against it compares with a plain matrix product of
this torch, not with the silicon.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import yaml

from trainer.data.cache import cache_root, fingerprint
from trainer.devices.cpu_rates import FASTEST, WAITED, Effort, Rate, measure
from trainer.devices.profiles import DeviceProfile, find_profile, matmul_dtype, profile_names, read_profile
from trainer.errors import InputError, cannot_write
from trainer.files import write_text
from trainer.json_types import Json

EFFORT = Effort()


def calibrate(threads: int, effort: Effort | None = None) -> DeviceProfile:
    """Measure this CPU with ``threads`` threads of torch, and return the profile, which replaces a cached one.

    It takes seconds.
    """
    content = _content(threads, measure(threads, effort or EFFORT))
    profile = DeviceProfile.model_validate(content)
    _store(profile_path(threads), yaml.safe_dump(content, sort_keys=False, width=120))
    return profile


def cpu_profile(threads: int) -> DeviceProfile | None:
    """Return the cached profile of this CPU with ``threads`` of this torch; None if it was not measured or is
    damaged.
    """
    path = profile_path(threads)
    try:
        return read_profile(path) if path.is_file() else None
    except InputError:
        return None


def not_calibrated(threads: int) -> str:
    """Return the reason why a CPU has no peak, with the command that measures it."""
    return f"not calibrated: run harness doctor --calibrate --threads {threads}"


def profile_path(threads: int) -> Path:
    """Return the path of the cached profile of this CPU.

    It depends on the CPU, its cores, ``threads`` and torch's version.
    """
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
        f"others used the cores meanwhile (ready but without a core for {waited:.0%} of the time): "
        "the rates are too low, and an MFU against them too high; calibrate again when the machine is idle"
    ]


def _store(path: Path, text: str) -> None:
    try:
        write_text(path, text)
    except OSError as error:
        raise cannot_write(path, error, "HARNESS_CACHE=DIR chooses another cache") from error


@dataclass(frozen=True)
class ProfileFacts:
    """Facts of a device's profile for one precision.

    Without a profile or peak there is only ``profile_reason``, which says why.
    """

    profile: str | None = None  # name of the profile
    profile_reason: str | None = None  # reason for a missing profile
    peak_flops_per_s: float | None = None
    dtype: str | None = None  # number format of the peak
    peak_source: str | None = None
    peak_measured: bool | None = None
    price_per_hour_usd: float | None = None  # missing without a price in the profile


def profile_facts(device_name: str, device_is_cpu: bool, precision: str, threads: int) -> ProfileFacts:
    """Return the facts of the device called ``device_name``, or of this CPU with ``threads``.

    Without a known peak they have only the reason, and MFU stays null.
    """
    profile = cpu_profile(threads) if device_is_cpu else find_profile(device_name)
    if profile is None:
        names = ", ".join(profile_names())
        unknown = f"no device profile names {device_name!r}; there are: {names}"
        return ProfileFacts(profile_reason=not_calibrated(threads) if device_is_cpu else unknown)
    return facts_of(profile, precision)


def facts_of(profile: DeviceProfile, precision: str) -> ProfileFacts:
    """Return the facts of ``profile`` for one precision, for example of an emulated device.

    Without a peak they have only the reason.
    """
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
