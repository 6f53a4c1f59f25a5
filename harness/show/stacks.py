"""Writes the section "Stacks" of summary.md: in which functions each phase and stage spent its time, by py-spy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from harness.explain.probes.stacks import MAIN, OUTSIDE, Place, Share, StackReport
from harness.show.tables import Markdown, code, safe, short, table
from harness.show.words import count, ms, percent

LEAST_SHARE = 0.01  # of a thread's samples: smaller places are left out
FUNCTIONS = 3  # of each place
FILES = {
    "stacks.svg": "Flame graph of what ran",
    "stacks.speedscope.json": "every thread over time, for speedscope.app",
}
LINKED = "/@=,+:"  # in paths, besides letters and digits: harmless in a link
FRAMES = 4  # of a stack, from the innermost


def section(reports: Mapping[str, StackReport], files: Mapping[str, Sequence[str]]) -> str:
    """The section's markdown; "" where nothing was sampled.

    ``reports`` by the arm that was sampled; ``files``: those that its run left, as paths relative to the report.
    """
    parts = [_arm(name, report, files.get(name, ())) for name, report in reports.items() if report.places]
    return "\n\n".join([*parts, NOTE]) if parts else ""


def _arm(name: str, report: StackReport, files: Sequence[str]) -> str:
    parts = [f"### {safe(name)}"]
    links = [
        f"[{what}]({quote(path, LINKED)})"
        for name, what in FILES.items()
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
    for place in _shown(report):
        for line, function in enumerate(place.functions[:FUNCTIONS]):
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
    for place in _shown(report):
        frames = place.stacks[0].name.split(";")
        shown = " → ".join(code(_frame(frame)) for frame in frames[-FRAMES:])
        where = f"{place.threads}: {_named(place)}{', rough' * place.rough}"
        rows.append([where, Markdown(f"{'… → ' * (len(frames) > FRAMES)}{shown}"), _share(place.stacks[0])])
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


def _shown(report: StackReport) -> list[Place]:
    return [place for place in report.places if place.whole.share >= LEAST_SHARE]


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
    return "phase" if threads == MAIN else "stage"


def _share(share: Share) -> str:
    return f"{percent(share.share)} [{percent(share.low)} to {percent(share.high)}]"


NOTE = (
    "py-spy's samples of the profiled run, whose steps are not measured, each put into the phase or stage of its own "
    "thread that the ledger has at that moment. Threads that wait are sampled too. Intervals are for independent "
    "samples; neighbouring ones are not quite. What was met in the ledger's own recorder counts for its caller, as "
    "py-spy meets its system calls out of proportion to their cost. C, C++ and Rust functions show as the Python "
    "function that called them, unless `native: true`; those without a name count for their caller. *rough*: more than "
    "a third of the samples are so close to a boundary that they may belong beyond it, by the doubt of py-spy's clock."
)
