"""Makes the shortest answer of a study, as JSON for a program: verdicts, findings with remedies, doubts, next steps."""

from __future__ import annotations

import json
from collections.abc import Sequence

from harness.explain.statistics import Estimate
from harness.judge.report_types import Comparison, Diagnosis, StudyReport
from harness.judge.study import study_doubts
from harness.show.first_screen import FirstScreen, card_arms
from harness.show.lone_arms import cause_findings, loader_texts
from harness.show.policy import BRIEF_BYTES
from harness.show.tables import doubt_json
from harness.show.text.findings import diagnosis_remedy
from harness.show.text.verdicts import undecided_because
from trainer.json_types import Json, JsonObject

BRIEF_SCHEMA = 1
DIGITS = 4  # of a figure


def brief(report: StudyReport, screen: FirstScreen) -> JsonObject:
    """Return the results as JSON of less than BRIEF_BYTES. An estimate is a list: median, low and high end (95 %).

    ``also``: causes without figures, as text.
    """
    arms = [arm for arm in report.arms if not arm.control]
    _, diagnosed = card_arms(report) if screen.card is not None else ([], None)
    lists: dict[str, list[Json]] = {
        "comparisons": [_comparison(comparison) for comparison in report.compared],
        "findings": [] if diagnosed is None else [*map(_finding, diagnosed.diagnoses)],
        "also": [] if diagnosed is None else [*loader_texts(diagnosed, diagnosed.name), *cause_findings(diagnosed)],
        "doubts": [_doubt(doubt) for doubt in map(doubt_json, study_doubts(report)) if doubt["bars"]],
        "next": list(screen.next_steps.ranked),
    }
    head: JsonObject = {
        "schema": BRIEF_SCHEMA,
        "status": report.study.status,
        "step_ms": {arm.name: _figure(arm.totals.step_ms) for arm in arms[:8]},
        "diagnosis": None if screen.card is None else screen.card.kind,
    }
    return _fitted(head, lists)


def _fitted(head: JsonObject, lists: dict[str, list[Json]]) -> JsonObject:
    """Return one object of less than BRIEF_BYTES; ``left_out`` counts the entries dropped from the longest lists."""
    left_out = 0
    while True:
        content: JsonObject = {**head, **{name: list(entries) for name, entries in lists.items()}, "left_out": left_out}
        if len(json.dumps(content, separators=(",", ":")).encode()) < BRIEF_BYTES:
            return content
        longest = max(lists.values(), key=lambda entries: len(json.dumps(entries)))
        if not longest:
            return {**content, "step_ms": {}}
        longest.pop()
        left_out += 1


def _comparison(comparison: Comparison) -> JsonObject:
    measured = comparison.measured
    return {
        "candidate": comparison.candidate,
        "baseline": comparison.baseline,
        "verdict": measured.verdict,
        "ratio": _figure(measured.figure),
        "of": measured.measure,
        "undecided_because": undecided_because(measured),
    }


def _finding(diagnosis: Diagnosis) -> JsonObject:
    part = diagnosis.part
    return {
        "kind": diagnosis.kind,
        "at": part.name,
        "code": part.code or None,
        "ms": _figure(diagnosis.ms),
        "share": _rounded(diagnosis.share),
        "times_as_fast": _figure(diagnosis.saving),
        "at_most": diagnosis.at_most,
        "remedy": diagnosis_remedy(diagnosis.remedy, diagnosis.figures),
    }


def _doubt(doubt: JsonObject) -> JsonObject:
    remedy = doubt["remedy"]
    text = remedy["text"] if isinstance(remedy, dict) else None
    return {"kind": doubt["kind"], "bars": doubt["bars"], "remedy": text}


def _figure(estimate: Estimate | None) -> Sequence[float | None] | None:
    return (
        None if estimate is None else [_rounded(estimate.median), _rounded(estimate.ci_low), _rounded(estimate.ci_high)]
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
