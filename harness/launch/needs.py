"""Estimates what the runs of a block need: memory, shared memory for batches, open files, processes.

Refuses runs that cannot fit in memory, and decides if the arms of a block fit side by side.

    need of a run = weights + moments + the larger of gradients and activations + process + workers + batches in flight

Arms that alternate keep all but the larger of gradients and activations at once, plus that of one arm.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.machine.capacity import Needs, check_needs, read_memory
from harness.machine.cgroup import find_group, memory_limit
from harness.machine.environment import available_memory_bytes, has_nvidia_driver
from harness.machine.gpu import free_gpu_memory
from trainer.config import DataConfig, TrainerConfig
from trainer.devices.estimates import ByteRange, Footprint, batch_bytes, footprint
from trainer.errors import InputError
from trainer.model import shape_of

MIB, GIB = 2**20, 2**30
# Private memory of a run forked from the fork server, without the model (measured with tiny models: 50 to 260 MB
# private; the 270 MB of torch and transformers are shared).
PROCESS = ByteRange(50 * MIB, 300 * MIB)
SHARED = ByteRange(0, 270 * MIB)  # pages of torch, if the resident pages of the process count as free for it
WORKER = ByteRange(20 * MIB, 200 * MIB)  # private pages of a forked loader worker
NO_BYTES = ByteRange(0, 0)
CONTEXT = ByteRange(200 * MIB, 1024 * MIB)  # CUDA's kernels and libraries on the card
MOST_OF_MEMORY = 0.7  # share of the free memory; the rest is for the page cache, which the sources read from
FORCIBLE = ", or start anyway with --force"
MOST_ARMS = 64  # maximum number of arms alive together: each has workers and a socket


@dataclass(frozen=True)
class Holding:
    """Memory of one run on the host or on a card: ``lasting_bytes`` (also while suspended), and ``peak`` in a step."""

    lasting_bytes: int
    peak: ByteRange


@dataclass(frozen=True)
class RunNeed:
    """Estimated memory that the run of one arm needs, split into parts. :func:`need_of` makes it."""

    arm: str
    computes_on: Literal["host", "cuda", "auto"]  # auto: a driver was found, so the run uses CUDA if torch supports it.
    training: Footprint | None
    """None without a torch model, or if nothing is known about the model before it is built (a factory)."""
    workers: int
    batch: ByteRange
    in_flight: int  # Number of batches built ahead; without workers, the one in use.
    ranks: int = 1  # Processes on one machine that each need all of this. On CUDA each has its own card.
    own_model: bool = False
    """True if the model's size is not known in advance (a factory, or no formula): its memory is not included."""
    checkpoint: ByteRange = NO_BYTES
    """Weights and moments of all ranks that are copied into host memory for a checkpoint."""

    @property
    def in_memory(self) -> Holding:
        """Host memory of all ranks here together. At the high end, a checkpoint is written during steps."""
        holding = self._of_one_rank
        lasting_bytes, peak = holding.lasting_bytes * self.ranks, holding.peak.times(self.ranks)
        low_bytes = max(peak.low_bytes, lasting_bytes + self.checkpoint.low_bytes)
        return Holding(lasting_bytes, ByteRange(low_bytes, peak.high_bytes + self.checkpoint.high_bytes))

    @property
    def _of_one_rank(self) -> Holding:
        own = PROCESS + WORKER.times(self.workers) + self.batches
        if self.training is None:
            return Holding(own.low_bytes, own)
        if self.computes_on == "host":
            return Holding(own.low_bytes + self.training.lasting_bytes, own + self.training.peak)
        built = 4 * self.training.parameters  # built on the host, then moved
        return Holding(own.low_bytes, own + ByteRange(built, built))

    @property
    def on_card(self) -> Holding:
        """Memory that a rank needs on its card, or may need ("auto": low end 0). A suspended run keeps the peak."""
        if self.training is None or self.computes_on == "host":
            return Holding(0, NO_BYTES)
        peak = CONTEXT + self.training.peak + self.batch
        low_bytes = peak.low_bytes if self.computes_on == "cuda" else 0
        return Holding(low_bytes, ByteRange(low_bytes, peak.high_bytes))

    @property
    def batches(self) -> ByteRange:
        """Memory of the batches in flight. The low end has one per worker, as with a slow loader."""
        return ByteRange(self.batch.low_bytes * max(self.workers, 1), self.batch.high_bytes * self.in_flight)

    def arithmetic(self) -> str:
        """Return a text that lists the least memory (GiB) of every part, per rank."""
        parts = []
        if self.training is not None:
            size, weights = self.training.bytes_per_value, self.training.weight_bytes
            shared = f" / {self.training.shards} ranks" if self.training.shards > 1 else ""
            parts = [
                f"{self.training.parameters:,} parameters x {size} bytes{shared} = {_gib(weights)}",
                f"two moments of AdamW {_gib(2 * weights)}",
                f"gradients {_gib(weights)} or, if more, activations {_gib(self.training.activations.low_bytes)}",
            ]
        workers = f" and {self.workers} workers" if self.workers else ""
        parts.append(f"process{workers} {_gib((PROCESS + WORKER.times(self.workers)).low_bytes)}")
        batch_size = f"{self.batch.low_bytes / MIB:.1f} MiB"
        batches = f"{self.workers} batches of {batch_size}" if self.workers > 1 else f"a batch of {batch_size}"
        parts.append(f"{batches} {_gib(self.batches.low_bytes)}")
        if self.checkpoint.low_bytes:
            of_all = " of all ranks" if self.ranks > 1 else ""
            copied = _gib(self.checkpoint.low_bytes)
            parts.append(f"between two steps a checkpoint's copy of weights and moments{of_all} {copied}")
        each_rank = f"{self.ranks} ranks, each " if self.ranks > 1 else ""
        return f"{each_rank}{', '.join(parts)} GiB"


