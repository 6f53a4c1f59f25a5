"""Open and read NVML with a timeout: a driver in trouble may not answer for minutes, for example with a lost card."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from harness.machine.limits import Worker
from harness.probes.nvml.collector import NvmlCollector, open_nvml
from harness.probes.sampler.series import ClosableSeries, SampleSeries
from trainer.errors import in_words

OPEN_S = 50  # seconds: waking each of a node's devices takes several; less than sampler.ANSWER_S
NVML_READ_LIMIT_S = 20


def open_with_timeout(
    series: SampleSeries, wanted: Literal["auto", True], timeout_s: int | None = None
) -> tuple[TimedNvml | None, list[str]]:
    """Return (collector, problems) as ``collector.open_nvml`` does, for a driver that may hang.

    A hanging driver, or any exception, is a problem, and the collector is then None.
    ``timeout_s``: limit in seconds for opening, and for each reading of all cards; None: OPEN_S and NVML_READ_LIMIT_S.
    """
    gate, worker = ClosableSeries(series), Worker("nvml")
    try:
        collector, problems = worker.call(partial(open_nvml, gate, wanted), timeout_s or OPEN_S)
    except TimeoutError as error:
        gate.shut()
        return None, [f"nvml: the driver gave {error}: nvidia-smi must work first; probes.nvml: false does without"]
    except Exception as error:  # errors of the bindings: a name that is not UTF-8, an unknown version
        return None, [f"nvml: cannot be used: {in_words(error)}"]
    return None if collector is None else TimedNvml(collector, worker, gate, timeout_s or NVML_READ_LIMIT_S), problems


class TimedNvml:
    """NvmlCollector whose calls run in a thread with a timeout. :func:`open_with_timeout` makes it.

    If the driver hangs, a method raises TimeoutError; do not call any method after that.
    """

    source = NvmlCollector.source

    def __init__(self, collector: NvmlCollector, worker: Worker, gate: ClosableSeries, timeout_s: int) -> None:
        self._collector = collector
        self._worker = worker
        self._gate = gate
        self._timeout_s = timeout_s

    @property
    def problems(self) -> list[str]:
        return self._collector.problems

    @problems.setter
    def problems(self, problems: list[str]) -> None:
        self._collector.problems = problems

    def begin(self, pids: dict[int, str]) -> None:
        self._call(partial(self._collector.begin, pids))

    def read(self, *, last: bool) -> bool:
        return bool(self._call(partial(self._collector.read, last=last)))

    def end(self) -> None:
        self._call(self._collector.end)

    def _call(self, action: Callable[[], bool | None]) -> bool | None:
        try:
            return self._worker.call(action, self._timeout_s)
        except TimeoutError as error:
            self._gate.shut()
            raise TimeoutError(f"the driver gave {error}") from error
