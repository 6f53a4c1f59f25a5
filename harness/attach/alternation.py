"""Start a command that takes turns with others, let it run steps, and suspend its processes in between.

Each rank's agent waits at the start of a step (``agent/gate.py``). Between turns, every process is stopped (SIGSTOP).
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from harness.attach.command import MARK, AgentSettings, environment_of, start
from harness.launch.channel import BudgetSpent, WaitLimits
from harness.launch.diagnosis import diagnose, look_at
from harness.machine.processes import Keeper, descendants, with_variable
from trainer.lifetime import die_with_parent

ALTERNATION_LOOK_S = 1.0  # seconds per wait, after which the command's end is checked
ENDING_S = 30.0  # seconds that a command may take to end by itself, and again to end by SIGTERM
_KILLED_S = 10.0
_LEAVING_S = 5.0  # seconds for the command to end after a training process has closed its gate connection
STARTING = "starting"
_LOG_TAIL_BYTES = 100_000  # bytes at the end of the log that are searched for a cause
ALTERNATION_BEAT_S = 5.0  # maximum seconds between two heartbeats of a command that runs steps


class CommandFailed(Exception):  # noqa: N818 - an outcome, reported and survived
    """The command ended, sent a fault or was silent for too long, before it was asked to end."""


class CommandOver(CommandFailed):
    """The command ended by itself without an error, before its repetitions were over."""


@dataclass
class _Rank:
    """One training process of the command: its connection to the launcher, and the bytes of an incomplete message."""

    connection: socket.socket
    pid: int
    heard: bytes = b""
    done: bool = False  # True if its current repetition has ended


@dataclass
class AlternatingCommand:
    """A training command with the agent, in an OS session of its own, that runs steps only when it has its turn."""

    program: Sequence[str]
    raw: Path  # folder of the agent's records
    log: Path  # output of the command
    gate: Path  # socket; its path has at most 107 bytes
    limits: WaitLimits
    folder: str | None = None  # working directory
    path: Sequence[str] = ()  # import folders that come before all others
    name: str = "the command"  # in messages
    doing: str = STARTING
    _process: subprocess.Popen[bytes] | None = None
    _ranks: list[_Rank] = field(default_factory=list)
    _keeper: Keeper | None = None  # ends the processes that the command starts

    def start(self, settings: AgentSettings) -> None:
        """Start the command; wait until all ranks are ready. Raises CommandFailed (also after start_s), BudgetSpent."""
        replace(settings, gate=str(self.gate)).write(self.raw)
        self._keeper = Keeper(MARK, str(self.raw))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, self.log.open("wb") as log:
            listening.bind(str(self.gate))
            listening.listen()
            self._process = start(
                self.program,
                env=environment_of(self.raw, self.path),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
            self._gather(listening)

    def take(self, repetition: int, steps: int) -> None:
        """Let the command run ``steps`` measured steps. Raises CommandFailed; CommandOver if it ended well."""
        self.doing = f"in repetition {repetition + 1}"
        self._order(
            {"repetition": repetition, "steps": steps, "beat_s": min(ALTERNATION_BEAT_S, self.limits.silence_s / 3)}
        )
        silent_s = time.monotonic()
        while not all(rank.done for rank in self._ranks):
            if self._listen():
                silent_s = time.monotonic()
            self._check(time.monotonic() - silent_s, self.limits.silence_s)

    def suspend(self) -> None:
        """Suspend (SIGSTOP) every process of the command, including processes that start meanwhile."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def end(self) -> int | None:
        """Ask the program to end at its next step. Return its exit code (-N: signal N); None if it had to be killed."""
        self.doing = "ending"
        with suppress(CommandFailed):
            self._order({"end": True})
        assert self._process is not None
        for number in (None, signal.SIGTERM):
            if number is not None:
                self._signal_all(number)
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(ENDING_S)
                self.kill()  # remaining child processes
                return code
        self.kill()
        return None

    def kill(self) -> None:
        """Kill every process of the command."""
        self._signal_all(signal.SIGKILL)
        for rank in self._ranks:
            rank.connection.close()
        if self._keeper is not None:
            self._keeper.end()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILLED_S)

    def _gather(self, listening: socket.socket) -> None:
        """Wait until all ranks (their number is in the first message) have connected to ``listening``."""
        expected = 1
        since_s = time.monotonic()
        while len(self._ranks) < expected:
            if select.select([listening], [], [], ALTERNATION_LOOK_S)[0]:
                connection, _ = listening.accept()
                connection.settimeout(self.limits.start_s)  # A rank may lack a core for seconds.
                try:
                    hello = json.loads(connection.makefile("rb", buffering=0).readline() or "{}")
                except (OSError, ValueError):
                    hello = {}
                connection.settimeout(ALTERNATION_LOOK_S)
                if "pid" not in hello:
                    connection.close()
                else:
                    self._ranks.append(_Rank(connection, int(hello["pid"])))
                    expected = int(hello.get("world") or 1)
            missing = f"{len(self._ranks)} of {expected} ranks connected" if self._ranks else ""
            self._check(time.monotonic() - since_s, self.limits.start_s, missing)

    def _order(self, message: dict[str, int | float | bool]) -> None:
        line = json.dumps(message).encode() + b"\n"
        for rank in self._ranks:
            rank.done = False
            try:
                rank.connection.sendall(line)
            except OSError:
                self._check_ended(at_once=True)

    def _listen(self) -> bool:
        """Return True if ranks sent messages within ALTERNATION_LOOK_S. Raises CommandFailed on failures."""
        waiting = {rank.connection: rank for rank in self._ranks if not rank.done}
        ready = select.select(list(waiting), [], [], ALTERNATION_LOOK_S)[0]
        for connection in ready:
            rank = waiting[connection]
            try:
                heard = connection.recv(4096)
            except OSError:
                heard = b""
            if not heard:
                self._check_ended(at_once=True)
            *lines, rank.heard = (rank.heard + heard).split(b"\n")
            for message in map(json.loads, lines):
                rank.done |= message.get("event") == "done"
                if message.get("event") == "fault":
                    reason = f"the recording stopped after an internal error while {self.doing}: {message.get('error')}"
                    raise CommandFailed(reason)
        return bool(ready)

    def _check(self, silent_s: float, limit_s: float, missing: str = "") -> None:
        self._check_ended()
        if self.limits.spent:
            raise BudgetSpent(f"{self.name} was {self.doing}: {self._diagnosis()}")
        if silent_s > limit_s:
            trainer_text = f"process {self._silent()}" if self._ranks else "any training process"
            symptom = f"only {missing} within" if missing else f"no message from {trainer_text} for"
            raise CommandFailed(f"{symptom} {limit_s:g} s while {self.doing}: {self._diagnosis()}{self._last_line()}")

    def _diagnosis(self) -> str:
        """Describe the process that keeps the launcher waiting: its state, the likely cause, and what to do."""
        assert self._process is not None
        if self.doing == STARTING:  # the ranks at the gate wait for the missing ones
            pid, key = self._process.pid, "limits.start_s"
        else:
            pid, key = self._silent(), "limits.silence_s"
        try:
            return str(diagnose(look_at(pid, 0, self.log), f"{key} (a key of scenario files)"))
        except OSError as error:  # /proc cannot be read
            return str(error)

    def _silent(self) -> int:
        """Return the process id of the first rank that is still busy with the last order; else the first rank's."""
        return next((rank.pid for rank in self._ranks if not rank.done), self._ranks[0].pid)

    def _check_ended(self, at_once: bool = False) -> None:
        """Raise if the command has ended: CommandOver with code 0, else CommandFailed. ``at_once``: a rank has gone."""
        assert self._process is not None
        if at_once:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVING_S)
        code = self._process.poll()
        if code is not None or at_once:
            ending = "its training process ended" if code is None else f"it ended with exit code {code}"
            advice = (
                " before its repetitions were measured: let it train longer, or measure fewer steps (--steps)"
                if not code
                else ""
            )
            kind = CommandOver if code == 0 else CommandFailed
            raise kind(f"{ending} while {self.doing}{advice}{self._last_line()}{self._port_hint()}")

    def _port_hint(self) -> str:
        """Return advice to append to an error message if the command's log reports a port in use; else ""."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            if re.search(rb"EADDRINUSE|address already in use", log.read(), re.IGNORECASE):
                return (
                    "; its port is in use, because the commands of a block run at the same time: let each choose a "
                    "free port (torchrun --standalone, accelerate launch --main_process_port 0), or --interleave runs"
                )
        return ""

    def _last_line(self) -> str:
        with suppress(OSError):
            lines = self.log.read_text(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
            if last:
                return f"; last output: {last[:300]}"
        return ""

    def _signal_all(self, number: signal.Signals) -> None:
        """Send ``number`` once to each process of the command, parents first, orphans too, until no new one appears."""
        process = self._process
        pids = [process.pid] if process is not None and process.returncode is None else []
        done: set[int] = set()
        while new := [pid for pid in self._known(pids) if pid not in done]:
            for pid in new:
                done.add(pid)
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def _known(self, pids: Sequence[int]) -> list[int]:
        return list(dict.fromkeys([*pids, *descendants(pids), *with_variable(MARK, str(self.raw))]))
