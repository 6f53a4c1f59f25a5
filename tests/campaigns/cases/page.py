"""The page of the campaign: what slows trainings, and what exec and others say of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.campaigns.cases.ordinary import NEUTRAL

JUDGED = ("kind_is_right", "place_is_right", "size_is_right")
Rows = Mapping[str, Mapping[str, Any]]


def page(rows: Mapping[str, Rows]) -> str:
    """Return Markdown of all rows, by table."""
    return "\n".join([
        "# What slows trainings, and does the harness see it?",
        "",
        *_cases(rows.get("cases", {}), rows.get("others", {}).get("versions", "")),
        "## Ordinary trainings",
        "",
        *_ordinary(rows.get("ordinary", {})),
    ])  # fmt: skip


def _cases(rows: Rows, versions: Any) -> Iterator[str]:
    measured = [row for row in rows.values() if "failed" not in row]
    right = {key: sum(row[key] or False for row in measured) for key in JUDGED}
    sized = sum(row["size_is_right"] is not None for row in measured)
    yield (
        f"Of {len(rows)} trainings that are slow for one known reason, `harness exec` names the kind of cause in "
        f"{right['kind_is_right']}, its place, too, in {right['place_is_right']}. {sized} causes have a size: it is "
        f"within 20 % or 1 ms in {right['size_is_right']}. "
        f"It names the cause in {sum(row['false_of_fixed'] for row in measured)} without it."
    )
    yield from (
        "",
        "- Programs: [tests/campaigns/cases](../../../tests/campaigns/cases). Not run on a GPU.",
        "- Truth: both variants run by turns, alone. Medians; in brackets the least and the largest share of a step.",
        "- A size is a share of the step without its waits for a core, as the load of the machine changes both. What "
        "the same cause takes of the fixed program is subtracted. \"At least\" is a bound, and no size.",
        "- Remedy tried: by `harness exec --against` where it is one setting away, with the interval of 95 %. "
        "Elsewhere: the ratio of both variants in the truth.",
        f"- {versions or 'TraceML and gpuprof'}: the diagnosis of TraceML (steps marked, as its manual asks) and the "
        "insights of gpuprof that are not of rank LOW. On a CPU gpuprof makes up a GPU. \"Not run\": not installed.",
        "",
        "| case | source | slow, fixed: ms a step | cost: share of a step, true | found | diagnosis | place | right | "
        "remedy printed | remedy tried | fixed: diagnosis | TraceML | gpuprof |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    )  # fmt: skip
    for name, row in sorted(rows.items()):
        yield _failed(name, row, 13) if "failed" in row else _case(name, row)
    yield ""


def _case(name: str, row: Mapping[str, Any]) -> str:
    slow, fixed = row["slow"], row["fixed"]
    shares = [1 - quick / long for long, quick in zip(row["slow_ms"], row["fixed_ms"], strict=True)]
    long, quick = (statistics.median(row[key]) for key in ("slow_ms", "fixed_ms"))
    tried = f"truth: {long / quick:.2f}x"
    if row["remedy_ratio"]:
        tried = "{:.2f}x ({:.2f}x to {:.2f}x)".format(*row["remedy_ratio"])
    return _row([
        name,
        row["source"],
        f"{long:.1f}, {quick:.1f}",
        f"{_percent(statistics.median(shares))} ({_percent(min(shares))} to {_percent(max(shares))})",
        f"{'at least ' * slow.get('at_least', False)}{_percent(slow['share'])}, {slow['ms']:.1f} ms",
        slow["kind"],
        slow["place"],
        ", ".join("-" if row[key] is None else "yes" if row[key] else "no" for key in JUDGED),
        slow["remedy"],
        tried,
        f"{fixed['kind']}, {_percent(fixed['share'])}" + (" (false)" if row["false_of_fixed"] else ""),
        row["traceml"],
        row["gpuprof"],
    ])  # fmt: skip


def _ordinary(rows: Rows) -> Iterator[str]:
    found = [one for row in rows.values() for one in row.get("findings", ()) if one["kind"] not in NEUTRAL]
    yield (
        f"Causes of 5 % or more named in {len(rows)} trainings that nothing in particular slows: {len(found)}. "
        f"False by hand: {sum(not one['true'] for one in found)}. The time that the model takes, and waits for cores "
        "that other processes had, are no causes."
    )
    yield from ("", "| training | finding | place | share of a step | true? |", "| --- | --- | --- | ---: | --- |")
    for name, row in sorted(rows.items()):
        if "failed" in row:
            yield _failed(name, row, 5)
            continue
        if not row["findings"]:
            yield _row([name, "none", "", "", ""])
        for one in row["findings"]:
            yield _row([name, one["kind"], one["place"], _percent(one["share"]), one["true"] or "**false**"])
    yield ""


def _failed(name: str, row: Mapping[str, Any], columns: int) -> str:
    return _row([name, f"not measured: {row['failed']}", *[""] * (columns - 2)])


def _row(cells: Sequence[str]) -> str:
    kept = (" ".join(cell.replace("|", "\\|").replace("<", "&lt;").split()) for cell in cells)
    return f"| {' | '.join(kept)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
