"""Formats cells and tables of markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from harness.analysis.statistics import Estimate
from harness.report.words import number, ratio

NOT_MEASURED = "–"
LONGEST_NAME = 70


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def estimate_cell(estimate: Estimate | None) -> str:
    """``65,300 [64,100–66,200]``."""
    return _with_interval(estimate, number)


def ratio_cell(estimate: Estimate | None) -> str:
    """``1.136x [1.062–1.170]``."""
    return _with_interval(estimate, ratio)


def _with_interval(estimate: Estimate | None, show: Callable[[float], str]) -> str:
    if estimate is None:
        return NOT_MEASURED
    if estimate.ci_low is None or estimate.ci_high is None:
        return f"{show(estimate.median)} [no interval]"
    low, high = (show(bound).removesuffix("x") for bound in (estimate.ci_low, estimate.ci_high))
    return f"{show(estimate.median)} [{low}–{high}]"


def stages_cell(values: Mapping[str, float], stages: Sequence[str]) -> str:
    if not values:
        return NOT_MEASURED
    return " / ".join(number_cell(values.get(stage)) for stage in stages)


def number_cell(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value)


def safe(text: str) -> str:
    """Free text as markdown that cannot turn into markup."""
    return "".join(f"\\{letter}" if letter in "*_<|`" else letter for letter in text)


def short(name: str) -> str:
    """A function's name on one line of a table: those of kernels are C++ signatures, Rust's are mangled."""
    name = " ".join(name.replace("`", "'").split())
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
