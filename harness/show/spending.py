"""Formats time and cost of folders: a line for each, and the sums."""

from __future__ import annotations

from collections.abc import Sequence

from harness.launch.spending import Expense
from harness.show.cost import dollars, hours
from harness.show.tables import NOT_MEASURED
from harness.show.terminal import aligned
from harness.show.words import count
from trainer.json_types import Json


def spending_lines(found: Sequence[Expense]) -> list[str]:
    """Return a table of all folders, with sums by kind if there are several folders of it, and of all folders."""
    rows = [["folder", "kind", "hours", "USD"]]
    rows += [[str(one.folder), one.kind, hours(one.seconds), _usd([one])] for one in found]
    kinds = list(dict.fromkeys(one.kind for one in found))
    for kind in kinds if len(kinds) > 1 else ():
        own = [one for one in found if one.kind == kind]
        rows.append(["sum", count(len(own), kind), hours(sum(one.seconds for one in own)), _usd(own)])
    rows.append(["sum", "all", hours(sum(one.seconds for one in found)), _usd(found)])
    lines = aligned(rows)
    unpriced = [one for one in found if one.usd is None]
    if unpriced:
        without = f"{count(len(unpriced), 'folder')} of {len(found)} without a price"
        lines.append(f"{without}: the sums of money leave them out; give --price USD to price all")
    return lines


def spending_json(found: Sequence[Expense]) -> dict[str, Json]:
    """Return the JSON output of ``harness spent --json``."""
    priced = [one.usd for one in found if one.usd is not None]
    return {
        "expenses": [
            {"folder": str(one.folder), "kind": one.kind, "seconds": one.seconds, "usd": one.usd} for one in found
        ],
        "seconds": sum(one.seconds for one in found),
        "usd": sum(priced) if priced else None,
        "without_price": len(found) - len(priced),
    }


def _usd(found: Sequence[Expense]) -> str:
    priced = [one.usd for one in found if one.usd is not None]
    return dollars(sum(priced)) if priced else NOT_MEASURED
