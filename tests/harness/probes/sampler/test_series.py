"""Samples on their way: what was added comes out, and nothing from a call that returns after its timeout."""

from __future__ import annotations

from harness.probes.sampler.messages import ClosableSeries, SampleSeries, Unpacked


def taken(series: SampleSeries) -> list[float]:
    unpacked = Unpacked()
    unpacked.add(*series.take())
    values: list[float] = unpacked.columns()["value"]
    return values


def test_a_gate_passes_samples_on_until_it_is_shut() -> None:
    series = SampleSeries()
    gate = ClosableSeries(series)
    gate.add(1, "nvml:0", "power_w", 300.0, "W")
    assert taken(series) == [300.0]
    gate.add(2, "nvml:0", "power_w", 301.0, "W")
    gate.shut()
    gate.add(3, "nvml:0", "power_w", 302.0, "W")
    assert taken(series) == [301.0]
    assert taken(gate) == []
