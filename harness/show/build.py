"""Builds a study's report from its folder alone: summary.md, .html and .json, plots/ and timeline.json.gz."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from harness.explain.ledger import derived_steps
from harness.explain.probes.torch_profile import TorchProfile
from harness.explain.unusual_steps import StepTimes
from harness.judge.probes.results import ProbeResults, probe_results, with_device_busy
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show import drawing, learning, machine, markdown, profile
from harness.show.drawing import Picture
from harness.show.first_screen import FirstScreen, VerdictCard, first_screen
from harness.show.markdown import STEPS, Page, Section
from harness.show.names import ArmNames
from harness.show.summary import summary
from harness.show.timeline.build import timeline
from harness.show.timeline.formats import CHROME_NAME, PROTOBUF_NAME
from harness.show.timeline.model import RecordedFiles, read_recorded
from harness.study.records import StudyRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder, write_json
from trainer.errors import InputError, one_line
from trainer.files import read_json, write_bytes, write_text


def build_report(folder: Path, *, live: bool = False) -> FirstScreen:
    """Write the report of a study and return its first screen. ``live``: the page reloads when its server says so."""
    study = StudyFolder(folder)
    record = study.read_study()
    study.remove_leftovers()
    runs = list(study.runs())
    _check_tables(study, record, runs)
    # While a study runs, its launcher writes into the same folders.
    keep = [partial(keep_derived, study)] if record.status != "running" else []
    report, results, files = report_of(study, record, runs, *keep)
    screen = first_screen(report)
    pictures = draw(report, study, results.profiles, screen)
    shown = timeline(record, runs, files.sources)
    for name in (CHROME_NAME, PROTOBUF_NAME):
        _write(study.path / name, shown.content if name == shown.name else None)
    write_json(study.summary_json, summary(report, screen, results, files.problems, files.cost))
    page = markdown.page(report, screen, list(pictures), results, files, shown.cut)
    write_text(study.summary_md, page.markdown)
    write_text(study.summary_html, html_page(page, pictures, report.step_times, screen.names, live=live))
    return screen


def _write(path: Path, content: bytes | None) -> None:
    """Write ``content`` to ``path``. None removes the file, because an earlier report may have written it."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, content)


def report_of(
    study: StudyFolder, record: StudyRecord, runs: Sequence[RunData], *while_whole: Callable[[RunData], None]
) -> tuple[StudyReport, ProbeResults, RecordedFiles]:
    """Return analysis, probe results and recorded files. ``while_whole``: called with each loaded run."""
    report = analyse(record, runs, *while_whole)
    files = read_recorded(study, runs)
    results = probe_results(runs, files.profiled)
    return with_device_busy(report, results.profiles, results.devices), results, files


def _check_tables(study: StudyFolder, record: StudyRecord, runs: Sequence[RunData]) -> None:
    """Raise InputError if all measured runs' tables were deleted: an empty report would replace the old one."""
    if any(run.has_steps for run in runs) or not (record.status == "done" or _has_figures(study.summary_json)):
        return
    errors = (run.record.error for run in runs if run.record.error)
    reason = next(errors, f"no {study.path / 'runs'}/*/*/run.json")
    raise InputError(f"{study.path}: no table of its runs is left ({one_line(reason)}); its report is unchanged")


def _has_figures(summary_json: Path) -> bool:
    """Return True if ``summary_json`` of the previous report is readable and has an arm with measured blocks."""
    try:
        arms = read_json(summary_json)["arms"].values()
        return any(arm["blocks"] for arm in arms)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def keep_derived(study: StudyFolder, run: RunData) -> None:
    """Add the columns of :func:`derived_steps` to a finished run's steps table on disk, for other programs."""
    if run.folder is None or run.record.status != "done":
        return
    derived = derived_steps(run)
    if derived.changed:
        study.write_steps(run.record, derived.table)


