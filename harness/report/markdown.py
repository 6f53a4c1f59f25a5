"""Writes summary.md: the verdicts first, then the numbers behind them, then how to read and how to repeat them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from harness.analysis.probes.probe_cost import ProbeCost, is_probe_control
from harness.analysis.probes.results import NO_RESULTS, ProbeResults
from harness.analysis.report_types import ArmReport, Comparison, NotCompared, StudyReport
from harness.analysis.statistics import RESAMPLES, Estimate
from harness.report import causes, machine, profile, stacks, why
from harness.report.absent import mfu_reason, probe_problem_lines, problem_lines
from harness.report.confounds import confound_lines
from harness.report.recorded import NO_FILES, RecordedFiles
from harness.report.sentences import predicted_ratio, sentence
from harness.report.tables import NOT_MEASURED, estimate_cell, number_cell, ratio_cell, safe, stages_cell, table
from harness.report.words import number, percent, probes_named
from harness.study.contract import STAGES

PICTURES = {
    "isolated-vs-end-to-end.png": "What isolation promises, what waiting allows, what training got",
    "comparisons.png": "Every comparison with its interval and the noise floor",
    "ledger.png": "Where each step's time goes",
}


def summary(
    report: StudyReport,
    pictures: Sequence[str],
    found: ProbeResults = NO_RESULTS,
    files: RecordedFiles = NO_FILES,
    timeline_cut: Sequence[str] = (),
) -> str:
    """The whole page; ``pictures`` are the file names that exist under plots/.

    ``found``: what the probes recorded; ``files``: those of profiled runs; ``timeline_cut``: what the timeline leaves
    out, a sentence each.
    """
    study = report.study
    parts = [f"# {study.scenario}", f"**Question:** {' '.join(study.question.split())}" if study.question else ""]
    parts.append(why.emulation(report))
    parts.append(_problems(problem_lines(report.problems)))
    parts.append(_verdicts(report.comparisons))
    parts += [_picture(name, pictures) for name in ("isolated-vs-end-to-end.png", "comparisons.png")]
    parts.append(why.section(report, pictures))
    parts.append(_comparison_table(report.compared))
    plain = [arm for arm in report.arms if not arm.control]
    parts.append(_arm_table(plain))
    parts.append(_picture("ledger.png", pictures))
    parts.append(causes.section(plain))
    parts.append(_control_table([arm for arm in report.arms if arm.control and not is_probe_control(arm.control)]))
    parts.append(machine.section(found.loads, found.devices))
    parts.append(profile.section(found.profiles, pictures))
    parts.append(stacks.section(found.stacks, files.names))
    problems = [*probe_problem_lines(report.probe_problems), *files.problems, *timeline_cut]
    parts.append(_probes(report.probe_costs, problems))
    parts += [HOW_TO_READ, _reproduction(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _problems(problems: Sequence[str]) -> str:
    return "\n".join(f"> **{safe(problem)}.**  " for problem in problems)


def _verdicts(comparisons: Sequence[Comparison | NotCompared]) -> str:
    if not comparisons:
        return "## Verdict\n\nThe scenario compares nothing."
    lines = ["## Verdict"]
    differences: dict[str, list[str]] = {}
    for c in comparisons:
        for line in confound_lines(c.confounds) if isinstance(c, Comparison) else ():
            differences.setdefault(line, []).append(f"{c.candidate} against {c.baseline}")
    if differences:
        lines.append("What differs although no arm declared it:")
        lines.append("\n".join(f"- **{safe(what)}** ({'; '.join(pairs)})" for what, pairs in differences.items()))
    lines.append("\n".join(_bullet(c) for c in comparisons))
    return "\n\n".join(lines)


def _bullet(c: Comparison | NotCompared) -> str:
    """The sentence as a list item, with its finding (what comes before the figures in parentheses) in bold."""
    finding, parenthesis, figures = safe(sentence(c)).partition(" (")
    return f"- **{finding}**{parenthesis}{figures}"


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
            *(ratio_cell(one) for one in (m.isolated, m.ceiling, m.ideal, predicted_ratio(c), m.ratio, m.step_time)),
            NOT_MEASURED if m.noise_floor is None else percent(m.noise_floor),
        ]
        for c, m in ((c, c.measured) for c in comparisons)
    ]
    measures = " or ".join(dict.fromkeys(c.measured.measure for c in comparisons))
    note = (
        f"How many times as fast, median [95 % interval]. *measured* counts {measures}; *step time*, *ceiling* and "
        "*ideal data* concern the time of a step; *isolated* is the data path alone; *predicted* is what replaying "
        "the baseline's steps with the candidate's data path gives for *measured*."
    )
    return f"## Comparisons in numbers\n\n{table(header, rows)}\n\n{note}"


def _arm_table(arms: Sequence[ArmReport]) -> str:
    header = [
        "arm", "tokens/s", "trained tokens/s", "step p50, p95 (ms)", f"exposed ms: {' / '.join(STAGES)}",
        f"hidden ms: {' / '.join(STAGES[:3])}", "waiting for a core ms", "model GFLOP/s", "MFU", "loss",
    ]  # fmt: skip
    rows = [
        [
            arm.name,
            estimate_cell(arm.totals.tokens_per_s),
            estimate_cell(arm.totals.trained_tokens_per_s),
            ", ".join(number_cell(value) for value in (arm.totals.p50_ms, arm.totals.p95_ms)),
            stages_cell(arm.totals.exposed_ms, STAGES),
            stages_cell(arm.totals.hidden_ms, STAGES[:3]),
            number_cell(arm.totals.contended_ms),
            NOT_MEASURED if arm.speed.flops_per_s is None else number(arm.speed.flops_per_s / 1e9),
            NOT_MEASURED if arm.speed.mfu is None else percent(arm.speed.mfu),
            NOT_MEASURED if arm.totals.loss is None else f"{arm.totals.loss:.3f}",
        ]
        for arm in arms
    ]
    blocks = sorted({arm.blocks for arm in arms})
    reasons = dict.fromkeys(why for arm in arms if (why := mfu_reason(arm.speed.no_mfu)))
    note = (
        f"Medians over {' or '.join(map(str, blocks))} blocks [95 % interval]; milliseconds are means per step; the "
        f"loss is that of the last measured steps; {NOT_MEASURED} is not measured."
    )
    peaks = dict.fromkeys(arm.speed.mfu_of for arm in arms if arm.speed.mfu is not None)
    if peaks:
        note += f" MFU is the share of: {'; '.join(peaks)}."
    if reasons:
        note += f" MFU is not given: {'; '.join(reasons)}."
    return f"## Arms\n\n{table(header, rows)}\n\n{note}"


def _control_table(controls: Sequence[ArmReport]) -> str:
    if not controls:
        return ""
    header = ["control", "of", "step p50, p95 (ms)", "tokens/s", "times as fast as its arm", "waiting for a core ms"]
    rows = [
        [
            arm.control or "",
            arm.of or "",
            ", ".join(number_cell(value) for value in (arm.totals.p50_ms, arm.totals.p95_ms)),
            estimate_cell(arm.totals.tokens_per_s),
            ratio_cell(arm.against_arm),
            number_cell(arm.totals.contended_ms),
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


def _probes(costs: Sequence[ProbeCost], problems: Sequence[str]) -> str:
    """What the probes cost and what went wrong with them; empty where nothing was calibrated and nothing did."""
    parts = []
    if costs:
        header = ["probe", "added to", "cost, share of the step", "ms per step", "blocks"]
        rows = [
            [*probes_named(cost), _share(cost.share), number_cell(cost.cost_ms), str(cost.share.n)] for cost in costs
        ]
        parts.append(table(header, rows))
        parts.append(
            "Median [95 % interval] of the step time with the probe / without it, minus 1; both alternated in this "
            "study. A cost whose interval holds 0 cannot be distinguished from none here, but may be as much as its "
            "upper end. *torch_profiler* and *py_spy* run beside no measured step: each arm has one more run for them. "
            "Their cost here is that of recording in the trainer's main process, without writing the profile; the "
            "profiled run also marks phases and profiles the loader workers."
        )
    if problems:
        parts.append("What the probes could not do:")
        parts.append("\n".join(f"- {safe(problem)}" for problem in problems))
    return "\n\n".join(["## Probes", *parts]) if parts else ""


def _share(share: Estimate) -> str:
    def percent(value: float) -> str:
        return f"{100 * value:+.2f} %"

    if share.ci_low is None or share.ci_high is None:
        return f"{percent(share.median)} {NOT_MEASURED}"
    return f"{percent(share.median)} [{percent(share.ci_low)}, {percent(share.ci_high)}]"


HOW_TO_READ = f"""## How to read this

