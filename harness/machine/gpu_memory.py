"""Read the free memory of the GPUs from NVML."""

from __future__ import annotations

from typing import Any


def free_gpu_memory() -> list[int]:
    """Return the free bytes on each GPU; [] without a driver."""
    try:
        import pynvml

        nvml: Any = pynvml
        nvml.nvmlInit()
        try:
            cards = range(nvml.nvmlDeviceGetCount())
            return [int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(card)).free) for card in cards]
        finally:
            nvml.nvmlShutdown()
    # NVML has a separate exception class for a missing library, a missing driver and missing permission.
    except Exception:
        return []