def draw(
    report: StudyReport, study: StudyFolder, profiles: Sequence[TorchProfile], screen: FirstScreen
) -> dict[str, Picture]:
    """Write the report's pictures under plots/, remove those that it no longer has, and return them by file name."""
    from harness.show import plots  # Importing matplotlib takes a second.

    pictures = plots.pictures(report, screen.names)
    if screen.card is not None and report.step_times:
        pictures[STEPS] = plots.steps(report.step_times, screen.names)
    if (picture := plots.in_both(partial(plots.memory, profiles), report.emulated)) is not None:
        pictures[profile.PICTURE] = picture
    for name in (*plots.NAMES, STEPS, learning.PICTURE, learning.CHOICES_PICTURE, profile.PICTURE):
        _write(study.plots / name, pictures[name].png if name in pictures else None)
    return pictures


_ID = re.compile(r'(\bid="|href="#|url\(#)')
ONE_LINE = 40  # characters; a cell up to this length is not wrapped
KEYED = "keyed"  # key of Markdown's environment: True if the rows of a table are the parts of the bar
OPEN = ("Verdicts in full",)  # sections that are initially unfolded


def html_page(
    report: Page,
    pictures: Mapping[str, Picture],
    steps: Sequence[StepTimes],
    names: ArmNames,
    *,
    live: bool = False,
) -> str:
    """Return the report as an HTML file. ``pictures``: by file name. ``live``: as of :func:`build_report`."""
    chart = _chart(steps)
    markdown = _renderer(pictures, chart)
    scripts = [_asset(name) for name in (*(["live.js"] if live else []), "uplot.min.js", "page.js")]
    opening = [
        (f"<h2>{escape(section.title)}</h2>" if section.title else "")
        + (bar(section.card) if section.card is not None else "")
        + markdown.render(section.text, {KEYED: section.card is not None})
        for section in report.opening
    ]
    return Template(_asset("page.html")).substitute(
        title=markdown.renderInline(report.title),
        policy=" ".join(map(_hash, scripts)) + ("; connect-src 'self'" if live else ""),
        style=_asset("uplot.min.css") + drawing.style() + _asset("page.css"),
        opening="\n".join(opening),
        contents="\n".join(
            f'<li><a href="#{_slug(section)}">{escape(section.title)}</a></li>' for section in report.sections
        ),
        sections="\n".join(
            _details(section, markdown, "" if STEPS in pictures else chart) for section in report.sections
        ),
        data=json.dumps(_data(steps, names), separators=(",", ":")).replace("<", "\\u003c"),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def bar(card: VerdictCard) -> str:
    """Return the bar that divides a step's time, as SVG with a tooltip for each part."""
    begun, parts = 0.0, []
    for index, bar_part in enumerate(card.bar):
        parts.append(
            f'<rect x="{100 * begun:.3f}%" width="{100 * bar_part.length:.3f}%" height="28" fill="var(--c{index})">'
            f"<title>{escape(f'{bar_part.label}: {bar_part.ms}, {bar_part.percent}')}</title></rect>"
        )
        begun += bar_part.length
    label = escape("; ".join(f"{entry.label} {entry.percent}" for entry in card.bar))
    return f'<svg class="step-bar" role="img" aria-label="{label}" width="100%" height="28">{"".join(parts)}</svg>'


def fragment(text: str) -> str:
    """Return Markdown as an HTML element for the page of another program, such as a notebook."""
    return f"<div>{_renderer({}).render(text)}</div>"


def _details(one: Section, markdown: MarkdownIt, chart: str) -> str:
    """Return a foldable HTML element of a section. ``chart``: chart of step times; "" if the first screen has it."""
    chart = chart if one.title == machine.STEPS_TITLE else ""
    opened = " open" if one.title in OPEN else ""
    heading = f"<summary><h2>{escape(one.title)}</h2></summary>"
    return f'<details id="{_slug(one)}"{opened}>{heading}{chart}{markdown.render(one.text)}</details>'


_CHART = """<div id="steps"><div class="legend"></div>
<div class="chart" tabindex="0" role="group"
 aria-label="Time of every step over the study; arrow keys go from step to step. The slowest are tabled below."></div>
<p class="note">Each point is a measured step; {marks}. Drag to zoom, double-click to see all.</p>
</div>"""


def _chart(steps: Sequence[StepTimes]) -> str:
    """Return the HTML element of the interactive chart of step times. A script on the page draws it."""
    marks = "; ".join(f"{look} {meaning}" for look, meaning in machine.marks(steps).values())
    return _CHART.format(marks=escape(marks))


def _data(steps: Sequence[StepTimes], names: ArmNames) -> dict[str, Any]:
    arms = list(dict.fromkeys(times.arm for times in steps))
    return {
        "arms": [names.short(arm) for arm in arms],
        "lines": machine.at_once(steps),
        "runs": [
            {
                "arm": arms.index(run_times.arm),
                "block": run_times.block,
                "at_s": [round(second, 2) for second in run_times.start_s],
                "ms": [float(f"{wall:.4g}") for wall in run_times.wall_ms],
                "step": run_times.step,
                "repetition": run_times.repetition,
                "marks": {index: mark for index, mark in enumerate(run_times.mark) if mark},
            }
            for run_times in steps
        ],
    }


def _renderer(pictures: Mapping[str, Picture], chart: str = "") -> MarkdownIt:
    """Return a renderer from Markdown to HTML: tables get headers, and images become ``pictures`` in place."""

    def image(_: RendererHTML, tokens: Sequence[Token], at: int, *__: object) -> str:
        name = str(tokens[at].attrs.get("src", "")).rpartition("/")[2]
        if name == STEPS:
            return chart
        picture = pictures.get(name)
        return "" if picture is None else _figure(name.partition(".")[0], picture, tokens[at].content)

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.core.ruler.push("headers", _headers)
    markdown.add_render_rule("image", image)
    for name, text in (("table_open", '<div class="wide"><table>'), ("table_close", "</table></div>")):
        markdown.add_render_rule(name, lambda *_, text=text: text)
    return markdown


def _headers(state: Any) -> None:
    """Mark first row and column of tables as headers; ``data-label`` names a cell's column for phones."""
    tokens: list[Token] = state.tokens
    labels: list[str] = []
    column, row = 0, -1
    for index, token in enumerate(tokens):
        if token.type == "thead_open":
            labels = []
        if token.type == "th_open":
            token.attrSet("scope", "col")
            labels.append("".join(child.content for child in tokens[index + 1].children or ()))
        elif token.type == "td_open":
            column += 1
            if column:
                token.attrSet("data-label", labels[column])
            if len(tokens[index + 1].content) <= ONE_LINE:
                token.attrSet("class", "figure")
        elif token.type == "tr_open" and tokens[index + 1].type == "td_open":
            column = -1
            close = next(position for position in range(index, len(tokens)) if tokens[position].type == "td_close")
            tokens[index + 1].tag = tokens[close].tag = "th"
            tokens[index + 1].attrSet("scope", "row")
            row += 1
            if state.env.get(KEYED):
                tokens[index + 1].attrSet("style", f"border-left: 0.8em solid var(--c{row})")


def _figure(name: str, picture: Picture, alt: str) -> str:
    """Return the HTML of a drawing for wide and narrow windows. Ids get ``name``, because drawings share ids."""
    shown = []
    for form, svg in (("wide", picture.svg), ("narrow", picture.narrow)):
        inline_svg = _ID.sub(rf"\g<1>{name}-{form}-", svg)
        class_attribute = f'class="on-{form}" ' if picture.narrow else ""
        shown.append(inline_svg.replace("<svg ", f'<svg {class_attribute}role="img" aria-label="{escape(alt)}" ', 1))
    return f"<figure>{''.join(shown)}</figure>"


def _slug(one: Section) -> str:
    return re.sub(r"[^a-z0-9]+", "-", one.title.lower()).strip("-")


@cache
def _asset(name: str) -> str:
    return resources.files("harness.show").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
