from __future__ import annotations

from harness.probes.host import LEAST_S, HostProbe
from trainer.inject import spend


def test_short_turns_add_up_to_one_sample_of_whose_cpu_it_was() -> None:
    """Ten turns of 60 ms of CPU: one by one below a clock tick's resolution, together one sample of about a core."""
    probe = HostProbe()
    turns_ms = LEAST_S * 1000 / 8
    for _ in range(10):
        probe.start()
        spend(turns_ms, "busy")
        probe.stop()
    samples = dict(zip(probe.samples["metric"], probe.samples["value"], strict=True))
    assert set(samples) == {"own_cpu_cores", "other_cpu_cores", "stolen_cpu_cores", "resident_bytes"}
    assert probe.samples["metric"].count("own_cpu_cores") == 1
    assert 0.2 < samples["own_cpu_cores"] < 1.2
    assert samples["resident_bytes"] > 1e6


def test_a_turn_too_short_to_tell_gives_no_sample() -> None:
    probe = HostProbe()
    probe.start()
    probe.stop()
    assert probe.samples["metric"] == []
