"""summary.md: the verdicts first, then the numbers behind them, for a person in a hurry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.analysis.comparisons import Comparison
from harness.analysis.statistics import Estimate
from harness.analysis.study import ArmReport, StudyReport
from harness.analysis.wording import number, percent, ratio
from harness.report import guide
from harness.results import STAGES

PICTURES = {
    "isolated-vs-end-to-end.png": "What isolation promises, what waiting allows, what training got",
    "comparisons.png": "Every comparison with its interval and the noise floor",
    "ledger.png": "Where each step's time goes",
}
NOT_MEASURED = "–"


def summary(report: StudyReport, pictures: Sequence[str]) -> str:
    """The whole page; ``pictures`` are the file names that exist under plots/."""
    study = report.study
    parts = [f"# {study.scenario}", f"**Question:** {' '.join(study.question.split())}" if study.question else ""]
    if report.emulated:
        parts.append("**Emulated:** device times come from a device profile, not from a device.")
    parts.append(_problems(report.problems))
    parts.append(_verdicts(report.comparisons))
    parts += [_picture(name, pictures) for name in ("isolated-vs-end-to-end.png", "comparisons.png")]
    parts.append(_comparison_table([c for c in report.comparisons if c.measured is not None]))
    plain = [arm for arm in report.arms if not arm.control]
    parts.append(_arm_table(plain))
    parts.append(_picture("ledger.png", pictures))
    parts.append(_control_table([arm for arm in report.arms if arm.control]))
    parts += [guide.HOW_TO_READ, guide.reproduction(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _problems(problems: Sequence[str]) -> str:
    return "\n".join(f"> **{_safe(problem)}.**  " for problem in problems)


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
        lines.append("\n".join(f"- **{_safe(what)}** ({'; '.join(pairs)})" for what, pairs in differences.items()))
    lines.append("\n".join(_bullet(c) for c in comparisons))
    return "\n\n".join(lines)


def _bullet(c: Comparison) -> str:
    """The sentence as a list item, with its finding (what comes before the evidence in parentheses) in bold."""
    finding, parenthesis, evidence = _safe(c.sentence).partition(" (")
    return f"- **{finding}**{parenthesis}{evidence}"


def _comparison_table(comparisons: Sequence[Comparison]) -> str:
    if not comparisons:
        return ""
    header = ["candidate / baseline", "isolated", "ceiling", "ideal data", "measured", "step time", "noise floor"]
    rows = [
        [
            f"{c.candidate} / {c.baseline}",
            *(_ratio(one) for one in (c.isolated, c.ceiling, c.ideal, c.measured, c.step_time)),
            NOT_MEASURED if c.noise_floor is None else percent(c.noise_floor),
        ]
        for c in comparisons
    ]
    measures = " or ".join(dict.fromkeys(c.measure for c in comparisons))
    note = (
        f"How many times as fast, median [95 % interval]. *measured* counts {measures}; *step time*, *ceiling* and "
        "*ideal data* concern the time of a step; *isolated* is the data path alone. The prediction by replay is not "
        "part of this version."
    )
    return f"## Comparisons in numbers\n\n{_table(header, rows)}\n\n{note}"


def _arm_table(arms: Sequence[ArmReport]) -> str:
    header = [
        "arm", "tokens/s", "trained tokens/s", "step p50, p95 (ms)", f"exposed ms: {' / '.join(STAGES)}",
        f"hidden ms: {' / '.join(STAGES[:3])}", "contended ms", "model GFLOP/s", "MFU", "loss",
    ]  # fmt: skip
    rows = [
        [
            arm.name,
            _estimate(arm.tokens_per_s),
            _estimate(arm.trained_tokens_per_s),
            ", ".join(_number(value) for value in (arm.p50_ms, arm.p95_ms)),
            _stages(arm.exposed_ms, STAGES),
            _stages(arm.hidden_ms, STAGES[:3]),
            _number(arm.contended_ms),
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
    if reasons:
        note += f" MFU is not given: {'; '.join(reasons)}."
    return f"## Arms\n\n{_table(header, rows)}\n\n{note}"


def _control_table(controls: Sequence[ArmReport]) -> str:
    if not controls:
        return ""
    header = ["control", "of", "step p50, p95 (ms)", "tokens/s", "times as fast as its arm", "contended ms"]
    rows = [
        [
            arm.control or "",
            arm.of or "",
            ", ".join(_number(value) for value in (arm.p50_ms, arm.p95_ms)),
            _estimate(arm.tokens_per_s),
            _ratio(arm.against_arm),
            _number(arm.contended_ms),
        ]
        for arm in controls
    ]
    note = (
        "*a-a*: the arm against itself, so how far its interval reaches from 1 is the noise floor. *ideal-data*: no "
        "data cost. *data-only*: no compute."
    )
    return f"## Controls\n\n{_table(header, rows)}\n\n{note}"


def _picture(name: str, pictures: Sequence[str]) -> str:
    return f"![{PICTURES[name]}](plots/{name})" if name in pictures else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _estimate(estimate: Estimate | None) -> str:
    """``65,300 [64,100 to 66,200]``."""
    if estimate is None:
        return NOT_MEASURED
    if estimate.ci_low is None or estimate.ci_high is None:
        return f"{number(estimate.median)} [no interval]"
    return f"{number(estimate.median)} [{number(estimate.ci_low)} to {number(estimate.ci_high)}]"


def _ratio(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOT_MEASURED
    if estimate.ci_low is None or estimate.ci_high is None:
        return f"{ratio(estimate.median)} [no interval]"
    return f"{ratio(estimate.median)} [{ratio(estimate.ci_low)} to {ratio(estimate.ci_high)}]"


def _stages(values: dict[str, float], stages: Sequence[str]) -> str:
    if not values:
        return NOT_MEASURED
    return " / ".join(_number(values.get(stage)) for stage in stages)


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else number(value)


def _safe(text: str) -> str:
    """Free text as markdown that cannot turn into markup."""
    return "".join(f"\\{letter}" if letter in "*_<|`" else letter for letter in text)
