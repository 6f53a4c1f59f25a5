"""Draws the elements of all pictures: colours, rows, points with intervals, ratio axes. Writes PNG and SVG."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.explain.statistics import Estimate
from trainer.errors import visible_lines
from trainer.files import write_bytes, write_text

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GAIN, LOSS = "#007A58", "#B34700"  # dark enough for small text on white
INK, SOFT, RULE = "#333333", "#555555", "#888888"  # text, secondary text, lines that carry no figure
BAND, GRID, PAPER = "#E4E4E4", "#EEEEEE", "#FFFFFF"  # grounds

# {custom property of the page: (light, dark)}
THEME = {
    "--paper": ("#ffffff", "#14171b"),
    "--ink": ("#1b1f24", "#e6e9ed"),
    "--soft": ("#57606a", "#a3adb8"),
    "--rule": ("#888888", "#7d8792"),
    "--band": ("#e2e4e8", "#353b44"),
    "--grid": ("#eceef1", "#272c33"),
    "--panel": ("#f6f8fa", "#1c2127"),
    "--gain": ("#007a58", "#3fc79a"),
    "--loss": ("#b34700", "#ff9a5c"),
    "--warn": ("#9a3412", "#ffb38a"),
    "--warn-paper": ("#fff4ec", "#33211a"),
    "--link": ("#0550ae", "#79b8ff"),
    "--edge": ("#d0d7de", "#3b434d"),
    "--c0": ("#0072b2", "#4ba3dc"),
    "--c1": ("#d55e00", "#ff8a3d"),
    "--c2": ("#009e73", "#35c997"),
    "--c3": ("#b0578d", "#e08fc0"),
    "--c4": ("#b87900", "#f0b030"),
    "--c5": ("#2f8fc4", "#8ccdf2"),
    "--c6": ("#8c510a", "#c9925a"),
    "--c7": ("#666666", "#a0a0a0"),
    "--c8": ("#a3305a", "#f07a9f"),
    "--c9": ("#6a3d9a", "#b596dd"),
    "--c10": ("#5b8a7c", "#9fd3c4"),
    "--c11": ("#8a8a8a", "#c8c8c8"),
}

# Close to Okabe and Ito's palette for colour-blind readers. Each colour has a contrast of at least 3:1 on white.
CURVES = tuple(THEME[f"--c{number}"][0].upper() for number in range(8))
# Warm colours for data work, cool and grey ones for the rest.
PARTS = {
    "read": THEME["--c4"][0],
    "tokenize": THEME["--c1"][0],
    "pack": THEME["--c6"][0],
    "transfer": THEME["--c8"][0],
    "fetch": THEME["--c1"][0],
    "h2d": THEME["--c3"][0],
    "forward": THEME["--c5"][0],
    "backward": THEME["--c0"][0],
    "optimizer": THEME["--c2"][0],
    "sync": THEME["--c10"][0],
    "log": THEME["--c7"][0],
    "checkpoint": THEME["--c9"][0],
    "other": THEME["--c11"][0],
}
# Colours of a drawing, and the custom property that replaces each in the page's SVG.
THEMED = {
    **{light: name for name, (light, _) in THEME.items() if name.startswith("--c")},
    PAPER.lower(): "--paper",
    "#000000": "--ink",
    INK: "--ink",
    SOFT: "--soft",
    RULE: "--rule",
    BAND.lower(): "--band",
    GRID.lower(): "--grid",
    GAIN.lower(): "--gain",
    LOSS.lower(): "--loss",
}
VARIABLES = {colour: f"var({name})" for colour, name in THEMED.items()}

DPI = 130
TEXT = 10.0  # points; the page shows wide pictures 1.22 pixels per point or larger, and narrow ones 1.34
SPACING = 1.2  # of lines
LINE = 44  # characters of TEXT across a narrow sheet
_MOST_POINTS = 4000  # per curve: more than the picture has pixels
ROUND = ("1.0", "2.0", "5.0")  # leading digits of the ticks on a crowded axis
TICKS = [m * 10**e for e in range(-3, 5) for m in (1, 1.5, 2, 3, 5, 7)]


@dataclass(frozen=True)
class Sheet:
    """Width and layout of a picture: :data:`WIDE` or :data:`NARROW` (phones)."""

    width: float  # inches
    stacked: bool = False  # text stands above the rows, because it does not fit beside them

    def plot(self, height: float, grid: Literal["x", "y", "both"] = "y") -> tuple[Figure, Axes]:
        """Return a figure of ``height`` inches with one plot, and its axes. ``grid``: axis with grid lines."""
        figure = self.figure(height)
        return figure, plain(figure.add_subplot(), grid)

    def figure(self, height: float) -> Figure:
        """Return an empty figure of ``height`` inches."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(self.width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure


