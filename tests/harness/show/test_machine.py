from __future__ import annotations

from dataclasses import replace

from harness.judge.probes.machine_load import DeviceFinding, DeviceHealth, HostFinding, HostLoad, RoleLoad
from harness.show.machine import section

ROLE = RoleLoad("main", 1, 1.5, None, 4e9, 3e9, 2e6, 0.0, 100.0, None)
LOAD = HostLoad("plain", 10.0, [ROLE, replace(ROLE, role="loaders", processes=4, cores=2.5)], 0.2, 0.9, 0.0)
DEVICE = DeviceHealth(
    arm="plain", device=0, utilisation=0.97, sm_active=0.5, tensor_active=None, dram_active=0.25, power_w=612.0,
    energy_j=1000.0, joules_per_token=0.0612, joules_per_trained_token=0.0701, sm_clock_mhz=1950.0,
    sm_clock_min_mhz=1755.0, memory_clock_mhz=2619.0, temperature_max_c=71.0, memory_used_bytes=62e9,
    memory_total_bytes=96e9, throttled={},
)  # fmt: skip


def test_host_and_devices_are_tables_and_what_was_not_told_is_a_dash() -> None:
    text = section([LOAD], [DEVICE])
    assert "| plain | 1.50 | 2.50 (4) | 0.20 (0.90) | – / – | 8.00 | 6.00 | 4.00 | 0.00 | 200 / – |" in text
    assert (
        "| plain | 0 | 97 % | 50 % / – / 25 % | 612 | 0.0612 | 0.0701 | 1,950 (1,755) | 0.0 % | 71.0 | 62.0 of 96.0 |"
        in text
    )
    assert "### Findings" not in text
    assert "PCIe" not in text
    assert section([], []) == ""


def test_findings_and_problems_are_said_once_each() -> None:
    text = section(
        [replace(LOAD, findings=(HostFinding("stolen cores", 0.5),))],
        [replace(DEVICE, findings=(DeviceFinding("slowed down", 0.25, reason="heat"),))],
        ["no X", "no X"],
    )
    assert "- plain: the hypervisor kept 0.50 cores for others\n- plain, device 0: throttled by heat in 25 %" in text
    assert text.count("no X") == 1


def test_what_only_some_cards_have_or_tell_is_shown_for_these() -> None:
    moved = replace(DEVICE, traffic={"pcie_rx": 2.5e9, "pcie_tx": 1e9, "c2c_rx": 4e11})
    text = section([], [moved, replace(DEVICE, device=1)])
    assert "| arm | device | PCIe GB/s: to / from it | C2C GB/s: to / from it |" in text
    assert "| plain | 0 | 2.50 / 1.00 | 400 / – |" in text
    assert "| 0.0 % |" in section([], [DEVICE])
    assert "0.0 %" not in section([], [replace(DEVICE, throttled=None)])
    assert "| 25 % |" in section([], [replace(DEVICE, sm_clock_mhz=None, throttled={"its power limit": 0.25})])


def test_the_limits_of_the_cgroup_are_said_where_there_are_some() -> None:
    assert "Limits" not in section([LOAD], [])
    limited = replace(LOAD, quota_cores=8.0, throttled_share=0.0, memory_limit_bytes=64e9, memory_bytes=12e9)
    text = section([limited], [])
    assert (
        "- plain: a CPU quota of 8.00 cores, throttled in 0.0 % of its periods; 64.0 GB of memory, at most 12.0 GB in"
        in text
    )
    assert "throttling not recorded" in section([replace(limited, throttled_share=None)], [])
