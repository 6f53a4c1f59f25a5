"""Run the sampling process: wait for orders, read its collectors at absolute deadlines, and answer.

Deadlines are ``start + k x period``. One without its own reading counts as missed, for every collector.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Literal, Protocol

from harness.probes.sampler.messages import SamplerSettings, SampleSeries, SamplingAnswer, SamplingOrder
from trainer.errors import in_words

LATE_NS = 1_000_000_000  # after a repetition: a later last reading would include other work


class Collector(Protocol):
    """Reader of one source (such as "host") into its series. ``problems`` are sent with the next answer."""

    source: str
    problems: list[str]

    def begin(self, pids: dict[int, str]) -> None:
        """Start a repetition: read the first values of counters. ``pids``: roles by process id."""

    def read(self, *, last: bool) -> bool:
        """Read the source at a deadline (``last``: of a repetition). Return False if it gave no value."""

    def end(self) -> None:
        """Add a problem for each metric that never had a sample. No reading follows."""


class Deadlines:
    """Times at which one repetition has to be sampled: every ``period_ns`` from ``start_ns`` on (CLOCK_MONOTONIC)."""

    def __init__(self, start_ns: int, period_ns: int) -> None:
        self._start_ns = start_ns
        self._period_ns = period_ns
        self._served = 0

    @property
    def next_ns(self) -> int:
        return self._start_ns + (self._served + 1) * self._period_ns

    def reach(self, now_ns: int) -> int:
        """Serve all deadlines up to ``now_ns`` by one reading. Return how many are missed since the last call."""
        passed = (now_ns - self._start_ns) // self._period_ns
        unserved = max(passed - self._served - 1, 0)
        self._served = max(passed, self._served)
        return unserved


class Sampling:
    """Main loop of the sampling process: takes orders from the run, reads the collectors, and answers."""

    def __init__(
        self,
        collectors: list[Collector],
        series: SampleSeries,
        rate_hz: float,
        problems: list[str],
        orders: int = 0,
        answers: int = 1,
    ) -> None:
        self._collectors = collectors
        self._series = series
        self._period_ns = round(1e9 / rate_hz)
        self._orders = orders
        self._answers = answers
        self._problems = problems
        self._taken = {collector.source: 0 for collector in collectors}
        self._missed = dict(self._taken)
        self._given_up: list[str] = []  # sources of failed collectors
        self._deadlines: Deadlines | None = None
        self._lines: list[bytes] = []
        self._rest = b""
        self._woken_ns = 0  # time of the last resume (SIGCONT)
        signal.signal(signal.SIGCONT, self._wake)

    def run(self) -> None:
        """Serve orders until the order to close. Raises EOFError if the run has closed its side of the pipe."""
        self._answer("ready")
        while True:
            order = self._next_order()
            if order is None:
                self._read(last=False)
            elif order["do"] == "start":
                self._start({int(pid): role for pid, role in order["pids"].items()})
            elif order["do"] == "stop":
                self._stop(order["t_ns"])
                self._answer("stopped")
            else:
                for collector in list(self._collectors):
                    self._attempt(collector, collector.end)
                self._answer("closed")
                return

    def _start(self, pids: dict[int, str]) -> None:
        self._deadlines = Deadlines(monotonic_ns(), self._period_ns)
        for collector in list(self._collectors):
            self._attempt(collector, partial(collector.begin, pids))

    def _stop(self, t_ns: int) -> None:
        if self._deadlines is None:
            return
        if self._woken_ns > t_ns or monotonic_ns() - t_ns > LATE_NS:
            # Suspended before the reading, or late: other processes' activity since then must not count as this run's.
            self._count(1)
        else:
            self._read(last=True)
        self._deadlines = None

    def _wake(self, *_: object) -> None:
        self._woken_ns = monotonic_ns()

    def _read(self, *, last: bool) -> None:
        assert self._deadlines is not None
        self._count(self._deadlines.reach(monotonic_ns()))
        for source in self._given_up:
            self._missed[source] += 1
        for collector in list(self._collectors):
            counts = self._taken if self._attempt(collector, partial(collector.read, last=last)) else self._missed
            counts[collector.source] += 1

    def _count(self, missed: int) -> None:
        for source in self._missed:
            self._missed[source] += missed

    def _attempt(self, collector: Collector, action: Callable[[], bool | None]) -> bool:
        """Call ``action`` and return its result. If it raises an exception, drop the collector and add a problem."""
        try:
            return bool(action())
        except Exception as error:  # any error of a file or library
            self._collectors.remove(collector)
            self._given_up.append(collector.source)
            self._problems += [*collector.problems, f"{collector.source}: {in_words(error)}; its samples stop here"]
            return False

    def _next_order(self) -> SamplingOrder | None:
        """Wait for the next order and return it; None if the next sample of the repetition is due first."""
        while not self._lines:
            timeout_s = None
            if self._deadlines is not None:
                timeout_s = max(self._deadlines.next_ns - monotonic_ns(), 0) / 1e9
            if not select.select([self._orders], [], [], timeout_s)[0]:
                return None
            data = os.read(self._orders, 1 << 16)
            if not data:
                raise EOFError("the run has closed its side")
            *self._lines, self._rest = (self._rest + data).split(b"\n")
        order: SamplingOrder = json.loads(self._lines.pop(0))
        return order

    def _answer(self, event: Literal["ready", "stopped", "closed"]) -> None:
        for collector in self._collectors:
            self._problems += collector.problems
            collector.problems = []
        header, payload = self._series.take()
        answer: SamplingAnswer = {
            "event": event,
            "problems": self._problems,
            "missed": self._missed,
            "taken": self._taken,
            "series": header,
            "bytes": len(payload),
        }
        self._problems = []
        data = memoryview(json.dumps(answer).encode() + b"\n" + payload)
        while data:
            data = data[os.write(self._answers, data) :]


def main(settings: SamplerSettings, parent: int) -> int:
    """Serve the process ``parent``, which sends orders on standard input. Return 0 after its order to close, else 1."""
    from trainer.lifetime import die_with_parent

    die_with_parent(parent)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # a run with many threads has many files in /proc
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    series = SampleSeries()
    collectors: list[Collector] = []
    problems: list[str] = []
    if settings.host:
        from harness.probes.sampler.host import HostCollector

        collectors.append(HostCollector(series))
    if settings.nvml:
        from harness.probes.nvml.collector import open_with_timeout

        nvml, problems = open_with_timeout(series, settings.nvml, settings.timeout_s)
        collectors += [nvml] if nvml is not None else []
    gc.collect()
    gc.freeze()
    try:
        Sampling(collectors, series, settings.rate_hz, problems).run()
    except (EOFError, BrokenPipeError):
        return 1
    return 0
