"""Writes the sections "Operators" and "Stacks" of summary.md: what torch.profiler and py-spy recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

from harness.explain.probes.samples import OUTSIDE, Place, Share, StackReport
from harness.explain.probes.torch_profile import (
    CutProfile,
    LostProfile,
    Operator,
    ProfiledOperators,
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
from harness.show.tables import (
    NOT_MEASURED,
    Markdown,
    aligned,
    cell,
    code,
    column_table,
    joined,
    number_cell,
    safe,
    short,
    table,
)
from harness.show.words import count, ms, number, percent

PICTURE = "memory.png"


def operators_section(profiles: Sequence[TorchProfile], pictures: Sequence[str]) -> str:
    """Return Markdown on operators, kernels and memory of torch.profiler; "" without profiles."""
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
    "Recorded by torch.profiler, in steps that are not measured: it slows what it records. *self* is an "
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
    """Return a line on profiled steps without a usable profile: it is cut short, or it is missing."""
    if isinstance(gap, CutProfile):
        return f"a profile of {count(gap.steps, 'step')} is incomplete or outside of a window: ignored"
    return f"steps {gap.first} to {gap.last} were profiled, but their complete profile is missing"


def _title(profile: TorchProfile, role: RoleOperators) -> str:
    if role.role != "main" or not profile.steps:
        return f"**{safe(role.role)}**, {ms(role.span_ms)} recorded:"
    steps = ", ".join(f"{first} to {last}" if last > first else f"{first}" for _, _, first, last in profile.windows)
    return f"**main**, steps {steps}, {ms(role.span_ms / profile.steps)} a step under the profiler:"


def _operator_table(profile: TorchProfile, role: RoleOperators) -> str:
    """Return a table of the most expensive operators of one process, ``role``: ms per profiled step for the main
    process, ms in total for a loader worker.
    """
    main = role.role == "main" and profile.steps > 0
    steps, per = (profile.steps, "a step") if main else (1, "in all")
    device = main and profile.operators.device_ms is not None

    def share(value: float) -> str:
        return percent(value / role.span_ms) if role.span_ms else "0 %"

    calls, self_ms, *device_ms = _time_columns(steps, per, device).items()
    columns: dict[str, Callable[[Operator], str]] = {
        f"{role.role}: operator": lambda operator: code(short(operator.name)),
        "kind": lambda operator: operator.kind,
        **dict((calls, self_ms)),
        "share": lambda operator: share(operator.self_ms),
        f"total ms {per}": lambda operator: number(operator.total_ms / steps),
        **dict(device_ms),
    }
    if main and profile.flops:
        columns[f"GFLOP {per}"] = lambda operator: number_cell(profile.flops.get(operator.name), steps * 1e9)
    shown = _top(role.operators, device)[: OPERATORS_LISTED if role.role == "main" else WORKER_OPERATORS_LISTED]
    rows = [[show(operator) for show in columns.values()] for operator in shown]
    if left_out := len(role.operators) - len(shown):
        rest_ms = sum(operator.self_ms for operator in role.operators) - sum(operator.self_ms for operator in shown)
        row = [f"{left_out} others", "", "", number(rest_ms / steps), share(rest_ms)]
        rows.append(row + [""] * (len(columns) - len(row)))
    return table([*columns], rows)


def operator_lines(found: ProfiledOperators, steps: int) -> list[str]:
    """Return the most expensive operators of the main process as the lines of a table. ``steps``: number profiled."""
    if not found.roles:
        return []
    device = found.device_ms is not None
    names: dict[str, Callable[[Operator], str]] = {"operator": lambda operator: short(operator.name)}
    columns = names | _time_columns(steps, "a step", device)
    shown = _top(found.roles[0].operators, device)[:OPERATORS_LISTED]
    return aligned([[*columns], *([show(operator) for show in columns.values()] for operator in shown)])


def _time_columns(steps: int, per: str, device: bool) -> dict[str, Callable[[Operator], str]]:
    """Return columns of an operator's calls, self time and, with ``device``, device time, each over ``steps``."""
    columns: dict[str, Callable[[Operator], str]] = {
        f"calls {per}": lambda operator: number(operator.calls / steps),
        f"self ms {per}": lambda operator: number(operator.self_ms / steps),
    }
    return columns | ({f"device ms {per}": lambda operator: number_cell(operator.device_ms, steps)} if device else {})


def _top(operators: Sequence[Operator], device: bool) -> list[Operator]:
    """Return all operators by self time on the host; with ``device`` by the larger of that and device time."""
    return sorted(
        operators, key=lambda operator: -max(operator.self_ms, (operator.device_ms or 0.0) if device else 0.0)
    )


def _kernel_table(profile: TorchProfile) -> str:
    steps, per = (profile.steps, "a step") if profile.steps else (1, "in all")
    device_ms = profile.operators.device_ms
    return column_table(profile.operators.kernels[:KERNELS_LISTED], {
        "kernel on the device": lambda kernel: code(short(kernel.name)),
        f"runs {per}": lambda kernel: number(kernel.calls / steps),
        f"ms {per}": lambda kernel: number(kernel.total_ms / steps),
        "share of device time": lambda kernel: percent(kernel.total_ms / device_ms) if device_ms else "0 %",
        "mostly launched by": lambda kernel: code(short(kernel.launched_by)) if kernel.launched_by else "unknown",
    })  # fmt: skip


