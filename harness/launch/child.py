"""Run one arm in its own process: build the trainer, run the requested repetitions, write its tables.

Forked by ``launch.fork_server``, with orders as JSON lines over a socket (``launch.protocol``). Its output is the run's
log.
"""

from __future__ import annotations

import math
import os
import socket
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Literal

from harness.launch import more_warmup
from harness.launch.channel import Channel, Heartbeat
from harness.launch.diagnosis import diagnose, explain_end, look_at, with_fix
from harness.launch.facts import check_unchanged, model_fingerprint, peak_device_bytes
from harness.launch.opener import Checkpoints, OpenTraining, Start, open_training, prepare_training
from harness.launch.out_of_memory import advice_for_this_run
from harness.launch.probing import OpenTime
from harness.launch.protocol import DataMessage, MeetingPlace, RunEvent, RunOrder, StartMessage
from harness.launch.ranks import EXCHANGE, ClockOffset, OtherRanks, RankFailedError, align_tables, compare_clocks
from harness.probes.ledger.recorders import BareRecorder, StepRecorder
from harness.probes.probe import ProbeSet, RunProbes
from harness.probes.profilers.torch_session import realtime_minus_monotonic
from harness.study.records import RunFacts, RunRecord, now
from harness.study.store import StudyFolder
from trainer import telemetry
from trainer.compute.base import Compute
from trainer.compute.modes import compilations
from trainer.config import TrainerConfig, recorded_config
from trainer.errors import EndedWorkerError, InputError, LostBatchError, in_words
from trainer.lifetime import die_with_parent
from trainer.ranks import ALONE, Rank, RanksDifferError, is_of_the_exchange

if TYPE_CHECKING:
    from trainer.data.loader import Batches


# Arms and their A/A controls are evaluated. The other controls leave out data or compute, repeat work or belong to
# probes. Their models are not a result, so evaluating them would waste time.
EVALUATED = (None, "a-a")


def main(descriptor: int, parent: int) -> int:
    """Serve one run, forked by process ``parent``; its record is always written. Return the exit status, 0: done."""
    die_with_parent(parent)  # A suspended child cannot notice that its parent was killed.
    channel = Channel(socket.socket(fileno=descriptor))
    start = channel.receive_start()
    record = replace(RunRecord.from_json(start["record"]), pid=os.getpid(), started_utc=now())
    folder = StudyFolder(Path(start["study"]))
    run: Run | None = None
    other_ranks: OtherRanks | None = None
    try:
        alive = Heartbeat(channel, start.get("beat_s"))
        other_ranks = _other_ranks(start, record, descriptor, channel)
        run = Run(record, folder, RunProbes.from_json(start["probes"]), alive, start.get("data"), others=other_ranks)

        def end_without_this_thread(line: str) -> None:
            failed = RunEnding("failed", line)
            folder.write_run(failed.of(record))
            channel.send({"event": failed.status, "error": failed.error})
            os._exit(failed.exit_code)

        run.when_lost = end_without_this_thread
        run.serve(channel)
        ending = RunEnding("done")
    except Exception as error:
        traceback.print_exc()
        reason = _line_of(error, other_ranks)
        if run is not None:
            reason += advice_for_this_run(run.config, run.vocab_size, error)
        ending = RunEnding("failed", reason)
    if other_ranks is not None:
        other_ranks.end()
    if run is not None:
        try:
            run.write(ending)
        except Exception as error:  # For example a full disk. The parent must be informed.
            traceback.print_exc()
            ending = RunEnding("failed", f"the measurements could not be written: {in_words(error)}")
            folder.write_run(run.record_of(ending))
    else:
        folder.write_run(ending.of(record))
    channel.send({"event": ending.status, "error": ending.error})
    return ending.exit_code


def serve_rank(start: StartMessage, channel: Channel, rank: Rank, *, other_machine: bool = False) -> int:
    """Run a rank other than rank 0 until it is ordered to finish, on rank 0's clock. Return the exit status."""
    record = replace(RunRecord.from_json(start["record"]), pid=os.getpid())
    # Samplers and profilers observe rank 0 alone: one of each is enough.
    probes = replace(RunProbes.from_json(start["probes"]), settings={}, windows=False, closing=None)
    run: Run | None = None
    try:
        folder = StudyFolder(Path(start["study"]))
        run = Run(record, folder, probes, Heartbeat(channel, None), start.get("data"), rank)
        done: RunEvent = {"event": "done"}
        if other_machine:
            run.clock = lambda: _ask_for_time(channel)
        run.serve(channel)
        run.write_tables()
        if run.offsets:
            first, last = run.offsets[0], run.offsets[-1]
            align_tables(folder.run(record.arm, record.block), rank.number, first, last)
            done["clock_error_ns"] = max(first.error_ns, last.error_ns)
        channel.send(done)
        return 0
    except Exception as error:
        traceback.print_exc()
        prefix = f"{EXCHANGE}: " if is_of_the_exchange(error) else ""
        # Report the error before another rank notices that this one is gone and reports another cause.
        channel.send({"event": "failed", "error": f"{prefix}{_line_of(error, None)}"})
        return 1