def plain(axes: Axes, grid: Literal["x", "y", "both"]) -> Axes:
    """Draw grid lines of axis ``grid`` behind the data, without the top and right frame lines. Return ``axes``."""
    axes.grid(axis=grid, color=GRID, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


WIDE = Sheet(10.5)
NARROW = Sheet(3.8, stacked=True)  # A phone shows it 366 pixels wide.


@dataclass(frozen=True)
class RowAxes:
    """Axes with one horizontal row of marks per label, made by :func:`row_axes`."""

    figure: Figure
    axes: Axes
    pitch: float  # distance between two rows; a row of marks is 1 high

    def at(self, row: int) -> float:
        """Return the y coordinate of the centre of row ``row`` (from 0, top to bottom)."""
        return row * self.pitch

    def label(self, labels: Sequence[str], texts: Sequence[str], colours: Sequence[str], soft: Sequence[bool]) -> None:
        """Write each row's name and figures: beside the axes, or above the row if narrow. ``soft``: pale name."""
        if self.pitch == 1:
            self.axes.set_yticks(range(len(labels)), labels, fontsize=TEXT)
            for tick, is_soft in zip(self.axes.get_yticklabels(), soft, strict=True):
                tick.set_color(SOFT if is_soft else INK)
            for row, (text, colour) in enumerate(zip(texts, colours, strict=True)):
                self._text(1.02, row, text, colour, "center")
            return
        self.axes.set_yticks([])
        lines_max = 0
        for row, (label, text, colour) in enumerate(zip(labels, texts, colours, strict=True)):
            top = self.at(row) - 0.5
            figures = wrapped(text) if text else ""
            lines = figures.count("\n") + 1 if figures else 0
            name = wrapped(label.replace("\n", " "))
            self._text(0, top, figures, colour, "bottom", 2)
            self._text(0, top, name, INK, "bottom", lines * TEXT * SPACING + 2)
            lines_max = max(lines_max, lines + name.count("\n") + 1)
        self._fit(lines_max)

    def _fit(self, lines: int) -> None:
        bottom, top = self.axes.get_ylim()
        inches = self.figure.get_figheight() / (bottom - top)
        new_top = -0.5 - (lines + 1) * TEXT * SPACING / 72 / inches
        self.figure.set_figheight(self.figure.get_figheight() - (new_top - top) * inches)
        self.axes.set_ylim(bottom, new_top)

    def _text(self, x: float, y: float, text: str, colour: str, align: str, above: float = 0) -> None:
        self.axes.annotate(
            text, (x, y), (0, above), xycoords=("axes fraction", "data"), textcoords="offset points", va=align,
            fontsize=TEXT, color=colour, annotation_clip=False, linespacing=SPACING, zorder=6,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip


def row_axes(count: int, height: float, margin: float, sheet: Sheet = WIDE, lines: int = 0) -> RowAxes:
    """Return axes with rows of ``height`` inches, plus ``margin``. ``lines``: text lines above a narrow row."""
    pitch = 1 + (lines + 0.5) * TEXT * SPACING / 72 / height if sheet.stacked else 1
    figure, axes = sheet.plot(margin + height * pitch * count, "x")
    axes.set_ylim(pitch * (count - 1) + 0.6, 0.4 - pitch)  # first row on top
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return RowAxes(figure, axes, pitch)


def fitted(figure: Figure, sheet: Sheet) -> Figure:
    """Return ``figure``. On a narrow (stacked) sheet, first wrap its texts and enlarge it for the added lines."""
    if not sheet.stacked:
        return figure
    title(figure, wrapped(figure.get_suptitle(), 0.82))
    texts = [figure.get_suptitle()]
    for axes in figure.axes:
        axes.set_xlabel(wrapped(axes.get_xlabel()), fontsize=TEXT)
        axes.set_title(wrapped(axes.get_title(loc="right")), loc="right", fontsize=TEXT)
        texts += [axes.get_xlabel()]
    for legend in list(figure.legends):
        handles: list[Any] = legend.legend_handles
        labels = [wrapped(entry.get_text(), 0.85) for entry in legend.get_texts()]
        longest = max((len(line) for label in labels for line in label.split("\n")), default=1)
        columns = 2 if longest <= 15 else 1
        legend.remove()
        legend_of_all(figure, handles, labels, columns)
        texts += labels[::columns]
    lines = sum(text.count("\n") + 1 for text in texts)
    figure.set_size_inches(sheet.width, figure.get_figheight() + (lines - 2) * TEXT * 1.35 / 72)
    return figure


def wrapped(text: str, share: float = 1.0) -> str:
    """Break text into lines that fit ``share`` (0 to 1) of the width of a narrow sheet."""
    lines = (textwrap.wrap(line, int(LINE * share), break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join(part for line in lines for part in line)


def point(
    axes: Axes, estimate: Estimate, row: float, colour: str, marker: str, label: str | None, hollow: bool = False
) -> None:
    """Draw the median of ``estimate`` at y ``row`` with its interval as a line; hollow if asked or without interval."""
    if estimate.ci_low is not None and estimate.ci_high is not None:
        axes.plot([estimate.ci_low, estimate.ci_high], [row, row], color=colour, linewidth=2.2, zorder=4)
    face = "white" if hollow or estimate.ci_low is None else colour
    axes.plot(estimate.median, row, marker, color=colour, markerfacecolor=face, markersize=7, zorder=5, label=label)


def ratio_axis(axes: Axes, found: Sequence[Estimate], more: Sequence[float] = (), sheet: Sheet = WIDE) -> None:
    """Make the x axis logarithmic with a line at 1 and ticks as 0.98x, wide enough for ``found`` and ``more``."""
    from matplotlib.ticker import MaxNLocator

    ends = (
        (estimate.median, estimate.ci_low or estimate.median, estimate.ci_high or estimate.median) for estimate in found
    )
    values = [*(value for three in ends for value in three), *more] or [0.5, 2.0]
    low, high = min(*values, 0.99), max(*values, 1.01)
    room = 0.06 * math.log(high / low)
    low, high = low * math.exp(-room), high * math.exp(room)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    if high / low < 2.5:
        linear = MaxNLocator(4 if sheet.stacked else 7, steps=[1, 2, 5, 10]).tick_values(low, high)
        ticks = [float(tick) for tick in linear if low <= tick <= high]
    ticks_max = 6 if sheet.stacked else 9
    for leading in (ROUND, ROUND[:1]):
        if high / low >= 2.5 and len(ticks) > ticks_max:
            ticks = [tick for tick in ticks if f"{tick:e}"[:3] in leading]
    ratio_ticks(axes.xaxis, ticks)
    axes.axvline(1, color=RULE, linewidth=1, linestyle="--", zorder=2)


def ratio_ticks(axis: Any, ticks: Sequence[float]) -> None:
    """Put ticks at ``ticks`` only, labelled as ratios such as ``0.98x``."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}x"))


def title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.008, ha="left", fontsize=11, fontweight="bold")


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    legend_of_all(figure, *axes.get_legend_handles_labels(), columns)


def legend_of_all(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int) -> None:
    """Draw one legend for the whole figure, below all plots, in ``columns`` columns."""
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, fontsize=TEXT, frameon=False)


def thinned(time: np.ndarray, size: np.ndarray, most: int = _MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Thin a curve of over ``most`` points to the lowest and highest point of each of ``most / 2`` pieces."""
    if len(size) <= most:
        return time, size
    import numpy as np

    pieces = np.array_split(np.arange(len(size)), most // 2)
    indices = np.unique(
        [index for piece in pieces for index in (piece[size[piece].argmin()], piece[size[piece].argmax()])]
    )
    return time[indices], size[indices]


@dataclass(frozen=True)
class Picture:
    """A drawing as PNG and SVG, and perhaps as a narrow SVG for phones."""

    png: bytes  # for Markdown
    svg: str  # coloured by the page's theme
    narrow: str = ""  # the SVG for a phone


def drawn(figure: Figure, emulated: bool = False, narrow: Figure | None = None) -> Picture:
    """Render ``figure`` as PNG and SVG, and ``narrow`` as SVG for phones. Equal figures give equal bytes."""
    import matplotlib

    if emulated:
        figure.text(0.992, 0.99, EMULATED, ha="right", va="top", fontsize=TEXT, fontweight="bold", color=LOSS)
        if narrow is not None:
            title(narrow, f"{EMULATED}\n{narrow.get_suptitle()}")
    content = io.BytesIO()
    _laid_out(figure)
    # Leave version and date out of the files.
    figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None}, facecolor="white")
    if narrow is not None:
        _laid_out(narrow)
    with matplotlib.rc_context({"svg.hashsalt": "harness", "svg.fonttype": "path"}):
        return Picture(content.getvalue(), _svg(figure), "" if narrow is None else _svg(narrow))


EMULATED = "EMULATED DEVICE"
PHONE = 640  # pixels: narrower windows show the narrow picture


def write_picture(path: Path, picture: Picture) -> None:
    """Write the PNG to ``path`` and the narrow drawing, if any, beside it as an SVG that follows the reader's theme."""
    write_bytes(path, picture.png)
    if picture.narrow:
        write_text(path.with_name(narrow_name(path.name)), themed_file(picture.narrow))


def themed_file(svg: str) -> str:
    """Return the HTML page's SVG ``svg`` as a file of its own, with the colours of both themes."""
    theme = f"<style>{style()}svg {{ color: var(--ink) }}</style>"
    return svg.replace("><", f">{theme}<", 1) + "\n"


def narrow_name(name: str) -> str:
    """Return the file name of a picture's narrow drawing: ``NAME-narrow.svg`` for ``NAME.png``."""
    return f"{name.removesuffix('.png')}-narrow.svg"


def picture_link(alt: str, name: str) -> str:
    """Return an HTML <picture> for Markdown: up to :data:`PHONE` pixels the narrow drawing, else the PNG."""
    source = f'<source media="(max-width: {PHONE}px)" srcset="{narrow_name(name)}"/>'
    return f'<picture>{source}<img src="{name}" alt="{alt}"/></picture>'


def _laid_out(figure: Figure) -> None:
    """Fix the positions of all elements once; else matplotlib lays out twice for each saved file."""
    import matplotlib

    _plain_text(figure)
    figure.set_dpi(DPI)
    with matplotlib.rc_context({"text.parse_math": False}):  # Applies also to ticks that are created here.
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
    figure.set_layout_engine(None)


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    return _themed(text.getvalue())


def _plain_text(figure: Figure) -> None:
    """Make the figure draw all texts literally. matplotlib would treat text between two dollar signs as a formula."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(visible_lines(text.get_text()))


def _themed(svg: str) -> str:
    """Return matplotlib's SVG as a bare <svg> element, in which the page's theme sets the colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"#[0-9a-fA-F]{6}\b", lambda match: VARIABLES.get(match[0].lower(), match[0]), svg)
    # Two decimals of a point suffice. Scales are below 1 and keep all digits.
    svg = re.sub(r"\b([1-9]\d*\.\d\d)\d+", r"\1", svg)
    width = re.search(r'viewBox="0 0 (\S+) ', svg)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = _shortened(svg)
    return svg.replace("<svg ", f'<svg fill="currentColor" data-width="{width[1] if width else ""}" ', 1).strip()


def _shortened(svg: str) -> str:
    """Return the SVG without parts that no browser shows: comments, names of groups, white space, long glyph names."""
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # No element refers to a group.
    svg = re.sub(r"\s*\n\s*", " ", svg).replace("> <", "><")
    svg = re.sub(r'( id="|href="#)DejaVuSans-', r"\1g", svg)
    return svg.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")


def style() -> str:
    """Return CSS with the colours of the light and the dark theme, selected by the system or the page's button."""
    light, dark = (
        f"color-scheme: {scheme}; " + " ".join(f"{name}: {pair[index]};" for name, pair in THEME.items())
        for index, scheme in enumerate(("light", "dark"))
    )
    return (
        f":root {{ {light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f':root[data-theme="dark"] {{ {dark} }}\n'
    )
