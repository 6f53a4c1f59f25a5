"""Define the readers of one card's metrics: the NVML calls of each, its units, and its rate.

PCIe throughput without GPM blocks for 20 ms, so it is read once a second, in one direction, never after a repetition.
GPM are the counters of Hopper and newer cards: differences of two snapshots at least 100 ms apart, the card's refresh
time (nvmlGpmMetricsGet). A repetition's first snapshot is its baseline, and a shorter one has no reading.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic_ns
from typing import Any, Literal, NamedTuple


class Card(NamedTuple):
    """One device that the run may use. ``ordinal``: its number in CUDA. ``slice``: NVML handle of a MIG slice."""

    ordinal: int
    name: str
    handle: Any  # handle of the whole card
    slice: Any | None = None

    @property
    def source(self) -> str:
        return f"nvml:{self.ordinal}"


Sample = tuple[str, float, str]  # metric, value, unit
NO_FUNCTION = "this driver is older than the metric"
# NVML_ERROR_ names for a lost card, which ends every metric
LOST = ("UNINITIALIZED", "DRIVER_NOT_LOADED", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND")
# NVML_ERROR_ names for a metric that stays unavailable for the whole run
FINAL = (
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "FUNCTION_NOT_FOUND",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
)


def is_one_of(nvml: Any, error: Any, names: tuple[str, ...]) -> bool:
    """Return True if ``error`` (NVMLError) is one of the error codes ``names``, given without "NVML_ERROR_"."""
    return error.value in {getattr(nvml, f"NVML_ERROR_{name}", None) for name in names}


def reason_of(nvml: Any, error: Any) -> str:
    """Return the text that explains a missing metric, from the NVMLError that its call raised."""
    return NO_FUNCTION if is_one_of(nvml, error, ("FUNCTION_NOT_FOUND",)) else str(error)


class Reader:
    """Reader of one card's metrics (``text``). ``rate``: "slow": once a second; "slow, inside": never last."""

    rate: Literal["fast", "slow", "slow, inside"] = "fast"

    def __init__(self, text: str) -> None:
        self.text = text
        self.failures = 0  # consecutive failures
        self._lacking: list[tuple[str, str]] = []

    def begin(self, pids: set[int]) -> None:
        """Start a repetition: read first values of counters. ``pids``: of this run. May raise NVMLError."""

    def read(self) -> Iterable[Sample]:
        """Return current values, or growth since the last reading. May raise NVMLError."""
        raise NotImplementedError

    def silent(self) -> str:
        """Return why there was never a sample although no call failed; "" if there was one or no reason is known."""
        return ""

    def take_lacking(self) -> list[tuple[str, str]]:
        """Return (name, reason) of each metric that the card was found to lack since the last call."""
        lacking, self._lacking = self._lacking, []
        return lacking


REFRESH_NS = 105_000_000  # nanoseconds: 100 ms and a margin
MIB = 2**20

Metric = tuple[str, str, str, int, str]
# NVML_GPM_METRIC_ name, metric, unit, factor, and name in messages
METRICS: tuple[Metric, ...] = (
    ("SM_UTIL", "sm_active_percent", "%", 1, "SM activity"),
    ("SM_OCCUPANCY", "sm_occupancy_percent", "%", 1, "SM occupancy"),
    ("ANY_TENSOR_UTIL", "tensor_active_percent", "%", 1, "tensor activity"),
    ("DRAM_BW_UTIL", "dram_active_percent", "%", 1, "DRAM activity"),
    ("PCIE_TX_PER_SEC", "pcie_tx_bytes_per_s", "bytes/s", MIB, "PCIe traffic sent"),
    ("PCIE_RX_PER_SEC", "pcie_rx_bytes_per_s", "bytes/s", MIB, "PCIe traffic received"),
    ("NVLINK_TOTAL_TX_PER_SEC", "nvlink_tx_bytes_per_s", "bytes/s", MIB, "NVLink traffic sent"),
    ("NVLINK_TOTAL_RX_PER_SEC", "nvlink_rx_bytes_per_s", "bytes/s", MIB, "NVLink traffic received"),
    ("C2C_TOTAL_TX_PER_SEC", "c2c_tx_bytes_per_s", "bytes/s", MIB, "C2C traffic sent"),
    ("C2C_TOTAL_RX_PER_SEC", "c2c_rx_bytes_per_s", "bytes/s", MIB, "C2C traffic received"),
)


