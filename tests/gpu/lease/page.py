"""Writes the table of all jobs into results/reference/gpu/README.md, from their results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.gpu.lease.sheet import Figure, Result
from tests.gpu.lease.table import Job

BEGIN, END = "<!-- jobs: written by `python -m tests.gpu.lease --page` -->", "<!-- end of jobs -->"


def update(page: Path, jobs: Sequence[Job], results: Path) -> None:
    """Replace what stands between the two marks of ``page``."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page}: no line {BEGIN!r} with {END!r} after it")
    page.write_text(f"{before}{BEGIN}\n\n{render(jobs, results)}\n{END}{after}")


def render(jobs: Sequence[Job], results: Path) -> str:
    """Return the table of jobs, and a table of figures for each job that has any, as Markdown."""
    found = [(job, list(_results(job, results))) for job in jobs]
    lines = ["| job | question | card | date, commit | state | targets met |", "| --- | --- | --- | --- | --- | --- |"]
    for job, kept in found:
        cells = [_cells(one, folder) for one, folder in kept] or ["– | – | **not run** | –"]
        lines += [f"| `{job.name}` | {job.question} | {one} |" for one in cells]
    for _, kept in found:
        for result, folder in kept:
            lines += _figures(result, folder)
    return "\n".join(lines) + "\n"


def _results(job: Job, results: Path) -> Iterator[tuple[Result, str]]:
    """Each card's result, with the folder of the result beside the page."""
    for path in sorted(results.glob(f"*/{job.name}")):
        result = Result.read(path)
        if result is not None:
            yield result, f"{path.parent.name}/{path.name}"


def _cells(result: Result, folder: str) -> str:
    judged = [one.holds for one in result.figures if one.holds is not None]
    met = f"{sum(judged)} of {len(judged)}" if judged else "–"
    state = f"[{result.status}]({folder}) in {result.seconds:.0f} s"
    return f"{result.card} | {result.date}, {result.commit[:9]} | {state} | {met}"


def _figures(result: Result, folder: str) -> list[str]:
    heading = [
        "",
        f"### {result.job} on {result.card}",
        "",
        f"{result.status} in {result.seconds:.0f} s, {result.date}, commit {result.commit[:9]}, torch {result.torch}; "
        f"files: [{folder}]({folder}).",
    ]
    if result.problem:
        heading += ["", "It ended with:", "", "```", result.problem, "```"]
    if not result.figures:
        return heading
    return [*heading, "", "| figure | asked | seen | met |", "| --- | --- | --- | --- |", *map(_row, result.figures)]


def _row(figure: Figure) -> str:
    met = {True: "yes", False: "**no**", None: ""}[figure.holds]
    return f"| {_safe(figure.name)} | {_safe(figure.asked)} | {_safe(seen(figure))} | {met} |"


def seen(figure: Figure) -> str:
    """Return the measured value with its unit and interval."""
    if figure.seen is None:
        return "not measured"
    if isinstance(figure.seen, str):
        return figure.seen
    text = f"{number(figure.seen)} {figure.unit}".strip()
    if figure.low is None or figure.high is None:
        return text
    return f"{text} ({number(figure.low)} to {number(figure.high)})"


def number(value: float) -> str:
    """Format with three significant digits; whole numbers and thousands in full."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _safe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