def _ask_for_time(channel: Channel) -> int:
    """Return the time of rank 0's clock in ns (CLOCK_MONOTONIC of its machine)."""
    channel.send({"event": "clock"})
    answer = channel.receive_order()
    assert answer["do"] == "clock"
    return answer["t_ns"]


def _other_ranks(start: StartMessage, record: RunRecord, descriptor: int, channel: Channel) -> OtherRanks | None:
    """Fork the other ranks of this run and return rank 0's connection to them; None for a run with one rank."""
    config = TrainerConfig.model_validate(record.config)
    if config.launch is None or config.ranks == 1:
        return None

    def meet(place: MeetingPlace) -> None:
        channel.send({"event": "meet", "meet": place})

    return OtherRanks(start, config.ranks, config.launch.timeout_s, serve_rank, descriptor, meet)


def _line_of(error: Exception, others: OtherRanks | None) -> str:
    """Return ``error`` as one line for the run's record; with several ranks, it names the rank."""
    is_expected = isinstance(error, InputError | LostBatchError | RankFailedError | RanksDifferError)
    line = str(error) if is_expected else with_fix(error)
    if others is None or isinstance(error, RankFailedError | RanksDifferError):
        return line
    return others.explain(error) or f"rank 0: {line}"


@dataclass(frozen=True)
class RunEnding:
    """Status of a run at its end ("done" or "failed"), and the error as one line if it failed."""

    status: Literal["done", "failed"]
    error: str | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.status == "done" else 1

    def of(self, record: RunRecord) -> RunRecord:
        """Return a copy of ``record`` with this status, error and exit code."""
        return replace(record, status=self.status, error=self.error, exit_code=self.exit_code)


