"""Read NVIDIA's counters in the sampling process: power, energy, clocks, utilisation, throttling (nvidia-ml-py).

Sources are "nvml:N", N as in CUDA. A lacking metric or a lost card is reported once. Energy is sampled as growth, all
else as current value. Every call has a timeout, because a driver in trouble may not answer for minutes.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Any, Literal

from harness.machine.environment import has_nvidia_driver
from harness.machine.limits import Worker
from harness.probes.nvml.metrics import FINAL, LOST, Card, Reader, is_one_of, make_readers, reason_of
from harness.probes.sampler.messages import ClosableSeries, SampleSeries
from trainer.errors import in_words

MAX_READING_FAILURES = 3  # consecutive failures after which a metric is dropped
SLOW_NS = 1_000_000_000


def visible(declared: str | None, uuids: list[str]) -> list[int | str]:
    """Return the devices that CUDA shows, in its order: indices into ``uuids``, or UUIDs of MIG slices. ``declared``:
    CUDA_VISIBLE_DEVICES, which ends at the first entry that is no index or (beginning of a) UUID.
    """
    if declared is None:
        return list(range(len(uuids)))
    devices: list[int | str] = []
    for entry in (part.strip() for part in declared.split(",")):
        if entry.startswith("MIG-"):
            devices.append(entry)
            continue
        if entry.isdecimal():
            matches = [int(entry)] if int(entry) < len(uuids) else []
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        devices += matches
    return devices


def find_cards(nvml: Any) -> tuple[list[Card], list[str]]:
    """Return (visible cards, problems, one line each). Raises NVMLError if the cards cannot be counted."""
    cards: list[Card] = []
    problems: list[str] = []
    handles: list[Any] = []
    uuids: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            handle, uuid = error, ""
        handles.append(handle)
        uuids.append(uuid)
    for ordinal, device in enumerate(visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)):
        try:
            cards.append(_card(nvml, ordinal, device, handles))
        except nvml.NVMLError as error:
            problems.append(f"nvml:{ordinal}: cannot be read: {error}")
    names = {card.name for card in cards}
    if len(names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        problems.append(
            f"nvml: cards of different kinds ({', '.join(sorted(names))}): CUDA numbers them fastest first, NVML by "
            "PCI bus, so samples may have the wrong card's number; set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return cards, problems


def _card(nvml: Any, ordinal: int, device: int | str, handles: list[Any]) -> Card:
    if isinstance(device, str):
        slice_ = nvml.nvmlDeviceGetHandleByUUID(device)
        card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_)
        return Card(ordinal, nvml.nvmlDeviceGetName(slice_), card, slice_)
    handle = handles[device]
    if isinstance(handle, nvml.NVMLError):
        raise handle
    return Card(ordinal, nvml.nvmlDeviceGetName(handle), handle)


def open_nvml(series: SampleSeries, wanted: Literal["auto", True]) -> tuple[NvmlCollector | None, list[str]]:
    """Return (collector or None, problems). Without a driver, only ``wanted=True`` makes this a problem."""
    has_driver = has_nvidia_driver()
    try:
        ctypes.CDLL("libnvidia-ml.so.1")  # importing the bindings takes longer than detecting a missing driver
    except OSError as error:
        if has_driver:  # for example a container that was given the devices for computing only
            return None, [f"nvml: cannot be used: {error} (a container needs NVIDIA_DRIVER_CAPABILITIES with utility)"]
        return None, [f"nvml: no NVIDIA driver here ({error})"] if wanted is True else []
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED and wanted == "auto" and not has_driver:
            return None, []
        return None, [f"nvml: cannot be used: {error}"]
    try:
        cards, problems = find_cards(pynvml)
    except pynvml.NVMLError as error:
        return None, [f"nvml: cannot list the cards: {error}"]
    if not cards and not problems and wanted is True:
        problems = ["nvml: no visible card (CUDA_VISIBLE_DEVICES)"]
    return NvmlCollector(pynvml, series, cards) if cards else None, problems


class NvmlCollector:
    """Collector that reads all visible cards, one after the other. :func:`open_nvml` makes it."""

    source = "nvml"

    def __init__(self, nvml: Any, series: SampleSeries, cards: list[Card]) -> None:
        self.problems: list[str] = []
        self._cards = [_CardReader(nvml, series, card) for card in cards]

    def begin(self, pids: dict[int, str]) -> None:
        for card in self._cards:
            card.begin(set(pids))
        self._collect()

    def read(self, *, last: bool) -> bool:
        answered = [card.read(last=last) for card in self._cards]
        self._collect()
        return any(answered)

    def end(self) -> None:
        for card in self._cards:
            card.end()
        self._collect()

    def _collect(self) -> None:
        for card in self._cards:
            self.problems += card.take_problems()


class _CardReader:
    def __init__(self, nvml: Any, series: SampleSeries, card: Card) -> None:
        self._nvml = nvml
        self._series = series
        self._card = card
        self._lost = ""
        self._answers = 0
        self._slow_due_ns = 0
        self._missing: dict[str, list[str]] = {}  # missing metrics by reason, until reported
        self._readers, lacking = make_readers(nvml, card)
        for text, reason in lacking:
            self._lacks(text, reason)

    def begin(self, pids: set[int]) -> None:
        """Start a repetition: read the first values of all counters. ``pids``: the run's own processes."""
        for reader in list(self._readers):
            self._attempt(reader, partial(reader.begin, pids))

    def read(self, *, last: bool) -> bool:
        """Sample each metric that is due, the ``last`` time none of rate "slow, inside". Return False without one."""
        now = monotonic_ns()
        slow = now >= self._slow_due_ns
        if slow:
            self._slow_due_ns = now + SLOW_NS
        answered = False
        for reader in list(self._readers):
            if reader.rate == "fast" or (slow and not (last and reader.rate == "slow, inside")):
                answered |= self._attempt(reader, partial(self._sample, reader))
        self._answers += answered
        return answered

    def end(self) -> None:
        """Note the metrics that never had a sample, with the reason, for :meth:`take_problems`."""
        for reader in self._readers:
            if reason := reader.silent():
                self._lacks(reader.text, reason)

    def take_problems(self) -> list[str]:
        """Return the problems since the last call, one line per reason, and a line if the card was lost."""
        label = f"{self._card.source} ({self._card.name})"
        lines = [f"{label}: no {', '.join(text)}: {reason}" for reason, text in self._missing.items()]
        if self._lost:
            lines.append(f"{label}: lost after {self._answers} samples: {self._lost}")
        self._missing, self._lost = {}, ""
        return lines

    def _sample(self, reader: Reader) -> None:
        for metric, value, unit in reader.read():
            if math.isfinite(value):
                self._series.add(monotonic_ns(), self._card.source, metric, value, unit)
        for text, reason in reader.take_lacking():
            self._lacks(text, reason)

    def _attempt(self, reader: Reader, action: Callable[[], None]) -> bool:
        """Return True if ``action`` worked. Drop a reader that can never work or failed too often in a row."""
        if reader not in self._readers:
            return False
        try:
            action()
        except self._nvml.NVMLError as error:
            reader.failures += 1
            if is_one_of(self._nvml, error, LOST):
                self._lost, self._readers = str(error), []
            elif is_one_of(self._nvml, error, FINAL) or reader.failures >= MAX_READING_FAILURES:
                self._readers.remove(reader)
                self._lacks(reader.text, reason_of(self._nvml, error))
            return False
        except AttributeError:  # missing in the bindings, not in the driver
            self._readers.remove(reader)
            self._lacks(reader.text, "nvidia-ml-py is older than the metric")
            return False
        reader.failures = 0
        return True

    def _lacks(self, text: str, reason: str) -> None:
        self._missing.setdefault(reason, []).append(text)


OPEN_S = 50  # seconds: waking each of a node's devices takes several; less than sampler.ANSWER_S
NVML_READ_LIMIT_S = 20


def open_with_timeout(
    series: SampleSeries, wanted: Literal["auto", True], timeout_s: int | None = None
) -> tuple[TimedNvml | None, list[str]]:
    """Return (collector, problems) as :func:`open_nvml`, in a thread that may hang ``timeout_s`` in each call."""
    gate, worker = ClosableSeries(series), Worker("nvml")
    try:
        collector, problems = worker.call(partial(open_nvml, gate, wanted), timeout_s or OPEN_S)
    except TimeoutError as error:
        gate.shut()
        return None, [f"nvml: the driver gave {error}; check nvidia-smi, or set probes.nvml: false"]
    except Exception as error:  # errors of the bindings: a name that is not UTF-8, an unknown version
        return None, [f"nvml: cannot be used: {in_words(error)}"]
    return None if collector is None else TimedNvml(collector, worker, gate, timeout_s or NVML_READ_LIMIT_S), problems


class TimedNvml:
    """NvmlCollector whose calls time out with TimeoutError; do not call any method after that."""

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
