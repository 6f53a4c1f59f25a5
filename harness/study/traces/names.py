"""Defines names in torch.profiler's files: its categories and device types, and our marks for phases and stages."""

from __future__ import annotations

# Categories of events and types of devices (kineto's ActivityType, c10::DeviceType).
RUNTIME_CALLS = ("cuda_runtime", "cuda_driver")  # calls on the host, including every launch
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CPU = "CPU"
DEVICE_TYPES = {0: CPU, 1: "CUDA"}  # other types are shown by number

PHASE = "phase: "  # + a name of trainer.telemetry.PHASES, on the main thread
STAGE = "stage: "  # + a name of trainer.telemetry.STAGES, in a loader worker or inline
STEP = "ProfilerStep#"  # torch's own, + its count of the profiler's steps
