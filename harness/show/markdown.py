"""Writes summary.md: the first screen, the numbers behind it, and how to repeat the study."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from harness.explain.statistics import RESAMPLES, Estimate
from harness.judge.controls import ProbeCost, is_probe_control
from harness.judge.probes.results import NO_RESULTS, ProbeResults
from harness.judge.report_types import Comparison, NotCompared, StudyReport
from harness.scenario.overrides import lookup
from harness.show import advice, cost, learning, machine, numbers, profile, ranks, why
from harness.show.first_screen import FirstScreen, VerdictCard, difference_lines
from harness.show.names import ArmNames
from harness.show.sentences import sentence_parts
from harness.show.tables import NOT_MEASURED, bulleted, code, column_table, fenced, joined, number_cell, safe, table
from harness.show.text.doubts import probe_problem_lines
from harness.show.timeline.model import NO_FILES, RecordedFiles
from harness.show.words import probes_named
from harness.study.records import COMMAND

STEPS = "steps.png"  # The HTML page shows it as an interactive chart.
PICTURES = {
    "isolated-vs-end-to-end.png": "What isolation promises, what waiting allows, what training got",
    "comparisons.png": "Every comparison with its interval and the noise floor",
    "ledger.png": "Where each step's time goes",
    STEPS: "The time of each step",
}


BAR_HEADER = ("part of a step", "time", "share")


@dataclass(frozen=True)
class Section:
    """Part of a report: a title, a text, and perhaps a verdict card."""

    title: str  # "" means no heading
    text: str  # Markdown without the heading
    card: VerdictCard | None = None  # its bar is drawn above the text of the HTML page


@dataclass(frozen=True)
class Page:
    """A whole report, made by :func:`page`. ``opening``: sections of the first screen. ``sections``: the details."""

    title: str
    opening: Sequence[Section]
    sections: Sequence[Section]

    @property
    def markdown(self) -> str:
        shown = (*self.opening, *self.sections)
        return (
            joined(
                f"# {self.title}",
                *(f"## {section.title}\n\n{section.text}" if section.title else section.text for section in shown),
            )
            + "\n"
        )


def page(
    report: StudyReport,
    screen: FirstScreen,
    pictures: Sequence[str],
    found: ProbeResults = NO_RESULTS,
    files: RecordedFiles = NO_FILES,
    timeline_cut: Sequence[str] = (),
) -> Page:
    """Return the whole report. ``pictures``: names under plots/. ``timeline_cut``: what the timeline omits."""
    names = screen.names
    plain = [arm for arm in report.arms if not arm.control]
    controls = [arm for arm in report.arms if arm.control and not is_probe_control(arm.control)]
    problems = [*probe_problem_lines(report.probe_problems), *files.problems, *timeline_cut]
    sections = [
        Section("Verdicts in full", _in_full(report.comparisons, pictures, names)),
        Section("Waits and timed phases", "" if screen.card is None else _headlines(screen)),
        Section("Why", why.section(report, pictures, names)),
        Section("What-if predictions", advice.section(report.advice, names)),
        Section("Comparisons in numbers", numbers.comparisons(report.compared, names)),
        Section("The data paths alone", numbers.data_paths(report.data_paths, names)),
        Section("Arms", numbers.arms(plain, names)),
        Section("Claims", numbers.claims(report.uses, report.claims, names)),
        Section("Ranks", ranks.section(plain, names)),
        Section("Where each step's time goes", _picture("ledger.png", pictures)),
        Section(
            "Losses and evaluations",
            joined(learning.target_section(report.learned, names), learning.section(report.learning, pictures, names)),
        ),
        Section("Cost", cost.section(files.cost, {arm.name: arm.totals for arm in report.arms})),
        Section("What removing a part would save", why.savings(plain, names)),
        Section("The critical path", why.critical_paths(plain, names)),
        Section("Where data work ran", why.places(plain, names)),
        Section("Controls", numbers.controls(controls, names)),
        Section(machine.HISTORY_TITLE, machine.history_section(files.history, names)),
        Section(machine.STEPS_TITLE, machine.steps_section(report.step_times, names)),
        Section("The emulated device", why.emulation(report)),
        Section("The machine", machine.section(found.loads, found.devices)),
        Section("Operators", profile.operators_section(found.profiles, pictures)),
        Section("Stacks", profile.stacks_section(found.stacks, files.names)),
        Section("Probes", probes_section(report.probe_costs, problems)),
        Section("How to read this", how_to_read(report)),
        Section("How to reproduce", reproduction(report)),
    ]
    return Page(
        safe(report.study.scenario), _opening(screen, pictures), [section for section in sections if section.text]
    )


def opening(title: str, screen: FirstScreen) -> str:
    """Return the Markdown of the first screen alone, without pictures."""
    return Page(safe(title), _opening(screen, ()), ()).markdown


def _opening(screen: FirstScreen, pictures: Sequence[str]) -> list[Section]:
    top = [f"**Question:** {safe(screen.question)}"] if screen.question else []
    if screen.emulated:
        top.append(f"**Emulated:** {safe(screen.emulated)}")
    if screen.beware:
        top.append("\n".join(f"> **{safe(line)}**  " for line in screen.beware))
    legend = "; ".join(f"{safe(short)} = {safe(name)}" for short, name in screen.legend)
    compared = joined(
        table(*screen.columns) if screen.rows else "",
        safe(screen.horizon),
        f"Arms: {legend}." if legend and screen.rows else "",
        _picture("isolated-vs-end-to-end.png", pictures) if screen.rows else "",
    )
    if screen.card is None:
        verdict = [Section("Verdict", joined(_headlines(screen), compared))]
    else:
        verdict = [*_card(screen.card, pictures), *([Section("", compared)] if compared else [])]
    steps = [f"{number}. {safe(line)}" for number, line in enumerate(screen.next_steps.ranked, start=1)]
    following = joined("\n".join(steps), safe(screen.next_note))
    return [Section("", "\n\n".join(top)), *verdict, *([Section("What to try next", following)] if following else [])]


def _card(card: VerdictCard, pictures: Sequence[str]) -> list[Section]:
    """Return the sections of a verdict card: diagnosis, table of the step's parts, chart of steps, and findings."""
    rows = [(bar_part.label, bar_part.ms, bar_part.percent) for bar_part in card.bar]
    findings = bulleted(map(safe, card.findings))
    return [
        Section("Verdict", joined(safe(card.title), f"**{safe(card.diagnosis)}:** {safe(card.cost)}")),
        Section("", joined(table(BAR_HEADER, rows), _picture(STEPS, pictures), findings, safe(card.trust)), card),
    ]


