"""Writes what a regression check found: a page for a pull request's comment, the same as JSON and as JUnit.

All sentences of the room are made here; gate, decision and across return numbers and kinds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from harness.explain.statistics import MIN_BLOCKS
from harness.judge.doubts import barred
from harness.regress.across import CommonMove
from harness.regress.decision import Decision, Outcome
from harness.regress.gate import TOTAL, Difference, Gate, Part, StateComparison
from harness.regress.thresholds import DAY_DEVIATION, FIRST_LOOK, MIN_SESSIONS
from harness.show.absent import refusal_text
from harness.show.tables import Markdown, safe, table
from harness.show.words import count, listing, ms, number, percent
from harness.study.store import StudyFolder, write_json
from trainer.files import write_bytes, write_text
from trainer.json_types import JsonObject

if TYPE_CHECKING:
    from harness.regress.baselines import Baseline
    from harness.regress.run import RegressionResult

MARKDOWN, JSON, JUNIT = "regression.md", "regression.json", "regression.xml"
# For what an XML 1.0 document may not hold, colours of a terminal among it.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
APART = (
    "Time per step of the typical round (above 0: longer), medians over blocks, not paired: 95 % intervals from the "
    "scatter of blocks within each study, and of days: as the sessions kept of a baseline show it or, where these are "
    f"fewer than {MIN_SESSIONS}, assumed to have a standard deviation of {percent(DAY_DEVIATION)}. Noise floor: how "
    "far the baseline's A/A control reached from 0, in its study."
)
SAME_STUDY = "the same study: nothing to compare"
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


def as_json(comparisons: Sequence[StateComparison], notes: Sequence[str] = ()) -> JsonObject:
    """The dataclasses field by field, and the words for every kind; ``contests``: schema 1's word for comparisons."""
    found = [{**_plain(one), "verdict": one.verdict, "sentence": sentence(one)} for one in comparisons]
    return {"schema": SCHEMA, "verdict": overall(comparisons), "contests": found, "notes": list(notes)}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not is_dataclass(value):
        return value
    content = {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Decision):
        del content["why"]
        content["reason"] = reason(value)
    if isinstance(value, StateComparison):
        del content["differences"]
        text = None if value.missing is None else missing(value)
        content |= {"confounds": _differing(value), "missing": text}
        content["step"] |= {} if text is None else {"reason": text}
    return content


def reason(decision: Decision) -> str:
    """Why a decision is undecided; empty where it is decided."""
    blocks = 0 if decision.change is None else decision.change.n
    return {
        None: "",
        "too few blocks": f"{blocks} of the {MIN_BLOCKS} blocks that an interval takes",
        "within the noise": "no larger than the noise floor: the baseline differs as much from its own A/A control",
        "both possible": "the interval still holds both what is allowed and what is not",
        "at the limit": "the change is about as large as what is allowed: hardly any number of blocks would decide",
        "scattered": "blocks scatter by far more than what is allowed: hardly any number of them would decide",
        "not compared": "nothing was compared",
        "day to day": _days(decision),
    }[decision.why]


def _days(decision: Decision) -> str:
    between = decision.between
    if between is None:
        return ""
    allowed = f"days alone may make {percent(between.allowance)}"
    if between.known:
        return f"{allowed}, by {count(between.sessions, 'session')} kept"
    return (
        f"{allowed}: assumed, as {count(between.sessions, 'session')} kept of this speed do not tell what days differ "
        f"by; {MIN_SESSIONS} would (harness baseline save, on other days)"
    )


def kept_note(kept: Baseline, within: float) -> str:
    """Say what a check against ``kept`` can decide, and how to have it decide more."""
    found = kept.limits_of_detection(within)
    same = "" if found.same else ", and calls no change the same"
    text = (
        f"{count(len(kept.sessions), 'session')} kept: a check on another day calls a step slower from "
        f"+{percent(found.slowdown)} (--within {percent(within)}){same}"
    )
    if found.known:
        return text
    return (
        f"{text}, as it assumes that days differ by {percent(DAY_DEVIATION)}. Save on {found.more_sessions} more "
        f"{'day' if found.more_sessions == 1 else 'days'}: the sessions then show what days really differ by"
    )


def missing(c: StateComparison) -> str:
    """Why nothing could be compared."""
    assert c.missing is not None
    kind, details, tokens = c.missing.kind, c.missing.details, c.missing.tokens
    if kind == "other tokens per step":
        assert tokens is not None
        return f"steps of {tokens[0]:,.0f} and of {tokens[1]:,.0f} tokens: their times cannot be compared"
    if kind == "code changed":
        return f"{' and '.join(details)}: changed while it was measured"
    if kind == "differences":
        return f"not comparable: {'; '.join(difference(one) for one in c.differences if one.forbids)}"
    return details[0] if details else "no block in which both sides finished"


def difference(one: Difference) -> str:
    """``environment.cores is 2 against 4``."""
    return f"{one.key} is {_shown(one.baseline, one.unit)} against {_shown(one.candidate, one.unit)}"


def _shown(value: Any, unit: str) -> str:
    if unit and value is None:
        return "unknown"
    if unit:
        return percent(value) if unit == "share" else f"{value:.{2 if unit == 'cores' else 0}f} {unit}"
    return value if isinstance(value, str) else repr(value)


def _differing(c: StateComparison) -> list[str]:
    """Everything else that differs between the two sides. :func:`missing` reports what forbids a comparison."""
    if c.missing is None:
        return [*c.confounds, *map(difference, c.differences)]
    return [*c.confounds, *(difference(one) for one in c.differences if not one.forbids)]


def common_move_note(move: CommonMove) -> str:
    """What it means that every arm moved alike."""
    return (
        f"all {move.arms} arms moved the same way ({move.least * 100:+.1f} % to {move.most * 100:+.1f} %): that is "
        "rather the machine, or something they all share, than any one of them"
    )


