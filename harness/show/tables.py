"""Formats records as cells and tables of Markdown, as aligned lines and as JSON; free text never becomes markup."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from harness.explain.policy import MIN_BLOCKS
from harness.explain.statistics import Estimate
from harness.judge.doubts import RULE_OF, Doubt
from harness.show.policy import FUNCTION_NAME_LONGEST
from harness.show.text.doubts import doubt_text, remedy_text
from harness.show.words import number, percent, times
from trainer.errors import one_line, visible
from trainer.json_types import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NOT_MEASURED = "–"


T = TypeVar("T")
_STRUCK = re.compile(r"(?<=\S)~|~(?=~)")  # A tilde that may strike text out, unlike that in ~60.
_UNDERLINED = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # an underscore outside of a word
_BAR = re.compile(r"(?<!\\)\|")  # a bar that would end the cell, in code as well
_LINK = re.compile(r"^!?\[|\][(\[:]")  # a link, a picture, or a link's target
# Begins a heading, a quotation, a list, a rule or a table at the start of a line.
_BLOCK = re.compile(r"#|>|[-+=:](?![0-9A-Za-z])|[0-9]+(?=[.)](?:\s|$))")


class Markdown(str):
    """Text that is already Markdown, such as ``**grew**``. Tables write it as it is and escape all other cells."""

    __slots__ = ()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Cells are escaped, except for those that are :class:`Markdown`."""
    lines = [_row(header), "| --- |" + " ---: |" * (len(header) - 1)]
    return "\n".join([*lines, *map(_row, rows)])


def column_table(items: Iterable[T], columns: Mapping[str, Callable[[T], str]]) -> str:
    """Return a Markdown table with a row per item. ``columns``: {header: function that returns the cell of an item}."""
    return table([*columns], [[show(item) for show in columns.values()] for item in items])


def cell(value: T | None, show: Callable[[T], str]) -> str:
    """Return the cell for ``value``: formatted by ``show``, or a dash for None."""
    return NOT_MEASURED if value is None else show(value)


def _row(cells: Sequence[str]) -> str:
    written = (cell if isinstance(cell, Markdown) else safe(cell) for cell in cells)
    return f"| {' | '.join(_BAR.sub(chr(92) + '|', cell) for cell in written)} |"


def estimate_cell(estimate: Estimate | None) -> str:
    """Format a median with its interval: ``65,300 [64,100–66,200]``; a dash for None."""
    return interval_cell(estimate, number)


def ratio_cell(estimate: Estimate | None) -> str:
    """Format a ratio with its interval: ``1.136x [1.062–1.170]``; a dash for None."""
    return interval_cell(estimate, times, "x")


def interval_cell(estimate: Estimate | None, show: Callable[[float], str], unit: str = "") -> str:
    """Format a median in ``unit`` with its interval, by ``show``: ``31.0 [30.2–32.0]``. A dash for None."""
    if estimate is None:
        return NOT_MEASURED
    # With fewer than MIN_BLOCKS blocks, equal bounds come from equal assumptions and show no scatter.
    is_point = estimate.n < MIN_BLOCKS and estimate.ci_low == estimate.ci_high
    if is_point or estimate.ci_low is None or estimate.ci_high is None:
        return f"{show(estimate.median)}{unit} [no interval]"
    return f"{show(estimate.median)}{unit} [{show(estimate.ci_low)}–{show(estimate.ci_high)}]"


def stages_cell(values: Mapping[str, float], stages: Sequence[str]) -> str:
    return " / ".join(number_cell(values.get(stage)) for stage in stages) if values else NOT_MEASURED


def bulleted(lines: Iterable[str]) -> str:
    """Return ``lines`` as a bulleted list in Markdown; "" without lines."""
    return "\n".join(f"- {line}" for line in lines)


def joined(*parts: str) -> str:
    """Join the non-empty parts by blank lines, as paragraphs of Markdown."""
    return "\n\n".join(part for part in parts if part)


def number_cell(value: float | None, scale: float = 1) -> str:
    """Format ``value / scale``, for example 2e9 with ``scale`` 1e9 as ``2.00``. A dash for None."""
    return NOT_MEASURED if value is None else number(value / scale)


def percent_cell(share: float | None) -> str:
    """Format a share (0 to 1) as ``12 %``; a dash for None."""
    return cell(share, percent)


def safe(text: str) -> Markdown:
    """Return free text as one line of Markdown that shows the text literally. Control characters become visible."""
    line = visible(one_line(text))
    special = "\\*<|`&" + "[]" * bool(_LINK.search(line)) + "$" * (line.count("$") > 1)
    escaped = "".join(f"\\{letter}" if letter in special else letter for letter in line)
    escaped = _UNDERLINED.sub(r"\\_", _STRUCK.sub(r"\\~", escaped))
    if (block := _BLOCK.match(line)) is None:
        return Markdown(escaped)
    digit_end = block.end() if line[0].isdigit() else 0
    return Markdown(f"{escaped[:digit_end]}\\{escaped[digit_end:]}")


def code(text: str) -> Markdown:
    """Return free text as Markdown's inline code on one line, backticks as apostrophes."""
    return Markdown(f"`{visible(one_line(text)).replace('`', chr(39)) or ' '}`")


def fenced(text: str) -> Markdown:
    """Return free text as a code block of Markdown. Its fence is longer than any run of backticks in the text."""
    lines = [visible(line) for line in text.split("\n")]
    fence = "`" * max(3, *(1 + len(run) for line in lines for run in re.findall("`+", line)), 3)
    return Markdown("\n".join([fence, *lines, fence]))


def short(name: str) -> str:
    """Cut a function's name to :data:`FUNCTION_NAME_LONGEST` characters. Kernels are named by long C++ signatures."""
    name = visible(one_line(name.replace("`", "'")))
    return name if len(name) <= FUNCTION_NAME_LONGEST else f"{name[: FUNCTION_NAME_LONGEST - 1]}…"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines of equal columns: the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *others = widths
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]


def estimate_json(estimate: Estimate | None) -> dict[str, Json] | None:
    return None if estimate is None else record_json(estimate)


def record_json(record: DataclassInstance) -> dict[str, Json]:
    """Return a dataclass as a JSON object by field name. NaN and infinity become null."""
    return {name: plain_json(value) for name, value in asdict(record).items()}


def plain_json(one: Any) -> Json:
    """Return a value as JSON data: dataclasses and mappings as objects, NaN and infinity as null."""
    if is_dataclass(one) and not isinstance(one, type):
        return record_json(one)
    if isinstance(one, Mapping):
        return {str(key): plain_json(value) for key, value in one.items()}
    if isinstance(one, list | tuple):
        return [plain_json(value) for value in one]
    plain: Json = finite(one) if isinstance(one, float) else one
    return plain


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def doubt_json(one: Doubt) -> dict[str, Json]:
    """Return a doubt as a JSON object: text, what it bars, size with unit, and remedy."""
    rule, remedy = RULE_OF[one.kind], one.remedy
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
        if remedy is None
        else {"kind": remedy.kind, "text": remedy_text(remedy), "blocks": remedy.blocks, "steps": remedy.steps},
    }
