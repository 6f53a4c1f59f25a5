"""Writes summary.md: what is read in ten seconds first, then the numbers behind it, then how to repeat the study."""

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
from harness.show.first_screen import HEADER, FirstScreen, VerdictCard, difference_lines
from harness.show.names import ArmNames
from harness.show.sentences import sentence_parts
from harness.show.tables import NOT_MEASURED, code, fenced, number_cell, safe, table
from harness.show.text.doubts import probe_problem_lines
from harness.show.timeline.model import NO_FILES, RecordedFiles
from harness.show.words import probes_named
from harness.study.records import COMMAND

STEPS = "steps.png"  # The page shows it as a chart that answers to the pointer.
PICTURES = {
    "isolated-vs-end-to-end.png": "What isolation promises, what waiting allows, what training got",
    "comparisons.png": "Every comparison with its interval and the noise floor",
    "ledger.png": "Where each step's time goes",
    STEPS: "The time of each step",
}


BAR_HEADER = ("part of a step", "time", "share")


@dataclass(frozen=True)
class Section:
    """A part of the page: ``text`` is markdown without the heading. ``card``: the page draws its bar above the text."""

    title: str
    text: str
    card: VerdictCard | None = None


@dataclass(frozen=True)
class Page:
    """The whole report: ``opening`` is the first screen, ``sections`` are the details."""

    title: str
    opening: Sequence[Section]
    sections: Sequence[Section]

    @property
    def markdown(self) -> str:
        parts = [f"# {self.title}"]
        for one in (*self.opening, *self.sections):
            parts += [f"## {one.title}"] * bool(one.title) + [one.text] * bool(one.text)
        return "\n\n".join(parts) + "\n"


def page(
    report: StudyReport,
    screen: FirstScreen,
    pictures: Sequence[str],
    found: ProbeResults = NO_RESULTS,
    files: RecordedFiles = NO_FILES,
    timeline_cut: Sequence[str] = (),
) -> Page:
    """The whole page under its first ``screen``; ``pictures`` are the file names that exist under plots/.

    ``found``: what the probes recorded; ``files``: those of profiled runs; ``timeline_cut``: what the timeline leaves
    out, a sentence each.
    """
    names = screen.names
    plain = [arm for arm in report.arms if not arm.control]
    controls = [arm for arm in report.arms if arm.control and not is_probe_control(arm.control)]
    problems = [*probe_problem_lines(report.probe_problems), *files.problems, *timeline_cut]
    sections = [
        Section("Verdicts in full", _in_full(report.comparisons, pictures, names)),
        Section("Waits, and what was timed", _waits_and_timing(screen)),
        Section("Why", why.section(report, pictures, names)),
        Section("What was tried on paper", advice.section(report.advice, names)),
        Section("Comparisons in numbers", numbers.comparisons(report.compared, names)),
        Section("The data paths alone", numbers.data_paths(report.data_paths, names)),
        Section("Arms", numbers.arms(plain, names)),
        Section("Claims", numbers.claims(report.uses, report.claims, names)),
        Section("Ranks", ranks.section(plain, names)),
        Section("Where each step's time goes", _picture("ledger.png", pictures)),
        Section(
            "What was learned",
            _joined(learning.target_section(report.learned, names), learning.section(report.learning, pictures, names)),
        ),
        Section("What it cost", cost.section(files.cost, {arm.name: arm.totals for arm in report.arms})),
        Section("What removing a part would save", why.savings(plain, names)),
        Section("The critical path", why.critical_paths(plain, names)),
        Section("Where data work ran", why.places(plain, names)),
        Section("Controls", numbers.controls(controls, names)),
        Section(machine.STEPS_TITLE, machine.steps_section(report.step_times, names)),
        Section("The emulated device", why.emulation(report)),
        Section("The machine", machine.section(found.loads, found.devices)),
        Section("Operators", profile.operators_section(found.profiles, pictures)),
        Section("Stacks", profile.stacks_section(found.stacks, files.names)),
        Section("Probes", probes_section(report.probe_costs, problems)),
        Section("How to read this", how_to_read(report)),
        Section("How to reproduce", reproduction(report)),
    ]
    return Page(safe(report.study.scenario), _opening(screen, pictures), [one for one in sections if one.text])


def opening(title: str, screen: FirstScreen) -> str:
    """The first screen alone, for places that have no pictures."""
    return Page(safe(title), _opening(screen, ()), ()).markdown


def _opening(screen: FirstScreen, pictures: Sequence[str]) -> list[Section]:
    top = [f"**Question:** {safe(screen.question)}"] if screen.question else []
    if screen.emulated:
        top.append(f"**Emulated:** {safe(screen.emulated)}")
    if screen.beware:
        top.append("\n".join(f"> **{safe(line)}**  " for line in screen.beware))
    rows = [
        table(HEADER, screen.rows),
        safe(screen.horizon),
        _legend(screen.legend),
        _picture("isolated-vs-end-to-end.png", pictures),
    ]
    compared = _joined(*rows) if screen.rows else ""
    if screen.card is None:
        verdict = [Section("Verdict", _joined(_headlines(screen), compared))]
    else:
        verdict = [*_card(screen.card, pictures), *([Section("", compared)] if compared else [])]
    steps = [f"{place}. {safe(line)}" for place, line in enumerate(screen.next_steps.ranked, start=1)]
    following = _joined("\n".join(steps), safe(screen.next_note))
    return [
        Section("", "\n\n".join(top)),
        *verdict,
        *([Section("What to try next", following)] if following else []),
    ]


