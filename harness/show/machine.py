"""Writes the sections "The machine" and "Steps over time": the load of host and devices, and the slowest steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.explain.policy import OUTLIER_QUARTILES
from harness.explain.unusual_steps import StepTimes
from harness.judge.probes.machine_load import DeviceHealth, HostLoad, RoleLoad
from harness.show.names import ArmNames
from harness.show.policy import OUTLIERS_LISTED
from harness.show.tables import NOT_MEASURED, number_cell, safe, table
from harness.show.text.findings import device_finding, host_finding
from harness.show.words import number, percent, ratio

LINKS = {"pcie": "PCIe", "nvlink": "NVLink", "c2c": "C2C"}


def section(loads: Sequence[HostLoad], devices: Sequence[DeviceHealth], problems: Sequence[str] = ()) -> str:
    """Markdown; empty where nothing was sampled. ``problems``: what probes could not do, a line each."""
    parts = []
    if loads:
        parts += ["### Host", _host_table(loads), HOST_NOTE]
        if limited := [f"- {safe(load.arm)}: {safe(limits)}" for load in loads if (limits := _limits(load))]:
            parts.append("\n".join(["Limits of the run's cgroup:", "", *limited]))
    if devices:
        parts += ["### Devices", _device_table(devices), DEVICE_NOTE]
        if moved := [device for device in devices if device.traffic]:
            parts.append(_traffic_table(moved))
    findings = [f"- {safe(load.arm)}: {safe(host_finding(one))}" for load in loads for one in load.findings]
    findings += [
        f"- {safe(device.arm)}, device {device.device}: {safe(device_finding(one))}"
        for device in devices
        for one in device.findings
    ]
    if findings:
        parts += ["### What held it back", "\n".join(findings)]
    if problems:
        parts += ["### Not measured", "\n".join(f"- {safe(problem)}" for problem in dict.fromkeys(problems))]
    return "\n\n".join(parts)


def _host_table(loads: Sequence[HostLoad]) -> str:
    header = [
        "arm",
        "trainer cores",
        "loader cores",
        "others' cores (most)",
        "waited for a core s/s: trainer / loaders",
        "resident GB",
        "PSS GB",
        "disk MB/s",
        "major faults /s",
        "switches /s: voluntary / forced",
    ]
    rows = []
    for load in loads:
        main, loaders = _role(load, "main"), _role(load, "loaders")
        both = [role for role in (main, loaders) if role is not None]
        rows.append(
            [
                load.arm,
                NOT_MEASURED if main is None else number(main.cores),
                NOT_MEASURED if loaders is None else f"{number(loaders.cores)} ({loaders.processes})",
                _with(load.other_cores, load.other_cores_max),
                f"{_cell(main, lambda role: role.delay)} / {_cell(loaders, lambda role: role.delay)}",
                _sum(both, lambda role: role.resident_bytes, 1e9),
                _sum(both, lambda role: role.pss_bytes, 1e9),
                _sum(both, lambda role: role.disk_bytes_per_s, 1e6),
                _sum(both, lambda role: role.faults_per_s),
                f"{_sum(both, lambda role: role.voluntary_per_s)} / {_sum(both, lambda role: role.involuntary_per_s)}",
            ]
        )
    return table(header, rows)


HOST_NOTE = (
    "During measured steps only. Of several ranks each column is of rank 0 and its workers, but *others' cores* are "
    "those of no rank on this machine. *loader cores*: of all workers (their number). *waited for a core*: seconds in "
    "which threads were runnable and had none, per second; several threads add up. *resident*, *PSS*: the most at a "
    "time, of main process and workers together; PSS counts a page that several share once. *disk*: what the page "
    "cache did not have."
)


def _limits(load: HostLoad) -> str:
    """What its cgroup allowed; "" where it set no limit."""
    found = []
    if load.quota_cores is not None:
        share = load.throttled_share
        throttled = (
            "not known how often throttled" if share is None else f"throttled in {percent(share)} of its periods"
        )
        found.append(f"a CPU quota of {number(load.quota_cores)} cores, {throttled}")
    if load.memory_limit_bytes is not None:
        used = "" if load.memory_bytes is None else f", at most {number(load.memory_bytes / 1e9)} GB in use"
        found.append(f"{number(load.memory_limit_bytes / 1e9)} GB of memory{used}")
    return "; ".join(found)


def _device_table(devices: Sequence[DeviceHealth]) -> str:
    header = [
        "arm",
        "device",
        "in use",
        "SM / tensor / DRAM active",
        "power W",
        "J / token",
        "J / trained token",
        "SM clock MHz (least)",
        "throttled",
        "°C (most)",
        "memory GB",
    ]
    rows = [
        [
            one.arm,
            str(one.device),
            _percent(one.utilisation),
            " / ".join(_percent(share) for share in (one.sm_active, one.tensor_active, one.dram_active)),
            number_cell(one.power_w),
            _joules(one.joules_per_token),
            _joules(one.joules_per_trained_token),
            _clock(one),
            NOT_MEASURED if one.throttled is None else percent(max(one.throttled.values(), default=0.0)),
            number_cell(one.temperature_max_c),
            f"{_giga(one.memory_used_bytes)} of {_giga(one.memory_total_bytes)}",
        ]
        for one in devices
    ]
    return table(header, rows)


DEVICE_NOTE = (
    "Means over the samples of measured steps. *in use*: some kernel ran; a card can be in use all the time and have "
    "most of its SMs idle. *throttled*: share of the samples in which the commonest reason slowed it down. Energy is "
    "the whole card's, by its own counter; that counter moves in steps of up to 0.1 s."
)


def _traffic_table(devices: Sequence[DeviceHealth]) -> str:
    links = [link for link in LINKS if any(f"{link}_{way}" in one.traffic for one in devices for way in ("rx", "tx"))]
    header = ["arm", "device", *(f"{LINKS[link]} GB/s: to / from it" for link in links)]
    rows = [
        [
            one.arm,
            str(one.device),
            *(" / ".join(_giga(one.traffic.get(f"{link}_{way}")) for way in ("rx", "tx")) for link in links),
        ]
        for one in devices
    ]
    return table(header, rows)


def _role(load: HostLoad, role: str) -> RoleLoad | None:
    return next((one for one in load.roles if one.role == role), None)


def _cell(role: RoleLoad | None, get: Callable[[RoleLoad], float | None]) -> str:
    return NOT_MEASURED if role is None else number_cell(get(role))


def _sum(roles: Sequence[RoleLoad], get: Callable[[RoleLoad], float | None], unit: float = 1.0) -> str:
    known = [value for role in roles if (value := get(role)) is not None]
    return number(sum(known) / unit) if known else NOT_MEASURED


def _with(value: float | None, largest: float | None) -> str:
    return number_cell(value) if largest is None else f"{number_cell(value)} ({number(largest)})"


def _percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else percent(share)


def _giga(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value / 1e9)


def _joules(value: float | None) -> str:
    """Three significant digits: a small model takes thousandths of a joule per token."""
    return NOT_MEASURED if value is None else f"{value:.3g}"


def _clock(one: DeviceHealth) -> str:
    if one.sm_clock_mhz is None or one.sm_clock_min_mhz is None:
        return NOT_MEASURED
    return f"{one.sm_clock_mhz:,.0f} ({one.sm_clock_min_mhz:,.0f})"


STEPS_TITLE = "Steps over time"


def steps_section(found: Sequence[StepTimes], names: ArmNames) -> str:
    """The slowest outliers; empty where no steps were measured."""
    if not found:
        return ""
    slow = [
        (wall / one.median_ms, one, place)
        for one in found
        for place, (wall, mark) in enumerate(zip(one.wall_ms, one.mark, strict=True))
        if mark in ("outlier", "checkpoint")
    ]
    slow.sort(key=lambda entry: -entry[0])
    rows = [
        [
            names.short(one.arm),
            str(one.block),
            str(one.repetition[place]),
            str(one.step[place]),
            number(one.wall_ms[place]),
            ratio(times),
        ]
        for times, one, place in slow[:OUTLIERS_LISTED]
    ]
    steps = sum(one.steps for one in found)
    outliers = sum(one.outliers for one in found)
    note = (
        f"{outliers:,} of {steps:,} measured steps are outliers: more than {OUTLIER_QUARTILES:g} quartile ranges above "
        "the upper quartile of their run. `summary.html` draws every step over the time of the study."
    )
    header = ["arm", "block", "repetition", "step", "ms", "times its run's median"]
    return "\n\n".join([*([table(header, rows)] if rows else []), note])


def marks(found: Sequence[StepTimes]) -> dict[str, tuple[str, str]]:
    """{"outlier" or "evaluation": how such steps look and what they are}; outliers are always named."""
    known = {mark for one in found for mark in one.mark}
    outliers = "outliers (those outside of all phases write a checkpoint)" if "checkpoint" in known else "outliers"
    shown = {"outlier": ("rings are", outliers)}
    return shown | ({"evaluation": ("discs are", "steps with an evaluation")} if "evaluation" in known else {})


def at_once(found: Sequence[StepTimes]) -> bool:
    """Return True if several arms ran at once, as ranks do: a line connects the steps of each."""
    firsts = {one.arm: one for one in reversed(found)}.values()
    return len(firsts) > 1 and max(one.start_s[0] for one in firsts) < min(one.start_s[-1] for one in firsts)


def thinned_note(found: Sequence[StepTimes]) -> str:
    """How many steps a picture of ``found`` shows, where not all."""
    steps = sum(one.steps for one in found)
    shown = sum(len(one.step) - one.mark.count("evaluation") for one in found)
    return (
        f"{shown:,} of {steps:,} measured steps: every outlier, of the others every so many." if shown < steps else ""
    )
