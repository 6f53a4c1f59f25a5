"""Makes summary.html: summary.md in one file, with sortable tables, themed pictures and every step to hover.

The text is summary.md's own markdown, so no figure is formatted twice. Markup within it is shown as text, never obeyed
(markdown-it with ``html`` off), and the page's policy forbids every request and every script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from harness.explain.unusual_steps import StepTimes
from harness.show import drawing, machine
from harness.show.drawing import Picture
from harness.show.markdown import Page, Section
from harness.show.names import ArmNames
from harness.show.verdict_card import VerdictCard

_ID = re.compile(r'(\bid="|href="#|url\(#)')
ONE_LINE = 40  # characters of a cell that is not broken
OPEN = ("Verdicts in full",)  # sections that are open when the page is


def page(report: Page, pictures: Mapping[str, Picture], steps: Sequence[StepTimes], names: ArmNames) -> str:
    """The whole file; ``pictures`` by the names under which ``report`` shows them."""
    markdown = _renderer(pictures)
    plot, script = _asset("uplot.min.js"), _asset("page.js")
    opening = [
        (f"<h2>{escape(one.title)}</h2>" if one.title else "") + markdown.render(one.text) for one in report.opening
    ]
    if report.card is not None:
        opening.append(bar(report.card))
    return Template(_asset("page.html")).substitute(
        title=markdown.renderInline(report.title),
        hashes=" ".join(map(_hash, (plot, script))),
        style=_asset("uplot.min.css") + drawing.style() + _asset("page.css"),
        opening="\n".join(opening),
        contents="\n".join(f'<li><a href="#{_slug(one)}">{escape(one.title)}</a></li>' for one in report.sections),
        sections="\n".join(_details(one, markdown, steps) for one in report.sections),
        data=json.dumps(_data(steps, names), separators=(",", ":")).replace("<", "\\u003c"),
        uplot=plot,
        script=script,
    )


def bar(card: VerdictCard) -> str:
    """One bar of the whole step; each part has a tooltip, as the table above it has the figures."""
    begun, parts = 0.0, []
    for place, one in enumerate(card.bar):
        parts.append(
            f'<rect x="{100 * begun:.3f}%" width="{100 * one.share:.3f}%" height="28" fill="var(--c{place})">'
            f"<title>{escape(f'{one.label}: {one.ms}, {100 * one.share:.0f} %')}</title></rect>"
        )
        begun += one.share
    label = escape("; ".join(f"{one.label} {100 * one.share:.0f} %" for one in card.bar))
    return f'<svg class="step-bar" role="img" aria-label="{label}" width="100%" height="28">{"".join(parts)}</svg>'


def fragment(text: str) -> str:
    """Return markdown as HTML for a page of someone else's, such as a notebook."""
    return f"<div>{_renderer({}).render(text)}</div>"


def _details(one: Section, markdown: MarkdownIt, steps: Sequence[StepTimes]) -> str:
    chart = _CHART.format(note=escape(machine.thinned_note(steps))) if one.title == machine.STEPS_TITLE else ""
    opened = " open" if one.title in OPEN else ""
    heading = f"<summary><h2>{escape(one.title)}</h2></summary>"
    return f'<details id="{_slug(one)}"{opened}>{heading}{chart}{markdown.render(one.text)}</details>'


_CHART = """<div id="steps"><div class="legend"></div>
<div class="chart" tabindex="0" role="group"
 aria-label="Time of every step over the study; arrow keys go from step to step. The slowest are tabled below."></div>
<p class="note">Each point is a measured step; rings are outliers. Drag to zoom, double-click to see all. {note}</p>
</div>"""


def _data(steps: Sequence[StepTimes], names: ArmNames) -> dict[str, Any]:
    arms = list(dict.fromkeys(one.arm for one in steps))
    return {
        "arms": [names.short(arm) for arm in arms],
        "runs": [
            {
                "arm": arms.index(one.arm),
                "block": one.block,
                "at_s": [round(second, 2) for second in one.start_s],
                "ms": [float(f"{wall:.4g}") for wall in one.wall_ms],
                "step": one.step,
                "repetition": one.repetition,
                "outliers": [place for place, outlier in enumerate(one.outlier) if outlier],
            }
            for one in steps
        ],
    }


def _renderer(pictures: Mapping[str, Picture]) -> MarkdownIt:
    """Markdown whose tables have headers of rows and columns, and whose pictures are drawn in place."""

    def image(_: RendererHTML, tokens: Sequence[Token], at: int, *__: object) -> str:
        name = str(tokens[at].attrs.get("src", "")).rpartition("/")[2]
        found = pictures.get(name)
        return "" if found is None else _figure(name.partition(".")[0], found, tokens[at].content)

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.core.ruler.push("headers", _headers)
    for name, rule in (("image", image), ("table_open", _table_open), ("table_close", _table_close)):
        markdown.add_render_rule(name, rule)
    return markdown


def _headers(state: Any) -> None:
    """The cells of the first column head their rows, those of the first row their columns.

    Each other cell has its column's name as ``data-label``: a phone shows it before the cell, as the head is hidden.
    """
    tokens: list[Token] = state.tokens
    labels: list[str] = []
    column = 0
    for at, token in enumerate(tokens):
        if token.type == "thead_open":
            labels = []
        if token.type == "th_open":
            token.attrSet("scope", "col")
            labels.append("".join(child.content for child in tokens[at + 1].children or ()))
        elif token.type == "td_open":
            column += 1
            if column:
                token.attrSet("data-label", labels[column])
            if len(tokens[at + 1].content) <= ONE_LINE:
                token.attrSet("class", "figure")
        elif token.type == "tr_open" and tokens[at + 1].type == "td_open":
            column = -1
            close = next(place for place in range(at, len(tokens)) if tokens[place].type == "td_close")
            tokens[at + 1].tag = tokens[close].tag = "th"
            tokens[at + 1].attrSet("scope", "row")


def _table_open(*_: object) -> str:
    return '<div class="wide"><table>'


def _table_close(*_: object) -> str:
    return "</table></div>"


def _figure(name: str, picture: Picture, alt: str) -> str:
    """The drawing in place, for wide and for narrow windows. Its ids get its name: drawings repeat each other's."""
    shown = []
    for form, svg in (("wide", picture.svg), ("narrow", picture.narrow)):
        own = _ID.sub(rf"\g<1>{name}-{form}-", svg)
        only = f'class="on-{form}" ' if picture.narrow else ""
        shown.append(own.replace("<svg ", f'<svg {only}role="img" aria-label="{escape(alt)}" ', 1))
    return f"<figure>{''.join(shown)}</figure>"


def _slug(one: Section) -> str:
    return re.sub(r"[^a-z0-9]+", "-", one.title.lower()).strip("-")


@cache
def _asset(name: str) -> str:
    return resources.files("harness.show").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
