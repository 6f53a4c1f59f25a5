"""Open a training in this process: data path, compute, evaluation, ledger, checkpoints, in the one order that works.

Every process that trains calls :func:`open_training`; the differences between them are in :class:`Start`.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness.launch.facts import facts_of_run
from harness.launch.tables import RunTables
from harness.probes.ledger.recorders import attach_in_worker
from harness.probes.ledger.threads import RunQueue
from harness.probes.probe import RunProbes
from trainer import telemetry
from trainer.model_files import objective_of
from trainer.ranks import ALONE, Rank

if TYPE_CHECKING:
    from collections.abc import Generator

    from harness.probes.ledger.recorders import BareRecorder, StepRecorder
    from harness.study.records import RunFacts
    from trainer.checkpoint import Saver
    from trainer.checkpoint_folder import Checkpoint
    from trainer.compute.base import Compute
    from trainer.config import TrainerConfig
    from trainer.data.loader import Batches
    from trainer.data.position import DataPosition
    from trainer.data.prepare import Prepared
    from trainer.evaluate import Evaluator
    from trainer.json_types import JsonObject


@dataclass(frozen=True)
class Resumed:
    """Checkpoint that a training resumes from, and the states read from it."""

    checkpoint: Checkpoint
    states: Any


@dataclass(frozen=True)
class Checkpoints:
    """Settings for the checkpoints of a training: their folder, and what each contains besides the state."""

    folder: Path
    about: Callable[[], JsonObject] | None = None
    """Returns the content of the checkpoint's record; None: only the configuration."""
    before_rename: Callable[[], None] = lambda: None
    """Called when a checkpoint is written, before it gets its final name."""
    tokenizer: Path | None = None


@dataclass(frozen=True)
class Start:
    """Arguments of :func:`open_training` other than the configuration. Defaults are those of one run of a study."""

    prepared: Prepared
    model: str | None  # Fingerprint of the model's code or files
    folder: Path  # Folder of this run's ledger
    checkpoints: Checkpoints
    recorder: Callable[[Compute, RunQueue | None], StepRecorder | BareRecorder]
    """Returns the recorder of steps. Called last, after the initial state is loaded."""
    rank: Rank = ALONE
    probes: RunProbes = field(default_factory=RunProbes)
    evaluates: bool = True
    takes_weights: bool = False
    """True for the first part of a training, which begins with the weights named by ``resume``."""
    position: DataPosition | None = None  # Position of the first batch; None: the beginning of the data.
    resumed: Resumed | None = None
    begin_worker: Callable[[Callable[[int], None], int], None] | None = None
    """Called at the start of a loader worker, in its process, with the ledger's hook and the worker's number."""
    beat: Callable[[], None] = lambda: None  # Called between the batches of an evaluation
    workers_started: Callable[[], None] = lambda: None
    """Called when the loader workers are forked: from now on, threads may start."""
    built: Callable[[Batches, Compute, RunFacts], None] = lambda *_: None
    """Called when the compute is built, before any state is loaded."""


@dataclass(frozen=True)
class OpenTraining:
    """Training that is ready for its first step: data, compute, ledger, evaluator and saver."""

    batches: Batches
    compute: Compute
    recorder: StepRecorder | BareRecorder
    tables: RunTables
    run_queue: RunQueue | None = None
    evaluator: Evaluator | None = None
    saver: Saver | None = None

    def steps(self, config: TrainerConfig, rank: Rank, first: int = 0) -> Generator[int]:
        """Train from ``first`` on; yield the index of each finished step. Closing it reads the last losses."""
        from trainer.loop import train

        steps = train(config, self.compute, self.batches, first, self.saver, self.evaluator, prints=rank.is_first)
        return cast("Generator[int]", steps)


def prepare_training(config: TrainerConfig, files: Sequence[str] = ()) -> Prepared:
    """Return the prepared data (corpus, tokenizer, objective). ``files``: that ``data.source`` imports."""
    from trainer.data.prepare import prepare

    prepared = prepare(config.data, files=files, evaluation=config.evaluation)
    return prepared.with_objective(objective_of(config.model))


def open_training(config: TrainerConfig, start: Start) -> OpenTraining:
    """Start workers, build the model, open the ledger; return the training. After an error, no worker lives."""
    from trainer.data.loader import open_batches

    data = config.data
    # Loader workers come first, because they must be forked before this process computes or tokenizes anything.
    parent = None if data.start_method == "forkserver" else os.getpid()
    attach: Callable[[int], None] = partial(attach_in_worker, parent, start.probes, start.folder)
    if start.begin_worker is not None:
        attach = partial(start.begin_worker, attach)
    batches = open_batches(data, start.prepared, config.seed, attach, start.position, start.rank)
    try:
        start.workers_started()
        return _open_with(batches, config, start)
    except BaseException as error:
        ended = batches.ended_workers()
        close_batches(batches)
        if ended is not None and isinstance(error, Exception):
            raise ended from error
        raise


def _open_with(batches: Batches, config: TrainerConfig, start: Start) -> OpenTraining:
    from trainer.checkpoint import load, parts_of
    from trainer.compute.build import build_compute
    from trainer.evaluate import make_evaluator

    prepared, rank = start.prepared, start.rank
    compute = build_compute(config, prepared.vocab_size, rank, takes_weights=start.takes_weights)
    start.built(batches, compute, facts_of_run(config, compute, prepared, start.model))
    if start.resumed is not None:
        load(parts_of(compute.parts(), batches.position), start.resumed.states, start.resumed.checkpoint)
    evaluator = None
    if start.evaluates and config.evaluation is not None:
        evaluator = make_evaluator(
            config, prepared, compute, start.beat, rank=rank, epochs=lambda: batches.position.epochs
        )
    queue = RunQueue(compute_threads=compute.device == "cpu") if start.probes.ledger else None
    queue = queue if queue is not None and queue.available else None
    recorder = start.recorder(compute, queue)
    tables = RunTables(recorder, start.folder, os.getpid(), threading.get_native_id(), rank.number, rank.of)
    saver = make_saver(config, compute, batches, start.checkpoints, rank)
    if saver is not None and start.resumed is not None:
        saver.last = start.resumed.checkpoint.steps
    telemetry.attach(recorder)
    return OpenTraining(batches, compute, recorder, tables, queue, evaluator, saver)


def make_saver(
    config: TrainerConfig, compute: Compute, batches: Batches, checkpoints: Checkpoints, rank: Rank = ALONE
) -> Saver | None:
    """Return the saver of checkpoints; None if ``config`` asks for no checkpoints, or if its steps compute no model."""
    if config.checkpoint is None or config.compute.work == "none":
        return None
    from trainer import checkpoint_ranks
    from trainer.checkpoint import identity, parts_of

    about = checkpoints.about or (lambda: {"config": identity(config)})
    parts = parts_of(compute.parts(), batches.position)
    folder, ready, tokenizer = checkpoints.folder, checkpoints.before_rename, checkpoints.tokenizer
    return checkpoint_ranks.make_saver(
        config.checkpoint, folder, parts, about, rank, ready, tokenizer, lambda: batches.position.epochs
    )


def close_batches(batches: Batches) -> None:
    """End the loader workers, also the ones that ignore torch's SIGTERM."""
    batches.close()
    for process in multiprocessing.active_children():
        process.kill()