class Run:
    """One rank of a run in its process: a training under its probes, driven by the launcher's (or rank 0's) orders."""

    def __init__(
        self,
        record: RunRecord,
        folder: StudyFolder,
        probes: RunProbes,
        alive: Heartbeat,
        data: DataMessage | None,
        rank: Rank = ALONE,
        others: OtherRanks | None = None,
    ) -> None:
        """Create the run ``record``; :meth:`serve` opens the training. ``others``: ranks that this rank 0 drives."""
        self.others = others
        self.rank = rank if others is None else others.rank
        self.when_lost: Callable[[str], None] | None = None
        self.clock: Callable[[], int] | None = None  # clock of rank 0, if this rank is on another machine
        self.offsets: list[ClockOffset] = []  # offsets between this machine's clock and the clock of rank 0
        self.asked = record
        self.data = data
        self.facts = RunFacts()  # empty until the compute is built
        self.folder = folder
        self.config = recorded_config(record.config)
        self.probes = probes
        self.alive = alive
        # The log may have lines of an earlier attempt of this run.
        self._log_start = os.fstat(sys.stdout.fileno()).st_size
        self.probe_set = ProbeSet(probes, folder.run(record.arm, record.block))
        self._compute: Compute | None = None  # known before the training is opened
        self._training: OpenTraining | None = None
        self.vocab_size: int | None = None  # vocabulary size of the tokenizer, once it is known
        self._compiled = 0  # graphs compiled within measured steps
        self._last_step = -1
        self._open_time = OpenTime()

    def serve(self, channel: Channel) -> None:
        """Open the training, warm up and report "ready". Then obey the launcher's orders until "finish"."""
        with self._explaining():
            self._open()
        training = self.training
        steps = training.steps(self.config, self.rank)
        try:
            with self._explaining():
                self._take(steps, self.config.warmup_steps, warmup=True)
                if more_warmup.batches_may_last(self.config):
                    more_warmup.load_decision()
                self._synchronize()
                self.probe_set.wait()  # NVML may take seconds to wake
                self._compare_clocks()
                self._all_have("ready")
                channel.send({"event": "ready"})
                while (order := self._next_order(channel))["do"] != "finish":
                    if order["do"] == "step":  # a step in which rank 0 is profiled
                        self._take(steps, 1, warmup=True)
                        continue
                    done = self._obey(order, steps)
                    self.probe_set.wait()
                    self._all_have(done["event"])
                    channel.send(done)
                if training.evaluator is not None:
                    training.evaluator.finish()
                self._close(steps)
                saver = training.saver
                self.facts = replace(
                    self.facts,
                    checkpoint_writing_ns=None if saver is None else _ns(saver.writing_s),
                    parameters_digest=training.compute.end_together(),
                    repeated_rows=training.compute.repeated_rows(),
                    epoch_steps=self._epoch_steps(),
                )
                self._compare_clocks()
                self._all_have("done")
                if self.others is not None:
                    self.facts = replace(self.facts, clock_error_ns=self.others.clock_error_ns)
        finally:
            self._close(steps)
            self.probe_set.close()

    def _epoch_steps(self) -> float | None:
        """Return the number of steps in an epoch, from the share of an epoch that the run used; None if unknown."""
        epochs = self.training.batches.position.epochs
        return (self._last_step + 1) / epochs if epochs else None

    def _obey(self, order: RunOrder, steps: Generator[int]) -> RunEvent:
        if order["do"] == "profile":
            self._profile(steps)
            return {"event": "profile"}
        assert order["do"] == "turn", order
        extra = self._repeat(steps, order["turn"], order["settle"], order["steps"], order.get("extra", 0))
        return {"event": "turn", "extra": extra}

    def _close(self, steps: Generator[int]) -> None:
        steps.close()  # reads the last losses
        self.training.batches.close()
        if self.training.saver is not None:  # A study measures the cost of checkpoints but keeps none.
            self.training.saver.discard()

    def _compare_clocks(self) -> None:
        """Measure the offset of this clock to rank 0's, if that is on another machine. Call it between steps."""
        if self.clock is not None:
            self.offsets.append(compare_clocks(self.clock))

    def _next_order(self, channel: Channel) -> RunOrder:
        order = channel.receive_order()
        if self.others is not None:
            self.others.send(order)
        return order

    def _all_have(self, event: str) -> None:
        """Wait until the other ranks have reported ``event``, too. Do nothing in a run with one rank."""
        if self.others is not None:
            self.others.wait(event)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Add the likely cause to an error about a lost batch or a worker, while they can be inspected."""
        try:
            yield
        except EndedWorkerError as error:
            raise EndedWorkerError(f"{error}; {explain_end(error.codes[0])}", error.codes) from error
        except LostBatchError as error:
            raise LostBatchError(f"{error}: {self._why_lost()}") from error
        except RuntimeError as error:
            ended = None if self._training is None else self._training.batches.ended(error)
            if ended is None:
                raise
            raise EndedWorkerError(f"{ended}; {explain_end(ended.codes[0])}", ended.codes) from error

    def _why_lost(self) -> str:
        log = self.run_folder / "log.txt"
        try:
            look = look_at(os.getpid(), self.config.data.workers, log, self._log_start)
        except OSError as error:  # /proc cannot be opened
            return in_words(error)
        return str(diagnose(look, "data.timeout_s"))

    def _open(self) -> None:
        files: dict[str, list[str]] = {}
        if self.data is not None:
            from trainer.data import cache

            cache.trust(self.data["hashed"])
            files = self.data.get("files", {})
        prepared = prepare_training(self.config, files.get("data.source", ()))
        self.vocab_size = prepared.vocab_size
        model = model_fingerprint(self.config, files.get("model.factory", ()))
        check_unchanged(self.config, prepared, model, self.data)
        start = Start(
            prepared,
            model,
            self.run_folder,
            Checkpoints(self.run_folder / "checkpoints"),
            lambda _, queue: StepRecorder(queue) if self.probes.ledger else BareRecorder(),
            rank=self.rank,
            probes=self.probes,
            evaluates=self.asked.control in EVALUATED,
            beat=self.alive.beat,
            workers_started=self._watch_others,
            built=self._built,
        )
        self._training = open_training(self.config, start)

    def _watch_others(self) -> None:
        if self.others is not None:
            assert self.when_lost is not None
            self.others.watch(self.when_lost)

    def _built(self, _batches: Batches, compute: Compute, facts: RunFacts) -> None:
        self._compute, self.facts = compute, facts

    @property
    def training(self) -> OpenTraining:
        assert self._training is not None
        return self._training

    @property
    def run_folder(self) -> Path:
        """Folder of this run in the study."""
        return self.folder.run(self.asked.arm, self.asked.block)

    def _repeat(self, steps: Iterator[int], repetition: int, warmup: int, count: int, most_extra: int) -> int:
        """Run one repetition. Return the warm-up steps beyond ``warmup``, at most ``most_extra``."""
        training = self.training
        if training.run_queue is not None:
            training.run_queue.find_threads()
        training.recorder.repetition = repetition
        # The first steps of a repetition consume batches that were prefetched while this run was suspended. Caches are
        # cold, and the device has no queued work.
        self.probe_set.begin_repetition()
        self._take(steps, warmup, warmup=True)
        extra = self._more_warmup(steps, most_extra)
        # If the host waits for the device only in some steps, the measured steps begin and end after such a wait.
        period = more_warmup.wait_period(self.config, asynchronous=training.compute.asynchronous)
        if before := -(self._last_step + 1) % period:
            self._take(steps, before, warmup=True)
        self.probe_set.begin_steps()
        compiled, began_ns = self._compiled_in_steps(), monotonic_ns()
        self._take(steps, math.ceil(count / period) * period, warmup=False)
        ended_ns = monotonic_ns()
        self._compiled += self._compiled_in_steps() - compiled
        training.recorder.pause()  # The time to end a probe is not part of the last step.
        self.probe_set.end_repetition()
        self._synchronize()
        if self._may_close and isinstance(training.recorder, StepRecorder):
            self._open_time.add(training.recorder.kernels, training.recorder.blocking, began_ns, ended_ns)
        if training.saver is not None and self.rank.of > 1:
            # Ranks that save together may be suspended next, for longer than the timeout of their exchange.
            training.saver.wait()
        training.tables.collect()
        sys.stdout.flush()
        return extra

    def _more_warmup(self, steps: Iterator[int], most: int) -> int:
        """Take extra warm-up steps, at most ``most``, until steps are steady (``more_warmup``). Return their number."""
        take = partial(self._take, steps, warmup=True)
        return more_warmup.take_more(take, most, self.training.compute, self.config, self._lives_off_batches)

    def _lives_off_batches(self) -> bool:
        if not more_warmup.batches_may_last(self.config) or not isinstance(self.training.recorder, StepRecorder):
            return False
        workers, prefetch = self.config.data.workers, self.config.data.prefetch
        return more_warmup.lives_off_lead(
            self.training.recorder.recent(more_warmup.batches_needed(workers, prefetch)), workers, prefetch
        )

    def _compiled_in_steps(self) -> int:
        return compilations() - (0 if self.training.evaluator is None else self.training.evaluator.compilations)

    @property
    def _may_close(self) -> bool:
        """True if a closing window is configured, for a real asynchronous device without evaluations."""
        real = self.training.compute.asynchronous and not self.training.compute.emulated
        return self.probes.closing is not None and real and self.training.evaluator is None

    def _profile(self, steps: Iterator[int]) -> None:
        """Take unmeasured steps for profilers: a window of each in a profiled run; else a closing window after the
        measured steps, if CUDA events leave much of the device's time unknown.
        """
        if self.probes.closing is not None and not (self._may_close and self._open_time.noticeable):
            return
        self.training.recorder.warmup = True

        def step() -> int:
            if self.others is not None:
                self.others.send({"do": "step"})
            return self._next(steps)

        run = self.probe_set.run_windows if self.probes.closing is None else self.probe_set.run_closing_window
        run(step, self.training.recorder)
        self._synchronize()
        sys.stdout.flush()

    def _take(self, steps: Iterator[int], count: int, *, warmup: bool) -> None:
        training = self.training
        training.recorder.warmup = warmup
        for _ in range(count):
            self._next(steps)
        # If the host runs ahead, its clock only times launches. So measured steps begin and end when the device is at
        # most one step behind, as if the host waited in each step. The one step left hides the next fetch.
        if training.compute.asynchronous:
            self.alive.waiting_for(count)
        training.compute.drain_to_one_step()

    def _next(self, steps: Iterator[int]) -> int:
        step = self._last_step = next(steps)
        self.alive.beat()
        return step

    def _synchronize(self) -> None:
        """End the open step and wait until the device is idle, as it must be when the next arm begins."""
        self.training.recorder.pause()
        self.training.compute.synchronize()

    def write(self, ending: RunEnding) -> None:
        """Write measurements, then the record: if run.json exists, everything is written."""
        record = self.record_of(ending)
        self.write_tables()
        if self._training is not None:
            self.folder.write_samples(record.arm, record.block, self.probe_set.samples())
            self.folder.write_probes(record.arm, record.block, self.probe_set.report())
        self.folder.write_whole_run(record)

    def _skipped_steps(self, ending: RunEnding) -> int | None:
        """Return the number of steps that loss scaling skipped; None without it, and for a failed run."""
        return self.training.compute.skipped_steps() if self._training is not None and ending.status == "done" else None

    def write_tables(self) -> None:
        """Write the steps and spans of this rank. Ranks other than rank 0 write nothing else."""
        telemetry.attach(None)
        if self._training is not None:
            self.training.tables.write()

    def record_of(self, ending: RunEnding) -> RunRecord:
        """Return the run's record with ``ending``, its facts and its peak device memory."""
        return replace(
            ending.of(self.asked),
            facts=replace(
                self.facts, measured_compilations=self._compiled or None, skipped_steps=self._skipped_steps(ending)
            ),
            ended_utc=now(),
            realtime_minus_monotonic_ns=realtime_minus_monotonic()[0],
            peak_device_bytes=peak_device_bytes(self._compute),
        )


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
