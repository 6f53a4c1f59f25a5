"""Starts and drives the other ranks of a run. The launcher drives rank 0, which passes its orders on.

Ranks of this machine are forked before this process computes anything, into its process group. Ranks of other machines
are forked there (``launch.nodes``) and connect to this process. Each uses the launcher's protocol (``launch.protocol``)
with rank 0. A thread reads the reports of each rank. If a rank fails while rank 0 waits for it in an exchange, which
then never ends, the run must end and name the failed rank.

Times of a rank on another machine are converted to rank 0's clock, because the start of CLOCK_MONOTONIC is arbitrary on
each machine. A rank asks rank 0 for its time, and notes the times of the request and the answer. Rank 0 reads its clock
in between. So, halfway between request and answer,

    offset = rank 0's time - (asked + answered) / 2,    wrong by at most (answered - asked) / 2

(Cristian, "Probabilistic clock synchronization", 1989). The quickest of several exchanges counts. The
clocks are compared when the run is ready and when it ends. In between, the offset is assumed to drift evenly, as quartz
clocks do over minutes.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.launch.channel import LOOK_S, Channel, looks, readable
from harness.launch.diagnosis import describe_process, explain_end
from harness.launch.ending import exit_with
from harness.launch.nodes import HELLO_S, interface_of, keep_alive
from harness.launch.protocol import MeetingPlace, NodesMessage, RunEvent, RunOrder, StartMessage
from harness.machine.processes import RANK_NAME
from harness.study.contract import SPAN_COLUMNS, STEP_COLUMNS, rank_file
from harness.study.tables import TABLE_ROW_GROUP, TableFile
from trainer.lifetime import die_with_parent
from trainer.ranks import LOCAL, Rank, is_of_the_exchange, meeting_place

# Time for the original error to arrive: an ending rank closes its connections before its end is noticed.
CAUSE_S = 5.0
# Time for rank 0 to leave an exchange by itself after another rank has failed.
STUCK_S = 20.0
EXCHANGE = "exchange"  # prefix of an error caused by another rank that was late or gone

Serve = Callable[[StartMessage, Channel, Rank], int]


class RankFailedError(Exception):
    """Another rank failed or did not answer. The message names the rank and the reason."""


@dataclass(frozen=True)
class _Other:
    number: int
    pid: int  # 0 on another machine
    channel: Channel
    connection: socket.socket
    node: str = ""  # name of the other machine


class OtherRanks:
    """Connections of rank 0 to all other ranks of its run: starts them, sends orders and collects their reports."""

    def __init__(
        self,
        start: StartMessage,
        ranks: int,
        timeout_s: float,
        serve: Serve,
        own: int,
        meet: Callable[[MeetingPlace], None] | None = None,
    ) -> None:
        """Fork the other ranks of this machine, each of which calls ``serve``, and wait for those of other machines,
        which the launcher forks (``meet``). ``timeout_s``: limit for each answer. ``own``: rank 0's descriptor.
        """
        parent = os.getpid()
        nodes = start.get("nodes")
        address = LOCAL if nodes is None else nodes["address"]
        listening = meeting_place(address)
        port = listening.getsockname()[1]
        local_ranks = ranks if nodes is None else ranks // nodes["count"]
        self.rank = Rank(0, ranks, port, listening.detach(), timeout_s, address, 0, local_ranks, interface_of(address))
        self._timeout_s = timeout_s
        self._others: list[_Other] = []
        for number in range(1, local_ranks):
            own_end, rank_end = socket.socketpair()
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                become = partial(self._become, number, parent, (own, own_end.fileno()))
                exit_with(lambda: serve(start, Channel(rank_end), become()))  # noqa: B023 - called at once
            rank_end.close()
            self._others.append(_Other(number, pid, Channel(own_end), own_end))
        self.clock_error_ns: int | None = None  # maximum over ranks of other machines
        if nodes is not None and meet is not None:
            self._meet(nodes, range(local_ranks, ranks), port, meet)
        self._events: queue.Queue[tuple[int, RunEvent]] = queue.Queue()
        self._failed: dict[int, str] = {}
        self._news = threading.Event()  # set when a rank has failed
        self._ending = threading.Event()
        self._lost: Callable[[str], None] | None = None

    def _become(self, number: int, parent: int, not_own: Sequence[int]) -> Rank:
        """Make this forked process the rank ``number``, which ends with ``parent``. Close ``not_own``."""
        die_with_parent(parent)
        with suppress(OSError):  # The kernel may forbid another name (proc_pid_comm(5)).
            Path("/proc/self/comm").write_text(f"{RANK_NAME}{number}")
        assert self.rank.listening is not None
        for descriptor in (*not_own, self.rank.listening):
            os.close(descriptor)
        for sibling in self._others:
            sibling.connection.close()
        return replace(self.rank, number=number, local=number, listening=None)

    def _meet(self, nodes: NodesMessage, numbers: range, port: int, meet: Callable[[MeetingPlace], None]) -> None:
        """Ask the launcher for the ranks ``numbers`` of other machines (``meet``), and wait until all have connected.

        ``port``: rank 0's port for torch. Raises RankFailedError if some do not connect in time.
        """
        missing = set(numbers)
        with socket.create_server((nodes["address"], 0), backlog=len(missing)) as listening:
            meet({"store": port, "control": listening.getsockname()[1]})
            end_s = time.monotonic() + self._timeout_s
            while missing:
                if time.monotonic() > end_s:
                    names = ", ".join(f"rank {number}" for number in sorted(missing))
                    raise RankFailedError(
                        f"{names} of other machines did not connect within {self._timeout_s:g} s (launch.timeout_s)"
                    )
                if not readable(listening, 1.0):
                    continue
                connection = listening.accept()[0]
                channel = Channel(connection)
                try:
                    hello = channel.receive_node_event(HELLO_S)
                    number = int(hello["number"])
                    is_expected = hello.get("token") == nodes["token"] and number in missing
                except (EOFError, OSError, KeyError, ValueError):
                    is_expected = False
                if not is_expected:  # for example a port scanner
                    connection.close()
                    continue
                keep_alive(connection)
                self._others.append(_Other(number, 0, channel, connection, str(hello.get("name", "?"))))
                missing.discard(number)

    def watch(self, lost: Callable[[str], None]) -> None:
        """Read each rank's reports in a thread. If rank 0 hangs STUCK_S after one failed, call ``lost`` to end it."""
        self._lost = lost
        for rank in self._others:
            threading.Thread(target=self._read, args=(rank,), daemon=True).start()

    def send(self, order: RunOrder) -> None:
        """Send ``order`` to all other ranks. A rank that has ended is skipped; the next :meth:`wait` reports it."""
        for rank in self._others:
            with suppress(OSError):  # The rank has ended. The next wait reports it.
                rank.channel.send(order)

    def wait(self, event: str) -> None:
        """Wait until all ranks reported ``event``. Raises RankFailedError for a failure or the timeout."""
        missing = {rank.number for rank in self._others}
        for _ in range(looks(self._timeout_s)):
            while missing and not self._failed:
                try:
                    number, message = self._events.get(timeout=min(LOOK_S, self._timeout_s))
                except queue.Empty:
                    break
                if message["event"] == event:
                    missing.discard(number)
                    if "clock_error_ns" in message:
                        self.clock_error_ns = max(self.clock_error_ns or 0, message["clock_error_ns"])
            if self._failed:
                raise RankFailedError(self._cause())
            if not missing:
                return
        number = min(missing)
        raise RankFailedError(
            f"rank {number} did not report {event!r} within {self._timeout_s:g} s (launch.timeout_s): "
            f"{self._described(number)}"
        )

    def explain(self, error: BaseException) -> str | None:
        """Return a line on the rank that made an exchange fail, or on all others; None for other errors."""
        if not is_of_the_exchange(error):
            return None
        self._news.wait(CAUSE_S)
        if self._failed:
            return self._cause()
        states = "; ".join(f"rank {rank.number}: {self._described(rank.number)}" for rank in self._others)
        return f"the exchange between the ranks failed ({str(error).splitlines()[0]}); {states}"

    def _cause(self) -> str:
        """Return the line of the first rank that failed, if possible by itself, not because of another rank."""
        own = {number: text for number, text in self._failed.items() if not text.startswith(EXCHANGE)}
        number, text = next(iter((own or self._failed).items()))
        return f"rank {number}: {text}"

    def end(self) -> None:
        """Accept from now on that the other ranks end. Until then, the end of a rank is a failure."""
        self._ending.set()

    def _described(self, number: int) -> str:
        rank = next(entry for entry in self._others if entry.number == number)
        if rank.node:
            return f"its process is on {rank.node} and was not checked"
        return describe_process(rank.pid, f"rank {number}")

    def _read(self, other: _Other) -> None:
        """Queue the reports of ``other`` until it is done or has failed, and answer its clock requests. After a
        failure, call ``lost`` of :meth:`watch` if rank 0 does not end within STUCK_S seconds.
        """
        while True:
            try:
                message = other.channel.receive_event()
            except (EOFError, OSError):
                break
            if message["event"] == "failed":
                self._failed[other.number] = message.get("error") or "it failed"
                break
            if message["event"] == "clock":
                other.channel.send({"do": "clock", "t_ns": time.monotonic_ns()})
                continue
            self._events.put((other.number, message))
            if message["event"] == "done":  # From now on, its end is not a failure.
                return
        if not self._ending.is_set():
            if other.number not in self._failed:
                self._failed[other.number] = _end_of(other)
            self._news.set()
            self._events.put((other.number, {"event": "failed"}))
            if not self._ending.wait(STUCK_S) and self._lost is not None:
                self._lost(self._cause())


