"""Open a training at its beginning or a checkpoint, with the tables it continues, and connect its ranks."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from harness.launch.block import modules_of
from harness.launch.channel import Channel
from harness.launch.ending import TERMINATING, Stopping
from harness.launch.opener import Checkpoints, OpenTraining, Resumed, Start, open_training
from harness.launch.progress import Goal, announced
from harness.launch.protocol import OWN, BareOrder, RunOrder, StartMessage
from harness.launch.ranks import OtherRanks, Serve
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
from harness.probes.ledger.threads import RunQueue
from harness.study.records import RunFacts
from trainer.config import TrainerConfig
from trainer.data.tokenizers import FOLDER as TOKENIZER
from trainer.errors import InputError, one_line
from trainer.json_types import JsonObject, integer
from trainer.ranks import ALONE, Rank, gloo_group, least, total

if TYPE_CHECKING:
    from trainer.checkpoint_folder import Checkpoint
    from trainer.compute.base import Compute
    from trainer.data.loader import Batches
    from trainer.data.position import DataPosition
    from trainer.data.prepare import Prepared
    from trainer.evaluate import Kind, TextSampler


class TrainingRanks:
    """Connection of one rank of a training to the others; without effect for a single rank."""

    def __init__(self, config: TrainerConfig, goal: Goal, rank: Rank = ALONE, orders: Channel | None = None) -> None:
        """Create the link. ``orders``: channel from rank 0; None in rank 0."""
        self.rank = rank
        self._config, self._goal = config, goal
        self._orders = orders
        self._others: OtherRanks | None = None
        self._group: Any = None  # set if ranks may differ in tokens or epochs
        self._begun_at = 0, 0  # tokens at the checkpoint: counted by rank 0, and by all ranks
        self._agreed = (-1, 0.0, 0)  # steps, finished share, tokens of all ranks

    def fork(self, serve: Serve) -> None:
        """Import what a training needs, which takes seconds, then fork the other ranks. Each calls ``serve``."""
        launch = self._config.launch
        if launch is None or self._config.ranks == 1:
            return
        for module in (*OWN.preloaded, *modules_of([self._config.model_dump(mode="json")])):
            importlib.import_module(module)
        start = cast("StartMessage", {})  # A forked rank has the message's content already.
        null_device = os.open(os.devnull, os.O_RDONLY)
        self._others = OtherRanks(start, self._config.ranks, launch.timeout_s, serve, null_device)
        os.close(null_device)
        self.rank = self._others.rank

    def watch(self) -> None:
        """Read the other ranks' reports in threads, which end this process if it hangs with a failed rank."""
        if self._others is not None:
            self._others.watch(_exit_at_once)

    def send(self, order: RunOrder) -> None:
        """Send ``order`` from rank 0 to the other ranks."""
        if self._others is not None:
            self._others.send(order)

    def wait_until_done(self) -> bool:
        """Wait until all ranks are done. Return False at once if there is only this rank. Raises RankFailedError."""
        if self._others is not None:
            self._others.wait("done")
        return self._others is not None

    def explain(self, error: Exception) -> str | None:
        """Return a line on the rank that made rank 0 fail with ``error``; None if ``error`` is not from an exchange."""
        return None if self._others is None else self._others.explain(error)

    def end(self) -> None:
        """Accept from now on that the other ranks end. Until then, the end of a rank is a failure."""
        if self._others is not None:
            self._others.end()

    def join(self) -> None:
        """Open the group in which ranks agree on their progress, if it may differ (epochs, tokens of a source)."""
        by_tokens = self._goal.tokens is not None and self._config.data.source
        if self.rank.of > 1 and (self._goal.epochs is not None or by_tokens):
            self._group = gloo_group(self.rank)

    @property
    def agree(self) -> bool:
        """True if the ranks exchange their progress, because it may differ."""
        return self._group is not None

    def begin_at(self, tokens: int, of_all: int) -> None:
        """Set the tokens at the checkpoint: rank 0's own times the number of ranks, and ``of_all``, the sum."""
        self._begun_at = tokens, of_all

    def share(self, steps: int, tokens: int, position: DataPosition) -> float:
        """Return the finished share of the training, 1 at the goal, of epochs that of the slowest rank. Call it in
        every rank. ``tokens``: this rank's number times the number of ranks, which they exchange if it may differ.
        """
        if self._agreed[0] != steps or self._group is None:
            if self._group is not None:
                before, of_all = self._begun_at
                tokens = of_all + round(total(tokens - before, self._group) / self.rank.of)
            share = self._goal.share(steps, tokens, position.epochs)
            self._agreed = steps, share if self._group is None else least(share, self._group), tokens
        return self._agreed[1]

    @property
    def tokens(self) -> int:
        """Tokens that all ranks together had received at the last call of :meth:`share`."""
        return self._agreed[2]

    def lacking(self, find: Callable[[], frozenset[Kind]]) -> frozenset[Kind]:
        """Return the kinds of passes that may be missing: rank 0 calls ``find`` and sends the result."""
        if self._orders is not None:
            order = self._orders.receive_order()
            assert order["do"] == "lacking"
            return frozenset(order["passes"])
        passes = find()
        self.send({"do": "lacking", "passes": sorted(passes)})
        return passes

    def next_order(self, decide: Callable[[], BareOrder]) -> str:
        """Return the next order: rank 0 calls ``decide`` and sends the result."""
        if self._orders is not None:
            return self._orders.receive_order()["do"]
        order = decide()
        self.send(order)
        return order["do"]


def _exit_at_once(line: str) -> None:
    """Print ``line`` and end this process, which hangs with a failed rank. The last checkpoint is kept."""
    print(f"failed: {line}", file=sys.stderr, flush=True)
    os._exit(1)


# Optional keys of a checkpoint. tokens_of_all: tokens of all ranks, if ranks receive different numbers of tokens.
# epochs_are_over: true if a pass of evaluation.every_epochs follows the checkpoint.
TOKENS_OF_ALL, EPOCHS_ARE_OVER = "tokens_of_all", "epochs_are_over"


class Watch(Protocol):
    """Observer of a training's steps that may end the training, such as a sweep's trial."""

    def loss(self, step: int, value: float) -> None:
        """Receive the loss of a step, in the order of steps, possibly later than :meth:`step` (``compute.sync``)."""
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
        """Open the training at ``checkpoint`` (None: its beginning), with this part's ledger in ``run``. Raises
        InputError if the checkpoint does not fit the configuration or data, or if the training cannot start.
        """
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
        """Return the states in ``checkpoint`` and its data position, and remove newer ones. Raises InputError if
        ``prints`` (fingerprints of data and model) or the configuration differ from the checkpoint's.
        """
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
        """Return this rank's recorder. Rank 0 also opens the tables to fill: losses, evaluations, sample texts."""
        from trainer.evaluate import TextSampler

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
        """Return a checkpoint's record: tokens, configuration, fingerprints. Flush losses.csv up to it."""
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
        """Drop the batches of all steps before ``resume.step``. Raises InputError if the training would end by then."""
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
    """Ignore signals to the group in this loader worker, needed until a stopped training ends, and call ``attach``."""
    for number in (signal.SIGINT, *TERMINATING):
        signal.signal(number, signal.SIG_IGN)
    attach(worker)
