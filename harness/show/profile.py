"""Writes the sections "Operators" and "Stacks" of summary.md: what torch.profiler and py-spy recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from harness.explain.probes.samples import OUTSIDE, Place, Share, StackReport
from harness.explain.probes.torch_profile import (
    CutProfile,
    KernelUse,
    LostProfile,
    MemoryTimeline,
    Operator,
    RoleOperators,
    TorchProfile,
)
from harness.show.policy import (
    INNERMOST_FRAMES,
    KERNELS_LISTED,
    OPERATORS_LISTED,
    PLACE_FUNCTIONS,
    PLACE_SHARE_MIN,
    WORKER_OPERATORS_LISTED,
    WORKERS_LISTED,
)
from harness.show.tables import Markdown, code, number_cell, safe, short, table
from harness.show.words import count, ms, number, percent

PICTURE = "memory.png"


def operators_section(profiles: Sequence[TorchProfile], pictures: Sequence[str]) -> str:
    """Everything that was profiled, arm by arm; empty where nothing was. ``pictures``: those that were written."""
    if not profiles:
        return ""
    parts = [OPERATORS_NOTE]
    for profile in profiles:
        parts += _arm(profile)
    if any(profile.memory for profile in profiles):
        parts.append("### Memory")
        if PICTURE in pictures:
            parts.append(f"![Allocated memory over the profiled steps](plots/{PICTURE})")
        parts.append(_memory_table(profiles))
        parts.append(MEMORY_NOTE)
    return "\n\n".join(parts)


OPERATORS_NOTE = (
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
    for role in (*[role for role in roles if role.role == "main"], *workers[:WORKERS_LISTED]):
        parts.append(_title(profile, role))
        parts.append(_operator_table(profile, role))
    if len(workers) > WORKERS_LISTED:
        parts.append(f"{count(len(workers) - WORKERS_LISTED, 'more worker')} recorded: see the run's folder.")
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
    shown = _top(role.operators, device)[: OPERATORS_LISTED if role.role == "main" else WORKER_OPERATORS_LISTED]
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
    return table(header, [row(kernel) for kernel in profile.operators.kernels[:KERNELS_LISTED]])


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
    return [*(one for one in memory if one.role == "main"), *workers[:WORKERS_LISTED]]


MEMORY_NOTE = (
    "What torch's allocators had handed out, after each allocation and release. On a CPU: since the window began, "
    "as the profiler knows nothing of what was allocated before it."
)


def _mib(size: int) -> str:
    return number(size / 2**20)


STACK_FILES = {
    "stacks.svg": "Flame graph of what ran",
    "stacks.speedscope.json": "every thread over time, for speedscope.app",
}
LINKED = "/@=,+:"  # in paths, besides letters and digits: harmless in a link


def stacks_section(reports: Mapping[str, StackReport], files: Mapping[str, Sequence[str]]) -> str:
    """The section's markdown; "" where nothing was sampled.

    ``reports`` by the arm that was sampled; ``files``: those that its run left, as paths relative to the report.
    """
    parts = [_sampled_arm(name, report, files.get(name, ())) for name, report in reports.items() if report.places]
    return "\n\n".join([*parts, STACKS_NOTE]) if parts else ""


def _sampled_arm(name: str, report: StackReport, files: Sequence[str]) -> str:
    parts = [f"### {safe(name)}"]
    links = [
        f"[{what}]({quote(path, LINKED)})"
        for name, what in STACK_FILES.items()
        for path in files
        if path.endswith(f"/{name}")
    ]
    if links:
        parts.append(f"{'; '.join(links)}.")
    parts += [f"**{safe(line)}**" for line in tokenization_lines(report)]
    parts += [_functions(report), _deepest(report), safe(_quality(report))]
    return "\n\n".join(part for part in parts if part)


def tokenization_lines(report: StackReport) -> list[str]:
    """A sentence for the main thread and one for the workers, where tokenizing takes the most samples."""
    return [_tokenizing(place) for place in report.tokenization]


def _tokenizing(place: Place) -> str:
    whole, top = place.whole, place.python
    doubt = f" A rough share: {place.near} of its {whole.samples} samples may belong elsewhere." if place.rough else ""
    share = f"{whole.share:.0%} [{whole.low:.0%} to {whole.high:.0%}]"
    return (
        f"Tokenizing took the most samples of the {place.threads}: {share}, {top.share:.0%} of those in {top.name}."
        f"{doubt}"
    )


def _functions(report: StackReport) -> str:
    header = ["where", "samples", "share", "most samples in (self)", "its share there", "its samples"]
    rows = []
    for place in _shown_places(report):
        for line, function in enumerate(place.functions[:PLACE_FUNCTIONS]):
            first = [_where(place, report), f"{place.whole.samples:,}", _share(place.whole)]
            rows.append(
                [
                    *(first if line == 0 else ["", "", ""]),
                    code(_frame(function.name)),
                    _share(function),
                    f"{function.samples:,}",
                ]
            )
    return table(header, rows)


def _deepest(report: StackReport) -> str:
    """The most frequent whole stack of each place, its innermost frames."""
    header = ["where", "most frequent stack, innermost frame last", "its share there"]
    rows = []
    for place in _shown_places(report):
        frames = place.stacks[0].name.split(";")
        shown = " → ".join(code(_frame(frame)) for frame in frames[-INNERMOST_FRAMES:])
        where = f"{place.threads}: {_named(place)}{', rough' * place.rough}"
        rows.append([where, Markdown(f"{'… → ' * (len(frames) > INNERMOST_FRAMES)}{shown}"), _share(place.stacks[0])])
    return table(header, rows)


def _quality(report: StackReport) -> str:
    clock = report.clock
    outside = {place.threads: place.whole for place in report.places if place.name == OUTSIDE}
    parts = [
        f"{count(report.readings, 'reading')} of {report.expected_readings} asked for",
        *(
            f"{share.samples} samples ({percent(share.share)}) of the {threads} in no {_kind(threads)}"
            for threads, share in outside.items()
        ),
        f"{report.samples.get('other threads', 0)} samples of other threads left out",
        f"{clock.agreeing} of {clock.edges} edges of clock marks agree on the offset of py-spy's clock, 9 in 10 to "
        f"{ms(clock.doubt_ns / 1e6)}, which {count(report.near_edges, 'sample')} are closer to a boundary than",
        f"single samples come late besides, by up to a sampling period ({ms(report.period_ms)}), so that a share of a "
        "phase not much longer than that is a rough one",
    ]
    if report.lower_bound:
        parts.append("only threads holding Python's lock, where samples that change count for more")
    return "; ".join(parts) + "."


def _shown_places(report: StackReport) -> list[Place]:
    return [place for place in report.places if place.whole.share >= PLACE_SHARE_MIN]


def _where(place: Place, report: StackReport) -> str:
    where = f"{place.threads}: {_named(place)}"
    if not place.rough:
        return where
    doubt = ms(report.clock.doubt_ns / 1e6)
    return f"{where}, rough: {place.near} of {place.whole.samples} samples within the clock's {doubt} of a boundary"


def _frame(frame: str) -> str:
    """``function (file)`` with a function that fits: Rust's mangled names have hundreds of letters."""
    function, _, file = frame.rpartition(" (")
    return f"{short(function)} ({file}" if function else short(frame)


def _named(place: Place) -> str:
    return f"no {_kind(place.threads)}" if place.name == OUTSIDE else place.name


def _kind(threads: str) -> str:
    return "phase" if threads.startswith("main") else "stage"


def _share(share: Share) -> str:
    return f"{percent(share.share)} [{percent(share.low)} to {percent(share.high)}]"


STACKS_NOTE = (
    "py-spy's samples of the profiled run, whose steps are not measured, each put into the phase or stage of its own "
    "thread that the ledger has at that moment. Threads that wait are sampled too. Intervals are for independent "
    "samples; neighbouring ones are not quite. What was met in the ledger's own recorder counts for its caller, as "
    "py-spy meets its system calls out of proportion to their cost. C, C++ and Rust functions show as the Python "
    "function that called them, unless `native: true`; those without a name count for their caller. *rough*: more than "
    "a third of the samples are so close to a boundary that they may belong beyond it, by the doubt of py-spy's clock."
)
