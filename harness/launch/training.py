"""Trains one arm to its end in this process, under the ledger: no study around it, no repetitions, no controls.

    DIR/checkpoints/    the newest checkpoints: see trainer.checkpoint_folder
    DIR/tokenizer/      of the model, for harness generate, AutoTokenizer and others; each checkpoint has a copy
    DIR/losses.csv      a row for each step
    DIR/evaluations.csv a row for each pass over held-out documents or multiple-choice questions
    DIR/samples.jsonl   a line for each text that the model wrote (sample)
    DIR/runs/ARM/K/     the ledger of the K-th part: a training that was stopped and resumed has several
    DIR/study.json      so `harness report DIR` shows where the time went, as of a study of one arm

Ctrl-C, SIGTERM and SIGHUP end it after the step that is going on, with a last checkpoint.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from harness.launch.budget import Allowance
from harness.launch.channel import Channel
from harness.launch.child import RunEnding
from harness.launch.diagnosis import with_fix
from harness.launch.ending import TERMINATING, Stopping
from harness.launch.facts import model_fingerprint
from harness.launch.memory import check_memory, need_of
from harness.launch.opener import (
    Checkpoints,
    OpenTraining,
    Resumed,
    Start,
    close_batches,
    open_training,
    prepare_training,
)
from harness.launch.out_of_memory import advice_for_this_run, is_out_of_memory
from harness.launch.progress import announced
from harness.launch.protocol import BareOrder, StartMessage
from harness.launch.ranks import EXCHANGE, RankFailedError
from harness.launch.study import now
from harness.launch.tables import PENDING_EVENTS
from harness.launch.training_files import (
    CHECKPOINTS,
    EVALUATIONS,
    LOG,
    LOSSES,
    SAMPLES,
    EvaluationTable,
    LossTable,
    SampleTable,
    TrainingRecorder,
)
from harness.launch.training_progress import Goal, TrainingProgress
from harness.launch.training_ranks import TrainingRanks
from harness.launch.training_records import TrainingRecords, begun_elsewhere
from harness.probes.ledger.run_queue import RunQueue
from harness.study.records import RunFacts, RunRecord, StudyRecord
from trainer import telemetry
from trainer.compute.modes import compilations
from trainer.config import TrainerConfig
from trainer.data.kept_tokenizer import keep
from trainer.data.tokenizers import FOLDER as TOKENIZER
from trainer.errors import EndedWorkerError, InputError, LostBatchError, in_words, one_line
from trainer.json_types import JsonObject, integer
from trainer.ranks import Rank, RanksDifferError, is_of_the_exchange

if TYPE_CHECKING:
    from harness.launch.uploads import Uploader
    from trainer.checkpoint_folder import Checkpoint
    from trainer.compute.base import Compute
    from trainer.data.loader import Batches
    from trainer.data.position import DataPosition
    from trainer.data.prepare import Prepared
    from trainer.evaluate import Kind
    from trainer.sample import TextSampler
    from trainer.telemetry import Validation

Status = Literal["done", "interrupted", "failed"]


class Watch(Protocol):
    """Sees a training step by step, and may end it."""

    def loss(self, step: int, value: float) -> None:
        """The loss of a step, in their order; when it is known depends on the device and on compute.sync."""
        ...

    def step(self, steps: int, tokens: int) -> bool:
        """So many steps are done; True ends the training, as a signal does."""
        ...

    @property
    def evaluates(self) -> bool:
        """True if a training that :meth:`step` ends still makes its final passes."""
        ...


@dataclass(frozen=True)
class Trained:
    """Status of a training at its end, and its progress."""

    folder: Path
    status: Status
    steps: int
    tokens: int
    loss: float | None
    error: str | None = None
    validation: Validation | None = None  # last pass of this part over held-out documents
    choices: Validation | None = None  # last pass over multiple-choice questions
    part: int | None = None  # number of this part, if its ledger was written
    stopped: bool = False  # by its budget
    diverged: bool = False  # its gradient norm was not finite


# Optional keys of a checkpoint. tokens_of_all: tokens of all ranks, if ranks receive different numbers of tokens.
# epochs_are_over: true if a pass of evaluation.every_epochs follows the checkpoint.
TOKENS_OF_ALL, EPOCHS_ARE_OVER = "tokens_of_all", "epochs_are_over"


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training that the scenario does not have."""

    resume: bool = False
    force: bool = False
    """Also begin what cannot fit into memory."""
    allowed: Callable[[TrainerConfig, Goal], Allowance | None] = lambda _config, _goal: None
    """Returns the budget, which ends the training when it is spent. Called before it begins."""
    uploader: Uploader | None = None
    """Uploads each checkpoint."""
    watch: Watch | None = None


