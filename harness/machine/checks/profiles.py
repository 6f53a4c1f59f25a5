"""Check which device profiles apply here: without a known peak a report cannot give MFU."""

from __future__ import annotations

from collections.abc import Sequence

from harness.machine.checks.check import Check, count, ok, warn
from trainer.devices.calibrate import core_count, cpu_identity, cpu_profile, not_calibrated
from trainer.devices.profiles import DeviceProfile, find_profile, profile_names


def check_cpu_profile(threads: int, *, needed: bool) -> Check:
    """Return the line on the calibrated profile of this CPU for ``threads`` torch threads.

    ``needed``: True if the CPU is the only device that can compute. Only then a missing profile is a warning.
    """
    cpu = f"{cpu_identity()}, {count(core_count(), 'core')}, {count(threads, 'thread')}"
    command = f"harness doctor --calibrate --threads {threads}"
    profile = cpu_profile(threads)
    if profile is None and needed:
        return warn("profile", f"cpu: {cpu}: not calibrated, so MFU stays null", command)
    if profile is None:
        return ok("profile", f"cpu: {cpu}: {not_calibrated(threads)}")
    finding = f"cpu: {cpu}: {figures(profile)}"
    if profile.notes:
        return warn("profile", f"{finding}; {'; '.join(profile.notes)}", command)
    return ok("profile", finding)


def check_cuda_profiles(names: Sequence[str]) -> list[Check]:
    """Return a line per kind of CUDA device on its profile; warns if none is known.

    ``names``: as torch reports them.
    """
    checks = []
    for name in dict.fromkeys(names):
        profile = find_profile(name)
        if profile is None:
            fix = "a file in profiles/devices (device_names: what is named here), each figure with its source"
            checks.append(warn("profile", f"{name}: no profile names it, so MFU stays null", fix))
            continue
        notes = "".join(f"; {note}" for note in profile.notes)
        checks.append(ok("profile", f"{name}: {profile.name} ({profile.title}), {figures(profile)}{notes}"))
    return checks


def check_shipped() -> Check:
    return ok("profiles", ", ".join(profile_names()))


def figures(profile: DeviceProfile) -> str:
    """Format a profile's figures as one line: peaks, achievable rates, memory, link and price, as far as known."""
    rates = [f"{dtype} {_flops(figure.value)}" for dtype, figure in profile.peak.items() if figure.value is not None]
    bandwidth = f"{profile.memory_bandwidth_bytes_per_s / 1e9:.4g} GB/s"
    if profile.measured:
        return f"measured {', '.join(rates)}, copy {bandwidth}"
    parts = [f"dense peak {', '.join(rates)}"]
    if profile.achievable_matmul_flops_per_s:
        achievable = [f"{dtype} {_flops(rate)}" for dtype, rate in profile.achievable_matmul_flops_per_s.items()]
        parts.append(f"achievable {', '.join(achievable)}")
    parts.append(f"memory {profile.memory_bytes / 1e9:.0f} GB at {bandwidth}")
    parts.append(f"{profile.link.name} {profile.link_bandwidth_bytes_per_s / 1e9:.4g} GB/s")
    if profile.price_per_hour_usd is not None:
        parts.append(f"{profile.price_per_hour_usd:g} USD per hour on {profile.price.date}")
    return "; ".join(parts)


def _flops(rate: float) -> str:
    return f"{rate / 1e12:.4g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.4g} GFLOP/s"
