"""Define messages of a run and its sampling process: one JSON line each, and packed samples after an answer."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

from harness.probes.probe import ProbeSettings
from trainer.json_types import Json


@dataclass(frozen=True)
class SamplerSettings(ProbeSettings):
    """Settings of the sampling process. ``timeout_s``: of opening NVML and each reading, below ANSWER_S."""

    host: bool = True
    nvml: bool | Literal["auto"] = "auto"  # "auto": True if there is a driver
    rate_hz: float = 10
    timeout_s: int | None = None

    def to_json(self) -> dict[str, Json]:
        """Return the fields as JSON, without ``timeout_s`` if it is None: older versions of the code do not know it."""
        content = super().to_json()
        if self.timeout_s is None:
            del content["timeout_s"]
        return content


Key = tuple[str, str, str]  # source, metric, unit
SeriesHeader = tuple[str, str, str, int]  # source, metric, unit, number of samples that follow; a list in JSON


class SampleSeries:
    """Samples in the sampling process, grouped by (source, metric, unit): times (CLOCK_MONOTONIC, ns) and values."""

    def __init__(self) -> None:
        self._packed: dict[Key, tuple[array[int], array[float]]] = {}

    def add(self, t_ns: int, source: str, metric: str, value: float, unit: str) -> None:
        key = (source, metric, unit)
        columns = self._packed.get(key)
        if columns is None:
            columns = self._packed[key] = (array("q"), array("d"))
        columns[0].append(t_ns)
        columns[1].append(value)

    def take(self) -> tuple[list[SeriesHeader], bytes]:
        """Return (header, payload) of the samples since the last call, and drop them here. Payload: for each series of
        the header its times (int64), then its values (float64), in the machine's byte order.
        """
        packed, self._packed = self._packed, {}
        # A value is added after its time: a thread between the two has not added its sample yet.
        counts = {key: len(values) for key, (_, values) in packed.items()}
        header = [(*key, count) for key, count in counts.items()]
        payload = (
            times[: counts[key]].tobytes() + values[: counts[key]].tobytes() for key, (times, values) in packed.items()
        )
        return header, b"".join(payload)


class ClosableSeries(SampleSeries):
    """Series that forwards samples to ``into`` until :meth:`shut`, so that a late driver call adds nothing."""

    def __init__(self, into: SampleSeries) -> None:
        super().__init__()
        self._into = into
        self._is_open = True

    def shut(self) -> None:
        self._is_open = False

    def add(self, t_ns: int, source: str, metric: str, value: float, unit: str) -> None:
        if self._is_open:
            self._into.add(t_ns, source, metric, value, unit)


class Unpacked:
    """Samples table (``SAMPLE_COLUMNS``) in the run, built from successive results of :meth:`SampleSeries.take`."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, str, str, float, str]] = []

    def add(self, header: list[SeriesHeader], payload: bytes) -> None:
        start = 0
        for source, metric, unit, count in header:
            times, values = array("q"), array("d")
            times.frombytes(payload[start : start + 8 * count])
            values.frombytes(payload[start + 8 * count : start + 16 * count])
            start += 16 * count
            self._rows += [(t, source, metric, value, unit) for t, value in zip(times, values, strict=True)]

    def columns(self) -> dict[str, list[Any]]:
        """Return all samples as {column: values}, sorted by time."""
        rows = sorted(self._rows, key=lambda row: row[0])
        names = ("t_ns", "source", "metric", "value", "unit")
        return {name: [row[index] for row in rows] for index, name in enumerate(names)}


class StartSampling(TypedDict):
    """Message from the run to the sampling process: sample the processes ``pids`` from now on."""

    do: Literal["start"]
    pids: dict[int, str]  # roles by process id; JSON turns the ids into strings


class StopSampling(TypedDict):
    """Message from the run to the sampling process: take one last reading. ``t_ns``: end of the repetition."""

    do: Literal["stop"]
    t_ns: int


class CloseSampling(TypedDict):
    """Message from the run to the sampling process: send the last samples, and end."""

    do: Literal["close"]


SamplingOrder: TypeAlias = StartSampling | StopSampling | CloseSampling


class SamplingAnswer(TypedDict):
    """Answer of the sampling process: one JSON line, then ``bytes`` bytes of samples, and numbers of readings."""

    event: Literal["ready", "stopped", "closed"]
    problems: list[str]
    missed: dict[str, int]  # counts by source
    taken: dict[str, int]
    series: list[SeriesHeader]
    bytes: int
