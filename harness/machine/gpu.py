"""Read the NVIDIA devices from NVML in a separate program, which a broken driver may hang; check them and profiles.

Profiles are imported when they are checked: a broken pydantic or yaml must cost only these lines.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.machine.check import REINSTALL, Check, count, ok, size, span, warn
from harness.machine.files import ROOT, read_text
from harness.machine.limits import facts_of_module
from trainer.errors import in_words

if TYPE_CHECKING:
    from harness.machine.software import Torch
    from trainer.devices.profiles import DeviceProfile


NVIDIA_SMI_LIMIT_S = 20.0


@dataclass(frozen=True)
class Device:
    """One NVIDIA device as NVML reports it. None: not reported by this device or driver."""

    name: str
    memory_bytes: int | None
    used_bytes: int | None
    gpm: bool | None  # True if it has GPU performance monitoring (SM, tensor and DRAM activity); None if not reported.
    utilisation: int | None  # Current utilisation in percent
    processes: int | None  # Number of processes that compute on it now
    persistence: bool | None  # Persistence mode: True if the driver keeps it initialised between processes.
    mig: bool | None  # True if MIG divides it into instances
    slowed_by: tuple[str, ...]  # Current reasons for reduced clocks, except idleness
    problem: str | None = None  # Why this device does not answer; None if it does.


@dataclass(frozen=True)
class Nvml:
    """What NVML reports of the driver and all devices, or why it does not answer. Read by :func:`read_nvml`."""

    driver: str | None
    cuda: str | None  # The newest CUDA version that the driver can run, such as 12.8
    devices: tuple[Device, ...]
    problem: str | None  # Why NVML does not answer; None if it does.
    library_missing: bool = False
    broken: bool = False  # True if NVML hung or crashed its process
    driver_missing: bool = False  # True if NVML reports that no driver is loaded
    binding_broken: bool = False  # True if nvidia-ml-py cannot be imported, so that NVML was not asked

    @property
    def absent(self) -> bool:
        """True if this machine has no NVIDIA driver or library. Any other problem should be fixed."""
        return self.library_missing or self.driver_missing


def driver_loaded(root: Path = ROOT) -> str | None:
    """Return the version of the kernel's NVIDIA driver; None if none is loaded."""
    text = read_text(root / "proc/driver/nvidia/version")
    if text is None:
        return None
    parts = text.splitlines()[0].split() if text else []
    return next((part for part in parts if part[0].isdigit() and "." in part), "of unknown version")


def read_nvml() -> Nvml:
    """Query NVML in a separate process. If that hangs or crashes, the result has ``problem`` and ``broken`` set."""
    try:
        facts: Any = dict(facts_of_module("harness.machine.gpu", NVIDIA_SMI_LIMIT_S))
    except (TimeoutError, RuntimeError) as error:
        return Nvml(None, None, (), str(error), broken=True)
    devices = (Device(**{**device, "slowed_by": tuple(device["slowed_by"])}) for device in facts["devices"])
    return Nvml(**{**facts, "devices": tuple(devices)})


def _look() -> Nvml:
    try:
        import pynvml
    except Exception as error:  # A broken package may raise any exception.
        return Nvml(None, None, (), in_words(error), binding_broken=True)
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        codes = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        no_library, no_driver = (error.value == code for code in codes)
        return Nvml(None, None, (), str(error), library_missing=no_library, driver_missing=no_driver)
    try:
        cuda = _known(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        devices = tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        return Nvml(_known(nvml, nvml.nvmlSystemGetDriverVersion), version, devices, None)
    except nvml.NVMLError as error:
        return Nvml(_known(nvml, nvml.nvmlSystemGetDriverVersion), None, (), str(error))
    finally:
        with contextlib.suppress(nvml.NVMLError):  # The readings are complete at this point.
            nvml.nvmlShutdown()


def _device(nvml: Any, index: int) -> Device:
    """Read the device with number ``index``. If it does not answer, return a device with only ``problem`` set."""
    try:
        return _answering(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        return Device("unknown", None, None, None, None, None, None, None, (), str(error))


def _answering(nvml: Any, handle: Any) -> Device:
    lost = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)

    def known(name: str) -> Any:
        return _known(nvml, lambda: getattr(nvml, name)(handle), lost)

    memory, mig = known("nvmlDeviceGetMemoryInfo"), known("nvmlDeviceGetMigMode")
    gpm, use = known("nvmlGpmQueryDeviceSupport"), known("nvmlDeviceGetUtilizationRates")
    processes, persistence = known("nvmlDeviceGetComputeRunningProcesses"), known("nvmlDeviceGetPersistenceMode")
    return Device(
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=None if memory is None else memory.total,
        used_bytes=None if memory is None else memory.used,
        gpm=None if gpm is None else bool(gpm.isSupportedDevice),
        utilisation=None if use is None else use.gpu,
        processes=None if processes is None else len(processes),
        persistence=None if persistence is None else bool(persistence),
        mig=None if mig is None else bool(mig[0]),
        slowed_by=_slowed_by(nvml, known("nvmlDeviceGetCurrentClocksThrottleReasons") or 0),
    )


_REASONS = {
    "nvmlClocksThrottleReasonSwPowerCap": "the power limit",
    "nvmlClocksThrottleReasonHwSlowdown": "the hardware (heat or power)",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "heat",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat (hardware)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "the power supply",
    "nvmlClocksThrottleReasonApplicationsClocksSetting": "a clock that was set",
}


def _slowed_by(nvml: Any, mask: int) -> tuple[str, ...]:
    return tuple(text for name, text in _REASONS.items() if mask & getattr(nvml, name, 0))


def _known(nvml: Any, read: Callable[[], Any], raised: Sequence[int] = ()) -> Any:
    """Return the result of ``read``; None if it is not supported. ``raised``: NVML error codes to raise instead."""
    try:
        return read()
    except AttributeError:
        return None
    except nvml.NVMLError as error:
        if error.value in raised:
            raise
        return None


def free_gpu_memory() -> list[int]:
    """Return the free bytes of each GPU, in NVML's order; [] if NVML does not answer."""
    try:
        import pynvml

        nvml: Any = pynvml
        nvml.nvmlInit()
        try:
            cards = range(nvml.nvmlDeviceGetCount())
            return [int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(card)).free) for card in cards]
        finally:
            nvml.nvmlShutdown()
    except Exception:  # NVML has separate classes for a missing library, driver or permission.
        return []


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
        return list(_device_lines(nvml.devices)) or [ok("nvml", "works, but lists no device")]
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


def _device_lines(devices: tuple[Device, ...]) -> Iterator[Check]:
    by_model: dict[tuple[str, str], list[int]] = {}
    for index, device in enumerate(devices):
        by_model.setdefault(_device_line(device), []).append(index)
    for (finding, fix), indices in by_model.items():
        times = f"{len(indices)} x " if len(indices) > 1 else ""
        name = f"gpu {span(indices)}"
        yield warn(name, times + finding, fix) if fix else ok(name, times + finding)


def _device_line(device: Device) -> tuple[str, str]:
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


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asdict(_look())) + "\n")
