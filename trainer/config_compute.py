"""Defines the sections ``compute`` and ``launch``: where training runs, on which devices, and in which processes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from trainer.config_base import Config, How, Milliseconds


class ComputeInject(Config):
    """Artificial costs, added to the phases of every step (milliseconds) on the main thread, to test the harness.

    ``other_ms``: once per step, outside of all phases.
    """

    forward_ms: Milliseconds = 0
    backward_ms: Milliseconds = 0
    optimizer_ms: Milliseconds = 0
    sync_ms: Milliseconds = 0
    other_ms: Milliseconds = 0
    how: How = "busy"


class KernelDurations(Config):
    """Durations of an emulated device's kernels in milliseconds; null: from the device profile (roofline)."""

    h2d_ms: Milliseconds | None = None
    """Per micro-batch, like forward and backward."""
    forward_ms: Milliseconds | None = None
    backward_ms: Milliseconds | None = None
    norm_ms: Milliseconds | None = None
    """Gradient norm and clipping, per step."""
    optimizer_ms: Milliseconds | None = None


class KernelCounts(Config):
    """Number of kernels that the host launches on an emulated device, for each phase: h2d, forward and backward of a
    micro-batch, norm and optimizer of a step.
    """

    h2d: int = Field(1, ge=1, le=100_000)
    """Per micro-batch, like forward and backward."""
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
    """Share of the dense peak that forward and backward reach; null: the achievable matmul rate of the profile."""
    memory_efficiency: float = Field(0.9, gt=0, le=1)
    """Share of the memory and link bandwidth that optimizer, gradient norm and copies reach (an assumption)."""
    speed: float = Field(1.0, gt=0, le=1000)
    """Speed factor: the time of every kernel is divided by it."""
    jitter: float = Field(0, ge=0, lt=1)
    """Random factor of each kernel's time: seeded, uniform in [1 - jitter, 1 + jitter]."""
    queue_depth: int = Field(1024, ge=1, le=1_000_000)
    """Phases (of a micro-batch) that fit into the queue. The host blocks while it is full."""
    kernels: KernelDurations = KernelDurations()
    launches: KernelCounts = KernelCounts()
    """Number of equal kernels in each phase; no effect with launch_us 0."""
    launch_us: float = Field(0, ge=0, le=100_000)
    """Host time per kernel launch, in microseconds. The device is idle if it ends a kernel before the next launch."""
    launch_how: How = "busy"
    """How the host spends launch_us: busy spends CPU time of the main thread; sleep waits without using a core."""
    recorded: str | None = None
    """JSON file {"forward_ms": [...], ...} of kernel durations per step, used in order and repeated."""

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
    """Device and precision of the model, and when the host waits for the device."""

    device: Device = "auto"
    """auto, cpu, cuda, or {emulated: PROFILE}: an emulated device, timed by its profile."""
    precision: Literal["fp32", "tf32", "bf16", "pure-bf16", "fp16"] = "fp32"
    """bf16: autocast with fp32 master weights; pure-bf16: weights, gradients and moments in bf16 too (8 bytes each).
    tf32: fp32 whose matrix products round their inputs to 10 bits of mantissa (CUDA, compute capability 8.0 or more).
    fp16: autocast and a scaled loss (torch.amp.GradScaler); steps whose gradients overflow are skipped and counted,
    and do not advance the learning-rate schedule."""
    threads: int | None = Field(None, ge=1)
    """Intra-op threads of torch on the CPU; null: torch's default."""
    work: Literal["model", "none"] = "model"
    """none: fetch batches and drop them (set by the data-only control)."""
    check_finite: bool = True
    """Stop on a gradient norm that is NaN or infinite (fp16: on 32 skipped steps in a row)."""
    flops_convention: Literal["palm", "causal-half", "non-embedding"] = "palm"
    """Rule that counts the model's FLOPs per token, for MFU (see trainer/devices/estimates.py)."""
    sync: Literal["late", "norm", "every-step"] = "late"
    """When the host reads loss and gradient norm. late: one step later, after the next launch, so that the device is
    never idle. norm: the norm in each step, before the optimizer, and losses only with each log line. every-step: both
    in each step, as with ``loss.item()``. On a CPU, late means norm."""
    extra_forwards: int = Field(0, ge=0, le=64)
    """Extra forward passes per forward pass, without gradients (set by a dose control of device time)."""
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