def _memory_table(profiles: Sequence[TorchProfile]) -> str:
    rows = []
    for profile in profiles:
        main = [timeline for timeline in profile.memory if timeline.role == "main"]
        workers = [timeline for timeline in profile.memory if timeline.role != "main"]
        rows += [(profile.arm, timeline) for timeline in (*main, *workers[:WORKERS_LISTED])]
    return column_table(rows, {
        "arm": lambda row: row[0],
        "process": lambda row: row[1].role,
        "memory of": lambda row: row[1].device,
        "peak MiB": lambda row: number(row[1].peak_bytes / 2**20),
        "in step": lambda row: cell(row[1].peak_step, str),
        "during": lambda row: row[1].peak_phase or NOT_MEASURED,
        "from MiB": lambda row: number(int(row[1].allocated_bytes[0]) / 2**20),
        "to MiB": lambda row: number(int(row[1].allocated_bytes[-1]) / 2**20),
    })  # fmt: skip


MEMORY_NOTE = (
    "Memory that torch's allocators had handed out, after each allocation and release. On a CPU: since the window "
    "began, because earlier allocations are not recorded."
)


STACK_FILES = {
    "stacks.svg": "Flame graph of what ran",
    "stacks.speedscope.json": "every thread over time, for speedscope.app",
}
LINKED = "/@=,+:"  # characters that need no quoting in a link, besides letters and digits


def stacks_section(reports: Mapping[str, StackReport], files: Mapping[str, Sequence[str]]) -> str:
    """Return Markdown on the functions that py-spy sampled; ``files``: paths to link, by arm. "" without samples."""
    parts = [_sampled_arm(name, report, files.get(name, ())) for name, report in reports.items() if report.places]
    return "\n\n".join([*parts, STACKS_NOTE]) if parts else ""


def _sampled_arm(name: str, report: StackReport, files: Sequence[str]) -> str:
    links = "; ".join(
        f"[{description}]({quote(path, LINKED)})"
        for name, description in STACK_FILES.items()
        for path in files
        if path.endswith(f"/{name}")
    )
    lines = [f"**{safe(line)}**" for line in tokenization_lines(report)]
    return joined(
        f"### {safe(name)}", f"{links}." if links else "", *lines, _functions(report), _deepest(report),
        safe(_quality(report)),
    )  # fmt: skip


def tokenization_lines(report: StackReport) -> list[str]:
    """Return a sentence for each group of threads (main, workers) in which tokenizing took the most samples."""
    return [_tokenizing(place) for place in report.tokenization]


def _tokenizing(place: Place) -> str:
    share_of_all, top = place.whole, place.python
    doubt = (
        f" A rough share: {place.near} of its {share_of_all.samples} samples may belong elsewhere."
        if place.rough
        else ""
    )
    share = f"{share_of_all.share:.0%} [{share_of_all.low:.0%} to {share_of_all.high:.0%}]"
    return (
        f"Tokenizing took the most samples of the {place.threads}: {share}, {top.share:.0%} of those in {top.name}."
        f"{doubt}"
    )


def _functions(report: StackReport) -> str:
    rows = []
    for place in _shown_places(report):
        first = [_where(place, report), f"{place.whole.samples:,}", _share(place.whole)]
        for function in place.functions[:PLACE_FUNCTIONS]:
            rows.append([*first, code(_frame(function.name)), _share(function), f"{function.samples:,}"])
            first = ["", "", ""]
    return table(["where", "samples", "share", "most samples in (self)", "its share there", "its samples"], rows)


def _deepest(report: StackReport) -> str:
    """Return a table of the most frequent stack of each place (phase or stage), with its innermost frames."""

    def stack(place: Place) -> Markdown:
        frames = place.stacks[0].name.split(";")
        shown = " → ".join(code(_frame(frame)) for frame in frames[-INNERMOST_FRAMES:])
        return Markdown(f"{'… → ' * (len(frames) > INNERMOST_FRAMES)}{shown}")

    return column_table(_shown_places(report), {
        "where": lambda place: f"{place.threads}: {_named(place)}{', rough' * place.rough}",
        "most frequent stack, innermost frame last": stack,
        "its share there": lambda place: _share(place.stacks[0]),
    })  # fmt: skip


def _quality(report: StackReport) -> str:
    clock = report.clock
    outside_phases = {place.threads: place.whole for place in report.places if place.name == OUTSIDE}
    parts = [
        f"{count(report.readings, 'reading')} of {report.expected_readings} asked for",
        *(
            f"{share.samples} samples ({percent(share.share)}) of the {threads} in no {_kind(threads)}"
            for threads, share in outside_phases.items()
        ),
        f"{clock.agreeing} of {clock.edges} edges of clock marks agree on the offset of py-spy's clock, 9 in 10 to "
        f"{ms(clock.doubt_ns / 1e6)}, which {count(report.near_edges, 'sample')} are closer to a boundary than",
    ]
    if report.lower_bound:
        parts.append("only threads holding Python's lock, where samples that change count for more")
    return "; ".join(parts) + "."


def _shown_places(report: StackReport) -> list[Place]:
    return [place for place in report.places if place.whole.share >= PLACE_SHARE_MIN]


def _where(place: Place, report: StackReport) -> str:
    text = f"{place.threads}: {_named(place)}"
    if not place.rough:
        return text
    doubt = ms(report.clock.doubt_ns / 1e6)
    return f"{text}, rough: {place.near} of {place.whole.samples} samples within the clock's {doubt} of a boundary"


def _frame(frame: str) -> str:
    """Shorten the function's name in ``function (file)``, because Rust's mangled names have hundreds of characters."""
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
    "samples. C, C++ and Rust functions show as the Python function that called them, unless `native: true`. *rough*: "
    "more than a third of the samples are so close to a boundary that they may belong beyond it, by the doubt of "
    "py-spy's clock."
)
