"""summary.md: the verdicts first, then the numbers behind them, for a person in a hurry."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.comparisons import Comparison
from harness.analysis.probes.probe_cost import is_probe_control
from harness.analysis.report_types import ArmReport, StudyReport
from harness.report import guide, machine, probe_cost, profile, stacks, why
from harness.report.evidence import NONE, ProbeResults
from harness.report.tables import NOT_MEASURED, estimate_cell, number_cell, ratio_cell, safe, stages_cell, table
from harness.report.words import number, percent
from harness.study.store import STAGES

PICTURES = {
    "isolated-vs-end-to-end.png": "What isolation promises, what waiting allows, what training got",
    "comparisons.png": "Every comparison with its interval and the noise floor",
    "ledger.png": "Where each step's time goes",
}


def summary(
    report: StudyReport, pictures: Sequence[str], found: ProbeResults = NONE, timeline_cut: Sequence[str] = ()
) -> str:
    """The whole page; ``pictures`` are the file names that exist under plots/.

    ``found``: what the probes recorded; ``timeline_cut``: what the timeline leaves out, a sentence each.
    """
    study = report.study
    parts = [f"# {study.scenario}", f"**Question:** {' '.join(study.question.split())}" if study.question else ""]
    parts.append(why.emulation(report))
    parts.append(_problems(report.problems))
    parts.append(_verdicts(report.comparisons))
    parts += [_picture(name, pictures) for name in ("isolated-vs-end-to-end.png", "comparisons.png")]
    parts.append(why.section(report, pictures))
    parts.append(_comparison_table([c for c in report.comparisons if c.measured is not None]))
    plain = [arm for arm in report.arms if not arm.control]
    parts.append(_arm_table(plain))
    parts.append(_picture("ledger.png", pictures))
    parts.append(_control_table([arm for arm in report.arms if arm.control and not is_probe_control(arm.control)]))
    parts.append(machine.section(found.loads, found.devices))
    parts.append(profile.section(found.profiles, pictures))
    parts.append(stacks.section(found.stacks, found.files))
    parts.append(probe_cost.section(report.probe_costs, [*report.probe_problems, *found.problems, *timeline_cut]))
    parts += [guide.HOW_TO_READ, guide.reproduction(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _problems(problems: Sequence[str]) -> str:
    return "\n".join(f"> **{safe(problem)}.**  " for problem in problems)


def _verdicts(comparisons: Sequence[Comparison]) -> str:
    if not comparisons:
        return "## Verdict\n\nThe scenario compares nothing."
    lines = ["## Verdict"]
    differences: dict[str, list[str]] = {}
    for c in comparisons:
        for confound in c.confounds:
            differences.setdefault(confound, []).append(f"{c.candidate} against {c.baseline}")
    if differences:
        lines.append("What differs although no arm declared it:")
        lines.append("\n".join(f"- **{safe(what)}** ({'; '.join(pairs)})" for what, pairs in differences.items()))
    lines.append("\n".join(_bullet(c) for c in comparisons))
    return "\n\n".join(lines)


def _bullet(c: Comparison) -> str:
    """The sentence as a list item, with its finding (what comes before the evidence in parentheses) in bold."""
    finding, parenthesis, evidence = safe(c.sentence).partition(" (")
    return f"- **{finding}**{parenthesis}{evidence}"


def _comparison_table(comparisons: Sequence[Comparison]) -> str:
    if not comparisons:
        return ""
    header = [
        "candidate / baseline", "isolated", "ceiling", "ideal data", "predicted", "measured", "step time",
        "noise floor",
    ]  # fmt: skip
    rows = [
        [
            f"{c.candidate} / {c.baseline}",
            *(ratio_cell(one) for one in (c.isolated, c.ceiling, c.ideal, c.predicted, c.measured, c.step_time)),
            NOT_MEASURED if c.noise_floor is None else percent(c.noise_floor),
        ]
        for c in comparisons
    ]
    measures = " or ".join(dict.fromkeys(c.measure for c in comparisons))
    note = (
        f"How many times as fast, median [95 % interval]. *measured* counts {measures}; *step time*, *ceiling* and "
        "*ideal data* concern the time of a step; *isolated* is the data path alone; *predicted* is what replaying "
        "the baseline's steps with the candidate's data path gives for *measured*."
    )
    return f"## Comparisons in numbers\n\n{table(header, rows)}\n\n{note}"


def _arm_table(arms: Sequence[ArmReport]) -> str:
    header = [
        "arm", "tokens/s", "trained tokens/s", "step p50, p95 (ms)", f"exposed ms: {' / '.join(STAGES)}",
        f"hidden ms: {' / '.join(STAGES[:3])}", "contended ms", "model GFLOP/s", "MFU", "loss",
    ]  # fmt: skip
    rows = [
        [
            arm.name,
            estimate_cell(arm.tokens_per_s),
            estimate_cell(arm.trained_tokens_per_s),
            ", ".join(number_cell(value) for value in (arm.p50_ms, arm.p95_ms)),
            stages_cell(arm.exposed_ms, STAGES),
            stages_cell(arm.hidden_ms, STAGES[:3]),
            number_cell(arm.contended_ms),
            NOT_MEASURED if arm.model_flops_per_s is None else number(arm.model_flops_per_s / 1e9),
            NOT_MEASURED if arm.mfu is None else percent(arm.mfu),
            NOT_MEASURED if arm.loss is None else f"{arm.loss:.3f}",
        ]
        for arm in arms
    ]
    blocks = sorted({arm.blocks for arm in arms})
    reasons = dict.fromkeys(arm.mfu_reason for arm in arms if arm.mfu is None and arm.mfu_reason)
    note = (
        f"Medians over {' or '.join(map(str, blocks))} blocks [95 % interval]; milliseconds are means per step; the "
        f"loss is that of the last measured steps; {NOT_MEASURED} is not measured."
    )
    peaks = dict.fromkeys(arm.mfu_of for arm in arms if arm.mfu is not None)
    if peaks:
        note += f" MFU is the share of: {'; '.join(peaks)}."
    if reasons:
        note += f" MFU is not given: {'; '.join(reasons)}."
    return f"## Arms\n\n{table(header, rows)}\n\n{note}"


def _control_table(controls: Sequence[ArmReport]) -> str:
    if not controls:
        return ""
    header = ["control", "of", "step p50, p95 (ms)", "tokens/s", "times as fast as its arm", "contended ms"]
    rows = [
        [
            arm.control or "",
            arm.of or "",
            ", ".join(number_cell(value) for value in (arm.p50_ms, arm.p95_ms)),
            estimate_cell(arm.tokens_per_s),
            ratio_cell(arm.against_arm),
            number_cell(arm.contended_ms),
        ]
        for arm in controls
    ]
    note = (
        "*a-a*: the arm against itself, so how far its interval reaches from 1 is the noise floor. *ideal-data*: no "
        "data cost. *data-only*: no compute."
    )
    return f"## Controls\n\n{table(header, rows)}\n\n{note}"


def _picture(name: str, pictures: Sequence[str]) -> str:
    return f"![{PICTURES[name]}](plots/{name})" if name in pictures else ""