- **exposed**: what a stage cost the step, by replay of the run without it: the part of the waits that it caused, not
  what happened to run meanwhile. **hidden**: stage time that ran while the step did not wait, and cost it nothing.
  **waiting for a core**: time the main thread could run but had no core, whoever took it (run-queue delay).
- **ceiling**: the largest gain that removing *all* waits for data could give, known before anyone tries. A change to
  the input side cannot beat it, unless hidden work takes cores; the *ideal data* control checks that by measurement.
- **noise floor**: how far from 1 the interval of an unchanged arm against itself (A/A control) reaches. **gain** and
  **loss** are called only where the interval excludes 1 and the median clears the floor; else the sentence says how
  small a difference would have shown.
- **tokens/s** counts positions, padding included; **trained tokens/s** counts those with a label: padding cannot
  flatter it.
- Intervals: medians over blocks, paired within a block (total over its repetitions; each block sees the documents
  in another order), by a smoothed bootstrap over blocks ({2 * RESAMPLES} resamples) expanded for few blocks.
  Fewer than 3 blocks give none.
- `harness trace STUDY` opens the timeline in Perfetto: phases, worker stages, waits and device idle by cause, counters,
  operators and samples of a window of steps, with an arrow from the worker's batch to the phase that used it."""


def _reproduction(report: StudyReport) -> str:
    """The command, the scenario, how arms were interleaved, and what it ran on."""
    study = report.study
    lines = ["## How to reproduce"]
    if study.command:
        lines.append(f"```\n{shlex.join(study.command)}\n```")
    facts = [f"scenario file `{study.scenario_file}`"] if study.scenario_file else []
    facts.append(f"{study.blocks} blocks, interleave: {study.interleave}")
    if study.interleave_reason:
        facts[-1] += f" ({study.interleave_reason})"
    if study.created_utc:
        facts.append(f"started {study.created_utc}" + (f", ended {study.ended_utc}" if study.ended_utc else ""))
    lines.append("\n".join(f"- {fact}" for fact in facts))
    environment = {key: value for key, value in report.environment.items() if value is not None}
    devices = dict.fromkeys(arm.speed.device for arm in report.arms if arm.speed.device and arm.control != "data-only")
    if devices:
        environment = {"device": ", ".join(devices), **environment}
    if environment:
        lines.append("- " + ", ".join(f"{key} {value}" for key, value in environment.items()))
    if study.notes:
        lines.append("\n".join(f"- {note}" for note in study.notes))
    lines.append(
        "`harness report STUDY` rebuilds this page, the pictures and the timeline from the tables under `runs/`."
    )
    return "\n\n".join(lines)