def open_gpm(nvml: Any, card: Card) -> tuple[GpmReader | None, str]:
    """Return (reader of the card's GPM counters, ""), or (None, reason) for a card or driver without GPM."""
    try:
        if not nvml.nvmlGpmQueryDeviceSupport(card.handle).isSupportedDevice:
            return None, "this card has no GPM (Hopper and newer have)"
        return GpmReader(nvml, card), ""
    except nvml.NVMLError as error:
        return None, reason_of(nvml, error)


class GpmReader(Reader):
    """Reader of a card's GPM metrics: means since the last snapshot, for all METRICS that the card has."""

    def __init__(self, nvml: Any, card: Card) -> None:
        super().__init__("SM, tensor and DRAM activity, link traffic (GPM)")
        self._nvml = nvml
        self._card = card
        self._instance = None if card.slice is None else nvml.nvmlDeviceGetGpuInstanceId(card.slice)
        self._before, self._now = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._taken_ns = 0
        self._answered, self._snapped = False, False
        self._metrics = tuple(metric for metric in METRICS if hasattr(nvml, f"NVML_GPM_METRIC_{metric[0]}"))
        self._query = nvml.c_nvmlGpmMetricsGet_t()
        self._query.version = nvml.NVML_GPM_METRICS_GET_VERSION

    def begin(self, pids: set[int]) -> None:
        self._snapshot(self._before)

    def read(self) -> Iterable[Sample]:
        if monotonic_ns() - self._taken_ns < REFRESH_NS:
            return []
        self._snapshot(self._now)
        try:
            samples = self._ask(self._metrics)
        except self._nvml.NVMLError as error:
            if not is_one_of(self._nvml, error, FINAL):
                raise
            # A driver rejects a whole query if it is too old for one of the metrics.
            samples = [sample for metric in self._metrics for sample in self._ask_alone(metric)]
        self._before, self._now = self._now, self._before
        self._answered = True
        return samples

    def silent(self) -> str:
        if self._answered or not self._snapped:
            return ""
        return "no repetition lasted as long as the card's refresh time (100 ms); raise slice_steps"

    def _snapshot(self, into: Any) -> None:
        self._taken_ns = monotonic_ns()
        if self._instance is None:
            self._nvml.nvmlGpmSampleGet(self._card.handle, into)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._card.handle, self._instance, into)
        self._snapped = True

    def _ask(self, metrics: tuple[Metric, ...]) -> list[Sample]:
        query = self._query
        query.numMetrics, query.sample1, query.sample2 = len(metrics), self._before, self._now
        for place, metric in enumerate(metrics):
            query.metrics[place].metricId = getattr(self._nvml, f"NVML_GPM_METRIC_{metric[0]}")
        self._nvml.nvmlGpmMetricsGet(query)
        samples = []
        for answer, metric in zip(query.metrics, metrics, strict=False):
            if answer.nvmlReturn != self._nvml.NVML_SUCCESS:
                self._drop(metric, self._nvml.NVMLError(answer.nvmlReturn))
            else:
                samples.append((metric[1], answer.value * metric[3], metric[2]))
        return samples

    def _ask_alone(self, metric: Metric) -> list[Sample]:
        try:
            return self._ask((metric,))
        except self._nvml.NVMLError as error:
            self._drop(metric, error)
            return []

    def _drop(self, metric: Metric, error: Any) -> None:
        self._metrics = tuple(entry for entry in self._metrics if entry is not metric)
        self._lacking.append((metric[4], reason_of(self._nvml, error)))


