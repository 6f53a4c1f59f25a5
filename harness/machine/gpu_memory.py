"""Read the free memory of the GPUs from NVML."""

from __future__ import annotations

from typing import Any


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
