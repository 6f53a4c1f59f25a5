"""Trains one arm to its end in this process, under the ledger: no study around it, no repetitions, no controls.

    DIR/checkpoints/    the newest checkpoints: see trainer.checkpoint_folder
    DIR/tokenizer/      tokenizer of the model, for harness generate or AutoTokenizer; each checkpoint has a copy
    DIR/losses.csv      a row for each step
    DIR/evaluations.csv a row for each pass over held-out documents or multiple-choice questions
    DIR/samples.jsonl   a line for each text that the model wrote (sample)
    DIR/runs/ARM/K/     the ledger of the K-th part: a training that was stopped and resumed has several
    DIR/study.json      lets `harness report DIR` show where the time went, as for a study of one arm

Ctrl-C, SIGTERM and SIGHUP end it after the current step, with a last checkpoint.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.launch.budget import Allowance
from harness.launch.channel import Channel
from harness.launch.child import RunEnding
from harness.launch.diagnosis import with_fix
from harness.launch.ending import TERMINATING, Stopping
from harness.launch.facts import model_fingerprint
from harness.launch.needs import check_memory, need_of
from harness.launch.opener import OpenTraining, close_batches, prepare_training
from harness.launch.out_of_memory import advice_for_this_run, is_out_of_memory
from harness.launch.progress import Goal, TrainingProgress, announced
from harness.launch.protocol import BareOrder, StartMessage
from harness.launch.ranks import EXCHANGE, RankFailedError
from harness.launch.tables import PENDING_EVENTS
from harness.launch.training_files import CHECKPOINTS, LOG, TrainingRecorder
from harness.launch.training_records import TrainingRecords, begun_elsewhere
from harness.launch.training_state import TrainingRanks, TrainingState, Watch
from harness.study.records import RunRecord, StudyRecord, now
from trainer import telemetry
from trainer.compute.modes import compilations
from trainer.config import TrainerConfig
from trainer.data.kept_tokenizer import keep
from trainer.errors import EndedWorkerError, InputError, LostBatchError, in_words
from trainer.ranks import Rank, RanksDifferError, is_of_the_exchange

if TYPE_CHECKING:
    from harness.launch.uploads import Uploader
    from trainer.checkpoint_folder import Checkpoint
    from trainer.compute.base import Compute
    from trainer.data.prepare import Prepared
    from trainer.evaluate import Kind
    from trainer.telemetry import Validation

Status = Literal["done", "interrupted", "failed"]


@dataclass(frozen=True)
class Trained:
    """Result of one part of a training: how it ended, with steps, tokens and losses so far."""

    folder: Path
    status: Status
    steps: int
    tokens: int
    loss: float | None
    error: str | None = None
    validation: Validation | None = None  # last pass of this part over held-out documents
    choices: Validation | None = None  # last pass over multiple-choice questions
    part: int | None = None  # number of this part, if its ledger was written
    stopped: bool = False  # True if its budget ended it
    diverged: bool = False  # True if its gradient norm was not finite


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training that are not in the scenario: resume, memory check, budget, upload and observer."""

    resume: bool = False
    force: bool = False  # Also begin a training that cannot fit into memory
    allowed: Callable[[TrainerConfig, Goal], Allowance | None] = lambda _config, _goal: None
    """Returns the budget, which ends the training when it is spent. Called before the training begins."""
    uploader: Uploader | None = None  # Uploader of each checkpoint
    watch: Watch | None = None


@dataclass(frozen=True)
class _Part:
    """One part of a training before its first step. ``checkpoint``: where it resumes; None: at the beginning."""

    prepared: Prepared
    model: str | None
    checkpoint: Checkpoint | None
    folder: Path
    study: StudyRecord
    record: RunRecord
    first: int  # First step of this part
    lost: str  # Steps of a killed part that are not in a ledger; empty without any.
    begins: bool  # True if the folder has no study yet


@dataclass(frozen=True)
class _PartEnding:
    """End of one part: status of the training, and status of its run. The defaults describe an interrupted part."""

    status: Status = "failed"
    run: RunEnding = field(default_factory=lambda: RunEnding("failed", "it was interrupted"))
    error: str | None = None
    diverged: bool = False
    written: bool = False  # True if its ledger was written


