"""Defines the ``compute`` section: device, precision, synchronization, emulated kernels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from trainer.config_base import Config, How, Milliseconds


class ComputeInject(Config):
    """Known costs added to the phases of every step (milliseconds), on the host's main thread."""

    forward_ms: Milliseconds = 0
    backward_ms: Milliseconds = 0
    optimizer_ms: Milliseconds = 0
    sync_ms: Milliseconds = 0
    other_ms: Milliseconds = 0
    how: How = "busy"


class KernelDurations(Config):
    """Fixed durations of an emulated device's kernels in milliseconds; None: by roofline from the device profile."""

    h2d_ms: Milliseconds | None = None
    """Per micro-batch, as are forward and backward."""
    forward_ms: Milliseconds | None = None
    backward_ms: Milliseconds | None = None
    norm_ms: Milliseconds | None = None
    """Gradient norm and clipping, per step."""
    optimizer_ms: Milliseconds | None = None


class KernelCounts(Config):
    """How many kernels the host launches on an emulated device, one after the other; each phase has at least one."""

    h2d: int = Field(1, ge=1, le=100_000)
    """Per micro-batch, as are forward and backward."""
    forward: int = Field(1, ge=1, le=100_000)
    backward: int = Field(1, ge=1, le=100_000)
    norm: int = Field(1, ge=1, le=100_000)
    """Gradient norm and clipping, per step."""
    optimizer: int = Field(1, ge=1, le=100_000)


class EmulatedDevice(Config):
    """An emulated in-order asynchronous device: its kernels take time and compute nothing."""

    emulated: str
    """A device profile (profiles/devices/*.yaml): gh200, h100-sxm, ..."""
    matmul_efficiency: float | None = Field(None, gt=0, le=1)
    """Share of the dense peak that forward and backward reach; None: the achievable matmul rate of the profile."""
    memory_efficiency: float = Field(0.9, gt=0, le=1)
    """Share of the memory and link bandwidth that optimizer, gradient norm and copies reach: a stated assumption."""
    speed: float = Field(1.0, gt=0, le=1000)
    """Every kernel takes its time divided by this."""
    jitter: float = Field(0, ge=0, lt=1)
    """Each kernel's time is multiplied by a seeded uniform draw from [1 - jitter, 1 + jitter]."""
    queue_depth: int = Field(1024, ge=1, le=1_000_000)
    """Phases (of a micro-batch) that may wait in the queue; the host blocks while it is full."""
    kernels: KernelDurations = KernelDurations()
    launches: KernelCounts = KernelCounts()
    """Kernels that each phase's time is divided into equally; with launch_us 0 their number makes no difference."""
    launch_us: float = Field(0, ge=0, le=100_000)
    """Host time per kernel in microseconds. The device may end a kernel, and be idle, before the next is launched."""
    launch_how: How = "busy"
    """How the host spends launch_us: busy spends CPU time of the main thread; sleep waits without using a core."""
    recorded: str | None = None
    """A JSON file {"forward_ms": [...], ...} of recorded kernel durations per step, replayed in order and repeated."""

    @model_validator(mode="after")
    def _launching_ends(self) -> EmulatedDevice:
        for name, count in self.launches.model_dump().items():
            if (whole_ms := count * self.launch_us / 1e3) > 60_000:
                raise ValueError(
                    f"launching {name} takes {count} x {self.launch_us:g} us = {whole_ms / 1e3:g} s; "
                    "allowed: at most 60 s a phase"
                )
        return self


def _device_tag(value: Any) -> str:
    return "[emulated]" if isinstance(value, dict | EmulatedDevice) else "[device]"


# pydantic puts these tags into its error locations. The brackets mark them, and messages leave them out.
Device = Annotated[
    Annotated[Literal["auto", "cpu", "cuda"], Tag("[device]")] | Annotated[EmulatedDevice, Tag("[emulated]")],
    Discriminator(_device_tag),
]


class ComputeConfig(Config):
    """Where and how the model is computed."""

    device: Device = "auto"
    """auto, cpu, cuda, or {emulated: PROFILE}: an emulated device, timed by its profile."""
    precision: Literal["fp32", "tf32", "bf16", "pure-bf16", "fp16"] = "fp32"
    """bf16: autocast with fp32 master weights; pure-bf16: weights, gradients and moments in bf16 too (8 bytes each).
    tf32: fp32 whose matrix products round their inputs to 10 bits of mantissa (CUDA, compute capability 8.0 or more).
    fp16: autocast and a scaled loss (torch.amp.GradScaler); steps whose gradients overflow are skipped and counted,
    and the learning rate's schedule stands still for them."""
    threads: int | None = Field(None, ge=1)
    """Intra-op threads of torch on the CPU; None: torch's default."""
    work: Literal["model", "none"] = "model"
    """none: batches are fetched and dropped (the data-only control sets it)."""
    check_finite: bool = True
    """Stop on a gradient norm that is NaN or infinite (fp16: on 32 skipped steps in a row)."""
    flops_convention: Literal["palm", "causal-half", "non-embedding"] = "palm"
    """How the model's FLOPs per token are counted, of which MFU follows (see trainer/devices/flops.py)."""
    sync: Literal["late", "norm", "every-step"] = "late"
    """When the host reads loss and gradient norm. late: one step later, when the next is launched, so that the device
    never runs dry. norm: the norm at once, before the optimizer, the losses with each log line. every-step: both at
    once, as ``loss.item()`` in a loop does. On a CPU all values are known at once, and late is norm."""
    extra_forwards: int = Field(0, ge=0, le=64)
    """Compute every forward pass this many more times, without gradients (a dose control of device time sets it)."""
    inject: ComputeInject | None = None

    @property
    def emulated(self) -> EmulatedDevice | None:
        """The emulated device; None for a real one."""
        return self.device if isinstance(self.device, EmulatedDevice) else None

    @model_validator(mode="after")
    def _a_cpu_has_no_tf32(self) -> ComputeConfig:
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError(
                "precision: tf32 needs a CUDA device of compute capability 8.0 or more, but device is cpu; allowed "
                "there: fp32, bf16, pure-bf16, fp16"
            )
        return self

    @model_validator(mode="after")
    def _sync_has_a_place(self) -> ComputeConfig:
        if self.inject is not None and self.inject.sync_ms and not self.check_finite:
            raise ValueError(
                "inject.sync_ms is spent where check_finite blocks; allowed: check_finite true, or sync_ms 0"
            )
        return self
