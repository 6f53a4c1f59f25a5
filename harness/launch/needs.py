"""Estimates what the runs of a block need besides memory: shared memory for batches, open files, processes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.machine.capacity import Needs
from harness.machine.checks.capacity import check_needs
from trainer.config import DataConfig, TrainerConfig

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
    """Estimate the shared memory, open files and processes that runs of ``configs`` need.

    ``together``: True if all are alive at once; False if they run one after the other.
    """
    if not together:
        needs = [needs_of([config], together=True) for config in configs]
        return Needs(
            1,
            max(need.workers for need in needs),
            max(need.shared_bytes for need in needs),
            max(need.open_files for need in needs),
            max(need.tasks for need in needs),
        )
    return Needs(
        len(configs),
        sum(config.ranks_of_a_node * config.data.workers for config in configs),
        sum(config.ranks_of_a_node * shared_bytes(config.data) for config in configs),
        max(_open_files(config.data) for config in configs),
        sum(config.ranks_of_a_node * _tasks(config) for config in configs),
    )


def limit_warnings(configs: Sequence[TrainerConfig], *, together: bool) -> list[str]:
    """Return a line, with the fix, for each limit of this machine that the runs exceed.

    ``together``: True if all are alive at once.
    """
    checks = check_needs(needs_of(configs, together=together))
    return [f"{check.finding}; fix: {check.fix}" for check in checks if check.status != "ok"]


def shared_bytes(data: DataConfig) -> int:
    """Return the bytes in /dev/shm for the batches of one run; 0 without workers, or if batches travel in a ring.

    A batch has two tensors, and a mask for padded rows.
    """
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
