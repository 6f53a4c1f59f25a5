"""Opens a training at its beginning or at a checkpoint, with the tables that it continues to fill."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.launch.ending import TERMINATING, Stopping
from harness.launch.opener import Checkpoints, OpenTraining, Resumed, Start, open_training
from harness.launch.progress import announced
from harness.launch.training_files import (
    CHECKPOINTS,
    EVALUATIONS,
    LOSSES,
    SAMPLES,
    EvaluationTable,
    LossTable,
    SampleTable,
    TrainingRecorder,
)
from harness.launch.training_progress import Goal
from harness.launch.training_ranks import TrainingRanks
from harness.probes.ledger.threads import RunQueue
from harness.study.records import RunFacts
from trainer.config import TrainerConfig
from trainer.data.tokenizers import FOLDER as TOKENIZER
from trainer.errors import InputError, one_line
from trainer.json_types import JsonObject, integer

if TYPE_CHECKING:
    from trainer.checkpoint_folder import Checkpoint
    from trainer.compute.base import Compute
    from trainer.data.loader import Batches
    from trainer.data.position import DataPosition
    from trainer.data.prepare import Prepared
    from trainer.sample import TextSampler

# Optional keys of a checkpoint. tokens_of_all: tokens of all ranks, if ranks receive different numbers of tokens.
# epochs_are_over: true if a pass of evaluation.every_epochs follows the checkpoint.
TOKENS_OF_ALL, EPOCHS_ARE_OVER = "tokens_of_all", "epochs_are_over"


class Watch(Protocol):
    """Observer of a training's steps that may end the training, such as a sweep's trial."""

    def loss(self, step: int, value: float) -> None:
        """Receive the loss of a step, in order of steps, as late as the device and compute.sync decide."""
        ...

    def step(self, steps: int, tokens: int) -> bool:
        """Receive finished steps and trained tokens. Return True to end the training, like a signal."""
        ...

    @property
    def evaluates(self) -> bool:
        """True if a training that :meth:`step` ends still makes its final evaluation passes."""
        ...


class TrainingState:
    """Progress of a training in this rank (steps, tokens), and the open tables that it continues to fill."""

    def __init__(
        self,
        config: TrainerConfig,
        goal: Goal,
        folder: Path,
        ranks: TrainingRanks,
        stopping: Stopping,
        watch: Watch | None = None,
    ) -> None:
        self._config, self._goal, self._folder = config, goal, folder
        self._ranks, self._stopping, self._watch = ranks, stopping, watch
        self.steps, self.tokens = config.first_step, 0
        self.training: OpenTraining | None = None
        self.facts = RunFacts()  # empty until the compute is built
        self.epochs_are_over = False
        self.skipped = 0  # steps that loss scaling skipped before this part
        self.sampler: TextSampler | None = None
        # Rank 0 alone has tables of losses and texts.
        self.losses: LossTable | None = None
        self.samples: SampleTable | None = None

    def open(self, prepared: Prepared, model: str | None, checkpoint: Checkpoint | None, run: Path) -> OpenTraining:
        """Open the training at ``checkpoint`` (None: its beginning), ready for the next step. Raises InputError."""
        from trainer.data.position import DataPosition

        prints = {"corpus": prepared.corpus.fingerprint, "tokenizer": prepared.tokenizer.fingerprint, "model": model}
        if prepared.held_out is not None:
            prints["evaluation.corpus"] = prepared.held_out.corpus.fingerprint
        resumed, position = None, DataPosition(max(1, self._config.data.workers), keeps_state=True)
        if checkpoint is not None:
            resumed, position = self._resume(checkpoint, prints)
        path = self._folder
        start = Start(
            prepared,
            model,
            run,
            Checkpoints(path / CHECKPOINTS, partial(self._about, prints), self._synchronize, path / TOKENIZER),
            partial(self._recorder, prepared, resumed is not None),
            rank=self._ranks.rank,
            takes_weights=resumed is None,
            position=position,
            resumed=resumed,
            begin_worker=_begin_worker,
            workers_started=self._ranks.watch,
            built=partial(self._built, resumed is not None),
        )
        self.training = open_training(self._config, start)
        return self.training

    def _resume(self, checkpoint: Checkpoint, prints: dict[str, str | None]) -> tuple[Resumed, DataPosition]:
        """Return state and data position of ``checkpoint``. Raises InputError if ``prints`` differ."""
        from trainer.checkpoint import check_identity
        from trainer.checkpoint_folder import remove_newer
        from trainer.checkpoint_ranks import make_store
        from trainer.data.position import DataPosition

        check_identity(checkpoint, self._config, prints)
        if self._ranks.rank.is_first:
            remove_newer(checkpoint)  # From here on, this training resumes from it.
        states, about = checkpoint.states(make_store(self._ranks.rank)), checkpoint.about
        try:
            data, self.tokens = states["data"], integer(about, "tokens")
            of_all = integer(about, TOKENS_OF_ALL) if TOKENS_OF_ALL in about else self.tokens
        except (KeyError, TypeError) as error:
            raise InputError(f"{checkpoint.path}: not a checkpoint of harness train ({one_line(error)})") from error
        self._ranks.begin_at(self.tokens, of_all)
        self.steps = checkpoint.steps
        self.epochs_are_over = bool(about.get(EPOCHS_ARE_OVER))
        return Resumed(checkpoint, states), DataPosition.from_state(data, self._config.data.workers, keeps_state=True)

    def _built(self, resumed: bool, batches: Batches, _compute: Compute, facts: RunFacts) -> None:
        self.facts = facts
        self._ranks.join()
        if not resumed and self._config.resume is not None:  # last, because weights that do not fit are rejected before
            self._pass_over(batches)

    def _recorder(
        self, prepared: Prepared, resumed: bool, compute: Compute, queue: RunQueue | None
    ) -> TrainingRecorder:
        """Open the tables of this rank (rank 0 only), and return the recorder that fills them."""
        from trainer.sample import TextSampler

        first, path = self._ranks.rank.is_first, self._folder
        if resumed:
            self.skipped = compute.skipped_steps() or 0
        if self._config.sample is not None:
            self.sampler = TextSampler(self._config.sample, prepared, compute)
            self.samples = SampleTable(path / SAMPLES, self.steps) if first else None
        self.losses = LossTable(path / LOSSES, self.steps, self._config.first_step) if first else None
        evaluated = self._config.evaluation is not None and first
        passes = EvaluationTable(path / EVALUATIONS, self.steps if resumed else 0) if evaluated else None
        recorder = TrainingRecorder(queue, self.losses, self.tokens, passes, self._ranks.rank.of)
        if first and self._watch is not None:
            recorder.loss_seen = self._watch.loss
        return recorder

    def _about(self, prints: dict[str, str | None]) -> JsonObject:
        """Return a checkpoint's record: tokens, configuration, fingerprints. Losses are in the table."""
        from trainer.checkpoint import identity

        assert self.losses is not None
        assert self.training is not None
        self.losses.flush()
        evaluator, recorder = self.training.evaluator, self.training.recorder
        assert isinstance(recorder, TrainingRecorder)
        optional: dict[str, int] = {TOKENS_OF_ALL: self._ranks.tokens} if self._ranks.agree else {}
        if evaluator is not None and evaluator.epochs_are_over:  # The pass follows this checkpoint.
            optional[EPOCHS_ARE_OVER] = True
        return {"tokens": recorder.tokens, **optional, "config": identity(self._config), "fingerprints": prints}

    def _synchronize(self) -> None:
        if self.losses is not None:
            self.losses.synchronize()

    def _pass_over(self, batches: Batches) -> None:
        """Drop the batches before the first step, made as for training. Raises InputError at the end."""
        steps = self._config.first_step
        shows = steps and self._ranks.rank.is_first
        with announced(f"skipping the data of steps 0 to {steps - 1:,}") if shows else nullcontext():
            for _ in range(steps * self._config.optimizer.accumulation):
                self.tokens += next(batches).tokens * self._config.ranks
                if self._stopping.asked:
                    raise KeyboardInterrupt
        if self._ranks.share(steps, self.tokens, batches.position) >= 1:
            raise InputError(
                f"resume.step: {steps:,} steps are {self.tokens:,} tokens, but the training ends after {self._goal}; "
                "give a later end"
            )


def _begin_worker(attach: Callable[[int], None], worker: int) -> None:
    """Ignore signals to the process group, then call ``attach``: the last checkpoint needs the worker's batch."""
    for number in (signal.SIGINT, *TERMINATING):
        signal.signal(number, signal.SIG_IGN)
    attach(worker)
