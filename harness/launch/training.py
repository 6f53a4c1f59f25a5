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

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from harness.launch.block import modules_of
from harness.launch.budget import Allowance
from harness.launch.channel import Channel
from harness.launch.child import RunEnding
from harness.launch.diagnosis import with_fix
from harness.launch.ending import TERMINATING, Stopping
from harness.launch.facts import facts_of_run, model_fingerprint
from harness.launch.memory import check_memory, need_of
from harness.launch.out_of_memory import advice_for_this_run, is_out_of_memory
from harness.launch.progress import announced
from harness.launch.protocol import OWN, BareOrder, StartMessage
from harness.launch.ranks import EXCHANGE, OtherRanks, RankFailedError
from harness.launch.study import now
from harness.launch.tables import PENDING_EVENTS, RunTables
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
from harness.launch.training_records import TrainingRecords, begun_elsewhere
from harness.probes.ledger.loader import attach_in_worker
from harness.probes.ledger.run_queue import RunQueue
from harness.probes.run_probes import RunProbes
from harness.study.store import StudyFolder
from trainer import telemetry
from trainer.compute.modes import compilations
from trainer.config import TrainerConfig
from trainer.data.kept_tokenizer import keep
from trainer.data.tokenizers import FOLDER as TOKENIZER
from trainer.errors import EndedWorkerError, InputError, LostBatchError, in_words, one_line
from trainer.json_types import JsonObject, integer
from trainer.model_files import objective_of
from trainer.ranks import ALONE, Rank, RanksDifferError, gloo_group, is_of_the_exchange, least, total

if TYPE_CHECKING:
    from harness.launch.uploads import Uploader
    from harness.scenario.plan import Arm
    from harness.study.records import RunFacts
    from trainer.checkpoint import Saver
    from trainer.checkpoint_folder import Checkpoint
    from trainer.compute.base import Compute
    from trainer.data.loader import Batches
    from trainer.data.prepare import Prepared
    from trainer.evaluate import Evaluator, Kind
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
    """How a training ended, and where it stands."""

    folder: Path
    status: Status
    steps: int
    tokens: int
    loss: float | None
    error: str | None = None
    validation: Validation | None = None  # the last pass of this part over held-out documents
    choices: Validation | None = None  # and over multiple-choice questions
    part: int | None = None  # which one it is, where its ledger was written
    stopped: bool = False  # as its budget was spent
    diverged: bool = False  # its gradient norm was not finite


# Optional keys of a checkpoint. tokens_of_all: tokens of all ranks, if ranks receive different numbers of tokens.
# epochs_are_over: true if a pass of evaluation.every_epochs follows the checkpoint.
TOKENS_OF_ALL, EPOCHS_ARE_OVER = "tokens_of_all", "epochs_are_over"