def _one_word(text: str) -> str:
    if not text or len(text.split()) != 1 or text != text.strip() or not text.isprintable():
        raise ValueError(f"must be one word; got {text!r:.60}")
    return text


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"must be one line; got {text!r:.60}")
    return text


def _option(text: str) -> str:
    if not _one_line(text).startswith("--"):
        raise ValueError(f"must be an option of sbatch, such as --constraint=h100; got {text!r:.60}")
    return text


Word = Annotated[str, AfterValidator(_one_word)]
ShellLine = Annotated[str, AfterValidator(_one_line)]
SbatchOption = Annotated[str, AfterValidator(_option)]


class Torchrun(Config):
    """Number of ranks per machine and of machines of a run. The keys are named as torchrun's options."""

    nproc: int = Field(1, ge=1, le=1024)
    """Processes (ranks) on each machine. On CUDA each uses its own card."""
    nnodes: int = Field(1, ge=1, le=1024)
    """Machines of one Slurm job. More than 1 needs launch.slurm."""

    @property
    def ranks(self) -> int:
        """Number of ranks on all machines."""
        return self.nproc * self.nnodes


class SlurmConfig(Config):
    """Options of the study's Slurm jobs; null: the cluster's default."""

    mode: Literal["array", "allocation"] = "array"
    """array: a job array with one job per block. A job runs every arm, so arms are compared on the same nodes.
    allocation: one job for the whole study."""
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    time: Word | None = None
    """Time limit of one job, as for sbatch: "30", "02:00:00", "1-12:00:00". null: the partition's limit."""
    nodes: int | None = Field(None, ge=1, le=1024)
    """Nodes of one job; null: the largest launch.torchrun.nnodes."""
    gpus_per_node: Word | None = None
    """GPUs of each node, as for sbatch: "4", "h100:4"."""
    gres: Word | None = None
    """Generic resources of each node: "gpu:4"."""
    cpus_per_task: int | None = Field(None, ge=1, le=4096)
    """Cores on each node. One task runs all ranks and loader workers of a node."""
    mem: Word | None = None
    """Memory of each node, as for sbatch: "64G"."""
    exclusive: bool = True
    """Allow no other job on the nodes, because it would disturb the measurement. false: share the nodes."""
    at_once: int | None = Field(None, ge=1, le=1000)
    """Maximum number of jobs at the same time, with mode array; null: no limit."""
    extra: list[SbatchOption] = Field([])
    """More options of sbatch, such as --constraint=h100."""
    setup: list[ShellLine] = Field([])
    """Lines of shell before Python starts, such as module load cuda."""
    wait_s: float = Field(86_400, gt=0, le=31_536_000)
    """Seconds that harness run waits for its jobs, queued or running. Then it lists the unfinished jobs, which stay."""

    @model_validator(mode="after")
    def _at_once_is_of_arrays(self) -> SlurmConfig:
        if self.mode == "allocation" and self.at_once is not None:
            raise ValueError("at_once: needs mode array; an allocation is one job")
        return self


class LaunchConfig(Config):
    """Data-parallel training: every rank computes its own part of the global batch (ranks x data.batch_size)."""

    torchrun: Torchrun = Torchrun()
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """ddp: each rank holds the whole model (DistributedDataParallel); fsdp: a share of it (FSDP2, fully_shard)."""
    timeout_s: float = Field(120, gt=0, le=86_400)
    """Seconds that a rank waits for the others before the run fails."""
    slurm: SlurmConfig | None = None
    """Run the study in Slurm jobs; null: on this machine. Give it in base, because all arms share it."""

    @model_validator(mode="after")
    def _nodes_of_a_job(self) -> LaunchConfig:
        nnodes = self.torchrun.nnodes
        if nnodes > 1 and self.slurm is None:
            raise ValueError(
                f"torchrun.nnodes {nnodes}: the ranks of other machines are started by a job; allowed: nnodes 1, or "
                "launch.slurm (a program of your own on several: harness exec -- torchrun --nnodes ...)"
            )
        if self.slurm is not None and self.slurm.nodes is not None and self.slurm.nodes < nnodes:
            raise ValueError(f"slurm.nodes: {self.slurm.nodes}, but torchrun.nnodes is {nnodes}; allowed: as many")
        return self
