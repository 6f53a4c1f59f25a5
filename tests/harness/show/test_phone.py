"""The report on a phone: contrast of every colour, size of every text, and cells that name their column."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.judge.report_types import StudyReport
from harness.show import drawing, markdown, plots
from harness.show.build import html_page
from harness.show.curves import choices_figure, loss_curves, of_arm
from harness.show.drawing import (
    BAND,
    CURVES,
    GAIN,
    INK,
    LOSS,
    NARROW,
    PAPER,
    PARTS,
    RULE,
    SOFT,
    TEXT,
    THEME,
    WIDE,
    Sheet,
    drawn,
)
from harness.show.first_screen import HEADER, first_screen
from harness.show.names import ArmNames
from tests.harness.show.studies import gain
from tests.harness.show.test_learning import asked, found
from tests.harness.show.test_profile import profiled

TEXT_RATIO, MARK_RATIO = 4.5, 3.0  # WCAG 2.2, 1.4.3 and 1.4.11
ASSETS = Path(drawing.__file__).parent / "assets"
GROUNDS = ("--paper", "--panel")
TEXTS = {
    **dict.fromkeys(("--ink", "--soft", "--link"), GROUNDS),
    **dict.fromkeys(("--gain", "--loss"), ("--paper",)),
    "--warn": ("--warn-paper",),
}
MARKS = {
    **{name: GROUNDS for name in THEME if re.fullmatch(r"--c\d+", name)},
    "--rule": ("--paper",),
    **dict.fromkeys(("--gain", "--loss", "--soft"), ("--band",)),  # points over the noise floor
}
NAMES = ArmNames(["text", "tokens"])


@pytest.fixture(scope="module")
def report() -> StudyReport:
    return gain()


def contrast(one: str, other: str) -> float:
    """WCAG 2: 1 for equal colours, 21 for black on white."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def figures(report: StudyReport) -> dict[str, Callable[[Sheet], Figure | None]]:
    answers = found(asked("text", {1: 0.3, 3: 0.4}))
    return {
        "isolated": lambda sheet: plots.isolated(report.compared, NAMES, sheet),
        "forest": lambda sheet: plots.forest(report.compared, NAMES, sheet),
        "why": lambda sheet: plots.why(report.compared, NAMES, sheet),
        "ledger": lambda sheet: plots.ledger(report.arms, NAMES, sheet),
        "memory": lambda sheet: plots.memory([profiled()], sheet),
        "loss": lambda sheet: loss_curves(answers, NAMES, sheet),
        "choices": lambda sheet: choices_figure([of_arm(answers.arms[0], NAMES)], "acc", "steps", sheet),
    }


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("pairs", "least"), [(TEXTS, TEXT_RATIO), (MARKS, MARK_RATIO)], ids=["text", "marks"])
def test_the_page_has_enough_contrast(theme: int, pairs: dict[str, tuple[str, ...]], least: float) -> None:
    ratios = {
        (front, ground): contrast(THEME[front][theme], THEME[ground][theme])
        for front, grounds in pairs.items()
        for ground in grounds
    }
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < least} == {}


def test_pictures_in_files_have_enough_contrast() -> None:
    assert min(contrast(one, PAPER) for one in (INK, SOFT, GAIN, LOSS)) >= TEXT_RATIO
    assert min(contrast(one, PAPER) for one in (*CURVES, *PARTS.values(), RULE)) >= MARK_RATIO
    assert min(contrast(one, BAND) for one in (SOFT, GAIN, LOSS)) >= MARK_RATIO


def test_every_colour_of_the_page_is_in_the_table() -> None:
    css = (ASSETS / "page.css").read_text()
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\s,)])", css) == []
    assert set(re.findall(r"var\((--[\w-]+)\)", css)) <= set(THEME)
    assert set(drawing.THEMED.values()) <= set(THEME)


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
def test_pictures_have_themed_colours_and_text_that_can_be_read_and_is_not_cut(
    report: StudyReport, sheet: Sheet
) -> None:
    for name, make in figures(report).items():
        figure = make(sheet)
        assert figure is not None, name
        shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
        assert min(text.get_fontsize() for text in shown) >= TEXT, name
        assert figure.get_figwidth() == sheet.width
        if sheet is NARROW:
            assert re.findall(r"#[0-9a-f]{6}\b", drawn(figure).svg) == [], name
            box = figure.get_tightbbox()
            assert min(box.x0, box.y0) >= -0.02, (name, box)
            assert box.x1 <= NARROW.width + 0.02, (name, box)
            assert box.y1 <= figure.get_figheight() + 0.02, (name, box)


def test_cells_name_their_column_and_the_verdict_is_the_second(report: StudyReport) -> None:
    screen = first_screen(report)
    page = html_page(markdown.page(report, screen, []), {}, (), screen.names)
    first = page.partition("<tbody>")[2].partition("</tr>")[0]
    labels = re.findall(r'data-label="([^"]*)"', first)
    assert labels == [*HEADER[1:]]
    assert labels[0] == "verdict"