def need_of(arm: str, config: TrainerConfig, vocab_size: int, *, saved_at_end: bool = False) -> RunNeed:
    """Estimate the memory of a run, without importing torch. ``saved_at_end``: True for ``harness train``."""
    data, device = config.data, config.compute.device
    training, computes = None, config.compute.work == "model" and config.compute.emulated is None
    shape = shape_of(config.model, vocab_size, data.sequence_length) if computes else None
    if shape is not None:
        training = footprint(config, shape)
    computes_on: Literal["host", "cuda", "auto"] = "host"
    if device == "cuda":
        computes_on = "cuda"
    elif device == "auto" and has_nvidia_driver():
        computes_on = "auto"
    ahead = data.workers * (1 if data.replay else data.prefetch)  # A replayed batch is sent repeatedly.
    own_model = config.model.factory is not None or (computes and shape is None)
    ranks = config.ranks_of_a_node
    copied = NO_BYTES if training is None else checkpoint_copy(config, training, computes_on, saved_at_end)
    return RunNeed(arm, computes_on, training, data.workers, batch_bytes(data), max(ahead, 1), ranks, own_model, copied)


def checkpoint_copy(
    config: TrainerConfig,
    training: Footprint,
    computes_on: Literal["host", "cuda", "auto"] = "host",
    saved_at_end: bool = False,
) -> ByteRange:
    """Return the host memory in bytes that the ranks of one machine need to copy a checkpoint: rank 0 the shared state,
    with fsdp each its shards; without ``checkpoint.asynchronous``, host state and a card's shards need no copy. The low
    end is 0 unless the run surely saves one, such as at its end (``saved_at_end``).
    """
    if config.checkpoint is None:
        return NO_BYTES
    shared = training.shards > 1
    copied = training.lasting_bytes * (config.ranks_of_a_node if shared else 1)
    asynchronous = config.checkpoint.asynchronous
    by_place = {"host": asynchronous, "cuda": asynchronous or not shared}
    places = ("host", "cuda") if computes_on == "auto" else (computes_on,)
    sizes = [copied if by_place[place] else 0 for place in places]
    every_steps = config.checkpoint.every_steps
    surely = saved_at_end or (every_steps is not None and every_steps <= config.warmup_steps + config.steps)
    return ByteRange(min(sizes) if surely else 0, max(sizes))