@dataclass(frozen=True)
class _Part:
    """One part of a training as it begins: its records, and the checkpoint that it resumes from."""

    prepared: Prepared
    model: str | None
    checkpoint: Checkpoint | None
    folder: Path
    study: StudyRecord
    record: RunRecord
    first: int
    """The step that it begins with."""
    lost: str
    """Steps of a killed part that are in no ledger; empty if there are none."""
    begins: bool
    """True if the folder has no study yet."""


@dataclass(frozen=True)
class _PartEnding:
    """Status of a part of a training at its end."""

    status: Status = "failed"
    run: RunEnding = field(default_factory=lambda: RunEnding("failed", "it was interrupted"))
    error: str | None = None
    diverged: bool = False
    written: bool = False
    """True if its ledger was written."""


class Training:
    """One part of a training: from where it stands to its end, or until it is stopped."""

    def __init__(
        self,
        records: TrainingRecords,
        goal: Goal,
        options: TrainingOptions | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self.records, self.goal = records, goal
        self.config, self.folder = records.config, records.folder
        self._options = options or TrainingOptions()
        self._allowance = allowance
        self._stopping = Stopping()
        self.ranks = TrainingRanks(self.config, goal)
        self._training: OpenTraining | None = None
        self._steps, self._tokens = self.config.first_step, 0
        self._loss: float | None = None
        self._passes: dict[str, Validation] = {}  # the last pass of this part, by its kind
        self._facts = RunFacts()  # empty until the compute is built
        self._epochs_are_over = False
        self._sampler: TextSampler | None = None
        # Rank 0 alone has tables of losses and texts.
        self._losses: LossTable | None = None
        self._samples: SampleTable | None = None
        self._skipped = self._compiled = 0  # before this part, and before its measured steps

    def run(self, scenario: str, price_usd_per_hour: float | None = None) -> Trained:
        """Train, and write the measurements in any case."""
        self.ranks.fork(self._serve_rank)  # before this process tokenizes anything
        part = self._begin(scenario, price_usd_per_hour)
        ending = _PartEnding()
        try:
            ending = self._train_part(part)
        except KeyboardInterrupt:
            ending = _PartEnding("interrupted")
            raise
        except Exception as error:
            ending = self._failed(error, part.prepared.vocab_size)
        finally:
            ending = self._write(part, ending)
        return Trained(
            self.folder.path,
            ending.status,
            self._steps,
            self._tokens,
            self._loss,
            ending.error,
            self._passes.get("loss"),
            self._passes.get("choices"),
            part.record.block if ending.written else None,
            stopped=self._allowance is not None and self._allowance.stopped,
            diverged=ending.diverged,
        )

    def _begin(self, scenario: str, price_usd_per_hour: float | None) -> _Part:
        """Prepare the data, find the checkpoint, and make the records of this part."""
        from trainer import checkpoint_folder
        from trainer.data.prepare import warnings_of

        config, data, resume = self.config, self.config.data, self._options.resume
        with announced(f"preparing data: {data.source or data.path}, sequence length {data.sequence_length}"):
            prepared = prepare_training(config)
        for line in warnings_of(data, prepared):
            print(line, file=sys.stderr)
        need = need_of(self.records.arm.name, config, prepared.vocab_size, saved_at_end=True)
        check_memory([need], (), "runs", self._options.force)
        model = model_fingerprint(config)
        checkpoint = checkpoint_folder.newest(self.folder.path / CHECKPOINTS) if resume else None
        begins = not self.folder.study_json.exists()
        if resume and checkpoint is None and not begins:
            print(f"{self.folder.path}: no checkpoint lies there, so it begins again", file=sys.stderr)
        study = self.records.study(scenario, resume, price_usd_per_hour)
        first = config.first_step if checkpoint is None else checkpoint.steps
        block = len(study.order) - 1
        recorded = max(self.records.steps_before(block), config.first_step)
        if checkpoint is None and config.resume is not None:
            study = begun_elsewhere(study, config.resume)
        lost = ""
        if recorded < first:
            lost = f"the part that trained steps {recorded} to {first - 1} was killed: they are in no ledger"
            study = replace(study, notes=[*study.notes, f"{lost} and in no figure"])
        record = self.records.run(study, block)
        self.folder.remove_leftovers()
        if self._allowance is not None:
            self._allowance.begin(self.folder.path)
        folder = self.folder.run(record.arm, block)
        folder.mkdir(parents=True, exist_ok=True)
        self.ranks.send(
            {"do": "train", "checkpoint": None if checkpoint is None else str(checkpoint.path), "block": block}
        )
        return _Part(prepared, model, checkpoint, folder, study, record, first, lost, begins)

    def _train_part(self, part: _Part) -> _PartEnding:
        with open(part.folder / LOG, "a") as log, redirect_stdout(log), self._stopping.noting():
            training = self._open(part.prepared, part.model, part.checkpoint, part.folder)
            try:
                if part.lost:
                    print(f"{self.folder.path}: {part.lost}; losses.csv has their losses", file=sys.stderr)
                keep(part.prepared.tokenizer, self.folder.path)
                if part.begins:  # An earlier part's study stays as it is until this part ends.
                    self.folder.write_study(part.study)
                status = self._train(training)
                digest = training.compute.end_together()
                self._count(training.compute)
                if self.ranks.wait_until_done():
                    self._facts = replace(self._facts, parameters_digest=digest)
                measured = self._steps > part.first + self.config.warmup_steps
                run = RunEnding("done") if measured else RunEnding("failed", "it ended within its warm-up steps")
                return _PartEnding(status, run)
            except Exception as error:
                if (ended := training.batches.ended_workers()) is not None:
                    raise ended from error
                if (cause := self.ranks.explain(error)) is not None:
                    raise RankFailedError(cause) from error
                raise
            finally:
                self._close(training)

    def _close(self, training: OpenTraining) -> None:
        self.ranks.end()
        try:
            if self._losses is not None:
                self._losses.close()
        finally:  # The disk may be full.
            close_batches(training.batches)

    def _failed(self, error: Exception, vocab_size: int) -> _PartEnding:
        """Return the ending by ``error``. Raises it again if it is a fault of the code."""
        if isinstance(error, RankFailedError | RanksDifferError):
            line = str(error)
        elif isinstance(error, LostBatchError | EndedWorkerError | FloatingPointError | OSError):
            line = with_fix(error)
        elif is_out_of_memory(error):
            line = in_words(error) + advice_for_this_run(self.config, vocab_size, error)
        else:
            raise error
        return _PartEnding("failed", RunEnding("failed", line), line, isinstance(error, FloatingPointError))

    def _write(self, part: _Part, ending: _PartEnding) -> _PartEnding:
        """Write the records of this part if it trained a step; otherwise everything stays as it was."""
        telemetry.attach(None)
        study = replace(part.study, status=ending.status, ended_utc=now())
        if self._training is not None and self._steps > part.first:
            record = ending.run.of(replace(part.record, facts=self._facts))
            try:
                self.records.write(study, record, self._training.tables, self._training.compute)
                ending = replace(ending, written=True)
            except OSError as error:
                line = ending.error or f"what was measured was not written: {in_words(error)}"
                ending = replace(ending, status="failed", error=line)
        elif part.begins and self.folder.study_json.exists():  # The study's status is "running".
            with suppress(OSError):
                self.folder.write_study(study)
        if self._allowance is not None:
            self._allowance.end(done=ending.status == "done")
        return ending

    def _open(self, prepared: Prepared, model: str | None, checkpoint: Checkpoint | None, run: Path) -> OpenTraining:
        """Open the training at ``checkpoint``, or at its beginning. ``run``: folder of this part's ledger."""
        from trainer.data.position import DataPosition

        prints = {"corpus": prepared.corpus.fingerprint, "tokenizer": prepared.tokenizer.fingerprint, "model": model}
        if prepared.held_out is not None:
            prints["evaluation.corpus"] = prepared.held_out.corpus.fingerprint
        resumed, position = None, DataPosition(max(1, self.config.data.workers), keeps_state=True)
        if checkpoint is not None:
            resumed, position = self._resume(checkpoint, prints)
        path = self.folder.path
        start = Start(
            prepared,
            model,
            run,
            Checkpoints(path / CHECKPOINTS, partial(self._about, prints), self._synchronize, path / TOKENIZER),
            partial(self._recorder, prepared, resumed is not None),
            rank=self.ranks.rank,
            takes_weights=resumed is None,
            position=position,
            resumed=resumed,
            begin_worker=_begin_worker,
            workers_started=self.ranks.watch,
            built=partial(self._built, resumed is not None),
        )
        self._training = open_training(self.config, start)
        return self._training

    def _resume(self, checkpoint: Checkpoint, prints: dict[str, str | None]) -> tuple[Resumed, DataPosition]:
        """Read the state of ``checkpoint``. Raises InputError if it is of another training."""
        from trainer.checkpoint import check_identity
        from trainer.checkpoint_folder import remove_newer
        from trainer.checkpoint_ranks import make_store
        from trainer.data.position import DataPosition

        check_identity(checkpoint, self.config, prints)
        if self.ranks.rank.is_first:
            remove_newer(checkpoint)  # now it is certain that this training resumes from it
        states, about = checkpoint.states(make_store(self.ranks.rank)), checkpoint.about
        try:
            data, self._tokens = states["data"], integer(about, "tokens")
            of_all = integer(about, TOKENS_OF_ALL) if TOKENS_OF_ALL in about else self._tokens
        except (KeyError, TypeError) as error:
            raise InputError(f"{checkpoint.path}: not one of harness train ({one_line(error)})") from error
        self.ranks.begin_at(self._tokens, of_all)
        self._steps = checkpoint.steps
        self._epochs_are_over = bool(about.get(EPOCHS_ARE_OVER))
        return Resumed(checkpoint, states), DataPosition.from_state(data, self.config.data.workers, keeps_state=True)

    def _built(self, resumed: bool, batches: Batches, _compute: Compute, facts: RunFacts) -> None:
        self._facts = facts
        self.ranks.join()
        if not resumed and self.config.resume is not None:  # last: weights that do not fit are known by now
            self._pass_over(batches)

    def _recorder(
        self, prepared: Prepared, resumed: bool, compute: Compute, queue: RunQueue | None
    ) -> TrainingRecorder:
        """Open the tables of this rank, and return the recorder that fills them."""
        from trainer.sample import TextSampler

        first, path = self.ranks.rank.is_first, self.folder.path
        if resumed:
            self._skipped = compute.skipped_steps() or 0
        if self.config.sample is not None:
            self._sampler = TextSampler(self.config.sample, prepared, compute)
            self._samples = SampleTable(path / SAMPLES, self._steps) if first else None
        self._losses = LossTable(path / LOSSES, self._steps, self.config.first_step) if first else None
        evaluated = self.config.evaluation is not None and first
        passes = EvaluationTable(path / EVALUATIONS, self._steps if resumed else 0) if evaluated else None
        recorder = TrainingRecorder(queue, self._losses, self._tokens, passes, self.ranks.rank.of)
        if first and self._options.watch is not None:
            recorder.loss_seen = self._options.watch.loss
        return recorder

    def _about(self, prints: dict[str, str | None]) -> JsonObject:
        """Return what a checkpoint's own record says of the training; its losses are in the table by then."""
        from trainer.checkpoint import identity

        assert self._losses is not None
        assert self._training is not None
        self._losses.flush()
        evaluator, recorder = self._training.evaluator, self._training.recorder
        assert isinstance(recorder, TrainingRecorder)
        optional: dict[str, int] = {TOKENS_OF_ALL: self.ranks.tokens} if self.ranks.agree else {}
        if evaluator is not None and evaluator.epochs_are_over:  # The pass follows this checkpoint.
            optional[EPOCHS_ARE_OVER] = True
        return {"tokens": recorder.tokens, **optional, "config": identity(self.config), "fingerprints": prints}

    def _synchronize(self) -> None:
        if self._losses is not None:
            self._losses.synchronize()

    def _pass_over(self, batches: Batches) -> None:
        """Receive and drop the batches of the steps before the first one, to begin at the right place in the data.

        They are made as for training, so that every data path comes to the same place.
        """
        steps = self.config.first_step
        shows = steps and self.ranks.rank.is_first
        with announced(f"passing over the data of steps 0 to {steps - 1:,}") if shows else nullcontext():
            for _ in range(steps * self.config.optimizer.accumulation):
                self._tokens += next(batches).tokens * self.config.ranks
                if self._stopping.asked:
                    raise KeyboardInterrupt
        if self.ranks.share(steps, self._tokens, batches.position) >= 1:
            raise InputError(
                f"resume.step: {steps:,} steps are {self._tokens:,} tokens, and the training ends after {self.goal}, "
                "which they hold; allowed: a later end"
            )

    def _train(self, training: OpenTraining) -> Status:
        """Train step by step to the end, or until a signal asks to stop; then save a last checkpoint."""
        recorder, evaluator, saver = training.recorder, training.evaluator, training.saver
        assert isinstance(recorder, TrainingRecorder)
        assert saver is not None
        self._connect(training, recorder)
        steps = training.steps(self.config, self.ranks.rank, self._steps)
        first, queue, rank = self._steps, training.run_queue, self.ranks.rank
        share = self.ranks.share(first, self._tokens, training.batches.position)
        progress = TrainingProgress(self.goal, share, self.ranks.tokens)
        watch = self._options.watch if rank.is_first else None
        try:
            if evaluator is not None and (lacking := self._lacking(first - 1, recorder)):
                evaluator.after(first - 1, lacking, epochs_are_over=self._epochs_are_over)
            while (order := self.ranks.next_order(partial(self._decide, share))) == "step":
                recorder.warmup = self._steps - first < self.config.warmup_steps
                self._steps = next(steps) + 1
                share = self.ranks.share(self._steps, recorder.tokens, training.batches.position)
                self._loss, self._tokens = recorder.last_loss, self.ranks.tokens
                if rank.is_first:
                    progress.step(self._steps, self._tokens, share, self._loss, recorder.validations)
                self._write_text(progress)
                if watch is not None and watch.step(self._steps, self._tokens):
                    self._stopping.asked = True
                if self._steps == first + max(1, self.config.warmup_steps):
                    self._compiled = compilations()
                    if queue is not None:
                        queue.find_threads()  # they start at the first parallel region
                if recorder.pending_events >= PENDING_EVENTS:
                    _pause(training)
                    training.tables.collect()
        finally:
            progress.end()
            recorder.pause()
            steps.close()  # reads the last losses
        _pause(training)
        self._loss = recorder.last_loss
        if order != "stop" and evaluator is not None:
            evaluator.finish()  # before the last checkpoint: a training that has one is whole
        self._passes = {"loss" if one.questions is None else "choices": one for one in recorder.validations}
        if self._steps != saver.last:
            saver.save(self._steps)
        saver.wait()
        return "done" if order == "finish" else "interrupted"

    def _connect(self, training: OpenTraining, recorder: TrainingRecorder) -> None:
        """Connect the saver of checkpoints with the uploader, and with the end of the training."""
        saver, uploader = training.saver, self._options.uploader
        assert saver is not None
        if uploader is not None and self.ranks.rank.is_first:
            uploader.begin()
            saver.saved = uploader.ask
        # A checkpoint of the last step would say that the last evaluation is done. Ranks agree before they save.
        if training.evaluator is not None or self.ranks.agree:
            position = training.batches.position
            saver.ends = lambda steps: self.ranks.share(steps, recorder.tokens, position) >= 1

    def _write_text(self, progress: TrainingProgress) -> None:
        """Write sample text if it is due. Every rank takes part; rank 0 stores the text."""
        sampler, step = self._sampler, self._steps - 1
        if sampler is None or not sampler.is_due(step):
            return
        try:
            found = sampler.after(step)
        except InputError as error:  # The weights are not finite. This alone does not end the training.
            print(f"after {self._steps:,} steps: no text: {error}", file=sys.stderr)
            return
        if self._samples is not None:
            self._samples.add(found)
            progress.sampled(found)

    def _lacking(self, step: int, recorder: TrainingRecorder) -> frozenset[Kind]:
        """Return which passes after ``step`` may be missing."""
        passes = recorder.evaluations
        return self.ranks.lacking(lambda: frozenset() if passes is None else passes.lacking(step))

    def _decide(self, share: float) -> BareOrder:
        """Return what rank 0 does next."""
        watch = self._options.watch
        if (allowance := self._allowance) is not None and share < 1:
            allowance.note()
            allowance.stopped = allowance.stopped or allowance.ends_before(allowance.ending_s)
        if share >= 1:
            return {"do": "finish"}
        if self._stopping.asked or (allowance is not None and allowance.stopped):
            return {"do": "evaluate" if watch and watch.evaluates else "stop"}
        return {"do": "step"}

    def _serve_rank(self, _start: StartMessage, channel: Channel, rank: Rank) -> int:
        """Train as another rank, as rank 0 orders, and write this rank's ledger; return the exit status."""
        from trainer import checkpoint_folder

        for number in (signal.SIGINT, *TERMINATING):  # Rank 0 answers a signal to the whole group.
            signal.signal(number, signal.SIG_IGN)
        self.ranks = TrainingRanks(self.config, self.goal, rank, channel)
        try:
            order = channel.receive_order()
            assert order["do"] == "train"
            checkpoint = None if order["checkpoint"] is None else checkpoint_folder.read(Path(order["checkpoint"]))
            run = self.folder.run(self.records.arm.name, order["block"])
            training = self._open(prepare_training(self.config), model_fingerprint(self.config), checkpoint, run)
            try:
                self._train(training)
                training.compute.end_together()
            finally:
                close_batches(training.batches)
            telemetry.attach(None)
            training.tables.write()
            channel.send({"event": "done"})
        except EOFError:  # Rank 0 is gone, or refused the training before it began.
            return 1
        except Exception as error:
            if not isinstance(error, InputError):  # Rank 0 reports the same.
                traceback.print_exc()
            of_another = f"{EXCHANGE}: " if is_of_the_exchange(error) else ""
            with suppress(OSError):  # Rank 0 may have refused the same before, and be gone.
                channel.send({"event": "failed", "error": f"{of_another}{in_words(error)}"})
            return 1
        return 0

    def _count(self, compute: Compute) -> None:
        """Add to the facts what this part compiled within its measured steps, and skipped."""
        skipped, compiled = compute.skipped_steps(), compilations() - self._compiled
        self._facts = replace(
            self._facts,
            skipped_steps=None if skipped is None else skipped - self._skipped,
            measured_compilations=compiled or None,
        )


def _pause(training: OpenTraining) -> None:
    training.recorder.pause()
    training.compute.synchronize()


def _begin_worker(attach: Callable[[int], None], worker: int) -> None:
    """Ignore signals to the whole group in a loader worker: the last checkpoint needs the batch that it makes."""
    for number in (signal.SIGINT, *TERMINATING):
        signal.signal(number, signal.SIG_IGN)
    attach(worker)