def blocks_note(result: RegressionResult, budget_s: float) -> str | None:
    """What to say where the budget ended a block, or was too short for a first look; None where neither is so."""
    blocks = max((comparison.blocks for comparison in result.comparisons), default=0)
    if result.cut is not None:
        kept = f"after {count(blocks, 'block')}" if blocks else "before one block had ended"
        return (
            f"the budget of {budget_s:.0f} s was spent {kept}, in the middle of the next: {result.cut}; "
            "allow more time, or end what hangs"
        )
    if result.status != "done" or blocks >= FIRST_LOOK or not blocks:
        return None
    return (
        f"the budget of {budget_s:.0f} s was spent after {blocks} of the {FIRST_LOOK} blocks that a first look takes "
        f"({result.spent_s / blocks:.0f} s each): allow at least {result.spent_s / blocks * FIRST_LOOK:.0f} s"
    )


def sentence(c: StateComparison) -> str:
    """One comparison in a sentence that stands for itself."""
    if c.missing is not None:
        return f"{c.name}: undecided, {missing(c)}"
    if c.same_study:
        return f"{c.name}: {SAME_STUDY}"
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
    if (doubt := barred(c.doubts, "loss")) is not None:
        text += f"; undecided, as {refusal_text(doubt)}"
    if c.other_work is not None:
        text += f"; undecided, as the two do different work: {c.other_work}"
    if c.used_lead is not None and c.verdict == "undecided":
        text += f"; undecided, as it may be that alone or hide as much: {c.used_lead}"
    return text


def change(decision: Decision) -> str:
    """``+3.1 % [+2.2 %, +4.0 %]``."""
    return "no figure" if decision.change is None else _interval(decision.change.median, decision.change)


def markdown(comparisons: Sequence[StateComparison], notes: Sequence[str] = (), *, alternated: bool = True) -> str:
    """Verdict, one line a comparison, what changed inside the step, and what else differed.

    ``alternated``: whether the sides alternated (else they are two studies of different times).
    """
    parts = [f"### Regression check: {overall(comparisons)}", *(f"> **{safe(note)}.**" for note in notes)]
    differences = dict.fromkeys(what for c in comparisons for what in _differing(c))
    if differences:
        lines = "\n".join(f"- **{safe(what)}**" for what in differences)
        parts.append(f"What differs besides the two sides:\n\n{lines}")
    rows = [row for c in comparisons for row in _rows(c)]
    parts.append(table(["", "baseline", "candidate", "change [interval]", "noise floor", "decision"], rows))
    inside = [line for c in comparisons for line in _inside(c)]
    if inside:
        parts.append("\n".join(f"- {safe(line)}" for line in inside))
    if alternated:
        parts.append(_footnote(comparisons))
    elif not all(one.same_study for one in comparisons):
        parts.append(APART)
    return "\n\n".join(parts) + "\n"


def junit(comparisons: Sequence[StateComparison]) -> bytes:
    """JUnit XML: one case a comparison; slower is a failure, nothing to compare an error, undecided is skipped."""
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
        text = "\n".join([sentence(c), *_inside(c)])
        ElementTree.SubElement(case, "system-out").text = _NO_XML.sub("?", text)
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.indent(whole)
    return bytes(ElementTree.tostring(whole, encoding="utf-8", xml_declaration=True)) + b"\n"


def _rows(c: StateComparison) -> list[list[str]]:
    if c.missing is not None:
        return [[c.name, "–", "–", "–", "–", Markdown(f"**undecided**: {safe(missing(c))}")]]
    assert c.baseline_ms is not None
    assert c.candidate_ms is not None
    times = ms(c.baseline_ms), ms(c.candidate_ms)
    rows = [
        [
            f"{c.name}: step",
            *times,
            change(c.step),
            _floor_cell(c.step),
            SAME_STUDY if c.same_study else _cell(c.step),
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
    if (doubt := barred(c.doubts, "loss")) is not None:
        lines.append(f"{c.name}: {refusal_text(doubt)}: nothing is decided")
    if c.other_work is not None:
        lines.append(f"{c.name}: the two do different work ({c.other_work}): nothing is called the same")
    if c.used_lead is not None:
        lines.append(f"{c.name}: {c.used_lead}: nothing is called the same or faster")
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


def _cell(decision: Decision, outcomes: Mapping[str, str] | None = None) -> str:
    """``outcomes``: instead of slower and faster."""
    if decision.outcome == "undecided":
        more = f"; about {count(decision.more_blocks, 'block')} more would decide" if decision.more_blocks else ""
        return Markdown(f"**undecided**: {safe(reason(decision))}{more}")
    word = (outcomes or {}).get(decision.outcome, decision.outcome)
    return Markdown(f"**{word}**") if decision.outcome != "same" else f"same within {percent(decision.within)}"


def _outcome(decision: Decision) -> str:
    if decision.outcome == "same":
        return f"same within {percent(decision.within)}"
    if decision.outcome == "undecided":
        more = f", about {count(decision.more_blocks, 'block')} more would decide" if decision.more_blocks else ""
        return f"undecided ({reason(decision)}{more})"
    return "faster" if decision.outcome == "faster" else f"slower by more than the {percent(decision.within)} allowed"


def _floor(decision: Decision) -> str:
    text = "no noise floor" if decision.floor is None else f"noise floor {percent(decision.floor)}"
    between = decision.between
    if between is None:
        return text
    return f"{text}, day to day {percent(between.allowance)} {'' if between.known else 'assumed'}".rstrip()


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
        "and limit is a question of its own. Noise floor: how far the baseline's A/A control reaches from 0."
    )
