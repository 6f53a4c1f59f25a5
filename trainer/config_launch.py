"""Defines the section ``launch``: the processes that train together, and the batch system that starts them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from trainer.config_base import Config


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
