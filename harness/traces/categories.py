"""torch.profiler's words: categories of events and types of devices (kineto's ActivityType, c10::DeviceType)."""

from __future__ import annotations

RUNTIME_CALLS = ("cuda_runtime", "cuda_driver")  # of the host, among them every launch
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CPU = "CPU"
DEVICE_TYPES = {0: CPU, 1: "CUDA"}  # others by their number