def _headlines(screen: FirstScreen) -> str:
    return bulleted(
        f"**{safe(headline.subject)}: {safe(headline.finding)}.**"
        + (f" {safe(headline.support)}" if headline.support else "")
        for headline in screen.headlines
    )


def _in_full(comparisons: Sequence[Comparison | NotCompared], pictures: Sequence[str], names: ArmNames) -> str:
    if not comparisons:
        return ""
    shortened = [names.shorten(c) for c in comparisons]
    differences = bulleted(f"**{safe(line)}**" for line in difference_lines(shortened))
    findings = bulleted(f"**{safe(finding)}** {safe(figures)}" for finding, figures in map(sentence_parts, shortened))
    heading = ["Differences that the scenario does not declare:", differences, "Findings:"] if differences else []
    return joined(*heading, findings, _picture("comparisons.png", pictures))


def _picture(name: str, pictures: Sequence[str]) -> str:
    return f"![{PICTURES[name]}](plots/{name})" if name in pictures else ""


def probes_section(costs: Sequence[ProbeCost], problems: Sequence[str]) -> str:
    """Return Markdown with a table of each probe's cost and the list of ``problems``; "" if there is neither."""
    parts = []
    if costs:
        parts.append(column_table(costs, {
            "probe": lambda cost: probes_named(cost)[0],
            "added to": lambda cost: probes_named(cost)[1],
            "cost, share of the step": lambda cost: _signed_share(cost.share),
            "ms per step": lambda cost: number_cell(cost.cost_ms),
            "blocks": lambda cost: str(cost.share.n),
        }))  # fmt: skip
        parts.append(
            "Median [95 % interval] of the step time with the probe / without it, minus 1; both alternated in this "
            "study. If the interval includes 0, the cost may be none, or as much as its upper end. *torch_profiler* "
            "and *py_spy* run beside no measured step: each arm has one more run for them. Their cost here is that of "
            "recording in the trainer's main process, without writing the profile."
        )
    if problems:
        parts += ["Problems of the probes:", bulleted(map(safe, problems))]
    return "\n\n".join(parts)


