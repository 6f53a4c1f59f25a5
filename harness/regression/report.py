"""What a regression check found: one page short enough for a pull request's comment, the same as JSON and as JUnit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from harness.regression.decision import Decision, Outcome
from harness.regression.gate import TOTAL, Gate, Part, StateComparison
from harness.report.tables import safe, table
from harness.report.words import count, listing, ms, number, percent
from harness.study.store import StudyFolder, write_bytes, write_json, write_text

MARKDOWN, JSON, JUNIT = "regression.md", "regression.json", "regression.xml"
# For what an XML 1.0 document may not hold, colours of a terminal among it.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
APART = (
    "Time per step of the typical round (above 0: longer), medians over blocks, not paired: 95 % intervals from the "
    "scatter of blocks within each study. Noise floor: how far the baseline's twin reached from 0, within its study."
)
_WORST_FIRST: tuple[Outcome, ...] = ("slower", "undecided", "faster", "same")
_JUNIT = {"slower": "failure", "undecided": "skipped", "error": "error"}
SCHEMA = 1


def write(
    folder: StudyFolder, comparisons: Sequence[StateComparison], notes: Sequence[str] = (), *, alternated: bool = True
) -> str:
    """Write all three into the study's folder; returns the page. ``alternated``: see :func:`markdown`."""
    page = markdown(comparisons, notes, alternated=alternated)
    write_text(folder.path / MARKDOWN, page)
    write_json(folder.path / JSON, as_json(comparisons, notes))
    write_bytes(folder.path / JUNIT, junit(comparisons))
    return page


def overall(comparisons: Sequence[StateComparison]) -> Outcome:
    """The worst of all: slower, then undecided, faster, same."""
    return min((c.verdict for c in comparisons), key=_WORST_FIRST.index, default="undecided")


def as_json(comparisons: Sequence[StateComparison], notes: Sequence[str] = ()) -> dict[str, Any]:
    found = [{**asdict(one), "verdict": one.verdict, "sentence": sentence(one)} for one in comparisons]
    return {"schema": SCHEMA, "verdict": overall(comparisons), "contests": found, "notes": list(notes)}


def sentence(c: StateComparison) -> str:
    """One contest in a sentence that stands for itself."""
    if c.missing is not None:
        return f"{c.name}: undecided, {c.missing}"
    step = c.step
    emulated = " (emulated device)" if c.emulated else ""
    assert c.baseline_ms is not None
    assert c.candidate_ms is not None
    text = (
        f"{c.name}{emulated}: {_outcome(step)}: {change(step)} per step, {ms(c.baseline_ms)} at "
        f"{c.baseline} and {ms(c.candidate_ms)} at {c.candidate} ({count(c.blocks, 'block')}, "
        f"{_floor(step)})"
    )
    for gate in c.gates:
        if gate.decision.outcome == "slower":
            text += f"; {gate.name} grew by {change(gate.decision)}"
    for name, decision in c.open.items():
        text += f"; undecided, as {name} looks worse than allowed: {change(decision)}"
    if c.rare and c.total is not None:
        text += f"; but {TOTAL} changed by {change(c.total)}: longer in fewer than half of the rounds"
    if c.other_work is not None:
        text += f"; undecided, as the two do different work: {c.other_work}"
    return text


def change(decision: Decision) -> str:
    """``+3.1 % [+2.2 %, +4.0 %]``."""
    return "no figure" if decision.change is None else _interval(decision.change.median, decision.change)


def markdown(comparisons: Sequence[StateComparison], notes: Sequence[str] = (), *, alternated: bool = True) -> str:
    """Verdict, one line a contest, what changed inside the step, and what else differed.

    ``alternated``: whether the sides took turns (else they are two studies of different times).
    """
    parts = [f"### Regression check: {overall(comparisons)}", *(f"> **{safe(note)}.**" for note in notes)]
    differences = dict.fromkeys(what for c in comparisons for what in c.confounds)
    if differences:
        lines = "\n".join(f"- **{safe(what)}**" for what in differences)
        parts.append(f"What differs besides the two sides:\n\n{lines}")
    rows = [row for c in comparisons for row in _rows(c)]
    parts.append(table(["", "baseline", "candidate", "change [interval]", "noise floor", "decision"], rows))
    said = [line for c in comparisons for line in _inside(c)]
    if said:
        parts.append("\n".join(f"- {safe(line)}" for line in said))
    parts.append(_footnote(comparisons) if alternated else APART)
    return "\n\n".join(parts) + "\n"


def junit(comparisons: Sequence[StateComparison]) -> bytes:
    """JUnit XML: one case a contest; slower is a failure, nothing to compare an error, undecided is skipped."""
    verdicts = ["error" if c.missing is not None else c.verdict for c in comparisons]
    suite = ElementTree.Element(
        "testsuite",
        name="harness regress",
        tests=str(len(comparisons)),
        failures=str(verdicts.count("slower")),
        errors=str(verdicts.count("error")),
        skipped=str(verdicts.count("undecided")),
    )
    for c, verdict in zip(comparisons, verdicts, strict=True):
        case = ElementTree.SubElement(suite, "testcase", classname="harness.regress", name=c.name)
        if verdict in _JUNIT:
            ElementTree.SubElement(case, _JUNIT[verdict], message=_NO_XML.sub("?", sentence(c)))
        told = "\n".join([sentence(c), *_inside(c)])
        ElementTree.SubElement(case, "system-out").text = _NO_XML.sub("?", told)
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.indent(whole)
    return bytes(ElementTree.tostring(whole, encoding="utf-8", xml_declaration=True)) + b"\n"


