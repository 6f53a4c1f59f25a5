"""harness doctor: what devices are here, what is known of their peaks, and measuring this CPU's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.device_profiles import DeviceProfile


def doctor(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the devices of this machine and their profiles; with --calibrate, measure the CPU first."""
    if arguments.threads is not None and arguments.threads < 1:
        raise InputError(f"doctor: --threads {arguments.threads}: at least 1")
    import torch  # takes a second or two: the devices are torch's to see

    threads = arguments.threads or torch.get_num_threads()
    if arguments.calibrate:
        from trainer.calibrate import calibrate

        print(f"measuring this CPU with {_count(threads, 'thread')}: 5 to 20 seconds", file=sys.stderr)
        calibrate(threads)
    for line in (*_cpu(threads), *_cuda(), *_shipped()):
        print(line)
    return 0


def _cpu(threads: int) -> Iterator[str]:
    import importlib.metadata

    from trainer.calibrate import core_count, cpu_identity, cpu_profile, not_calibrated, profile_path

    torch_version = importlib.metadata.version("torch")
    cores = _count(core_count(), "core")
    yield f"cpu: {cpu_identity()}, {cores}; torch {torch_version}, {_count(threads, 'thread')}"
    profile = cpu_profile(threads)
    if profile is None:
        yield f"  profile: none; MFU stays null: {not_calibrated(threads)}"
        return
    yield f"  profile: {profile_path(threads)}"
    yield from _figures(profile)


def _cuda() -> Iterator[str]:
    import torch

    from trainer.device_profiles import find_profile

    if not torch.cuda.is_available():
        yield "cuda: no device that torch can see"
        return
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        yield f"cuda:{index}: {name}"
        profile = find_profile(name)
        if profile is None:
            yield "  profile: none names this device; MFU stays null (profiles/devices/*.yaml, device_names)"
            continue
        yield f"  profile: {profile.name} ({profile.title})"
        yield from _figures(profile)


def _shipped() -> Iterator[str]:
    from trainer.device_profiles import profile_names

    yield f"device profiles: {', '.join(profile_names())}"


def _figures(profile: DeviceProfile) -> Iterator[str]:
    kind = "measured" if profile.measured else "dense peak"
    rates = [f"{dtype} {_flops(figure.value)}" for dtype, figure in profile.peak.items() if figure.value is not None]
    yield f"  {kind}: {', '.join(rates)}"
    if not profile.measured and profile.achievable_matmul_flops_per_s:
        achievable = [f"{dtype} {_flops(rate)}" for dtype, rate in profile.achievable_matmul_flops_per_s.items()]
        yield f"  achievable in a matrix product: {', '.join(achievable)}"
    line = (
        f"  memory {profile.memory_bytes / 1e9:.0f} GB at {profile.memory_bandwidth_bytes_per_s / 1e9:.4g} GB/s; "
        f"link {profile.link.name}"
    )
    yield line if profile.measured else f"{line}, {profile.link_bandwidth_bytes_per_s / 1e9:.4g} GB/s"
    for note in profile.notes:
        yield f"  note: {note}"
    if profile.price_per_hour_usd is not None:
        yield f"  {profile.price_per_hour_usd:g} USD per hour on {profile.price.date} ({profile.price.source})"


def _flops(rate: float) -> str:
    return f"{rate / 1e12:.5g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.4g} GFLOP/s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
