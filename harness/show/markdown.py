"""Writes summary.md: what is read in ten seconds first, then the numbers behind it, then how to repeat the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.judge.controls import is_probe_control
from harness.judge.probes.results import NO_RESULTS, ProbeResults
from harness.judge.report_types import Comparison, NotCompared, StudyReport
from harness.show import (
    advice,
    causes,
    claims,
    closing,
    cost,
    data_paths,
    learned,
    learning,
    machine,
    numbers,
    profile,
    ranks,
    why,
)
from harness.show.absent import probe_problem_lines
from harness.show.first_screen import HEADER, FirstScreen, difference_lines
from harness.show.names import ArmNames
from harness.show.sentences import sentence
from harness.show.tables import safe, table
from harness.show.timeline.sources import NO_FILES, RecordedFiles

PICTURES = {
    "isolated-vs-end-to-end.png": "What isolation promises, what waiting allows, what training got",
    "comparisons.png": "Every comparison with its interval and the noise floor",
    "ledger.png": "Where each step's time goes",
}


@dataclass(frozen=True)
class Section:
    """A part of the page: ``text`` is markdown without the heading."""

    title: str
    text: str


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
    parts = [
        _in_full(report.comparisons, pictures, names),
        why.section(report, pictures, names),
        advice.section(report.advice, names),
        numbers.comparisons(report.compared, names),
        data_paths.section(report.data_paths, names),
        numbers.arms(plain, names),
        claims.section(report.uses, report.claims, names),
        ranks.section(plain, names),
        _picture("ledger.png", pictures),
        learned.section(report.learned, names),
        learning.section(report.learning, pictures, names, heading=not report.learned),
        cost.section(files.cost, {arm.name: arm.totals for arm in report.arms}),
        causes.section(plain, names),
        numbers.controls(controls, names),
        machine.steps_section(report.step_times, names),
        why.emulation(report),
        machine.section(found.loads, found.devices),
        profile.operators_section(found.profiles, pictures),
        profile.stacks_section(found.stacks, files.names),
        closing.probes(report.probe_costs, problems),
        closing.how_to_read(report),
        closing.reproduction(report),
    ]
    return Page(safe(report.study.scenario), _opening(screen, pictures), list(_sections(parts)))


def opening(title: str, screen: FirstScreen) -> str:
    """The first screen alone, for places that have no pictures."""
    return Page(safe(title), _opening(screen, ()), ()).markdown


def _opening(screen: FirstScreen, pictures: Sequence[str]) -> list[Section]:
    top = [f"**Question:** {safe(screen.question)}"] if screen.question else []
    if screen.emulated:
        top.append(f"**Emulated:** {safe(screen.emulated)}")
    if screen.beware:
        top.append("\n".join(f"> **{safe(line)}**  " for line in screen.beware))
    verdict = [
        "\n".join(f"- **{safe(h.subject)}: {safe(h.finding)}.** {safe(h.support)}".rstrip() for h in screen.headlines)
    ]
    if screen.rows:
        verdict.append(table(HEADER, screen.rows))
        verdict.append(_legend(screen.legend))
        verdict.append(_picture("isolated-vs-end-to-end.png", pictures))
    steps = [f"{place}. {safe(line)}" for place, line in enumerate(screen.next_steps.ranked, start=1)]
    following = "\n\n".join(part for part in ("\n".join(steps), safe(screen.next_steps.note)) if part)
    return [
        Section("", "\n\n".join(top)),
        Section("Verdict", "\n\n".join(part for part in verdict if part)),
        *([Section("What to try next", following)] if following else []),
    ]


def _legend(legend: Sequence[tuple[str, str]]) -> str:
    """Full names of shortened arms."""
    return f"Arms: {'; '.join(f'{safe(short)} = {safe(name)}' for short, name in legend)}." if legend else ""


def _in_full(comparisons: Sequence[Comparison | NotCompared], pictures: Sequence[str], names: ArmNames) -> str:
    if not comparisons:
        return ""
    parts = ["## Verdicts in full"]
    if differences := difference_lines(comparisons):
        parts.append("Differences that the scenario does not declare:")
        parts.append("\n".join(f"- **{safe(names.within(line))}**" for line in differences))
        parts.append("Findings:")  # keeps the two lists apart
    parts.append("\n".join(_bullet(c, names) for c in comparisons))
    parts.append(_picture("comparisons.png", pictures))
    return "\n\n".join(part for part in parts if part)


def _bullet(c: Comparison | NotCompared, names: ArmNames) -> str:
    """The sentence as a list item, with its finding (what comes before the figures in parentheses) in bold."""
    finding, parenthesis, figures = safe(names.within(sentence(c))).partition(" (")
    return f"- **{finding}**{parenthesis}{figures}"


def _sections(parts: Sequence[str]) -> list[Section]:
    """Each part that begins with a heading is a section; what has none belongs to the one before."""
    found: list[Section] = []
    for part in parts:
        if part.startswith("## "):
            title, _, text = part.partition("\n")
            found.append(Section(title.removeprefix("## "), text.strip("\n")))
        elif part and found:
            found[-1] = Section(found[-1].title, f"{found[-1].text}\n\n{part}")
    return found


def _picture(name: str, pictures: Sequence[str]) -> str:
    return f"![{PICTURES[name]}](plots/{name})" if name in pictures else ""
