"""Makes a sentence of each finding on what slowed the host or a device while steps were measured."""

from __future__ import annotations

from harness.judge.probes.device_health import DeviceFinding
from harness.judge.probes.host_load import HostFinding
from harness.show.words import number, percent

NAMES = {
    "main": "the trainer",
    "loaders": "the loader workers",
    "ranks": "the other ranks",
    "sampler": "the sampling process",
}  # by role


def host_finding(found: HostFinding) -> str:
    """One line without a full stop."""
    value, limit = found.value, found.limit or 0.0
    name = NAMES.get(found.role, found.role)
    without_core = f"threads of {name} were runnable without a core for {number(value)} s in every second"
    match found.kind:
        case "quota throttled":
            return (
                f"throttled by the cgroup's CPU quota of {number(limit)} cores in {percent(value)} of "
                "its periods: nothing ran until the next period"
            )
        case "threads over quota":
            return f"torch computes with {value:.0f} threads under a CPU quota of {number(limit)} cores"
        case "near the memory limit":
            return (
                f"{number(value / 1e9)} GB of a memory limit of {number(limit / 1e9)} GB were in use, "
                "page cache included: what is read may be dropped again at once"
            )
        case "waited for memory":
            return f"some process waited for memory {percent(value)} of the time"
        case "waited for the disk":
            return f"some process waited for the disk {percent(value)} of the time"
        case "waited for a core":
            return f"{without_core}: there were more runnable threads than cores"
        case "waited for the quota":
            return f"{without_core}, time held back by the quota included"
        case "read from disk":
            rate = number(value / 1e6)
            return f"{name} read {rate} MB/s from disk during measured steps: the page cache did not have it"
        case "page faults":
            return (
                f"{name} had {number(value)} major page faults a second during measured steps, each a wait for storage"
            )
        case "other processes":
            most = "" if found.limit is None else f" (at most {number(limit)})"
            return f"other processes used {number(value)} cores{most}"
        case "stolen cores":
            return f"the hypervisor kept {number(value)} cores for others"
        case "missed readings":
            return f"{value:.0f} of {limit:.0f} host readings were missed: the sampler did not get a core in time"


def device_finding(found: DeviceFinding) -> str:
    """One line without a full stop."""
    value, other = found.value, found.other
    match found.kind:
        case "clock fell":
            return f"SM clock fell from {value:,.0f} to {other:,.0f} MHz during the measured steps"
        case "slowed down":
            return f"slowed down by {found.reason} in {percent(value)} of the samples"
        case "other processes":
            memory = number(other / 1e9)
            return f"{value:.0f} other processes computed on it, holding {memory} GB of its memory"
        case "missed readings":
            return f"{value:.0f} of {other:.0f} readings were missed"
