"""Writes what a corpus is made of: a page of tables, a picture of its lengths, and plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.show.drawing import CURVES, GRID, NARROW, TEXT, WIDE, Picture, Sheet, drawn, fitted, picture_link, title
from harness.show.tables import NOT_MEASURED, code, table
from harness.show.words import count, number, percent, ratio
from trainer.data.corpus.statistics import AtLength, CorpusStatistics, LengthBin

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "corpus-lengths.png"
_DOCUMENTS, _TOKENS, _PADDING, _CUT = CURVES[0], CURVES[4], CURVES[1], CURVES[7]
_BAR = 30  # characters of the longest bar


def page(found: CorpusStatistics, picture: str | None = None) -> str:
    """Markdown. ``picture``: the file name of the drawing, where there is one."""
    parts = [
        f"# {code(found.corpus)}",
        table(["of the corpus", "value"], _facts(found)),
        "## Lengths",
        _sentence_of_lengths(found),
        table(["tokens", "documents", "share", "share of tokens", "documents"], _bins(found)),
        "## Padding against packing",
        "Padded: a document a row, cut off at the sequence length; packed: documents end to end. Useful is the share "
        "of positions that hold a token: the rest is padding, which packed rows have in the last one alone.",
        table(
            [
                "sequence length",
                "padded rows",
                "useful",
                "tokens cut off",
                "packed rows",
                "useful",
                "useful tokens a row, packed against padded",
            ],
            [_at(one) for one in found.at],
        ),
        _advice(found),
    ]
    if picture is not None:
        parts.insert(4, picture_link("Lengths of documents, and padding by sequence length", picture))
    return "\n\n".join(part for part in parts if part) + "\n"


# Of a tokenizer that knows every byte, and of one that does not: which it is, nobody has asked.
_NO_UNKNOWN = "not counted: the tokenizer has none (it knows every byte, or drops what it does not know)"


def _facts(found: CorpusStatistics) -> list[tuple[str, str]]:
    text = found.text_bytes is not None
    unknown = found.unknown_share
    return [
        ("format", f"{found.format}, {found.content}, {count(found.files, 'file')}"),
        ("tokenizer", f"{found.tokenizer}, {found.vocab_size:,} ids"),
        ("documents", f"{found.documents:,}"),
        ("empty documents", f"{found.empty:,}"),
        ("bytes of text (UTF-8)", f"{found.text_bytes:,}" if text else f"{NOT_MEASURED} (token ids)"),
        ("tokens, ends of documents included", f"{found.tokens:,}"),
        ("tokens of text per byte", NOT_MEASURED if found.tokens_per_byte is None else f"{found.tokens_per_byte:.4f}"),
        ("bytes per token of text", NOT_MEASURED if not found.tokens_per_byte else number(1 / found.tokens_per_byte)),
        ("unknown tokens", _NO_UNKNOWN if unknown is None else _share(unknown)),
        ("special tokens within text", _share(found.special_share)),
        ("ids of the tokenizer in use", percent(found.vocabulary_used_share)),
        ("exact duplicates", f"{count(found.duplicate_documents, 'document')} ({_share(found.duplicate_share)}; "
         f"{_share(found.duplicate_bytes_share)} of bytes)"),
    ]  # fmt: skip


def _share(value: float) -> str:
    """``none`` for 0, which ``percent`` would round to as well."""
    return "none" if value == 0 else percent(value)


def _sentence_of_lengths(found: CorpusStatistics) -> str:
    return (
        f"A document has {number(found.mean_tokens)} tokens on average; half have at most {found.median_tokens:,}, "
        f"90 % at most {found.tokens_90_percent:,}, 99 % at most {found.tokens_99_percent:,}, and the longest has "
        f"{found.longest_tokens:,}."
    )


def _bins(found: CorpusStatistics) -> list[tuple[str, ...]]:
    most = max(one.documents for one in found.bins)
    documents, tokens = sum(one.documents for one in found.bins), sum(one.tokens for one in found.bins)
    return [
        (
            _range(one),
            f"{one.documents:,}",
            percent(one.documents / documents),
            percent(one.tokens / tokens),
            "█" * round(_BAR * one.documents / most) or "▏",
        )
        for one in found.bins
    ]


def _range(one: LengthBin) -> str:
    return f"{one.low:,}" if one.low == one.high else f"{one.low:,} to {one.high:,}"


def _at(one: AtLength) -> tuple[str, ...]:
    useful, packed = 1 - one.padding_share, 1 - one.packed_padding_share
    return (
        f"{one.sequence_length:,}",
        f"{one.padded_rows:,}",
        percent(useful),
        _share(one.cut_off_share),
        f"{one.packed_rows:,}",
        percent(packed),
        ratio(packed / useful),
    )


def _advice(found: CorpusStatistics) -> str:
    """One sentence for each thing that a reader should do something about."""
    found_odd: list[str] = []
    if found.unknown_share is not None and found.unknown_share > 0.001:
        found_odd.append("The tokenizer does not know part of this text: what was there cannot be learned.")
    if found.special_share > 0:
        found_odd.append(
            "Special tokens stand in the text itself: a model reads them as the ends or marks that they are."
        )
    if found.duplicate_share > 0.01:
        found_odd.append("Documents repeat: held-out copies are kept apart by content, but training sees them again.")
    return " ".join(found_odd)


def picture(found: CorpusStatistics) -> Picture:
    """Return lengths of documents beside padding by sequence length; on a phone one below the other."""
    return drawn(lengths_figure(found), narrow=lengths_figure(found, NARROW))


def lengths_figure(found: CorpusStatistics, sheet: Sheet = WIDE) -> Figure:
    """Return the figure of :func:`picture`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width, 8.0 if sheet.stacked else 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    lengths, padding = figure.subplots(*((2, 1) if sheet.stacked else (1, 2)))
    places = range(len(found.bins))
    documents, tokens = sum(one.documents for one in found.bins), sum(one.tokens for one in found.bins)
    _bars(lengths, places, [one.documents / documents for one in found.bins], -0.2, _DOCUMENTS, "of the documents")
    _bars(lengths, places, [one.tokens / tokens for one in found.bins], 0.2, _TOKENS, "of the tokens")
    lengths.set_xticks(list(places), [f"{one.low:,}" for one in found.bins], rotation=60, fontsize=TEXT)
    lengths.set_xlabel("tokens of a document, from")
    places = range(len(found.at))
    _bars(padding, places, [one.padding_share for one in found.at], -0.2, _PADDING, "padding, of all positions")
    _bars(padding, places, [one.cut_off_share for one in found.at], 0.2, _CUT, "cut off, of all tokens")
    padding.set_xticks(list(places), [f"{one.sequence_length:,}" for one in found.at], rotation=60, fontsize=TEXT)
    padding.set_xlabel("sequence length of padded rows")
    for axes in (lengths, padding):
        axes.set_ylabel("share (%)")
        axes.grid(axis="y", color=GRID)
        axes.set_axisbelow(True)
        columns = 1 if sheet.stacked else 2
        axes.legend(fontsize=TEXT, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    title(figure, f"{found.corpus}: how long its documents are, and what padding them costs")
    return fitted(figure, sheet)


def _bars(axes: Axes, places: Sequence[int], shares: Sequence[float], shift: float, colour: str, label: str) -> None:
    axes.bar([place + shift for place in places], [100 * one for one in shares], 0.4, color=colour, label=label)