def choose_interleave(
    asked: str, needs: Sequence[RunNeed], free_bytes: int | None = None, place: str = ""
) -> tuple[str, str]:
    """Return (interleave, reason): "slices" if the high ends of ``needs`` fit together, else "runs"; ``asked`` unless
    it is "auto". ``place``: machines of the runs, with ``free_bytes`` of host memory (None: unknown); "": this one.
    """
    if asked != "auto":
        return asked, "set by the scenario"
    if len(needs) > MOST_ARMS:
        return "runs", f"{len(needs)} arms are too many to keep alive together"
    uses_gpu = any(need.computes_on == "cuda" for need in needs)
    available = max(free_gpu_memory(), default=None) if uses_gpu else available_memory_bytes()
    kind = "GPU memory" if uses_gpu else "memory"
    if place:
        available, kind = None if uses_gpu else free_bytes, f"{kind} {place}"
    if available is None:
        return "runs", f"free {kind} is unknown{'' if place else ' here'}"
    total = sum((need.on_card if uses_gpu else need.in_memory).peak.high_bytes for need in needs)
    exclusion = " without models of unknown size (model.factory, or no formula)" * any(need.own_model for need in needs)
    text = f"{len(needs)} arms need about {total / GIB:.1f} GiB together{exclusion}, "
    text += f"{available / GIB:.1f} GiB {kind} is free"
    return ("slices" if total <= MOST_OF_MEMORY * available else "runs"), text


def free_host_bytes() -> int | None:
    """Return the bytes for new processes: MemAvailable, or less in a control group; None if unknown."""
    limit = memory_limit(find_group("memory"))
    limits = [read_memory().available_bytes, None if limit is None else limit.most_free_bytes]
    return min((free for free in limits if free is not None), default=None)


@dataclass(frozen=True)
class MemoryUse:
    """Use of "memory" (host) or "GPU memory" (``where``) by the runs of ``group`` together, and its free bytes."""

    group: tuple[RunNeed, ...]
    where: str
    free_bytes: int

    @property
    def takes(self) -> ByteRange:
        """Bytes that the runs need: all lasting memory and one peak's rest (one steps at a time), to all peaks."""
        return _takes(self.group, self.where)

    @property
    def is_refused(self) -> bool:
        """True if even the low end of the estimate is more than the free memory."""
        return self.takes.low_bytes > self.free_bytes

    @property
    def may_not_fit(self) -> bool:
        return self.takes.high_bytes > self.free_bytes

    @property
    def range_text(self) -> str:
        """Text with both ends of the estimate, like "0.5 to 2.0 GiB of memory, 22.0 GiB is free"."""
        low, high = _gib(self.takes.low_bytes), _gib(self.takes.high_bytes)
        return f"{low} to {high} GiB of {self.where}, {_gib(self.free_bytes)} GiB is free"

    @property
    def name(self) -> str:
        return f"arm {self.group[0].arm}" if len(self.group) == 1 else f"{len(self.group)} arms that alternate"

    @property
    def refusal(self) -> str:
        """Text that says why the runs cannot fit: needed and free memory, and the parts of the largest run."""
        largest = max(self.group, key=lambda need: _takes([need], self.where).low_bytes)
        return (
            f"{self.name}: needs at least {_gib(self.takes.low_bytes)} GiB of {self.where}, "
            f"{_gib(self.free_bytes)} GiB is free: "
            f"{f'the largest, arm {largest.arm}: ' if len(self.group) > 1 else ''}{largest.arithmetic()}"
        )

    @property
    def advice(self) -> str:
        alone_bytes = max(_takes([need], self.where).low_bytes for need in self.group)
        if len(self.group) > 1 and alone_bytes <= self.free_bytes:
            return f"give --interleave runs, which needs {_gib(alone_bytes)} GiB at a time"
        return "make the model, data.batch_size, data.sequence_length or data.workers smaller"


def memory_uses(needs: Sequence[RunNeed], profiled: Container[str], interleave: str) -> Iterator[MemoryUse]:
    """Yield the use of host memory and of GPU memory, where its free bytes are known, for each group of runs that are
    alive together: with "slices" all except ``profiled`` arms, which run alone.
    """
    free = {"memory": free_host_bytes(), "GPU memory": max(free_gpu_memory(), default=None)}
    together = tuple(need for need in needs if need.arm not in profiled) if interleave == "slices" else ()
    groups = [(need,) for need in needs if need not in together]
    for group in [together, *groups] if together else groups:
        for kind, free_bytes in free.items():
            if free_bytes is not None:
                yield MemoryUse(group, kind, free_bytes)


