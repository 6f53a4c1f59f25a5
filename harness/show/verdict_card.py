"""Makes the verdict card of an attached program: what takes its step, in a diagnosis, one bar and a few findings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.explain.wall import AFTER_STEPS, START_UP, StepPart
from harness.judge.report_types import ArmReport, DiagnosisKind, StudyReport
from harness.show.lone_arms import cause_findings, group_lines, loader_texts
from harness.show.names import ArmNames
from harness.show.policy import BAR_PARTS_MAX, COMMAND_LONGEST, FINDINGS_SHOWN
from harness.show.text.findings import REMEDIES, TITLES, diagnosis_text, finding_text, part_label, trust_text
from harness.show.words import count, number, part_of

REST_OF_PARTS = "everything else"


@dataclass(frozen=True)
class BarPart:
    """One stretch of the bar."""

    label: str
    ms: str
    share: float


@dataclass(frozen=True)
class VerdictCard:
    """The first screen of one program."""

    kind: DiagnosisKind
    title: str  # the command, its steps, and the time of a step by the clock
    diagnosis: str  # in capitals
    cost: str  # of it, with the saving and the remedy
    bar: tuple[BarPart, ...]  # the whole step, the largest part first
    findings: tuple[str, ...]
    trust: str


def verdict_card(report: StudyReport, names: ArmNames) -> VerdictCard | None:
    """Return the card of the program that the study is of; None if it is compared or controlled, or not attached.

    Of several ranks it is that of the one whose step takes longest.
    """
    arms = [arm for arm in report.arms if not arm.control and arm.diagnoses and arm.wall is not None]
    if report.comparisons or any(arm.control for arm in report.arms) or not arms:
        return None
    arm = max(arms, key=lambda one: one.wall.step_ms.median if one.wall is not None else 0.0)
    assert arm.wall is not None
    step_ms = arm.wall.step_ms.median
    first, *others = arm.diagnoses
    name = f"{TITLES[first.kind]} ({first.name})" if first.kind == "input-bound" else TITLES[first.kind]
    findings = [
        *(line.text for line in group_lines(arms, report.group, names)),  # of ranks: who waits for whom
        *loader_texts(arm, names.short(arm.name)),
        *(finding_text(one, step_ms) for one in others if one.kind != "unknown"),
        *cause_findings(arm),
    ]
    return VerdictCard(
        kind=first.kind,
        title=_title(report, arm, names, several=len(arms) > 1),
        diagnosis=name,
        cost=f"{diagnosis_text(first, step_ms)} {REMEDIES[first.remedy]}",
        bar=_bar(arm.wall.parts, step_ms),
        findings=tuple(findings[:FINDINGS_SHOWN]),
        trust=trust_text(arm),
    )


def _title(report: StudyReport, arm: ArmReport, names: ArmNames, *, several: bool) -> str:
    assert arm.wall is not None
    command = report.study.command
    program = command[command.index("--") + 1 :] if "--" in command else command
    text = shlex.join(Path(path).name if path.startswith("/") else path for path in program) or names.short(arm.name)
    if len(text) > COMMAND_LONGEST:
        text = f"...{text[3 - COMMAND_LONGEST :]}"
    rank = f", {names.short(arm.name)}" if several else ""
    step_ms = arm.wall.step_ms.median
    whole = {part.name: part.ms for part in arm.wall.program}
    ends = [f"{name} {number(whole[name] / 1e3)} s" for name in (START_UP, AFTER_STEPS) if name in whole]
    around = f"; {', '.join(ends)}" if ends else ""
    return f"{text}{rank}: {count(arm.wall.steps, 'step')}, {part_of(step_ms)(step_ms)} a step by the clock{around}"


def _bar(parts: Sequence[StepPart], step_ms: float) -> tuple[BarPart, ...]:
    shown = parts if len(parts) <= BAR_PARTS_MAX else parts[: BAR_PARTS_MAX - 1]
    part = part_of(step_ms)
    found = [BarPart(part_label(one), part(one.ms.median), one.share) for one in shown]
    if left := parts[len(shown) :]:
        rest_ms = sum(one.ms.median for one in left)
        found.append(BarPart(REST_OF_PARTS, part(rest_ms), rest_ms / step_ms))
    return tuple(found)
