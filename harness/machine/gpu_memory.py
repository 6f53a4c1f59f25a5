"""Reads the free memory of the GPU from NVML."""

from __future__ import annotations

from typing import Any


def gpu_memory() -> int | None:
    """Return the free bytes on the first GPU by NVML; None without a driver."""
    try:
        import pynvml

        nvml: Any = pynvml
        nvml.nvmlInit()
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(0)).free)
        finally:
            nvml.nvmlShutdown()
    except Exception:  # no library, no driver, no permission: NVML has an exception class for each
        return None
