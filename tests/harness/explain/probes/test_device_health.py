from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.probes.machine_load import DeviceHealth, clock_fall, device_health, differences, throttled
from harness.show.text.doubts import confound_lines
from harness.show.text.findings import device_finding
from harness.study.contract import SAMPLE_COLUMNS, STEP_COLUMNS, arrow_schema
from harness.study.records import RunFacts, RunRecord
from harness.study.run_data import ProbesRecord, RunData

ON_CARD = RunFacts(asynchronous=True, device_count=1, emulated=False)


def run(metrics: dict[str, list[float]], device: int = 0, facts: RunFacts = ON_CARD, steps: int = 4) -> RunData:
    """A run with one card's samples, and of its steps the last ``steps`` measured: 100 tokens each, 80 trained."""
    rows = [(t, f"nvml:{device}", name, value, "") for name, found in metrics.items() for t, value in enumerate(found)]
    columns = {name: [row[index] for row in rows] for index, (name, _) in enumerate(SAMPLE_COLUMNS)}
    taken: dict[str, list] = {name: [None] * (steps + 1) for name, _ in STEP_COLUMNS}
    taken |= {"turn": [0] * (steps + 1), "start_ns": list(range(-steps - 1, 0))}  # before any reading
    taken |= {"warmup": [True] + [False] * steps, "tokens": [100] * (steps + 1), "trained_tokens": [80] * (steps + 1)}
    return RunData(
        RunRecord("arm", 0, "done", facts=facts),
        pa.table(taken, schema=arrow_schema(STEP_COLUMNS)),
        None,
        pa.table(columns, schema=arrow_schema(SAMPLE_COLUMNS)),
        ProbesRecord(taken_samples={"nvml": 10}, missed_samples={"nvml": 0}),
    )


def lines(health: DeviceHealth) -> list[str]:
    return [*map(device_finding, health.findings)]


def test_energy_per_token_is_joules_of_measured_steps_over_their_tokens() -> None:
    (health,) = device_health({"arm": [run({"energy_j": [100.0, 300.0]}), run({"energy_j": [400.0]})]})
    assert health.energy_j == 800.0
    assert health.joules_per_token == pytest.approx(800 / 800)
    assert health.joules_per_trained_token == pytest.approx(800 / 640)


def test_a_card_that_was_lost_has_used_no_less_per_token() -> None:
    """100 J for each of two repetitions of 2 steps; of the second only a reading on the way, or none at all."""
    whole = run({"energy_j": [100.0, 100.0]}, steps=4)
    for name, values in (("turn", [0, 0, 0, 1, 1]), ("start_ns", [-10, -9, -8, 1, 5])):
        index = whole.steps.schema.get_field_index(name)
        field = whole.steps.field(index)
        whole = replace(whole, steps=whole.steps.set_column(index, field, pa.array(values, field.type)))
    # Read at 0 ns and at 1 ns: the second repetition's last step began at 5 ns.
    (health,) = device_health({"arm": [whole]})
    assert health.joules_per_token == pytest.approx(100 / 200)


@pytest.mark.parametrize(
    ("device", "facts"),
    [
        (1, ON_CARD),  # another card than the run's
        (0, RunFacts(asynchronous=False)),  # a run on the CPU beside a card
        (0, replace(ON_CARD, emulated=True)),
    ],
)
def test_a_card_that_the_run_did_not_compute_on_has_no_energy_per_token(device, facts) -> None:
    (health,) = device_health({"arm": [run({"energy_j": [100.0]}, device, facts)]})
    assert health.energy_j == 100.0
    assert health.joules_per_token is None
    assert health.joules_per_trained_token is None


def test_means_and_extremes_of_what_was_sampled_and_none_of_what_was_not() -> None:
    metrics = {
        "utilisation_percent": [80.0, 100.0],
        "sm_active_percent": [40.0, 60.0],
        "power_w": [300.0, 500.0],
        "sm_clock_mhz": [1980.0, 1980.0],
        "temperature_c": [60.0, 70.0],
        "memory_used_bytes": [1e9, 8e9],
        "pcie_rx_bytes_per_s": [1e9, 3e9],
        "throttle_reasons": [4.0, 4.0 + 0x20],
    }
    (health,) = device_health({"arm": [run(metrics)]})
    assert (health.utilisation, health.sm_active, health.power_w) == (0.9, 0.5, 400.0)
    assert (health.temperature_max_c, health.memory_used_bytes) == (70.0, 8e9)
    assert health.traffic == {"pcie_rx": 2e9}
    assert health.throttled == {"its power limit": 1.0, "its temperature (software)": 0.5}
    assert health.tensor_active is None
    assert lines(health) == [
        "throttled by its power limit in 100 % of the samples",
        "throttled by its temperature (software) in 50 % of the samples",
    ]


def test_a_clock_that_falls_under_load_is_said_and_an_idle_card_s_is_not() -> None:
    fell = [1980.0] * 20 + [1410.0] * 20
    (health,) = device_health({"arm": [run({"sm_clock_mhz": fell, "throttle_reasons": [0.0] * 40})]})
    assert lines(health) == ["SM clock fell from 1,980 to 1,410 MHz during the measured steps"]
    (idle,) = device_health({"arm": [run({"sm_clock_mhz": fell, "throttle_reasons": [0.0] * 20 + [1.0] * 20})]})
    assert idle.findings == ()


def test_others_on_the_card_are_said() -> None:
    (health,) = device_health({"arm": [run({"other_processes": [0.0, 2.0], "other_memory_bytes": [0.0, 12e9]})]})
    assert lines(health) == ["2 other processes computed on it, holding 12.0 GB of its memory"]


def test_arms_whose_cards_were_not_alike_are_told_apart() -> None:
    def clocked(mhz: float, reasons: float) -> RunData:
        return run({"sm_clock_mhz": [mhz] * 4, "throttle_reasons": [reasons] * 4})

    same = device_health({"a": [clocked(1980, 0)], "b": [clocked(1975, 0)]})
    assert differences(same, "a", "b") == []
    unlike = device_health({"a": [clocked(1980, 0)], "b": [clocked(1700, 4)]})
    assert confound_lines(differences(unlike, "a", "b")) == [
        "device 0: SM clock 1,980 MHz during a, 1,700 during b",
        "device 0: throttled by its power limit in 0.0 % of the samples during a, 100 % during b",
    ]
    assert differences(unlike, "a", "c") == []


def test_what_slowed_a_card_is_compared_only_where_both_report_it() -> None:
    told = run({"sm_clock_mhz": [1980.0] * 4, "throttle_reasons": [4.0] * 4})
    silent = run({"sm_clock_mhz": [1980.0] * 4})
    health = device_health({"a": [told], "b": [silent]})
    assert [one.throttled for one in health] == [{"its power limit": 1.0}, None]
    assert differences(health, "a", "b") == []


clocks = st.lists(st.floats(200, 3000), max_size=60)


@given(clocks)
def test_a_fall_lies_within_the_clocks_and_a_rise_is_none(mhz) -> None:
    t_ns = np.arange(len(mhz), dtype=np.float64)
    fall = clock_fall(t_ns, np.array(mhz))
    if fall is not None:
        assert min(mhz) <= fall[1] < fall[0] <= max(mhz)
    assert clock_fall(t_ns, np.sort(np.array(mhz))) is None


@given(st.lists(st.integers(0, 0x7FF), min_size=1))
def test_shares_of_reasons_are_shares(bits) -> None:
    shares = throttled(np.array(bits, dtype=np.float64))
    assert all(0 < share <= 1 for share in shares.values())
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert ("its power limit" in shares) == any(bit & 0x4 for bit in bits)
