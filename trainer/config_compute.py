"""Defines the sections ``compute`` and ``launch``: where training runs, on which devices, and in which processes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

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
    """How the model's FLOPs per token are counted, of which MFU follows (see trainer/devices/estimates.py)."""
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


def _one_word(text: str) -> str:
    if not text or len(text.split()) != 1 or text != text.strip() or not text.isprintable():
        raise ValueError(f"must be one word, as sbatch takes it; got {text!r:.60}")
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
    """The ranks of a run, under torchrun's names for them."""

    nproc: int = Field(1, ge=1, le=1024)
    """Processes (ranks) on each machine; on CUDA each has a card of its own."""
    nnodes: int = Field(1, ge=1, le=1024)
    """Machines, of one Slurm job: more than 1 only with launch.slurm."""

    @property
    def ranks(self) -> int:
        """Number of ranks on all machines."""
        return self.nproc * self.nnodes


class SlurmConfig(Config):
    """What the jobs of a study ask of Slurm; what is null is left to the cluster's defaults."""

    mode: Literal["array", "allocation"] = "array"
    """array: a job array with one job for each block, which holds every arm: arms are compared within a job, on the
    same nodes. allocation: one job for the whole study."""
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    time: Word | None = None
    """Of one job, as sbatch takes it: "30", "02:00:00", "1-12:00:00". Give one: a job without has its partition's."""
    nodes: int | None = Field(None, ge=1, le=1024)
    """Of one job; null: the largest launch.torchrun.nnodes."""
    gpus_per_node: Word | None = None
    """As sbatch takes it: "4", "h100:4"."""
    gres: Word | None = None
    """Generic resources of each node: "gpu:4"."""
    cpus_per_task: int | None = Field(None, ge=1, le=4096)
    """Cores on each node: all ranks and loader workers of a node are in one task."""
    mem: Word | None = None
    """Memory of each node, as sbatch takes it: "64G"."""
    exclusive: bool = True
    """No other job on its nodes: they would be measured too. false: nodes are shared."""
    at_once: int | None = Field(None, ge=1, le=1000)
    """mode array: jobs that may run at the same time; null: as many as there are nodes."""
    extra: list[SbatchOption] = Field([])
    """More options of sbatch, such as --constraint=h100."""
    setup: list[ShellLine] = Field([])
    """Lines of shell before Python starts, such as module load cuda."""
    wait_s: float = Field(86_400, gt=0, le=31_536_000)
    """harness run waits so long for all of its jobs, queued or running; then it says which, and leaves them be."""

    @model_validator(mode="after")
    def _at_once_is_of_arrays(self) -> SlurmConfig:
        if self.mode == "allocation" and self.at_once is not None:
            raise ValueError("at_once: goes with mode array; an allocation is one job")
        return self


class LaunchConfig(Config):
    """Data-parallel training: every rank computes its own part of the global batch (ranks x data.batch_size)."""

    torchrun: Torchrun = Torchrun()
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """ddp: each rank holds the whole model (DistributedDataParallel); fsdp: a share of it (FSDP2, fully_shard)."""
    timeout_s: float = Field(120, gt=0, le=86_400)
    """Waiting for the other ranks ends the run after this many seconds."""
    slurm: SlurmConfig | None = None
    """Run the study in jobs of Slurm; null: here. All arms share it, so it stands in base."""

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
