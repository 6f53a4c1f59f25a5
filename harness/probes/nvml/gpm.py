"""Read GPM, the performance counters of Hopper and newer cards: activity of SMs, tensor cores, DRAM and links.

A reading is the difference of two snapshots. The card refreshes its counters every 100 ms, so two snapshots must be
further apart than that (nvmlGpmMetricsGet in the NVML reference). The first snapshot of a repetition is its baseline,
so activity of other runs before it does not count. A repetition shorter than 100 ms has no reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic_ns
from typing import Any

from harness.probes.nvml.cards import FINAL, Card, Reader, Sample, is_one_of, reason_of

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
    """Return (reader of the card's GPM counters, ""), or (None, reason) for a card or driver without GPM.

    ``nvml``: module pynvml, initialised.
    """
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
        return (
            "no two readings of a repetition were 100 ms apart, as the card takes to refresh them; "
            "where repetitions are short, raise slice_steps"
        )

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
