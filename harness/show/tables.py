"""Formats records as cells and tables of Markdown, as aligned lines and as JSON; free text never becomes markup."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.explain.policy import MIN_BLOCKS
from harness.explain.statistics import Estimate
from harness.judge.doubts import RULE_OF, Doubt
from harness.show.policy import FUNCTION_NAME_LONGEST
from harness.show.text.doubts import doubt_text, remedy_text
from harness.show.words import number, times
from trainer.errors import one_line, visible
from trainer.json_types import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NOT_MEASURED = "–"
_STRUCK = re.compile(r"(?<=\S)~|~(?=~)")  # what may strike text out; not the one of ~60
_UNDERLINED = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # between letters or figures it is one of them
_BAR = re.compile(r"(?<!\\)\|")  # one that would end the cell, in code as well
_LINK = re.compile(r"^!?\[|\][(\[:]")  # a link, a picture, or what a link refers to
# What begins a heading, a quotation, a list, a rule or a table at the start of a line.
_BLOCK = re.compile(r"#|>|[-+=:](?![0-9A-Za-z])|[0-9]+(?=[.)](?:\s|$))")


class Markdown(str):
    """Markdown of our own making, such as ``**grew**``: a table shows it, where it escapes every other cell."""

    __slots__ = ()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are text, but for those that are :class:`Markdown`."""
    lines = [_row(header), "| --- |" + " ---: |" * (len(header) - 1)]
    return "\n".join([*lines, *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    written = (cell if isinstance(cell, Markdown) else safe(cell) for cell in cells)
    return f"| {' | '.join(_BAR.sub(chr(92) + '|', cell) for cell in written)} |"


def estimate_cell(estimate: Estimate | None) -> str:
    """``65,300 [64,100–66,200]``."""
    return _with_interval(estimate, number)


def ratio_cell(estimate: Estimate | None) -> str:
    """``1.136x [1.062–1.170]``."""
    return _with_interval(estimate, times, "x")


def _with_interval(estimate: Estimate | None, show: Callable[[float], str], unit: str = "") -> str:
    if estimate is None:
        return NOT_MEASURED
    # Below MIN_BLOCKS equal bounds come from assumptions that agree, and say nothing of chance.
    same = estimate.n < MIN_BLOCKS and estimate.ci_low == estimate.ci_high
    if same or estimate.ci_low is None or estimate.ci_high is None:
        return f"{show(estimate.median)}{unit} [no interval]"
    return f"{show(estimate.median)}{unit} [{show(estimate.ci_low)}–{show(estimate.ci_high)}]"


def stages_cell(values: Mapping[str, float], stages: Sequence[str]) -> str:
    if not values:
        return NOT_MEASURED
    return " / ".join(number_cell(values.get(stage)) for stage in stages)


def number_cell(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value)


def safe(text: str) -> Markdown:
    """Free text as one line of markdown that cannot turn into markup, nor steer a terminal."""
    line = visible(one_line(text))
    special = "\\*<|`&" + "[]" * bool(_LINK.search(line)) + "$" * (line.count("$") > 1)
    escaped = "".join(f"\\{letter}" if letter in special else letter for letter in line)
    escaped = _UNDERLINED.sub(r"\\_", _STRUCK.sub(r"\\~", escaped))
    if (block := _BLOCK.match(line)) is None:
        return Markdown(escaped)
    at = block.end() if line[0].isdigit() else 0
    return Markdown(f"{escaped[:at]}\\{escaped[at:]}")


def code(text: str) -> Markdown:
    """Free text as code on one line; a backtick within it, which would end it, becomes a quotation mark."""
    return Markdown(f"`{visible(one_line(text)).replace('`', chr(39)) or ' '}`")


def fenced(text: str) -> Markdown:
    """Free text of several lines as a block of code, which nothing within it ends."""
    lines = [visible(line) for line in text.split("\n")]
    fence = "`" * max(3, *(1 + len(run) for line in lines for run in re.findall("`+", line)), 3)
    return Markdown("\n".join([fence, *lines, fence]))


def short(name: str) -> str:
    """A function's name on one line of a table: those of kernels are C++ signatures, Rust's are mangled."""
    name = visible(one_line(name.replace("`", "'")))
    return name if len(name) <= FUNCTION_NAME_LONGEST else f"{name[: FUNCTION_NAME_LONGEST - 1]}…"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *others = widths
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]


def estimate_json(estimate: Estimate | None) -> dict[str, Json] | None:
    if estimate is None:
        return None
    return {
        "median": finite(estimate.median),
        "ci_low": finite(estimate.ci_low),
        "ci_high": finite(estimate.ci_high),
        "n": estimate.n,
    }


def record_json(record: DataclassInstance) -> dict[str, Json]:
    """A dataclass as plain data, field by field; a number that is not finite is null."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def _plain(one: Json) -> Json:
    if isinstance(one, Mapping):
        return {str(key): _plain(value) for key, value in one.items()}
    if isinstance(one, list | tuple):
        return [_plain(value) for value in one]
    return finite(one) if isinstance(one, float) else one


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def doubt_json(one: Doubt) -> dict[str, Json]:
    """A doubt with what it bars. ``unit``: of ``share``."""
    rule = RULE_OF[one.kind]
    return {
        "kind": one.kind,
        "text": doubt_text(one),
        "bars": rule.bars,
        "arms": list(one.arms),
        "share": finite(one.share),
        "unit": rule.unit or None,
        "where": one.where or None,
        "cores": None if one.cores is None else list(one.cores),
        "remedy": None
        if one.remedy is None
        else {
            "kind": one.remedy.kind,
            "text": remedy_text(one.remedy),
            "blocks": one.remedy.blocks,
            "steps": one.remedy.steps,
        },
    }