def _card(card: VerdictCard, pictures: Sequence[str]) -> list[Section]:
    """The verdict card: what costs most, the bar of a step as a table, the time of each step, and other findings."""
    rows = [(one.label, one.ms, f"{100 * one.share:.0f} %") for one in card.bar]
    findings = "\n".join(f"- {safe(one)}" for one in card.findings)
    return [
        Section("Verdict", _joined(safe(card.title), f"**{safe(card.diagnosis)}:** {safe(card.cost)}")),
        Section("", _joined(table(BAR_HEADER, rows), _picture(STEPS, pictures), findings, safe(card.trust)), card),
    ]


def _waits_and_timing(screen: FirstScreen) -> str:
    """What the card leaves out: waits, gains and what was timed, a line each."""
    return "" if screen.card is None else _headlines(screen)


def _headlines(screen: FirstScreen) -> str:
    return "\n".join(
        f"- **{safe(h.subject)}: {safe(h.finding)}.**" + (f" {safe(h.support)}" if h.support else "")
        for h in screen.headlines
    )


def _legend(legend: Sequence[tuple[str, str]]) -> str:
    """Full names of shortened arms."""
    return f"Arms: {'; '.join(f'{safe(short)} = {safe(name)}' for short, name in legend)}." if legend else ""


def _in_full(comparisons: Sequence[Comparison | NotCompared], pictures: Sequence[str], names: ArmNames) -> str:
    if not comparisons:
        return ""
    parts = []
    if differences := difference_lines([names.shorten(c) for c in comparisons]):
        parts.append("Differences that the scenario does not declare:")
        parts.append("\n".join(f"- **{safe(line)}**" for line in differences))
        parts.append("Findings:")  # keeps the two lists apart
    parts.append("\n".join(_bullet(c, names) for c in comparisons))
    parts.append(_picture("comparisons.png", pictures))
    return _joined(*parts)


def _bullet(c: Comparison | NotCompared, names: ArmNames) -> str:
    """Return the sentence as a list item, with its finding in bold."""
    finding, figures = sentence_parts(names.shorten(c))
    return f"- **{safe(finding)}** {safe(figures)}"


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


def _picture(name: str, pictures: Sequence[str]) -> str:
    return f"![{PICTURES[name]}](plots/{name})" if name in pictures else ""


def probes_section(costs: Sequence[ProbeCost], problems: Sequence[str]) -> str:
    """Return the cost of the probes and their problems; "" if there is neither."""
    parts = []
    if costs:
        header = ["probe", "added to", "cost, share of the step", "ms per step", "blocks"]
        rows = [
            [*probes_named(cost), _signed_share(cost.share), number_cell(cost.cost_ms), str(cost.share.n)]
            for cost in costs
        ]
        parts.append(table(header, rows))
        parts.append(
            "Median [95 % interval] of the step time with the probe / without it, minus 1; both alternated in this "
            "study. If the interval includes 0, the cost may be none, or as much as its upper end. *torch_profiler* "
            "and *py_spy* run beside no measured step: each arm has one more run for them. Their cost here is that of "
            "recording in the trainer's main process, without writing the profile. The profiled run also marks phases "
            "and profiles the loader workers."
        )
    if problems:
        parts.append("What the probes could not do:")
        parts.append("\n".join(f"- {safe(problem)}" for problem in problems))
    return "\n\n".join(parts)


def _signed_share(share: Estimate) -> str:
    def signed(value: float) -> str:
        return f"{100 * value:+.2f} %"

    if share.ci_low is None or share.ci_high is None:
        return f"{signed(share.median)} {NOT_MEASURED}"
    return f"{signed(share.median)} [{signed(share.ci_low)}, {signed(share.ci_high)}]"


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
    """The same for every study, but for what its blocks are."""
    return HOW_TO_READ.format(order=_data_order(report), resamples=2 * RESAMPLES)


def _data_order(report: StudyReport) -> str:
    """In what order the data of a block comes, as far as another block may see another one."""
    study = report.study
    arms = [arm for arm in study.arms if arm.control is None]
    if any(COMMAND in arm.declared for arm in arms):
        return OWN_ORDER
    if study.is_training or any(arm.attached is not None for arm in report.arms):
        return PARTS
    if any(lookup(arm.config, "data.source") is not None for arm in arms):
        return OWN_SOURCE
    kept = [lookup(arm.config, "data.shuffle") is False for arm in arms]
    return SAME_ORDER if kept and all(kept) else SOME_SHUFFLED if any(kept) else ANOTHER_ORDER


def reproduction(report: StudyReport) -> str:
    """The command, the scenario, how arms were interleaved, and what it ran on."""
    study = report.study
    lines: list[str] = []
    if study.command:
        lines.append(fenced(shlex.join(study.command)))
    facts = [f"scenario file {code(study.scenario_file)}"] if study.scenario_file else []
    because = f" ({study.interleave_reason})" if study.interleave_reason else ""
    facts.append(safe(f"{study.blocks} blocks, interleave: {study.interleave}{because}"))
    if study.created_utc:
        facts.append(safe(f"started {study.created_utc}" + (f", ended {study.ended_utc}" if study.ended_utc else "")))
    lines.append("\n".join(f"- {fact}" for fact in facts))
    environment = {key: value for key, value in report.environment.items() if value is not None}
    devices = dict.fromkeys(arm.speed.device for arm in report.arms if arm.speed.device and arm.control != "data-only")
    if devices:
        environment = {"device": ", ".join(devices), **environment}
    if environment:
        lines.append("- " + safe(", ".join(f"{key} {value}" for key, value in environment.items())))
    if study.notes:
        lines.append("\n".join(f"- {safe(note)}" for note in study.notes))
    lines.append(
        "`harness report STUDY` rebuilds this page, the pictures and the timeline from the tables under `runs/`."
    )
    return "\n\n".join(lines)