def _end_of(other: _Other) -> str:
    """Return how a rank ended that sent no last message. It waits for a process of this machine."""
    if other.node:
        return f"its process on {other.node} or that machine is gone; see the job's log"
    pid = other.pid
    with suppress(ChildProcessError):
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            return f"its process was killed by signal {-code}; {explain_end(code)}"
        return f"its process ended with exit code {code}, no message (see log.txt)"
    return "its process is gone"


EXCHANGES = 20  # They take a few ms. The quickest one is rarely disturbed.
MOMENTS = ("start_ns", "end_ns")  # columns with moments; other columns are durations


@dataclass(frozen=True)
class ClockOffset:
    """Offset to rank 0's clock at ``own_ns``: add ``offset_ns`` to a time here. ``error_ns``: largest error."""

    own_ns: int
    offset_ns: int
    error_ns: int


def compare_clocks(ask: Callable[[], int], clock: Callable[[], int] = time.monotonic_ns) -> ClockOffset:
    """Return this machine's offset to rank 0's clock (``ask``, in ns): that with the smallest error of EXCHANGES."""
    best: ClockOffset | None = None
    for _ in range(EXCHANGES):
        asked_ns = clock()
        theirs_ns = ask()
        answered_ns = clock()
        middle_ns = (asked_ns + answered_ns) // 2
        offset = ClockOffset(middle_ns, theirs_ns - middle_ns, (answered_ns - asked_ns + 1) // 2)
        if best is None or offset.error_ns < best.error_ns:
            best = offset
    assert best is not None
    return best


def aligned(moments_ns: NDArray[np.int64], first: ClockOffset, last: ClockOffset) -> NDArray[np.int64]:
    """Return times of this machine on rank 0's clock. The offset drifts evenly from ``first`` to ``last``."""
    between_ns = last.own_ns - first.own_ns
    drift = (last.offset_ns - first.offset_ns) / between_ns if between_ns > 0 else 0.0
    since_ns = (moments_ns - first.own_ns).astype(np.float64)
    return moments_ns + first.offset_ns + np.rint(drift * since_ns).astype(np.int64)


def align_tables(folder: Path, rank: int, first: ClockOffset, last: ClockOffset) -> None:
    """Rewrite the tables of rank ``rank`` on rank 0's clock. The offset drifts evenly from ``first`` to ``last``."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    for table, columns in (("steps", STEP_COLUMNS), ("spans", SPAN_COLUMNS)):
        path = folder / rank_file(table, rank)
        if not path.exists():
            continue
        written = TableFile(path, columns)
        try:
            with ParquetFile(path) as file:
                for batch in file.iter_batches(TABLE_ROW_GROUP):
                    present = [name for name, _ in columns if name in batch.schema.names]
                    rows: dict[str, Any] = {name: batch.column(name) for name in present}
                    for name in set(MOMENTS) & rows.keys():
                        moments = rows[name].to_numpy(zero_copy_only=False).astype(np.int64)
                        rows[name] = pa.array(aligned(moments, first, last), pa.int64())
                    written.append(rows)
            written.close()
        finally:
            written.discard()
