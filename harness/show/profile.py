"""Writes the section "Operators" of summary.md: what torch.profiler recorded of the profiled steps."""

from __future__ import annotations

from collections.abc import Sequence

from harness.explain.probes.memory_timeline import MemoryTimeline
from harness.explain.probes.operators import KernelUse, Operator, RoleOperators
from harness.explain.probes.torch_profile import CutProfile, LostProfile, TorchProfile
from harness.show.tables import code, number_cell, safe, short, table
from harness.show.words import count, ms, number, percent

PICTURE = "memory.png"
MOST_OPERATORS, MOST_OF_A_WORKER, MOST_KERNELS = 15, 8, 10
MOST_WORKERS = 4


def section(profiles: Sequence[TorchProfile], pictures: Sequence[str]) -> str:
    """Everything that was profiled, arm by arm; empty where nothing was. ``pictures``: those that were written."""
    if not profiles:
        return ""
    parts = [NOTE]
    for profile in profiles:
        parts += _arm(profile)
    if any(profile.memory for profile in profiles):
        parts.append("### Memory")
        if PICTURE in pictures:
            parts.append(f"![Allocated memory over the profiled steps](plots/{PICTURE})")
        parts.append(_memory_table(profiles))
        parts.append(MEMORY_NOTE)
    return "\n\n".join(parts)


NOTE = (
    "Recorded by torch.profiler, in steps of which none is measured: it slows what it records. *self* is an "
    "operator's time without that of the operators inside it, on the host; *device* that of the kernels that it "
    "launched itself, whenever they ran. A *mark* has no work of its own: its self time is Python between operators. "
    "*share* is self time over the time of the profiled steps (in a worker: from its first recorded event to its "
    "last); threads add up."
)


def _arm(profile: TorchProfile) -> list[str]:
    parts = [f"### {safe(profile.arm)}: operators"]
    parts += [f"- {safe(line)}" for line in (*profile.problems, *map(gap_line, profile.gaps))]
    roles = profile.operators.roles
    workers = [role for role in roles if role.role != "main"]
    for role in (*[role for role in roles if role.role == "main"], *workers[:MOST_WORKERS]):
        parts.append(_title(profile, role))
        parts.append(_operator_table(profile, role))
    if len(workers) > MOST_WORKERS:
        parts.append(f"{count(len(workers) - MOST_WORKERS, 'more worker')} recorded: see the run's folder.")
    if profile.operators.kernels:
        parts.append(_kernel_table(profile))
    return parts


def gap_line(gap: CutProfile | LostProfile) -> str:
    """What is missing from a profiled run, in one line."""
    if isinstance(gap, CutProfile):
        return f"a profile of {count(gap.steps, 'step')} is not whole, or of no window: left out"
    return f"steps {gap.first} to {gap.last} were profiled, but no whole profile of them is here"


def _title(profile: TorchProfile, role: RoleOperators) -> str:
    if role.role != "main":
        return f"**{safe(role.role)}**, {ms(role.span_ms)} recorded:"
    if not profile.steps:
        return f"**main**, {ms(role.span_ms)} recorded:"
    steps = ", ".join(f"{first} to {last}" if last > first else f"{first}" for _, _, first, last in profile.windows)
    return f"**main**, steps {steps}, {ms(role.span_ms / profile.steps)} a step under the profiler:"


def _operator_table(profile: TorchProfile, role: RoleOperators) -> str:
    """Times per profiled step in the main process, over everything recorded in a worker."""
    main = role.role == "main" and profile.steps > 0
    each = profile.steps if main else 1
    per = "a step" if main else "in all"
    device, flops = main and profile.operators.device_ms is not None, main and bool(profile.flops)
    header = [f"{role.role}: operator", "kind", f"calls {per}", f"self ms {per}", "share", f"total ms {per}"]
    header += [f"device ms {per}"] * device + [f"GFLOP {per}"] * flops
    shown = _top(role.operators, device)[: MOST_OPERATORS if role.role == "main" else MOST_OF_A_WORKER]
    rows = []
    for one in shown:
        row = [code(short(one.name)), one.kind, number(one.calls / each), number(one.self_ms / each)]
        row += [percent(one.self_ms / role.span_ms) if role.span_ms else "0 %", number(one.total_ms / each)]
        row += [number_cell(None if one.device_ms is None else one.device_ms / each)] * device
        known = profile.flops.get(one.name)
        row += [number_cell(None if known is None else known / each / 1e9)] * flops
        rows.append(row)
    shown_ms = sum(one.self_ms for one in shown)
    left_out = len(role.operators) - len(shown)
    if left_out:
        rest_ms = sum(one.self_ms for one in role.operators) - shown_ms
        share = percent(rest_ms / role.span_ms) if role.span_ms else "0 %"
        row = [f"{left_out} others", "", "", number(rest_ms / each), share, ""]
        rows.append(row + [""] * (len(header) - len(row)))
    return table(header, rows)


def _top(operators: Sequence[Operator], device: bool) -> list[Operator]:
    """By self time on the host and on the device together: what is long on either is worth a look."""
    return sorted(operators, key=lambda one: -max(one.self_ms, (one.device_ms or 0.0) if device else 0.0))


def _kernel_table(profile: TorchProfile) -> str:
    each = max(profile.steps, 1)
    per = "a step" if profile.steps else "in all"
    whole = profile.operators.device_ms or 0.0

    def row(kernel: KernelUse) -> list[str]:
        share = percent(kernel.total_ms / whole) if whole else "0 %"
        by = code(short(kernel.launched_by)) if kernel.launched_by else "unknown"
        return [code(short(kernel.name)), number(kernel.calls / each), number(kernel.total_ms / each), share, by]

    header = ["kernel on the device", f"runs {per}", f"ms {per}", "share of device time", "mostly launched by"]
    return table(header, [row(kernel) for kernel in profile.operators.kernels[:MOST_KERNELS]])


def _memory_table(profiles: Sequence[TorchProfile]) -> str:
    header = ["arm", "process", "memory of", "peak MiB", "in step", "during", "from MiB", "to MiB"]
    rows = [
        [
            profile.arm,
            one.role,
            one.device,
            _mib(one.peak_bytes),
            "–" if one.peak_step is None else str(one.peak_step),
            one.peak_phase or "–",
            _mib(int(one.allocated_bytes[0])),
            _mib(int(one.allocated_bytes[-1])),
        ]
        for profile in profiles
        for one in _shown(profile.memory)
    ]
    return table(header, rows)


def _shown(memory: Sequence[MemoryTimeline]) -> list[MemoryTimeline]:
    workers = [one for one in memory if one.role != "main"]
    return [*(one for one in memory if one.role == "main"), *workers[:MOST_WORKERS]]


MEMORY_NOTE = (
    "What torch's allocators had handed out, after each allocation and release. On a CPU: since the window began, "
    "as the profiler knows nothing of what was allocated before it."
)


def _mib(size: int) -> str:
    return number(size / 2**20)
