"""Check the NVIDIA driver, NVML, torch's use of devices, and device profiles.

Profiles are imported when they are checked: a broken pydantic or yaml must cost only these lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.machine.checks.check import REINSTALL, Check, count, ok, size, span, warn
from harness.machine.gpu import Device, Nvml
from harness.machine.software import Torch

if TYPE_CHECKING:
    from trainer.devices.profiles import DeviceProfile


BUSY_PERCENT = 5
LOST = "reason: sudo dmesg | grep -i xid; a reset kills its jobs: sudo nvidia-smi --gpu-reset -i NUMBER, or reboot"
SILENT = "first make nvidia-smi show it; the reason: sudo dmesg | grep -i nvrm"
NOT_YOURS = "read and write access to its /dev/nvidia* for this user, container or job, to use it"


def check_driver(loaded: str | None, nvml: Nvml) -> Check:
    """Return the line on the NVIDIA driver. ``loaded``: version of the kernel's driver; None if not loaded."""
    if nvml.problem is None:
        upto = f", CUDA up to {nvml.cuda}" if nvml.cuda else ""
        return ok("driver", f"{nvml.driver or loaded or 'of unknown version'}{upto}")
    if loaded is not None:
        return ok("driver", f"{loaded} in the kernel")
    if nvml.absent:
        return ok("driver", "no NVIDIA driver: runs use the CPU or an emulated device")
    return ok("driver", "not reported: see nvml")


def check_nvml(loaded: str | None, nvml: Nvml) -> list[Check]:
    """Return a line per kind of device, or one if NVML does not answer. ``loaded``: as for :func:`check_driver`."""
    if nvml.problem is None:
        return list(_devices(nvml.devices)) or [ok("nvml", "works, but lists no device")]
    if loaded is None and nvml.absent:
        return [ok("nvml", f"nothing to sample, no GPM: {nvml.problem}")]
    if nvml.binding_broken:
        return [warn("nvml", f"nvidia-ml-py cannot be imported: {nvml.problem}", f"{REINSTALL} nvidia-ml-py")]
    if nvml.library_missing:
        fix = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility; apptainer --nv"
    elif "mismatch" in nvml.problem.lower():
        fix = "reboot, or reload the kernel's nvidia modules: the driver was updated under the running kernel"
    else:
        fix = "first make nvidia-smi work: ls -l /dev/nvidia*, sudo dmesg | grep -i nvrm"
    return [warn("nvml", f"does not answer: {nvml.problem}", fix)]


def _devices(devices: tuple[Device, ...]) -> Iterator[Check]:
    by_model: dict[tuple[str, str], list[int]] = {}
    for index, device in enumerate(devices):
        by_model.setdefault(_device(device), []).append(index)
    for (finding, fix), indices in by_model.items():
        times = f"{len(indices)} x " if len(indices) > 1 else ""
        name = f"gpu {span(indices)}"
        yield warn(name, times + finding, fix) if fix else ok(name, times + finding)


def _device(device: Device) -> tuple[str, str]:
    """Return what NVML reports of a device, and the fix; "" as fix if nothing is wrong."""
    if device.problem is not None:
        message = device.problem.lower()
        is_gone = "lost" in message or "reset" in message
        return f"no answer: {device.problem}", NOT_YOURS if "permission" in message else LOST if is_gone else SILENT
    gpm = {True: "GPM", False: "no GPM", None: "GPM not reported"}[device.gpm]
    parts = [device.name + (f" {size(device.memory_bytes)}" if device.memory_bytes else ""), gpm]
    if device.persistence is False:
        parts.append("no persistence mode (slow to start)")
    if device.mig:
        parts.append("MIG: clocks and power are shared with other instances")
    if device.slowed_by:
        reasons = " and ".join(device.slowed_by)
        return f"{', '.join(parts)}; clocks throttled by {reasons}", "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER"
    busy = device.utilisation is not None and device.utilisation > BUSY_PERCENT
    if device.processes or busy:
        use = f"{device.utilisation} % busy" if device.utilisation is not None else "busy"
        users = count(device.processes or 0, "process") if device.processes == 1 else f"{device.processes} processes"
        parts.append(f"{users if device.processes is not None else 'processes unknown'}, {use}")
        return "; ".join(
            (", ".join(parts[:-1]), parts[-1])
        ), "another device (CUDA_VISIBLE_DEVICES), or wait: nvidia-smi"
    return ", ".join(parts), ""


def check_cuda(torch: Torch, nvml: Nvml, environ: Mapping[str, str]) -> Check:
    """Return the line on torch's CUDA build and usable devices. Warns if it can use none that NVML shows."""
    usable = sum(device.problem is None for device in nvml.devices)
    upto = f"CUDA {nvml.cuda} or older" if nvml.cuda else "a CUDA version that the driver supports (nvidia-smi)"
    if torch.cuda_build is None:
        if not usable:
            return ok("cuda", "torch is built without CUDA: runs use the CPU")
        fix = f"install a torch built for {upto}: pytorch.org/get-started has the command"
        return warn("cuda", f"torch is built without CUDA, {count(usable, 'device')} unused", fix)
    built = f"torch is built for {torch.cuda_build}"
    if torch.cuda_devices:
        return ok("cuda", f"{built}, the driver supports up to {nvml.cuda or 'unknown'}; {_named(torch.cuda_devices)}")
    if not usable:
        return ok("cuda", f"{built}, {'no device here works' if nvml.devices else 'no device here'}")
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    finding = f"{built}, but it can use none of {count(usable, 'device')}"
    if hidden is not None:
        return warn("cuda", f"{finding}: CUDA_VISIBLE_DEVICES={hidden!r}", "unset CUDA_VISIBLE_DEVICES, or name one")
    if torch.cuda_problem is not None:
        finding += f": {torch.cuda_problem}"
    return warn("cuda", finding, f"install a torch built for {upto} (pytorch.org/get-started), or a newer driver")


def _named(names: tuple[str, ...]) -> str:
    kinds = {name: names.count(name) for name in names}
    return ", ".join(f"{number} x {name}" if number > 1 else name for name, number in kinds.items())


def check_cpu_profile(threads: int, *, needed: bool) -> Check:
    """Return the line on the profile of this CPU. ``needed``: True if the CPU is the only device that can compute."""
    from trainer.devices.calibrate import core_count, cpu_identity, cpu_profile, not_calibrated

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
    """Return a line per kind of CUDA device on its profile. ``names``: as torch reports them."""
    from trainer.devices.profiles import find_profile

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
    from trainer.devices.profiles import profile_names

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
