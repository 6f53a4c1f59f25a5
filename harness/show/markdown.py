"""Writes summary.md: what is read in ten seconds first, then the numbers behind it, then how to repeat the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.judge.probes.probe_cost import is_probe_control
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
    outliers,
    profile,
    ranks,
    stacks,
    why,
)
from harness.show.first_screen import HEADER, FirstScreen, difference_lines
from harness.show.names import ArmNames
from harness.show.recorded import NO_FILES, RecordedFiles
from harness.show.sentences import sentence_parts
from harness.show.tables import safe, table
from harness.show.text.doubts import probe_problem_lines

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
    sections = [
        Section("Verdicts in full", _in_full(report.comparisons, pictures, names)),
        Section("Why", why.section(report, pictures, names)),
        Section("What was tried on paper", advice.section(report.advice, names)),
        Section("Comparisons in numbers", numbers.comparisons(report.compared, names)),
        Section("The data paths alone", data_paths.section(report.data_paths, names)),
        Section("Arms", numbers.arms(plain, names)),
        Section("Claims", claims.section(report.uses, report.claims, names)),
        Section("Ranks", ranks.section(plain, names)),
        Section("Where each step's time goes", _picture("ledger.png", pictures)),
        Section(
            "What was learned",
            _joined(learned.section(report.learned, names), learning.section(report.learning, pictures, names)),
        ),
        Section("What it cost", cost.section(files.cost, {arm.name: arm.totals for arm in report.arms})),
        Section("What removing a part would save", causes.savings(plain, names)),
        Section("The critical path", causes.critical_paths(plain, names)),
        Section("Where data work ran", causes.places(plain, names)),
        Section("Controls", numbers.controls(controls, names)),
        Section(outliers.TITLE, outliers.section(report.step_times, names)),
        Section("The emulated device", why.emulation(report)),
        Section("The machine", machine.section(found.loads, found.devices)),
        Section("Operators", profile.section(found.profiles, pictures)),
        Section("Stacks", stacks.section(found.stacks, files.names)),
        Section("Probes", closing.probes(report.probe_costs, problems)),
        Section("How to read this", closing.how_to_read(report)),
        Section("How to reproduce", closing.reproduction(report)),
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
    verdict = [
        "\n".join(
            f"- **{safe(h.subject)}: {safe(h.finding)}.**" + (f" {safe(h.support)}" if h.support else "")
            for h in screen.headlines
        )
    ]
    if screen.rows:
        verdict.append(table(HEADER, screen.rows))
        verdict.append(_legend(screen.legend))
        verdict.append(_picture("isolated-vs-end-to-end.png", pictures))
    steps = [f"{place}. {safe(line)}" for place, line in enumerate(screen.next_steps.ranked, start=1)]
    following = _joined("\n".join(steps), safe(screen.next_steps.note))
    return [
        Section("", "\n\n".join(top)),
        Section("Verdict", _joined(*verdict)),
        *([Section("What to try next", following)] if following else []),
    ]


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
