"""Five declared pipelines on the emulated device, one for each thing that can limit a step.

device     30 ms of kernels, the optimizer's 10 ms behind the norm that the host reads: 9 ms of room beside 1 ms of data
balanced   the same, with data work that fills that room
data       12 ms of data work, of which 3 ms hide behind the optimizer
host       12 ms of the host's own work, of which 3 ms do
launch     636 kernels of 7.9 us, launched every 25 us, and 6 ms of data work: the device is done with each launch
"""

from __future__ import annotations

from typing import Any

from harness.explain.bounds import Bound

NAME = "known-truth-bounds"
STEPS = 20
WARMUP = 3
KERNELS = {"h2d": 0.0, "forward": 6.0, "backward": 12.0, "norm": 2.0, "optimizer": 10.0}
SHORT_TAIL = KERNELS | {"optimizer": 3.0}
LAUNCHES = {"h2d": 1, "forward": 200, "backward": 380, "norm": 10, "optimizer": 45}
LAUNCH_US, KERNEL_US = 25.0, 7.9
LAUNCHING_MS = sum(LAUNCHES.values()) * LAUNCH_US / 1e3
LAUNCHED_BUSY_MS = sum(LAUNCHES.values()) * KERNEL_US / 1e3
LAUNCHED_DATA_MS = 6.0


def arm(kernels: dict[str, float], tokenize_ms: float, other_ms: float = 0.0, **device: Any) -> dict[str, Any]:
    return {
        "data.inject": {"tokenize_ms": tokenize_ms, "how": "sleep"},
        "compute.inject": {"other_ms": other_ms, "how": "sleep"},
        "compute.device.kernels": {f"{name}_ms": cost for name, cost in kernels.items()},
        **{f"compute.device.{key}": value for key, value in device.items()},
    }


ARMS: dict[Bound, dict[str, Any]] = {
    "device": arm(KERNELS, 1.0),
    "balanced": arm(KERNELS, 9.5),
    "data": arm(SHORT_TAIL, 12.0),
    "host": arm(SHORT_TAIL, 0.5, other_ms=12.0),
    "launch": arm(
        {name: count * KERNEL_US / 1e3 for name, count in LAUNCHES.items()},
        LAUNCHED_DATA_MS,
        launches=LAUNCHES,
        launch_us=LAUNCH_US,
        launch_how="sleep",
    ),
}


def scenario() -> dict[str, Any]:
    return {
        "name": NAME,
        "question": "Does the harness name what limits each of five pipelines that are declared to be so?",
        "base": {
            "data": {"sequence_length": 64, "batch_size": 2, "replay": True},
            "compute.device.emulated": "gh200",
            "compute.sync": "norm",
            "log_every": 1000,
            "steps": STEPS,
            "warmup_steps": WARMUP,
        },
        "arms": {str(bound): content for bound, content in ARMS.items()},
        "controls": ["ideal-data"],
        "repeats": 1,
        "interleave": "slices",
        "slice_steps": STEPS,
    }