class Training:
    """One part of a training: from where it stands to its end, or until it is stopped."""

    def __init__(
        self,
        arm: Arm,
        config: TrainerConfig,
        goal: Goal,
        folder: StudyFolder,
        command: Sequence[str],
        source: str,
        allowance: Allowance | None = None,
        uploader: Uploader | None = None,
        watch: Watch | None = None,
        force: bool = False,
    ) -> None:
        self.arm, self.config, self.goal, self.folder = arm, config, goal, folder
        self._watch, self._force = watch, force
        self._allowance, self._uploader = allowance, uploader
        self._checkpoints = folder.path / CHECKPOINTS
        self._records = TrainingRecords(arm, config, folder, command, source)
        self._stopping = Stopping()
        self._steps, self._tokens = config.first_step, 0
        self._loss: float | None = None
        self._validation: Validation | None = None
        self._choices: Validation | None = None
        self._compute: Compute | None = None
        self._epochs_are_over = False
        self._sampler: TextSampler | None = None
        self._samples: SampleTable | None = None  # rank 0 has one; None in other ranks
        self._skipped = self._compiled = 0  # before this part, and before its measured steps
        self._digest: str | None = None
        self.rank = ALONE
        self._others: OtherRanks | None = None  # that this rank drives
        self._orders: Channel | None = None  # from rank 0, where this is another one
        self._group: Any = None  # in which ranks agree how far they are, where each would count otherwise
        self._begun_at = 0, 0  # tokens that a checkpoint holds: as rank 0 counts them, and of all
        self._agreed = (-1, 0.0, 0)  # after how many steps, the share, and the tokens of all

    def run(self, resume: bool, scenario: str, price_usd_per_hour: float | None = None) -> Trained:
        """Train, and write what was measured, whatever happened."""
        from trainer import checkpoint_folder
        from trainer.data.prepare import warnings_of

        self._start_others()  # before this process tokenizes anything: they are forked
        data = self.config.data
        with announced(f"preparing data: {data.source or data.path}, sequence length {data.sequence_length}"):
            prepared = self._prepared()
        for line in warnings_of(data, prepared):
            print(line, file=sys.stderr)
        need = need_of(self.arm.name, self.config, prepared.vocab_size, saved_at_end=True)
        check_memory([need], (), "runs", self._force)
        model = model_fingerprint(self.config)
        found = checkpoint_folder.newest(self._checkpoints) if resume else None
        if resume and found is None and self.folder.study_json.exists():
            print(f"{self.folder.path}: no checkpoint lies there, so it begins again", file=sys.stderr)
        study = self._records.study(scenario, resume, price_usd_per_hour)
        begun_at = self.config.first_step
        first = begun_at if found is None else found.steps
        block = len(study.order) - 1
        recorded = max(self._records.steps_before(block), begun_at)
        if found is None and self.config.resume is not None:
            study = begun_elsewhere(study, self.config.resume)
        lost = f"the part that trained steps {recorded} to {first - 1} was killed: they are in no ledger"
        if recorded < first:
            study = replace(study, notes=[*study.notes, f"{lost} and in no figure"])
        record = self._records.run(study, block)
        self.folder.remove_leftovers()
        if self._allowance is not None:
            self._allowance.begin(self.folder.path)
        run = self.folder.run(self.arm.name, block)
        run.mkdir(parents=True, exist_ok=True)
        if self._others is not None:
            where = None if found is None else str(found.path)
            self._others.send({"do": "train", "checkpoint": where, "block": block})
        status: Status = "failed"
        error: str | None = None
        diverged = False
        ending = RunEnding("failed", "it was interrupted")
        written = begins = False
        tables: RunTables | None = None
        try:
            with open(run / LOG, "a") as log, redirect_stdout(log), self._stopping.noting():
                batches, compute, saver, evaluator, recorder, table = self._opened(prepared, model, found, run)
                record = replace(record, facts=facts_of_run(self.config, compute, prepared, model))
                if recorded < first:
                    print(f"{self.folder.path}: {lost}; losses.csv has their losses", file=sys.stderr)
                keep(prepared.tokenizer, self.folder.path)
                pid, tid = os.getpid(), threading.get_native_id()
                tables = RunTables(recorder, run, pid, tid, self.rank.number, self.rank.of)
                if not self.folder.study_json.exists():  # else as the part before left it, until this one ends
                    self.folder.write_study(study)
                    begins = True
                try:
                    status = self._train(batches, compute, saver, evaluator, recorder, tables)
                    record = replace(record, facts=self._counted(record.facts, compute))
                    if self._others is not None:
                        record = replace(record, facts=replace(record.facts, parameters_digest=self._digest))
                        self._others.wait("done")
                    measured = self._steps > first + self.config.warmup_steps
                    ending = RunEnding("done") if measured else RunEnding("failed", "it ended within its warm-up steps")
                except Exception as raised:
                    if (ended := batches.ended_workers()) is not None:
                        raise ended from raised
                    if self._others is not None and (cause := self._others.explain(raised)) is not None:
                        raise RankFailedError(cause) from raised
                    raise
                finally:
                    if self._others is not None:
                        self._others.end()
                    try:
                        if table is not None:
                            table.close()
                    finally:  # the disk may be full
                        _close(batches)
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        except (RankFailedError, RanksDifferError) as raised:
            error = str(raised)
        except (LostBatchError, EndedWorkerError, FloatingPointError, OSError) as raised:
            error, diverged = with_fix(raised), isinstance(raised, FloatingPointError)
        except Exception as raised:
            if not is_out_of_memory(raised):
                raise
            error = in_words(raised) + advice_for_this_run(self.config, prepared.vocab_size, raised)
        finally:
            telemetry.attach(None)
            if tables is not None and self._steps > first:  # else everything stays as it was
                if error is not None:
                    ending = RunEnding("failed", error)
                try:
                    study = replace(study, status=status, ended_utc=now())
                    self._records.write(study, ending.of(record), tables, self._compute)
                    written = True
                except OSError as raised:
                    status, error = "failed", error or f"what was measured was not written: {in_words(raised)}"
            elif begins:  # within its first step: what it wrote says that it runs
                with suppress(OSError):
                    self.folder.write_study(replace(study, status=status, ended_utc=now()))
            if self._allowance is not None:
                self._allowance.end(done=status == "done")
        part, stopped = block if written else None, self._allowance is not None and self._allowance.stopped
        known = self._loss, error, self._validation, self._choices, part, stopped, diverged
        return Trained(self.folder.path, status, self._steps, self._tokens, *known)

    def _opened(
        self, prepared: Prepared, model: str | None, found: Checkpoint | None, run: Path
    ) -> tuple[Batches, Compute, Saver, Evaluator | None, TrainingRecorder, LossTable | None]:
        """Everything that trains, where the checkpoint ``found`` says it was."""
        from trainer.checkpoint import check_identity, identity, load, parts_of
        from trainer.checkpoint_folder import remove_newer
        from trainer.checkpoint_ranks import make_saver, make_store
        from trainer.compute.build import build_compute
        from trainer.data.loader import open_batches
        from trainer.data.position import DataPosition, epochs_of
        from trainer.evaluate import make_evaluator
        from trainer.sample import TextSampler

        data = self.config.data
        prints = {"corpus": prepared.corpus.fingerprint, "tokenizer": prepared.tokenizer.fingerprint, "model": model}
        if prepared.held_out is not None:
            prints["evaluation.corpus"] = prepared.held_out.corpus.fingerprint
        begins_elsewhere = found is None and self.config.resume is not None
        position = DataPosition(max(1, data.workers), keeps_state=True)
        states = None
        if found is not None:
            check_identity(found, self.config, prints)
            if self.rank.is_first:
                remove_newer(found)  # here, where it is sure that this training goes on from it
            states = found.states(make_store(self.rank))
            try:
                where, self._tokens = states["data"], integer(found.about, "tokens")
                of_all = integer(found.about, TOKENS_OF_ALL) if TOKENS_OF_ALL in found.about else self._tokens
                self._begun_at = self._tokens, of_all
            except (KeyError, TypeError) as error:
                raise InputError(f"{found.path}: not one of harness train ({one_line(error)})") from error
            position, self._steps = DataPosition.from_state(where, data.workers, keeps_state=True), found.steps
        attach = partial(attach_in_worker, _parent_of(data.start_method), RunProbes(), run)
        seed = self.config.seed
        batches = open_batches(data, prepared, seed, partial(_begin_worker, attach), position, self.rank)
        try:
            if self._others is not None:
                self._others.watch(_end_at_once)  # threads, so only now that the workers are forked
            compute = self._compute = build_compute(
                self.config, prepared.vocab_size, self.rank, takes_weights=begins_elsewhere
            )
            # Shards may differ by a document, and the batches of a user's source by their size.
            if self.rank.of > 1 and (self.goal.epochs is not None or (self.goal.tokens is not None and data.source)):
                self._group = gloo_group(self.rank)
            if begins_elsewhere:  # last: a seed that does not fit is known by now
                self._pass_over(batches)
            parts = parts_of(compute.parts(), batches.position)
            if found is not None and states is not None:
                load(parts, states, found)
                self._skipped = compute.skipped_steps() or 0
            evaluated = self.config.evaluation is not None
            first = self.rank.is_first
            evaluator, epochs = None, partial(epochs_of, batches.position)
            if evaluated:
                evaluator = make_evaluator(self.config, prepared, compute, rank=self.rank, epochs=epochs)
                self._epochs_are_over = found is not None and bool(found.about.get(EPOCHS_ARE_OVER))
            if self.config.sample is not None:
                self._sampler = TextSampler(self.config.sample, prepared, compute)
                self._samples = SampleTable(self.folder.path / SAMPLES, self._steps) if first else None
            table = LossTable(self.folder.path / LOSSES, self._steps, self.config.first_step) if first else None
            queue = RunQueue(compute_threads=compute.device == "cpu")
            trained = self._steps if found is not None else 0
            rows = EvaluationTable(self.folder.path / EVALUATIONS, trained) if evaluated and first else None
            recorder = TrainingRecorder(queue if queue.available else None, table, self._tokens, rows, self.rank.of)
            if first and self._watch is not None:
                recorder.loss_seen = self._watch.loss

            def about() -> JsonObject:
                assert table is not None
                table.flush()
                of_all: dict[str, int] = {} if self._group is None else {TOKENS_OF_ALL: self._agreed[2]}
                if evaluator is not None and evaluator.epochs_are_over:  # The pass follows this checkpoint.
                    of_all[EPOCHS_ARE_OVER] = True
                return {"tokens": recorder.tokens, **of_all, "config": identity(self.config), "fingerprints": prints}

            settings = self.config.checkpoint
            assert settings is not None
            synchronize = (lambda: None) if table is None else table.synchronize
            tokenizer = self.folder.path / TOKENIZER
            saver = make_saver(settings, self._checkpoints, parts, about, self.rank, synchronize, tokenizer, epochs)
            saver.last = self._steps if found is not None else None
            if self._uploader is not None and first:
                self._uploader.begin()  # a thread, so only now that the workers are forked
                saver.saved = self._uploader.ask
            # One of the last step would say that the last evaluation is done. Ranks agree before they save.
            if evaluator is not None or self._group is not None:
                saver.ends = lambda steps: self._share(steps, recorder.tokens, batches) >= 1
        except BaseException as error:
            ended = batches.ended_workers()
            _close(batches)
            if ended is not None and isinstance(error, Exception):
                raise ended from error
            raise
        return batches, compute, saver, evaluator, recorder, table

    def _pass_over(self, batches: Batches) -> None:
        """Receive and drop the batches of the steps before the first one, so that the data goes on where it would be.

        They are made as they would be for training: any data path comes to the same place so.
        """
        steps = self.config.first_step
        shows = steps and self.rank.is_first
        with announced(f"passing over the data of steps 0 to {steps - 1:,}") if shows else nullcontext():
            for _ in range(steps * self.config.optimizer.accumulation):
                self._tokens += next(batches).tokens * self.config.ranks
                if self._stopping.asked:
                    raise KeyboardInterrupt
        if self._share(steps, self._tokens, batches) >= 1:
            raise InputError(
                f"resume.step: {steps:,} steps are {self._tokens:,} tokens, and the training ends after {self.goal}, "
                "which they hold; allowed: a later end"
            )

    def _train(
        self,
        batches: Batches,
        compute: Compute,
        saver: Saver,
        evaluator: Evaluator | None,
        recorder: TrainingRecorder,
        tables: RunTables,
    ) -> Status:
        """Step by step to the end of the training, or until a signal asks to stop; then a last checkpoint."""
        from trainer.loop import train

        telemetry.attach(recorder)
        steps = train(self.config, compute, batches, self._steps, saver, evaluator, prints=self.rank.is_first)
        first, queue = self._steps, recorder.run_queue
        share = self._share(first, self._tokens, batches)
        progress = TrainingProgress(self.goal, share, self._agreed[2])
        try:
            if evaluator is not None and (lacking := self._lacking(first - 1, recorder)):
                evaluator.after(first - 1, lacking, epochs_are_over=self._epochs_are_over)
            while (order := self._order(share)) == "step":
                recorder.warmup = self._steps - first < self.config.warmup_steps
                self._steps = next(steps) + 1
                share, self._loss = self._share(self._steps, recorder.tokens, batches), recorder.last_loss
                self._tokens = self._agreed[2]
                if self.rank.is_first:
                    progress.step(self._steps, self._tokens, share, self._loss, recorder.validations)
                self._write_text(progress)
                if self.rank.is_first and self._watch is not None and self._watch.step(self._steps, self._tokens):
                    self._stopping.asked = True
                if self._steps == first + max(1, self.config.warmup_steps):
                    self._compiled = compilations()
                    if queue is not None:
                        queue.find_threads()  # they start at the first parallel region
                if recorder.pending_events >= PENDING_EVENTS:
                    self._pause(recorder, compute)
                    tables.collect()
        finally:
            progress.end()
            recorder.pause()
            steps.close()  # type: ignore[attr-defined]  # a generator: closing it reads the last losses
        self._pause(recorder, compute)
        self._loss = recorder.last_loss
        if order != "stop" and evaluator is not None:
            evaluator.finish()  # before the last checkpoint: a training that has one is whole
        for one in recorder.validations:
            if one.questions is None:
                self._validation = one
            else:
                self._choices = one
        if self._steps != saver.last:
            saver.save(self._steps)
        saver.wait()
        self._digest = compute.end_together()
        return "done" if order == "finish" else "interrupted"

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

    def _share(self, steps: int, tokens: int, batches: Batches) -> float:
        """Which share of the training is done, of epochs by the rank that is the least far.

        ``tokens``: as this rank counts them, as if all others had received as many. Every rank must ask at the same
        places.
        """
        if self._agreed[0] != steps or self._group is None:
            if self._group is not None:
                before, of_all = self._begun_at
                tokens = of_all + round(total(tokens - before, self._group) / self.rank.of)
            share = self.goal.share(steps, tokens, batches.position.epochs)
            self._agreed = steps, share if self._group is None else least(share, self._group), tokens
        return self._agreed[1]

    def _lacking(self, step: int, recorder: TrainingRecorder) -> frozenset[Kind]:
        """Which passes after ``step`` may be missing. Rank 0 alone has the table of them, and tells the others."""
        if self._orders is not None:
            order = self._orders.receive_order()
            assert order["do"] == "lacking"
            return frozenset(order["passes"])
        passes = recorder.evaluations
        found: frozenset[Kind] = frozenset() if passes is None else passes.lacking(step)
        if self._others is not None:
            self._others.send({"do": "lacking", "passes": sorted(found)})
        return found

    def _order(self, share: float) -> str:
        """What is done next: rank 0 decides, and the others do the same."""
        if self._orders is not None:
            return self._orders.receive_order()["do"]
        if (allowance := self._allowance) is not None and share < 1:
            allowance.note()
            allowance.stopped = allowance.stopped or allowance.ends_before(allowance.ending_s)
        stops = self._stopping.asked or (allowance is not None and allowance.stopped)
        ending: Literal["evaluate", "stop"] = "evaluate" if self._watch and self._watch.evaluates else "stop"
        order: BareOrder = {"do": "finish" if share >= 1 else ending if stops else "step"}
        if self._others is not None:
            self._others.send(order)
        return order["do"]

    def _start_others(self) -> None:
        launch = self.config.launch
        if launch is not None and self.config.ranks > 1:
            # Once, not by each rank: it takes six seconds of CPU.
            for module in (*OWN.preloaded, *modules_of([self.config.model_dump(mode="json")])):
                importlib.import_module(module)
            begin = cast("StartMessage", {})  # they are forked with all that it would say
            serve, nothing = self._serve_rank, os.open(os.devnull, os.O_RDONLY)
            self._others = OtherRanks(begin, self.config.ranks, launch.timeout_s, serve, nothing)
            os.close(nothing)
            self.rank = self._others.rank

    def _serve_rank(self, _start: StartMessage, channel: Channel, rank: Rank) -> int:
        """In another rank: train as rank 0 says, and write this rank's ledger; the exit status."""
        from trainer import checkpoint_folder

        for number in (signal.SIGINT, *TERMINATING):  # a signal to the whole group is rank 0's to answer
            signal.signal(number, signal.SIG_IGN)
        self.rank, self._orders, self._others = rank, channel, None
        try:
            order = channel.receive_order()
            assert order["do"] == "train"
            found = None if order["checkpoint"] is None else checkpoint_folder.read(Path(order["checkpoint"]))
            run = self.folder.run(self.arm.name, order["block"])
            batches, compute, saver, evaluator, recorder, _ = self._opened(
                self._prepared(), model_fingerprint(self.config), found, run
            )
            pid, tid = os.getpid(), threading.get_native_id()
            tables = RunTables(recorder, run, pid, tid, rank.number, rank.of)
            try:
                self._train(batches, compute, saver, evaluator, recorder, tables)
            finally:
                _close(batches)
            telemetry.attach(None)
            tables.write()
            channel.send({"event": "done"})
        except EOFError:  # rank 0 is gone, or refused the training before it began
            return 1
        except Exception as error:
            if not isinstance(error, InputError):  # rank 0 found the same
                traceback.print_exc()
            of_another = f"{EXCHANGE}: " if is_of_the_exchange(error) else ""
            with suppress(OSError):  # rank 0 is gone: it refused the same before this rank did
                channel.send({"event": "failed", "error": f"{of_another}{in_words(error)}"})
            return 1
        return 0

    def _prepared(self) -> Prepared:
        from trainer.data.prepare import prepare

        found = prepare(self.config.data, evaluation=self.config.evaluation)
        return found.with_objective(objective_of(self.config.model))

    def _counted(self, facts: RunFacts, compute: Compute) -> RunFacts:
        """``facts`` with what this part alone compiled within its measured steps, and skipped."""
        skipped, compiled = compute.skipped_steps(), compilations() - self._compiled
        return replace(
            facts,
            skipped_steps=None if skipped is None else skipped - self._skipped,
            measured_compilations=compiled or None,
        )

    @staticmethod
    def _pause(recorder: TrainingRecorder, compute: Compute) -> None:
        recorder.pause()
        compute.synchronize()


def _parent_of(start_method: str) -> int | None:
    return None if start_method == "forkserver" else os.getpid()


def _begin_worker(attach: Any, worker: int) -> None:
    """A signal to the whole group is the main process's to answer: its last checkpoint needs the batch it waits for."""
    for number in (signal.SIGINT, *TERMINATING):
        signal.signal(number, signal.SIG_IGN)
    attach(worker)


def _end_at_once(line: str) -> None:
    """Where a rank failed and this one does not come out of its exchange: the last checkpoint is what is left."""
    print(f"failed: {line}", file=sys.stderr, flush=True)
    os._exit(1)


def _close(batches: Batches) -> None:
    batches.close()
    for process in multiprocessing.active_children():  # torch's SIGTERM to one that hangs is ignored there
        process.kill()