ALL_LINKS = 0xFFFFFFFF  # scope of an NVLink counter: sum over the card's links


class Gauges(Reader):
    """Reader of metrics that are current values, all returned by one function ``call``."""

    def __init__(self, text: str, call: Callable[[], Iterable[Sample]]) -> None:
        super().__init__(text)
        self._call = call

    def read(self) -> Iterable[Sample]:
        return self._call()


class Energy(Reader):
    """Reader of the energy used since the last reading, in joules, from the card's own counter."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        super().__init__("energy")
        self._nvml, self._handle = nvml, handle
        self._before_mj = 0

    def begin(self, pids: set[int]) -> None:
        self._before_mj = self._counter_mj()

    def read(self) -> Iterable[Sample]:
        before, self._before_mj = self._before_mj, self._counter_mj()
        return [("energy_j", (self._before_mj - before) / 1000, "J")]

    def _counter_mj(self) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))


class PcieThroughput(Reader):
    """Reader of PCIe traffic (bytes/s) without GPM: sent and received in turn, each call blocks for 20 ms."""

    rate = "slow, inside"

    def __init__(self, nvml: Any, handle: Any) -> None:
        super().__init__("PCIe traffic")
        self._nvml, self._handle, self._sent = nvml, handle, False

    def read(self) -> Iterable[Sample]:
        self._sent = not self._sent
        counter = self._nvml.NVML_PCIE_UTIL_TX_BYTES if self._sent else self._nvml.NVML_PCIE_UTIL_RX_BYTES
        value = self._nvml.nvmlDeviceGetPcieThroughput(self._handle, counter) * 1000.0
        return [("pcie_tx_bytes_per_s" if self._sent else "pcie_rx_bytes_per_s", value, "bytes/s")]


class NvLinkThroughput(Reader):
    """Reader of NVLink traffic for cards without GPM, in bytes/s over all links since the last reading."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        super().__init__("NVLink traffic")
        self._nvml, self._handle = nvml, handle
        self._fields = [nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX]
        self._before: tuple[int, list[int]] = (0, [0, 0])

    def begin(self, pids: set[int]) -> None:
        self._before = self._counters()

    def read(self) -> Iterable[Sample]:
        (before_ns, before), self._before = self._before, self._counters()
        elapsed_s = (self._before[0] - before_ns) / 1e9
        names = ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")
        moved = zip(names, self._before[1], before, strict=True)
        return [(name, (now - then) * 1024 / elapsed_s, "bytes/s") for name, now, then in moved if elapsed_s > 0]

    def _counters(self) -> tuple[int, list[int]]:
        values = self._nvml.nvmlDeviceGetFieldValues(self._handle, [(field, ALL_LINKS) for field in self._fields])
        for value in values:
            if value.nvmlReturn != self._nvml.NVML_SUCCESS:
                raise self._nvml.NVMLError(value.nvmlReturn)
        return monotonic_ns(), [value.value.ullVal for value in values]


class Processes(Reader):
    """Reader of the number of processes on the card that belong to no arm of this study, and their memory in bytes."""

    rate = "slow"

    def __init__(self, nvml: Any, handle: Any) -> None:
        super().__init__("other processes on the card")
        self._nvml, self._handle = nvml, handle
        self._own: set[int] = set()
        self._reported = False

    def begin(self, pids: set[int]) -> None:
        self._own = pids | {os.getpid()}

    def read(self) -> Iterable[Sample]:
        listed = {process.pid: process.usedGpuMemory for process in self._list()}
        others = {pid for pid in listed.keys() - self._own if not is_sibling(pid, self._own)}
        # NVML uses the host's process ids, so a container's own processes are not among them.
        foreign = [pid for pid in others if not Path(f"/proc/{pid}").exists()]
        if foreign and not self._own & listed.keys():
            if not self._reported:
                self._reported = True
                self._lacking = [(self.text, "NVML reports process ids of the host, not of this container")]
            return []
        memory = sum(listed[pid] or 0 for pid in others)
        return [("other_processes", float(len(others)), "processes"), ("other_memory_bytes", float(memory), "bytes")]

    def _list(self) -> list[Any]:
        nvml = self._nvml
        try:
            return list(nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle))
        except nvml.NVMLError_FunctionNotFound:
            return list(nvml.nvmlDeviceGetComputeRunningProcesses_v2(self._handle))


