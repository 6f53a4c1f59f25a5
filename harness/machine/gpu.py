"""Read the NVIDIA devices from NVML (nvidia-ml-py) in a separate program, which a broken driver may hang."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.machine.files import ROOT, read_text
from harness.machine.limits import facts_of_module
from trainer.errors import in_words

NVIDIA_SMI_LIMIT_S = 20.0


@dataclass(frozen=True)
class Device:
    """One NVIDIA device as NVML reports it. None: not reported by this device or driver."""

    name: str
    memory_bytes: int | None
    used_bytes: int | None
    gpm: bool | None
    """True if it has GPU performance monitoring (SM, tensor and DRAM activity); None if not reported."""
    utilisation: int | None
    """Current utilisation in percent."""
    processes: int | None
    """Number of processes that compute on it now."""
    persistence: bool | None
    """Persistence mode: True if the driver keeps it initialised between processes."""
    mig: bool | None
    """True if MIG divides it into instances."""
    slowed_by: tuple[str, ...]
    """Current reasons for reduced clocks, except idleness."""
    problem: str | None = None
    """Why this device does not answer; None if it does."""


@dataclass(frozen=True)
class Nvml:
    """What NVML reports of the driver and all devices, or why it does not answer. Read by :func:`read_nvml`."""

    driver: str | None
    cuda: str | None
    """The newest CUDA version that the driver can run, such as 12.8."""
    devices: tuple[Device, ...]
    problem: str | None
    """Why NVML does not answer; None if it does."""
    library_missing: bool = False
    broken: bool = False
    """True if NVML hung or crashed its process."""
    driver_missing: bool = False
    """True if NVML reports that no driver is loaded."""
    binding_broken: bool = False
    """True if nvidia-ml-py cannot be imported, so that NVML was not asked."""

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
        return Nvml(
            None,
            None,
            (),
            str(error),
            library_missing=error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            driver_missing=error.value == nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        )
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


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asdict(_look())) + "\n")


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
