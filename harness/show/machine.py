"""Writes the sections "The machine", "Steps over time" and "The whole run" (of a long training)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median

from harness.explain.policy import OUTLIER_QUARTILES
from harness.explain.unusual_steps import Excess, Span, StepTimes, longest_steps, spans
from harness.judge.probes.machine_load import DeviceHealth, HostLoad, RoleLoad
from harness.show.names import ArmNames
from harness.show.policy import OUTLIERS_LISTED
from harness.show.tables import (
    NOT_MEASURED,
    bulleted,
    cell,
    column_table,
    joined,
    number_cell,
    percent_cell,
    safe,
    table,
)
from harness.show.text.findings import device_finding, host_finding
from harness.show.words import duration, number, percent, ratio
from harness.study.run_data import History

LINKS = {"pcie": "PCIe", "nvlink": "NVLink", "c2c": "C2C"}


def section(loads: Sequence[HostLoad], devices: Sequence[DeviceHealth], problems: Sequence[str] = ()) -> str:
    """Return Markdown with the load of host and devices during measured steps, and the probes' problems; else ""."""
    parts = []
    if loads:
        parts += ["### Host", _host_table(loads), HOST_NOTE]
        if limited := [f"{safe(load.arm)}: {safe(limits)}" for load in loads if (limits := _limits(load))]:
            parts.append(f"Limits of the run's cgroup:\n\n{bulleted(limited)}")
    if devices:
        parts += ["### Devices", _device_table(devices), DEVICE_NOTE]
        if moved := [device for device in devices if device.traffic]:
            parts.append(_traffic_table(moved))
    findings = [f"{safe(load.arm)}: {safe(host_finding(finding))}" for load in loads for finding in load.findings]
    findings += [
        f"{safe(device.arm)}, device {device.device}: {safe(device_finding(finding))}"
        for device in devices
        for finding in device.findings
    ]
    if findings:
        parts += ["### Findings", bulleted(findings)]
    if problems:
        parts += ["### Not measured", bulleted(map(safe, dict.fromkeys(problems)))]
    return "\n\n".join(parts)


def _host_table(loads: Sequence[HostLoad]) -> str:
    def of(load: HostLoad, name: str, get: Callable[[RoleLoad], float | None]) -> str:
        return next((number_cell(get(role)) for role in load.roles if role.role == name), NOT_MEASURED)

    def total(load: HostLoad, get: Callable[[RoleLoad], float | None], unit: float = 1.0) -> str:
        roles = (role for role in load.roles if role.role in ("main", "loaders"))
        values = [value for role in roles if (value := get(role)) is not None]
        return number(sum(values) / unit) if values else NOT_MEASURED

    def loaders(load: HostLoad) -> str:
        processes = [f" ({role.processes})" for role in load.roles if role.role == "loaders"]
        return of(load, "loaders", lambda role: role.cores) + "".join(processes)

    def others(load: HostLoad) -> str:
        peak = "" if load.other_cores_max is None else f" ({number(load.other_cores_max)})"
        return number_cell(load.other_cores) + peak

    return column_table(loads, {
        "arm": lambda load: load.arm,
        "trainer cores": lambda load: of(load, "main", lambda role: role.cores),
        "loader cores": loaders,
        "cores of other processes (max)": others,
        "wait for a core, s per s: trainer / loaders":
            lambda load: " / ".join(of(load, name, lambda role: role.delay) for name in ("main", "loaders")),
        "resident GB": lambda load: total(load, lambda role: role.resident_bytes, 1e9),
        "PSS GB": lambda load: total(load, lambda role: role.pss_bytes, 1e9),
        "disk MB/s": lambda load: total(load, lambda role: role.disk_bytes_per_s, 1e6),
        "major faults /s": lambda load: total(load, lambda role: role.faults_per_s),
        "switches /s: voluntary / forced": lambda load:
            f"{total(load, lambda role: role.voluntary_per_s)} / {total(load, lambda role: role.involuntary_per_s)}",
    })  # fmt: skip