class Training:
    """One part of a training in one rank, from a checkpoint or the beginning to the goal, or until it is stopped."""

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
        self._ranks = TrainingRanks(self.config, goal)
        self._state = self._new_state()
        self._loss: float | None = None
        self._passes: dict[str, Validation] = {}  # last pass of this part, by kind
        self._compiled = 0  # graphs compiled before this part's measured steps

    def _new_state(self) -> TrainingState:
        return TrainingState(self.config, self.goal, self.folder.path, self._ranks, self._stopping, self._options.watch)

    def run(self, scenario: str, price_usd_per_hour: float | None = None) -> Trained:
        """Train to the goal, a signal, a spent budget or an error. Measurements are written in any case."""
        self._ranks.fork(self._serve_rank)  # must come before this process tokenizes anything
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
            self._state.steps,
            self._state.tokens,
            self._loss,
            ending.error,
            self._passes.get("loss"),
            self._passes.get("choices"),
            part.record.block if ending.written else None,
            stopped=self._allowance is not None and self._allowance.stopped,
            diverged=ending.diverged,
        )

    def _begin(self, scenario: str, price_usd_per_hour: float | None) -> _Part:
        """Prepare data, checkpoint and records. Raises InputError without memory or an intact checkpoint."""
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
            print(f"{self.folder.path}: no checkpoint found, so it starts again", file=sys.stderr)
        study = self.records.study(scenario, resume, price_usd_per_hour)
        first = config.first_step if checkpoint is None else checkpoint.steps
        block = len(study.order) - 1
        recorded = max(self.records.steps_before(block), config.first_step)
        if checkpoint is None and config.resume is not None:
            study = begun_elsewhere(study, config.resume)
        lost = ""
        if recorded < first:
            lost = f"the part that trained steps {recorded} to {first - 1} was killed: no ledger contains them"
            study = replace(study, notes=[*study.notes, f"{lost}, and no figure"])
        record = self.records.run(study, block)
        self.folder.remove_leftovers()
        if self._allowance is not None:
            self._allowance.begin(self.folder.path)
        folder = self.folder.run(record.arm, block)
        folder.mkdir(parents=True, exist_ok=True)
        self._ranks.send(
            {"do": "train", "checkpoint": None if checkpoint is None else str(checkpoint.path), "block": block}
        )
        return _Part(prepared, model, checkpoint, folder, study, record, first, lost, begins)

    def _train_part(self, part: _Part) -> _PartEnding:
        with open(part.folder / LOG, "a") as log, redirect_stdout(log), self._stopping.noting():
            training = self._state.open(part.prepared, part.model, part.checkpoint, part.folder)
            try:
                if part.lost:
                    print(f"{self.folder.path}: {part.lost}; losses.csv has their losses", file=sys.stderr)
                keep(part.prepared.tokenizer, self.folder.path)
                if part.begins:  # An earlier part's study stays as it is until this part ends.
                    self.folder.write_study(part.study)
                status = self._train(training)
                digest = training.compute.end_together()
                self._count(training.compute)
                if self._ranks.wait_until_done():
                    self._state.facts = replace(self._state.facts, parameters_digest=digest)
                measured = self._state.steps > part.first + self.config.warmup_steps
                run = RunEnding("done") if measured else RunEnding("failed", "it ended within its warm-up steps")
                return _PartEnding(status, run)
            except Exception as error:
                if (ended := training.batches.ended_workers()) is not None:
                    raise ended from error
                if (cause := self._ranks.explain(error)) is not None:
                    raise RankFailedError(cause) from error
                raise
            finally:
                self._close(training)

    def _close(self, training: OpenTraining) -> None:
        self._ranks.end()
        try:
            if self._state.losses is not None:
                self._state.losses.close()
        finally:  # The disk may be full.
            close_batches(training.batches)

    def _failed(self, error: Exception, vocab_size: int) -> _PartEnding:
        """Return the ending of a part that failed by an expected ``error``: a lost rank or worker, a non-finite value,
        I/O or memory. Raise any other error again, as it is a bug.
        """
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
        """Write this part's records if it trained a step, else its status. Return ``ending``, failed if that fails."""
        telemetry.attach(None)
        study = replace(part.study, status=ending.status, ended_utc=now())
        if self._state.training is not None and self._state.steps > part.first:
            record = ending.run.of(replace(part.record, facts=self._state.facts))
            try:
                self.records.write(study, record, self._state.training.tables, self._state.training.compute)
                ending = replace(ending, written=True)
            except OSError as error:
                line = ending.error or f"the measurements could not be written: {in_words(error)}"
                ending = replace(ending, status="failed", error=line)
        elif part.begins and self.folder.study_json.exists():  # The study's status is "running".
            with suppress(OSError):
                self.folder.write_study(study)
        if self._allowance is not None:
            self._allowance.end(done=ending.status == "done")
        return ending

    def _train(self, training: OpenTraining) -> Status:
        """Train until the goal ("done"), or a signal or spent budget ("interrupted"); save a last checkpoint."""
        recorder, evaluator, saver = training.recorder, training.evaluator, training.saver
        assert isinstance(recorder, TrainingRecorder)
        assert saver is not None
        self._connect(training, recorder)
        steps = training.steps(self.config, self._ranks.rank, self._state.steps)
        first, queue, rank = self._state.steps, training.run_queue, self._ranks.rank
        share = self._ranks.share(first, self._state.tokens, training.batches.position)
        progress = TrainingProgress(self.goal, share, self._ranks.tokens)
        watch = self._options.watch if rank.is_first else None
        try:
            if evaluator is not None and (lacking := self._lacking(first - 1, recorder)):
                evaluator.after(first - 1, lacking, epochs_are_over=self._state.epochs_are_over)
            while (order := self._ranks.next_order(partial(self._decide, share))) == "step":
                recorder.warmup = self._state.steps - first < self.config.warmup_steps
                self._state.steps = next(steps) + 1
                share = self._ranks.share(self._state.steps, recorder.tokens, training.batches.position)
                self._loss, self._state.tokens = recorder.last_loss, self._ranks.tokens
                if rank.is_first:
                    progress.step(self._state.steps, self._state.tokens, share, self._loss, recorder.validations)
                self._write_text(progress)
                if watch is not None and watch.step(self._state.steps, self._state.tokens):
                    self._stopping.asked = True
                if self._state.steps == first + max(1, self.config.warmup_steps):
                    self._compiled = compilations()
                    if queue is not None:
                        queue.find_threads()  # They start at the first parallel region.
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
            evaluator.finish()  # A training with a last checkpoint has all passes.
        self._passes = {
            "loss" if validation.questions is None else "choices": validation for validation in recorder.validations
        }
        if self._state.steps != saver.last:
            saver.save(self._state.steps)
        saver.wait()
        return "done" if order == "finish" else "interrupted"

    def _connect(self, training: OpenTraining, recorder: TrainingRecorder) -> None:
        """Let the saver request an upload after each checkpoint, and let the saver find out which step is the last."""
        saver, uploader = training.saver, self._options.uploader
        assert saver is not None
        if uploader is not None and self._ranks.rank.is_first:
            uploader.begin()
            saver.saved = uploader.ask
        # A checkpoint of the last step means that the last evaluation is done. Ranks agree before they save.
        if training.evaluator is not None or self._ranks.agree:
            position = training.batches.position
            saver.ends = lambda steps: self._ranks.share(steps, recorder.tokens, position) >= 1

    def _write_text(self, progress: TrainingProgress) -> None:
        """Let the model write the sample text if due; every rank takes part, rank 0 stores it."""
        sampler, step = self._state.sampler, self._state.steps - 1
        if sampler is None or not sampler.is_due(step):
            return
        try:
            written = sampler.after(step)
        except InputError as error:  # The weights are not finite. This alone does not end the training.
            print(f"after {self._state.steps:,} steps: no text: {error}", file=sys.stderr)
            return
        if self._state.samples is not None:
            self._state.samples.add(written)
            progress.sampled(written)

    def _lacking(self, step: int, recorder: TrainingRecorder) -> frozenset[Kind]:
        """Return the kinds of evaluation passes after ``step`` that an earlier part may have missed."""
        passes = recorder.evaluations
        return self._ranks.lacking(lambda: frozenset() if passes is None else passes.lacking(step))

    def _decide(self, share: float) -> BareOrder:
        """Return rank 0's next order: "step", "finish" (at the goal), "stop" or "evaluate" (then stop)."""
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
        """Train in a rank other than 0, as rank 0 orders, and write this rank's ledger. Return the exit status."""
        from trainer import checkpoint_folder

        for number in (signal.SIGINT, *TERMINATING):  # Rank 0 answers a signal to the whole group.
            signal.signal(number, signal.SIG_IGN)
        self._ranks = TrainingRanks(self.config, self.goal, rank, channel)
        self._state = self._new_state()
        try:
            order = channel.receive_order()
            assert order["do"] == "train"
            checkpoint = None if order["checkpoint"] is None else checkpoint_folder.read(Path(order["checkpoint"]))
            run = self.folder.run(self.records.arm.name, order["block"])
            training = self._state.open(prepare_training(self.config), model_fingerprint(self.config), checkpoint, run)
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
            prefix = f"{EXCHANGE}: " if is_of_the_exchange(error) else ""
            with suppress(OSError):  # Rank 0 may have refused the same before, and be gone.
                channel.send({"event": "failed", "error": f"{prefix}{in_words(error)}"})
            return 1
        return 0

    def _count(self, compute: Compute) -> None:
        """Add to this part's facts the graphs compiled in its measured steps, and steps that loss scaling skipped."""
        skipped, compiled = compute.skipped_steps(), compilations() - self._compiled
        self._state.facts = replace(
            self._state.facts,
            skipped_steps=None if skipped is None else skipped - self._state.skipped,
            measured_compilations=compiled or None,
        )


def _pause(training: OpenTraining) -> None:
    training.recorder.pause()
    training.compute.synchronize()
