"""Write the result of a regression check (sentences by harness.regress.text): Markdown page, JSON and JUnit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any
from xml.etree import ElementTree

from harness.regress import text as sentences
from harness.regress.decision import TOTAL, Decision, Outcome, StateComparison
from harness.regress.policy import REGRESSION_SENTENCES_MAX
from harness.show.tables import Markdown, safe, table
from harness.show.text.doubts import confound_lines
from harness.show.words import floor_percent, ms, number, percent
from harness.study.store import StudyFolder, write_json
from trainer.files import write_bytes, write_text
from trainer.json_types import JsonObject

MARKDOWN, JSON, JUNIT = "regression.md", "regression.json", "regression.xml"
# Matches characters that XML 1.0 forbids, such as terminal colours.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORST_FIRST: tuple[Outcome, ...] = ("slower", "undecided", "faster", "same")
_JUNIT = {"slower": "failure", "undecided": "skipped", "error": "error"}
_GATE = {"slower": "grew", "faster": "shrank"}
REGRESSION_SCHEMA = 1


def write(
    folder: StudyFolder, comparisons: Sequence[StateComparison], notes: Sequence[str] = (), *, alternated: bool = True
) -> str:
    """Write page, JSON and JUnit, and return the page. ``alternated``: False for two studies of different times."""
    page = markdown(comparisons, notes, alternated=alternated)
    write_text(folder.path / MARKDOWN, page)
    write_json(folder.path / JSON, as_json(comparisons, notes))
    write_bytes(folder.path / JUNIT, junit(comparisons))
    return page


def overall(comparisons: Sequence[StateComparison]) -> Outcome:
    """Return the worst verdict: slower, then undecided, faster, same. Undecided without a comparison."""
    return min((c.verdict for c in comparisons), key=_WORST_FIRST.index, default="undecided")


def as_json(comparisons: Sequence[StateComparison], notes: Sequence[str] = ()) -> JsonObject:
    """Return verdict, notes, and all fields of each comparison (``contests``, schema 1), with verdict and sentence."""
    entries = [
        {**_plain(comparison), "verdict": comparison.verdict, "sentence": sentences.sentence(comparison)}
        for comparison in comparisons
    ]
    return {"schema": REGRESSION_SCHEMA, "verdict": overall(comparisons), "contests": entries, "notes": list(notes)}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    content = {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Decision):
        content["reason"], content["remedy"] = sentences.reason(value), sentences.remedy(value)
    if isinstance(value, StateComparison):
        text = None if value.missing is None else sentences.missing(value)
        for key, confound in (("other_work", value.other_work), ("used_lead", value.used_lead)):
            content[key] = None if confound is None else confound_lines([confound])[0]
        content |= {"confounds": sentences.differing(value), "missing": text}
        content |= {"confound_records": [asdict(entry) for entry in value.confounds]}
        content |= {"cause": value.cause, "remedy": sentences.cause_text(value).remedy}
        content["step"] |= {} if text is None else {"reason": text}
    return content


def markdown(comparisons: Sequence[StateComparison], notes: Sequence[str] = (), *, alternated: bool = True) -> str:
    """Return the page. ``alternated``: False if the sides are two studies of different times."""
    parts = [f"### {sentences.headline(overall(comparisons), len(comparisons))}"]
    worst_first = sorted(comparisons, key=lambda comparison: _WORST_FIRST.index(comparison.verdict))
    parts.append(
        "\n".join(
            f"- **{safe(sentences.sentence(comparison))}**" for comparison in worst_first[:REGRESSION_SENTENCES_MAX]
        )
    )
    parts += [f"> {safe(note)}." for note in notes]
    # Each sentence gives the reason and the remedy.
    if comparisons and all(c.missing is not None for c in comparisons):
        return "\n\n".join(parts) + "\n"
    rows = [row for c in comparisons for row in _rows(c)]
    parts.append(table(["", "baseline", "candidate", "change [interval]", "noise floor", "decision"], rows))
    if lines := [line for c in comparisons for line in sentences.inside(c)]:
        parts.append("\n".join(f"- {safe(line)}" for line in lines))
    if lines := [*dict.fromkeys(line for c in comparisons for line in sentences.differing(c))]:
        parts.append("Also different:\n\n" + "\n".join(f"- {safe(line)}" for line in lines))
    if alternated:
        parts.append(sentences.footnote([*comparisons]))
    elif not all(comparison.same_study for comparison in comparisons):
        parts.append(sentences.APART)
    return "\n\n".join(part for part in parts if part) + "\n"


def junit(comparisons: Sequence[StateComparison]) -> bytes:
    """Return JUnit XML, a case per comparison: slower is a failure, not compared an error, undecided skipped."""
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
            ElementTree.SubElement(case, _JUNIT[verdict], message=_NO_XML.sub("?", sentences.sentence(c)))
        text = "\n".join([sentences.sentence(c), *sentences.inside(c)])
        ElementTree.SubElement(case, "system-out").text = _NO_XML.sub("?", text)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _rows(c: StateComparison) -> list[list[str]]:
    if c.missing is not None:
        return [[c.name, "–", "–", "–", "–", Markdown(f"**undecided**: {safe(sentences.missing(c))}")]]
    assert c.baseline_ms is not None
    assert c.candidate_ms is not None

    def row(name: str, amounts: Iterable[str], decision: Decision, outcome: str) -> list[str]:
        return [f"{c.name}: {name}", *amounts, sentences.change(decision), _floor_cell(decision), outcome]

    outcome = sentences.SAME_STUDY if c.same_study else _cell(c.step)
    rows = [row("step", (ms(c.baseline_ms), ms(c.candidate_ms)), c.step, outcome)]
    if c.total is not None and (c.rare or TOTAL in c.open):
        rows.append(row(TOTAL, ("–", "–"), c.total, _cell(c.total)))
    for gate in c.gates:
        amounts = (f"{number(value)} {gate.unit}" for value in (gate.baseline, gate.candidate))
        rows.append(row(gate.name, amounts, gate.decision, _cell(gate.decision, gate=True)))
    return rows


def _cell(decision: Decision, gate: bool = False) -> str:
    outcome = decision.outcome
    if outcome == "same":
        return f"same within {percent(decision.within)}"
    if outcome == "undecided":
        return Markdown(f"**undecided**: {safe(sentences.reason(decision))}")
    return Markdown(f"**{_GATE[outcome] if gate else outcome}**")


def _floor_cell(decision: Decision) -> str:
    return "–" if decision.floor is None else floor_percent(decision.floor)