HOST_NOTE = (
    "During measured steps only. With several ranks, the columns show rank 0 and its workers. *cores of other "
    "processes*: processes on this machine that belong to no rank. *loader cores*: all workers (number of workers). "
    "*wait for a core*: time that threads were runnable without a core, summed over threads. *resident*, *PSS*: peak "
    "of main process and workers together; PSS counts a shared page once. *disk*: reads that missed the page cache."
)


def _limits(load: HostLoad) -> str:
    """Return the CPU quota and memory limit of the run's cgroup, and how near the run came; "" without a limit."""
    limits = []
    if load.quota_cores is not None:
        share = load.throttled_share
        throttled = "throttling not recorded"
        throttled = throttled if share is None else f"throttled in {percent(share)} of its periods"
        limits.append(f"a CPU quota of {number(load.quota_cores)} cores, {throttled}")
    if load.memory_limit_bytes is not None:
        used = "" if load.memory_bytes is None else f", at most {number(load.memory_bytes / 1e9)} GB in use"
        limits.append(f"{number(load.memory_limit_bytes / 1e9)} GB of memory{used}")
    return "; ".join(limits)


def _device_table(devices: Sequence[DeviceHealth]) -> str:
    def joules(value: float | None) -> str:
        return cell(value, "{:.3g}".format)  # A small model takes thousandths of a joule per token.

    def clock(one: DeviceHealth) -> str:
        recorded = one.sm_clock_mhz is not None and one.sm_clock_min_mhz is not None
        return f"{one.sm_clock_mhz:,.0f} ({one.sm_clock_min_mhz:,.0f})" if recorded else NOT_MEASURED

    return column_table(devices, {
        "arm": lambda device: device.arm,
        "device": lambda device: str(device.device),
        "in use": lambda device: percent_cell(device.utilisation),
        "SM / tensor / DRAM active":
            lambda device: " / ".join(map(percent_cell, (device.sm_active, device.tensor_active, device.dram_active))),
        "power W": lambda device: number_cell(device.power_w),
        "J / token": lambda device: joules(device.joules_per_token),
        "J / trained token": lambda device: joules(device.joules_per_trained_token),
        "SM clock MHz (min)": clock,
        "throttled": lambda device: cell(device.throttled, lambda shares: percent(max(shares.values(), default=0.0))),
        "°C (max)": lambda device: number_cell(device.temperature_max_c),
        "memory GB": lambda device:
            " of ".join(number_cell(size, 1e9) for size in (device.memory_used_bytes, device.memory_total_bytes)),
    })  # fmt: skip


DEVICE_NOTE = (
    "Means over the samples of measured steps. *in use*: at least one kernel ran, even if most SMs were idle. "
    "*throttled*: share of the samples with the most common throttle reason. Energy is the whole card's, by its own "
    "counter, which advances in steps of up to 0.1 s."
)


def _traffic_table(devices: Sequence[DeviceHealth]) -> str:
    ways = ("rx", "tx")
    links = [link for link in LINKS if any(f"{link}_{way}" in device.traffic for device in devices for way in ways)]
    rows = [
        [device.arm, str(device.device)]
        + [" / ".join(number_cell(device.traffic.get(f"{link}_{way}"), 1e9) for way in ways) for link in links]
        for device in devices
    ]
    return table(["arm", "device", *(f"{LINKS[link]} GB/s: to / from it" for link in links)], rows)


STEPS_TITLE = "Steps over time"


def steps_section(found: Sequence[StepTimes], names: ArmNames) -> str:
    """Return a table of the slowest outliers of all runs, with the number of outliers; "" if no step was measured."""
    if not found:
        return ""
    slow = [
        (times, index) for times in found for index, mark in enumerate(times.mark) if mark in ("outlier", "checkpoint")
    ]
    slow.sort(key=lambda entry: -entry[0].wall_ms[entry[1]] / entry[0].median_ms)
    listed = column_table(slow[:OUTLIERS_LISTED], {
        "arm": lambda entry: names.short(entry[0].arm),
        "block": lambda entry: str(entry[0].block),
        "repetition": lambda entry: str(entry[0].repetition[entry[1]]),
        "step": lambda entry: str(entry[0].step[entry[1]]),
        "ms": lambda entry: number(entry[0].wall_ms[entry[1]]),
        "times its run's median": lambda entry: ratio(entry[0].wall_ms[entry[1]] / entry[0].median_ms),
    })  # fmt: skip
    steps, drawn = sum(times.steps for times in found), sum(len(times.step) for times in found)
    note = (
        f"{sum(times.outliers for times in found):,} of {steps:,} measured steps are "
        f"outliers: more than {OUTLIER_QUARTILES:g} quartile ranges above the upper quartile of their run. "
        f"`summary.html` draws {'every step' if drawn >= steps else f'{drawn:,} of them'} over the time of the study."
    )
    return f"{listed}\n\n{note}" if slow else note


