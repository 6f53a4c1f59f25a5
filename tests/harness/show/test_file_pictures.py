"""Pictures that are files beside a page: legible on a phone, in the colours of the table, and shown by the page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from harness.explain.replay import Replays, parse_edits
from harness.explain.replay.whatif import Sweep, parse_sweep, sweep
from harness.show import corpus, curves, dedup, sweeps
from harness.show.curves import PlottedRun, loss_figure
from harness.show.drawing import NARROW, TEXT, THEME, WIDE, Sheet, drawn, narrow_name, picture_link, write_picture
from harness.sweep import picture as rates
from harness.sweep.findings import findings
from harness.sweep.picture import size_figure
from harness.sweep.searches import grid
from tests.harness.explain.replay import oracle
from tests.harness.explain.replay.test_sweep import HIDDEN
from tests.harness.sweep.test_projection import answering, body, found, space, strategy
from tests.harness.sweep.test_report import done
from trainer.data.corpus.dedup.shingles import Shingling
from trainer.data.corpus.dedup.sketches import DedupSettings, banding_for
from trainer.data.corpus.statistics import SEQUENCE_LENGTHS, AtLength, CorpusStatistics, LengthBin

pytestmark = pytest.mark.usefixtures("pictures")
BINS = tuple(LengthBin(2**place, 2 ** (place + 1) - 1, 10 + place, 100 * 2**place) for place in range(16))
AT = tuple(AtLength(length, 100, 0.1, 0.2, 50, 0.001) for length in SEQUENCE_LENGTHS)
CORPUS = CorpusStatistics(
    "a corpus with a long name of several parts", "jsonl", "text", "0", 1, "bpe", 32768, 1000, 0, 10**6, 250_000,
    249_000, 0.249, 250.0, 200, 500, 900, 40_000, BINS, AT, None, 0.0, 0.9, 0, 0.0, 0.0,
)  # fmt: skip
STEPS = np.arange(400.0) + 1
LOSSES = 3 + 5 / STEPS


def _dedup(threshold: float) -> Callable[[Sheet], Figure]:
    settings = DedupSettings(Shingling(), threshold, banding_for(threshold))
    return lambda sheet: dedup.s_curve_figure(settings, sheet)


@cache
def _sweep() -> Sweep:
    edits = parse_edits(())
    return sweep(Replays([oracle.run(HIDDEN)]), edits, *parse_sweep("device=1x,2x,4x,8x", edits))


def _swept(sheet: Sheet) -> Figure:
    ranged = _sweep()
    return sweeps.sweep_figure(ranged, "an-arm-of-some-length", ranged.recorded[0], (), sheet)


def _projected(sheet: Sheet) -> Figure:
    one = found(strategy("hybrid"), answering(body, -0.2), space())
    assert one.projection is not None
    return size_figure(one.projection, "hybrid", sheet)


def _rates(draw: Callable[..., Figure]) -> Callable[[Sheet], Figure]:
    curves = findings([done(rate, 8e-3) for rate in grid(1e-4, 1e-1, 10)]).curves
    return lambda sheet: draw(curves, "tiniest", sheet)


def _runs(sheet: Sheet) -> Figure:
    plotted = [PlottedRun(f"run-{place}", np.stack([STEPS, LOSSES]), np.empty((2, 0))) for place in range(3)]
    return loss_figure(plotted, "steps", sheet)


FIGURES: dict[str, Callable[[Sheet], Figure]] = {
    "corpus": lambda sheet: corpus.lengths_figure(CORPUS, sheet),
    "dedup": _dedup(0.8),
    "sweep-rates": _rates(rates.loss_figure),
    "sweep-training": _rates(rates.training_figure),
    "sweep-sizes": _projected,
    "learning-curve": lambda sheet: curves.training_figure(STEPS, STEPS * 524_288, LOSSES, "a training", sheet),
    "several-runs": _runs,
    "what-if": _swept,
}


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)
AT_NIGHT_TOO = ("sweep-training", "sweep-sizes", "learning-curve")


@pytest.mark.parametrize("sheet", [pytest.param(WIDE, id="wide", marks=AT_NIGHT), pytest.param(NARROW, id="narrow")])
@pytest.mark.parametrize("name", [pytest.param(one, marks=AT_NIGHT) if one in AT_NIGHT_TOO else one for one in FIGURES])
def test_text_is_large_enough_and_nothing_is_cut_or_overlaps(name: str, sheet: Sheet) -> None:
    figure = FIGURES[name](sheet)
    svg = drawn(figure).svg
    assert re.findall(r"#[0-9a-f]{6}\b", svg) == []  # each colour follows the theme
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    assert min(text.get_fontsize() for text in shown) >= TEXT
    assert figure.get_figwidth() == sheet.width
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= -0.02
    assert box.x1 <= sheet.width + 0.02
    assert box.y1 <= figure.get_figheight() + 0.02
    for axes in figure.axes if sheet is NARROW else ():
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            room = 1e-9 * (high - low)
            # Slanted labels overlap as boxes, not as text.
            ticks = [one for one in axis.get_major_ticks() if low - room <= one.get_loc() <= high + room]
            boxes = [one.label1.get_window_extent() for one in ticks if not one.label1.get_rotation()]
            assert not any(first.overlaps(second) for first, second in itertools.pairwise(boxes))


def test_a_file_for_a_phone_has_both_themes_and_the_page_chooses_it(tmp_path: Path) -> None:
    picture = drawn(FIGURES["dedup"](WIDE), narrow=FIGURES["dedup"](NARROW))
    write_picture(tmp_path / "alone.png", drawn(FIGURES["dedup"](WIDE)))
    assert [one.name for one in tmp_path.iterdir()] == ["alone.png"]  # without a narrow form it is one file
    assert (tmp_path / "alone.png").read_bytes() == picture.png  # equal figures give equal bytes
    write_picture(tmp_path / "s-curve.png", picture)
    root = ElementTree.parse(tmp_path / narrow_name("s-curve.png")).getroot()
    (style,) = [one.text or "" for one in root if one.tag.endswith("style")]
    for name, (light, dark) in THEME.items():
        assert f"{name}: {light};" in style
        assert f"{name}: {dark};" in style
    width = float(root.attrib["viewBox"].split()[2])
    assert TEXT * 366 / width >= 12  # pixels of text on a phone
    tag = ElementTree.fromstring(picture_link("The S-curve", "s-curve.png"))
    sources = [one.attrib.get("srcset", one.attrib.get("src")) for one in tag]
    assert sources == ["s-curve-narrow.svg", "s-curve.png"]
    assert all((tmp_path / str(one)).is_file() for one in sources)


def test_what_a_tokenizer_drops_in_silence_is_not_called_known() -> None:
    """CORPUS has no share of unknown tokens: its tokenizer has no such token."""
    assert "| unknown tokens | not counted: the tokenizer has none (it encodes every byte, or drops" in corpus.page(
        CORPUS
    )


def test_an_equal_picture_has_equal_bytes() -> None:
    """Whoever rebuilds a report sees in git what changed, and nothing else."""
    first, second = (drawn(simple()) for _ in range(2))
    assert (first.png, first.svg) == (second.png, second.svg)


def simple() -> Figure:
    figure = Figure()
    figure.subplots().plot([0, 1], [1, 2], clip_on=True)
    return figure
