"""Drives one run from the launcher: starts the process, asks for repetitions, suspends it (SIGSTOP) in between."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NoReturn

from harness.launch.channel import KILLED_S, PROFILED_STEPS, BudgetSpent, Channel, WaitLimits, looks
from harness.launch.code import Code
from harness.launch.diagnosis import diagnose, killed_by, look_at
from harness.launch.ending import signal_group
from harness.launch.fork_server import ForkServer, ForkServerGone, ForkServerSilent
from harness.launch.nodes import Nodes, nodes_of_record, ranks_of_a_node
from harness.launch.out_of_memory import advice_for_a_killed_run
from harness.launch.protocol import RECORD_FIELDS, DataMessage, RepetitionOrder, RunEvent, RunOrder, StartMessage
from harness.machine.capacity import session_peak_bytes
from harness.probes.probe import RunProbes
from harness.study.contract import RANK_FILES, RUN_FILES
from harness.study.records import RunRecord, now
from harness.study.store import StudyFolder
from trainer.json_types import JsonObject, integer, section


class RunFailed(Exception):  # noqa: N818 - an outcome of a run, reported and survived
    """A run ended, or was killed, before the launcher asked for its end. The message and its record have the reason."""


class RunProcess:
    """A run in its own process group. Call start, wait_ready, repeat (or profile) and finish, in this order."""

    def __init__(
        self,
        record: RunRecord,
        folder: StudyFolder,
        probes: RunProbes,
        limits: WaitLimits,
        code: Code | None = None,
        data: DataMessage | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        """Prepare the run. ``code``: another state of the code that it executes; None: the launcher's own. ``data``:
        fingerprints that its data must have. ``nodes``: agents on other machines of the job.
        """
        self.record = record
        self.code = code
        self._data = data if code is None or code.directory is not None else None
        self._limits = limits
        self._beats = False  # True if the run sends heartbeats; older states of the code do not
        self._doing = "starting"
        self.extra_steps = 0  # extra warm-up steps of the last repetition
        self._log_start = 0
        self._begun_ns = 0
        self._folder = folder
        self._probes = probes
        self._server: ForkServer | None = None
        self._pid = 0
        self._exit_code: int | None = None
        self._channel: Channel | None = None
        self._nodes = nodes if nodes_of_record(record.config) > 1 else None
        self._start: StartMessage | None = None

    def start(self, server: ForkServer) -> None:
        """Remove an earlier attempt's files, fork the run and send its first message. Raises RunFailed."""
        folder = self._folder.run(self.record.arm, self.record.block)
        folder.mkdir(parents=True, exist_ok=True)
        for name in RUN_FILES:
            (folder / name).unlink(missing_ok=True)  # files of an earlier attempt
        for leftover in folder.glob(RANK_FILES):
            leftover.unlink(missing_ok=True)
        for leftover in folder.glob(".*.tmp"):  # half-written tables of a killed run
            leftover.unlink(missing_ok=True)
        for leftover in folder.glob(".py-spy*"):  # left by a run killed while it was sampled
            shutil.rmtree(leftover, ignore_errors=True)
        log = folder / "log.txt"
        self._log_start = log.stat().st_size if log.exists() else 0
        self._begun_ns = time.monotonic_ns()
        imported = server.import_ns is not None
        own_end, child_end = socket.socketpair()
        self._channel = Channel(own_end)
        with child_end:
            try:
                self._pid = server.fork(child_end, log, self._limits.within(self._limits.start_s))
            except ForkServerGone as gone:
                if isinstance(gone, ForkServerSilent):
                    self._check_budget(str(gone))
                    self._fail(f"it did not start within {self._limits.start_s:g} s (limits.start_s): {gone}")
                self._fail(str(gone))
        self._server = server
        if not imported:
            self._begun_ns = time.monotonic_ns()  # The wait for the imports is counted once, below.
        record = {key: value for key, value in self.record.to_json().items() if key in RECORD_FIELDS}
        start: StartMessage = {
            "record": record,
            "study": str(self._folder.path.absolute()),  # the run may change its working directory
            "probes": self._probes.to_json(),
            "beat_s": self._limits.beat_s,
        }
        if self._data is not None:
            start["data"] = self._data
        if self._nodes is not None:
            start["nodes"] = self._nodes.message(nodes_of_record(self.record.config))
            self._start = start
        self._send(start)

    def wait_ready(self) -> None:
        """Wait until the run is built and warm, and record its start-up time. Raises RunFailed if it ends instead."""
        self._expect("ready", 0)
        assert self._server is not None
        import_ns = self._server.import_ns
        startup_ns = (import_ns or 0) + time.monotonic_ns() - self._begun_ns
        self.record = replace(self.record, startup_ns=startup_ns, import_ns=import_ns)

    def repeat(self, repetition: int, warmup: int, steps: int, most_extra: int = 0) -> None:
        """Let the run take ``warmup`` to ``most_extra`` more steps, then ``steps`` measured ones. Raises RunFailed."""
        self._doing = f"in repetition {repetition + 1}"
        order: RepetitionOrder = {"do": "turn", "turn": repetition, "settle": warmup, "steps": steps}
        if most_extra:
            order["extra"] = most_extra
        self._send(order)
        answer = self._expect("turn", warmup + most_extra + steps)
        self.extra_steps = answer.get("extra", 0)

    @property
    def profiled(self) -> bool:
        """True if this run is profiled: it runs alone, and none of its steps is measured."""
        return self._probes.windows

    def profile(self) -> None:
        """Let the run take its profiled steps: a window of each profiler, or a closing window. Raises RunFailed."""
        self._doing = "being profiled"
        self._send({"do": "profile"})
        self._expect("profile", PROFILED_STEPS)

    def finish(self) -> None:
        """Let the run take its closing window, write its tables and end, and complete its record. Raises RunFailed."""
        self.record = replace(self.record, peak_memory_bytes=session_peak_bytes(self._pid))
        if self._probes.closing is not None:  # The memory of a closing window does not count for the run.
            self.profile()
        self._doing = "writing its tables"
        begun_ns = time.monotonic_ns()
        self._send({"do": "finish"})
        self._expect("done", 1)
        self._wait(self._limits.within(self._limits.silence_s))
        self.record = replace(self.record, ending_ns=time.monotonic_ns() - begun_ns)
        self._complete_record()

    def _complete_record(self) -> None:
        """Read the record that the run has written, and add the launcher's measurements: start, end and peak memory."""
        written = self._folder.read_record(self.record.arm, self.record.block)
        if written is None:
            place = self._folder.run(self.record.arm, self.record.block)
            self._fail(f"it ended without an error, but its run.json is missing or unreadable in {place}")
            return
        measured = self.record
        self.record = replace(
            written,
            startup_ns=measured.startup_ns,
            import_ns=measured.import_ns,
            ending_ns=measured.ending_ns,
            peak_memory_bytes=measured.peak_memory_bytes,
        )
        self._folder.write_run(self.record)

    def suspend(self) -> None:
        """Suspend the run and its workers (SIGSTOP). They use no core until :meth:`resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the run and its workers (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the run and its workers. They write nothing more."""
        self._signal(signal.SIGKILL)
        self._wait()

    def _signal(self, number: signal.Signals) -> None:
        """Send the signal ``number`` to the run and its workers, unless it was never started or has been waited for."""
        if self._server is not None and self._exit_code is None:
            signal_group(self._pid, number)
        if self._nodes is not None:
            self._nodes.signal(self._name, number)

    @property
    def _name(self) -> str:
        return f"{self.record.arm}/{self.record.block}"

    def _wait(self, timeout_s: float = KILLED_S) -> int | None:
        """Return the exit status after ``timeout_s`` seconds at most; None if the fork server is gone or silent."""
        if self._server is not None and self._exit_code is None:
            with suppress(ForkServerGone):
                self._exit_code = self._server.wait(self._pid, timeout_s)
        return self._exit_code

    def _send(self, message: StartMessage | RunOrder) -> None:
        assert self._channel is not None
        try:
            self._channel.send(message)
        except OSError:
            self._fail(None)

    def _expect(self, event: Literal["ready", "turn", "profile", "done"], steps: int) -> RunEvent:
        """Wait for the message ``event`` and return it. Raises RunFailed if another one comes, or none in time.

        ``steps``: most steps before it, for all of which a run without heartbeats may be silent.
        """
        assert self._channel is not None
        queued = 1  # steps that the device may still have to do
        while True:
            limit_s = self._limit_s(event, steps) * queued
            try:
                message = self._receive(self._channel, limit_s)
            except TimeoutError:
                self._end_silence(event, limit_s)
            except (EOFError, OSError):
                self._fail(None)
            if message["event"] == "meet":
                assert self._nodes is not None
                assert self._start is not None
                self._nodes.fork(self._name, self._start, message["meet"], ranks_of_a_node(self.record.config))
                continue
            if message["event"] != "alive":
                break
            self._beats, queued = True, max(1, message.get("steps", 1))
        if message["event"] != event:
            self._fail(message.get("error"))
        return message

    def _receive(self, channel: Channel, limit_s: float) -> RunEvent:
        """Return the next message. Raises TimeoutError after polls of ``limit_s`` seconds, or at the study's end."""
        parts = looks(limit_s)
        for _ in range(parts):
            with suppress(TimeoutError):
                return channel.receive_event(self._limits.within(limit_s / parts))
            if self._limits.spent:
                break
        raise TimeoutError

    def _limit_s(self, event: str, steps: int) -> float:
        """Return how many seconds the run may be silent before ``event``; without heartbeats, for each of ``steps``."""
        if event == "ready":
            warmup = 0 if self._beats else integer(self.record.config, "warmup_steps")
            return self._limits.start_s + warmup * self._limits.silence_s
        return self._limits.silence_s * (1 if self._beats else max(steps, 1))

    def _end_silence(self, event: str, limit_s: float) -> NoReturn:
        """Kill a silent run. Raise RunFailed with the cause, or BudgetSpent at the study's end."""
        assert self._server is not None
        key = "limits.start_s" if event == "ready" else "limits.silence_s"
        log = self._folder.run(self.record.arm, self.record.block) / "log.txt"
        # Before the repetitions, the workers may not have started yet. After them, they have ended.
        repeating = self._doing.startswith("in repetition")
        workers = integer(section(self.record.config, "data"), "workers") if repeating else 0
        finding = diagnose(look_at(self._pid, workers, log, self._log_start), key)
        self._check_budget(finding.process)
        self._fail(f"no message for {limit_s:g} s ({key}) while {self._doing}: {finding}")

    def _check_budget(self, process: str) -> None:
        """Raise BudgetSpent if the study's time is over. ``process``: description of what the run was waiting for."""
        if self._limits.spent:
            raise BudgetSpent(f"run {self.record.arm}/{self.record.block} was {self._doing}: {process}")

    def _fail(self, error: str | None) -> NoReturn:
        """Kill the run and raise RunFailed with the reason in its run.json, or ``error``; None: its exit status."""
        self._signal(signal.SIGKILL)  # Its channel is closed. Its workers end with it.
        code = self._wait()
        written = self._folder.read_record(self.record.arm, self.record.block)
        if written is not None:
            self.record = written
        else:  # The run was killed before it could report anything.
            self.record = replace(
                self.record,
                status="failed",
                exit_code=code,
                error=error or _reason(code, self.record.config),
                ended_utc=now(),
            )
            self._folder.write_run(self.record)
        raise RunFailed(self.record.error)


def _reason(code: int | None, config: JsonObject) -> str:
    if code is None:
        return "the fork server that started the runs of this block was killed (out of memory?)"
    if code >= 0:
        return f"the process ended with status {code} without a message; see log.txt"
    advice = advice_for_a_killed_run(config) if -code == signal.SIGKILL else ""
    return f"the process was {killed_by(-code)}{advice}"