def marks(found: Sequence[StepTimes]) -> dict[str, tuple[str, str]]:
    """Return {mark: (beginning of a clause, meaning)} of the step chart; "evaluation" only if it occurs."""
    recorded = {mark for times in found for mark in times.mark}
    outliers = "outliers (those outside of all phases write a checkpoint)" if "checkpoint" in recorded else "outliers"
    shown = {"outlier": ("rings are", outliers)}
    return shown | ({"evaluation": ("discs are", "steps with an evaluation")} if "evaluation" in recorded else {})


def at_once(found: Sequence[StepTimes]) -> bool:
    """Return True if all arms' first runs (at least two) overlapped: the step chart then draws lines."""
    firsts = {times.arm: times for times in reversed(found)}.values()
    return len(firsts) > 1 and max(times.start_s[0] for times in firsts) < min(times.start_s[-1] for times in firsts)


HISTORY_TITLE = "The whole run"


def history_section(history: History | None, names: ArmNames) -> str:
    """Return Markdown on all minutes of a long run: step times over time, and the longest steps; "" for None."""
    if history is None:
        return ""
    parts = []
    for arm, minutes in history.minutes.items():
        if not minutes:
            continue
        if len(history.minutes) > 1:
            parts.append(f"### {safe(names.short(arm))}")
        if thinned := history.thinned.get(arm, 0):
            typical_s = median(minute.span_s for minute in minutes)
            parts.append(
                f"Of {len(minutes)} parts of the run, of about {duration(typical_s)} each, {len(minutes) - thinned} "
                "were kept step by step: the first, the last, and evenly spread ones. The other sections show "
                "these steps. This section includes every measured step. Median and "
                "p99 of a row are those of its typical part."
            )
        parts.append(column_table(spans(minutes), _SPAN_COLUMNS))
        if excesses := longest_steps(minutes, OUTLIERS_LISTED):
            left_out = sum(minute.long_steps_left_out for minute in minutes)
            parts.append("Longest steps, and where most of the additional time went:")
            parts.append(column_table(excesses, _EXCESS_COLUMNS))
            if left_out:
                parts.append(f"{left_out} shorter long steps were not kept: too many in one part of the run.")
    return joined(*parts)


def _time(utc_s: float) -> str:
    return datetime.fromtimestamp(utc_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _part(span: Span) -> str:
    name = max(span.parts_ms, key=lambda part: span.parts_ms[part], default=None)
    return "" if name is None else f"{name} {number(span.parts_ms[name])}"


_SPAN_COLUMNS: Mapping[str, Callable[[Span], str]] = {
    "from (UTC)": lambda span: _time(span.start_utc_s),
    "steps": lambda span: f"{span.steps:,}",
    "mean step, ms": lambda span: number(span.mean_ms),
    "median": lambda span: number(span.p50_ms),
    "p99": lambda span: number(span.p99_ms),
    "longest": lambda span: number(span.max_ms),
    "largest part, ms": _part,
    "without a core, ms": lambda span: number(span.waiting_ms),
    "tokens/s": lambda span: number_cell(span.tokens_per_s),
    "memory, MB": lambda span: cell(span.memory_bytes, lambda value: f"{value / 1e6:,.0f}"),
}
_EXCESS_COLUMNS: Mapping[str, Callable[[Excess], str]] = {
    "at (UTC)": lambda excess: _time(excess.step.start_utc_s),
    "step": lambda excess: f"{excess.step.step:,}",
    "ms": lambda excess: number(excess.step.ms),
    "median step": lambda excess: number(excess.usual_ms),
    "most in": lambda excess: excess.part,
    "of it, ms": lambda excess: number(excess.part_ms),
}