def append_step_summary(page: str, path: str | None) -> None:
    """Append ``page`` to the file at ``path`` (GITHUB_STEP_SUMMARY), if there is one."""
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(page)


def _rows(c: StateComparison) -> list[list[str]]:
    if c.missing is not None:
        return [[c.name, "–", "–", "–", "–", f"**undecided**: {safe(c.missing)}"]]
    assert c.baseline_ms is not None
    assert c.candidate_ms is not None
    times = ms(c.baseline_ms), ms(c.candidate_ms)
    rows = [
        [
            f"{c.name}: step",
            *times,
            change(c.step),
            _floor_cell(c.step),
            _cell(c.step),
        ]
    ]
    rows += [
        [f"{c.name}: {gate.name}", *_amounts(gate), change(gate.decision), _floor_cell(gate.decision),
         _cell(gate.decision, {"slower": "grew", "faster": "shrank"})]
        for gate in c.gates
    ]  # fmt: skip
    return rows


def _amounts(gate: Gate) -> tuple[str, str]:
    return f"{number(gate.baseline)} {gate.unit}", f"{number(gate.candidate)} {gate.unit}"


def _inside(c: StateComparison) -> list[str]:
    """Parts that changed, whether or not the step did; and rare long steps."""
    changed = [part for part in c.parts if part.decision.outcome in ("slower", "faster") or not part.decision.change]
    lines = [_part(c, part) for part in changed]
    if c.rare and c.total is not None:
        lines.append(
            f"{c.name}: slower in fewer than half of the rounds: {TOTAL} changed by "
            f"{change(c.total)}, the typical round by {change(c.step)}"
        )
    if TOTAL in c.open:
        lines.append(
            f"{c.name}: {TOTAL}, rare long steps among it, looks worse than allowed and is not "
            f"decided: {change(c.open[TOTAL])}"
        )
    if c.other_work is not None:
        lines.append(f"{c.name}: the two do different work ({c.other_work}): nothing is called the same")
    return lines


def _part(c: StateComparison, part: Part) -> str:
    if part.decision.change is None:  # nothing to divide by
        return f"{c.name}: {part.kind} {part.name}: from {ms(part.baseline_ms)} to {ms(part.candidate_ms)} per step"
    more = part.decision.change.median * part.baseline_ms  # paired, as the change is
    text = (
        f"{c.name}: {part.kind} {part.name} is {part.decision.outcome}: {change(part.decision)}, "
        f"{'+' if more > 0 else '-'}{ms(abs(more))} per step"
    )
    if part.kind == "stage" and c.step.outcome == "same":
        return f"{text}; {'hidden end to end' if part.hidden else 'too little for the step to feel'}"
    if c.step.outcome == "undecided":
        return f"{text}; whether the step feels it is undecided"
    return text if c.step.outcome == part.decision.outcome else f"{text}; the step is {c.step.outcome}"


def _cell(decision: Decision, words: Mapping[str, str] | None = None) -> str:
    """``words``: instead of slower and faster."""
    if decision.outcome == "undecided":
        more = f"; about {count(decision.more_blocks, 'block')} more would decide" if decision.more_blocks else ""
        return f"**undecided**: {decision.reason}{more}"
    word = (words or {}).get(decision.outcome, decision.outcome)
    return f"**{word}**" if decision.outcome != "same" else f"same within {percent(decision.within)}"


def _outcome(decision: Decision) -> str:
    if decision.outcome == "same":
        return f"same within {percent(decision.within)}"
    if decision.outcome == "undecided":
        more = f", about {count(decision.more_blocks, 'block')} more would decide" if decision.more_blocks else ""
        return f"undecided ({decision.reason}{more})"
    return "faster" if decision.outcome == "faster" else f"slower by more than the {percent(decision.within)} allowed"


def _floor(decision: Decision) -> str:
    return "no noise floor" if decision.floor is None else f"noise floor {percent(decision.floor)}"


def _floor_cell(decision: Decision) -> str:
    return "–" if decision.floor is None else percent(decision.floor)


def _interval(median: float, estimate: Any) -> str:
    if estimate.ci_low is None or estimate.ci_high is None:
        return f"{_signed(median)} [no interval]"
    return f"{_signed(median)} [{_signed(estimate.ci_low)}, {_signed(estimate.ci_high)}]"


def _signed(fraction: float) -> str:
    return f"{fraction * 100:+.{2 if abs(fraction) < 0.1 else 1}f} %"


def _footnote(comparisons: Sequence[StateComparison]) -> str:
    levels = dict.fromkeys(f"{one.step.confidence * 100:.2f} %" for one in comparisons if one.missing is None)
    blocks = dict.fromkeys(count(one.blocks, "block") for one in comparisons)
    if not levels:
        return "Nothing was measured on both sides."
    return (
        f"Time per step of the typical round (above 0: longer), paired round by round, {listing(list(blocks))} of "
        "fresh processes; the candidate's time is the baseline's and that change. Intervals are at "
        f"{listing(list(levels))}, which keeps all looks at one arm's step together at 95 %; every further arm, part "
        "and limit is a question of its own. Noise floor: how far the baseline's own twin reaches from 0."
    )