def is_sibling(pid: int, own: set[int]) -> bool:
    """True if process ``pid`` is a suspended run of another arm of the study of ``own``, with memory on the card."""
    study = _study(pid)
    return study is not None and study in {_study(own_pid) for own_pid in own} - own


def _study(pid: int) -> int | None:
    """Return the id of the process that runs the study (its fork server's parent) if ``pid`` is a run; else None."""
    server = _parent(pid)
    return _parent(server) if server is not None and _is_fork_server(server) else None


def _is_fork_server(pid: int) -> bool:
    """True if ``pid`` runs a module of ``harness.launch``. Fork servers do, in every revision of the harness."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(argument.startswith(b"harness.launch.") for argument in arguments)


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def make_readers(nvml: Any, card: Card) -> tuple[list[Reader], list[tuple[str, str]]]:
    """Return a reader for each metric of ``card``, and (name, reason) of each metric known to be missing."""
    handle, inside = card.handle, card.slice if card.slice is not None else card.handle
    readers: list[Reader] = [
        Energy(nvml, handle),  # first, because its error depends most on a repetition's exact start and end
        Gauges("power", lambda: [("power_w", nvml.nvmlDeviceGetPowerUsage(handle) / 1000, "W")]),
        Gauges("utilisation", lambda: _utilisation(nvml, inside)),
        Gauges("SM clock", lambda: _clock(nvml, handle, "sm_clock_mhz", nvml.NVML_CLOCK_SM)),
        Gauges("memory clock", lambda: _clock(nvml, handle, "memory_clock_mhz", nvml.NVML_CLOCK_MEM)),
        Gauges("throttle reasons", lambda: [("throttle_reasons", float(_throttle(nvml, handle)), "bits")]),
        Gauges("temperature", lambda: [("temperature_c", float(_temperature(nvml, handle)), "°C")]),
        Gauges("memory in use", lambda: _memory(nvml, inside)),
        Processes(nvml, inside),
    ]
    lacking = []
    if card.slice is not None:
        lacking.append(("own readings of power, clocks and temperature", "a MIG slice reports those of the card"))
    gpm, reason = open_gpm(nvml, card)
    if gpm is not None:
        readers.append(gpm)
    else:
        lacking.append(("SM, tensor and DRAM activity, C2C traffic", reason))
        readers += [PcieThroughput(nvml, handle), NvLinkThroughput(nvml, handle)]
    return readers, lacking


def _utilisation(nvml: Any, handle: Any) -> list[Sample]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return [("utilisation_percent", float(rates.gpu), "%"), ("memory_utilisation_percent", float(rates.memory), "%")]


def _clock(nvml: Any, handle: Any, metric: str, kind: int) -> list[Sample]:
    return [(metric, float(nvml.nvmlDeviceGetClockInfo(handle, kind)), "MHz")]


def _memory(nvml: Any, handle: Any) -> list[Sample]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # memory reserved by the driver counts as used
    return [("memory_used_bytes", float(memory.used), "bytes"), ("memory_total_bytes", float(memory.total), "bytes")]


def _throttle(nvml: Any, handle: Any) -> int:
    """Return the reasons for lowered clocks as bits NVML_CLOCKS_EVENT_REASON_* ("throttle" before driver 535)."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError_FunctionNotFound:
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _temperature(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError_FunctionNotFound:  # drivers before 570
        return int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