def check_memory(
    needs: Sequence[RunNeed], profiled: Container[str], interleave: str, force: bool | None = False
) -> None:
    """Raise InputError if runs need more than the free memory even at the low end of the estimate. Print a warning if
    only the high end is too large, or with ``force`` (None: the command has no --force).
    """
    for use in memory_uses(needs, profiled, interleave):
        if use.is_refused and not force:
            forcible = "" if force is None else FORCIBLE
            raise InputError(f"{use.refusal}; {use.advice}{forcible}")
        if use.may_not_fit:
            print(f"warning: {use.name} may not fit: needs {use.range_text}", file=sys.stderr)


def _takes(group: Sequence[RunNeed], where: str) -> ByteRange:
    held = [need.in_memory if where == "memory" else need.on_card for need in group]
    lasting_bytes = sum(holding.lasting_bytes for holding in held)
    step_bytes = max(holding.peak.low_bytes - holding.lasting_bytes for holding in held)
    return ByteRange(lasting_bytes + step_bytes, sum(holding.peak.high_bytes for holding in held))


def _gib(amount_bytes: int) -> str:
    return f"{amount_bytes / GIB:.1f}"


VALUE_BYTES = 8  # token ids, labels and mask are int64
PAGE_BYTES = 4096  # each tensor takes whole pages
# Batches of a run besides the ones in flight: one is being handed over, and one is still used by the step.
MORE_BATCHES = 2
# Measured with 1 to 8 workers and prefetch 2 to 16: the main process had 6 to 58 files open, a worker 22 to 80.
MAIN_FILES, MAIN_FILES_PER_WORKER = 20, 8
WORKER_FILES, WORKER_FILES_PER_WORKER, WORKER_FILES_PER_BATCH = 14, 4, 4
WORKER_TASKS = 7  # 6 threads of a worker, and the thread of the main process that feeds it
RUN_TASKS = 6  # main process, sampling process and their threads, without torch's threads


def needs_of(configs: Sequence[TrainerConfig], *, together: bool) -> Needs:
    """Estimate shared memory, files and processes of runs. ``together``: True if all are alive at once."""
    if not together:
        each = [needs_of([config], together=True) for config in configs]
        fields = ("workers", "shared_bytes", "open_files", "tasks")
        return Needs(1, *(max(getattr(need, name) for need in each) for name in fields))
    return Needs(
        len(configs),
        sum(config.ranks_of_a_node * config.data.workers for config in configs),
        sum(config.ranks_of_a_node * shared_bytes(config.data) for config in configs),
        max(_open_files(config.data) for config in configs),
        sum(config.ranks_of_a_node * _tasks(config) for config in configs),
    )


def limit_warnings(configs: Sequence[TrainerConfig], *, together: bool) -> list[str]:
    """Return a line, with the fix, for each exceeded limit. ``together``: True if all are alive at once."""
    checks = check_needs(needs_of(configs, together=together))
    return [f"{check.finding}; fix: {check.fix}" for check in checks if check.status != "ok"]


def shared_bytes(data: DataConfig) -> int:
    """Return the bytes in /dev/shm for the batches of one rank: two tensors each (three if padded) with workers."""
    if data.workers == 0 or data.transport == "ring":  # A ring is not in /dev/shm.
        return 0
    tensors = 3 if data.path.endswith("-padded") else 2
    one_bytes = data.batch_size * data.sequence_length * VALUE_BYTES
    pages = -(-one_bytes // PAGE_BYTES)
    return (data.workers * data.prefetch + MORE_BATCHES) * tensors * pages * PAGE_BYTES


def _open_files(data: DataConfig) -> int:
    if data.workers == 0:
        return MAIN_FILES
    main = MAIN_FILES + MAIN_FILES_PER_WORKER * data.workers
    return max(main, WORKER_FILES + WORKER_FILES_PER_WORKER * data.workers + WORKER_FILES_PER_BATCH * data.prefetch)


def _tasks(config: TrainerConfig) -> int:
    threads = config.compute.threads or os.cpu_count() or 1
    return RUN_TASKS + threads + WORKER_TASKS * config.data.workers