def _signed_share(share: Estimate) -> str:
    median, *ends = (
        f"{100 * value:+.2f} %" for value in (share.median, share.ci_low, share.ci_high) if value is not None
    )
    return f"{median} [{', '.join(ends)}]" if ends else f"{median} {NOT_MEASURED}"


ANOTHER_ORDER = "each block sees the documents\n  in another order"
OWN_ORDER = "a program that\n  seeds itself sees the same data in each block"
SAME_ORDER = "each block sees the same\n  documents in the same order"
SOME_SHUFFLED = "where they are shuffled,\n  each block sees the documents in another order"
OWN_SOURCE = "a data source that\n  seeds itself gives each block the same data"
PARTS = "they are consecutive parts of\n  one run"
HOW_TO_READ = """\
- **exposed**: what a stage cost the step. It is the part of the waits that the stage caused, by replay of the run
  without it. **hidden**: stage time during which the step did not wait. It may still take cores from the step.
  **waiting for a core**: time in which the main thread was ready and had no core (run-queue delay).
- **ceiling**: how many times as fast the step would be without any data work. It is an estimate, not a bound. Its
  median is that of the *ideal data* control, or of the replay without one. Its interval covers both.
- **unclear** beside a ratio: its interval includes no change, and a change of 1 % or more.
- **noise floor**: how much an unchanged arm differs from itself (A/A control). A **gain** or **loss** needs an interval
  that excludes 1 and a median beyond the noise floor. Without a noise floor there is no verdict. A gain also needs
  equal losses.
- With N comparisons each verdict uses an interval of 1 - 5 % / N, so that all N hold together with 95 %. The figure
  after "95 % interval" is the interval of one comparison alone.
- **tokens/s** counts all positions, padding included. **trained tokens/s** counts those with a label. For commands
  (`exec`), only positions are counted, and losses are only checked for NaN and infinity on a CPU.
- Intervals: medians over blocks, paired within a block (total over its repetitions; \
{order}), by a smoothed bootstrap over blocks ({resamples} resamples) expanded for few blocks, and where
  neighbouring blocks are alike. Fewer than 3 blocks give none.
- `harness trace STUDY` opens the timeline in Perfetto: phases, worker stages, waits and device idle by cause, counters,
  operators and samples of a window of steps, with an arrow from the worker's batch to the phase that used it."""


def how_to_read(report: StudyReport) -> str:
    """Return the help section of a report. Only its remark on the order of the data depends on the study."""
    return HOW_TO_READ.format(order=_data_order(report), resamples=2 * RESAMPLES)


def _data_order(report: StudyReport) -> str:
    """Return a clause on which data the blocks see; a user's own program or source decides it by its seed."""
    study = report.study
    arms = [arm for arm in study.arms if arm.control is None]
    if any(COMMAND in arm.declared for arm in arms):
        return OWN_ORDER
    if study.is_training or any(arm.attached is not None for arm in report.arms):
        return PARTS
    if any(lookup(arm.config, "data.source") is not None for arm in arms):
        return OWN_SOURCE
    ordered = [lookup(arm.config, "data.shuffle") is False for arm in arms]
    return SAME_ORDER if ordered and all(ordered) else SOME_SHUFFLED if any(ordered) else ANOTHER_ORDER


def reproduction(report: StudyReport) -> str:
    """Return Markdown on how to repeat a study: its command, scenario, interleaving and environment."""
    study = report.study
    facts = [f"scenario file {code(study.scenario_file)}"] if study.scenario_file else []
    interleave_note = f" ({study.interleave_reason})" if study.interleave_reason else ""
    facts.append(safe(f"{study.blocks} blocks, interleave: {study.interleave}{interleave_note}"))
    if study.created_utc:
        facts.append(safe(f"started {study.created_utc}" + (f", ended {study.ended_utc}" if study.ended_utc else "")))
    environment = {key: value for key, value in report.environment.items() if value is not None}
    devices = dict.fromkeys(arm.speed.device for arm in report.arms if arm.speed.device and arm.control != "data-only")
    if devices:
        environment = {"device": ", ".join(devices), **environment}
    versions = safe(", ".join(f"{key} {value}" for key, value in environment.items()))
    return joined(
        fenced(shlex.join(study.command)) if study.command else "",
        bulleted(facts),
        f"- {versions}" if environment else "",
        bulleted(map(safe, study.notes)),
        "`harness report STUDY` rebuilds this page, the pictures and the timeline from the tables under `runs/`.",
    )
