"""Describes a corpus: a page of tables, a picture of document lengths, and plain data for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.show.drawing import CURVES, NARROW, TEXT, WIDE, Picture, Sheet, drawn, fitted, picture_link, plain, title
from harness.show.tables import NOT_MEASURED, cell, code, joined, table
from harness.show.words import count, number, percent, ratio
from trainer.data.corpus.statistics import CorpusStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "corpus-lengths.png"
NO_UNKNOWN = "not counted: the tokenizer has none (it encodes every byte, or drops unknown text)"
_BAR = 30  # characters of the longest bar


def page(found: CorpusStatistics, picture: str | None = None) -> str:
    """Return the Markdown page of a corpus. ``picture``: file name of the drawing; None for a page without one."""
    padded = [
        "sequence length", "padded rows", "useful", "tokens cut off", "packed rows", "useful",
        "useful tokens a row, packed against padded",
    ]  # fmt: skip
    lengths = [(length, 1 - length.padding_share, 1 - length.packed_padding_share) for length in found.at]
    rows = [
        (f"{length.sequence_length:,}", f"{length.padded_rows:,}", percent(useful), _share(length.cut_off_share),
         f"{length.packed_rows:,}", percent(packed), ratio(packed / useful))
        for length, useful, packed in lengths
    ]  # fmt: skip
    parts = [
        f"# {code(found.corpus)}",
        table(["of the corpus", "value"], _facts(found)),
        "## Lengths",
        f"A document has {number(found.mean_tokens)} tokens on average; half have at most {found.median_tokens:,}, "
        f"90 % at most {found.tokens_90_percent:,}, 99 % at most {found.tokens_99_percent:,}, and the longest has "
        f"{found.longest_tokens:,}.",
        table(["tokens", "documents", "share", "share of tokens", "documents"], _bins(found)),
        "## Padding against packing",
        "Padded: a document a row, cut off at the sequence length; packed: documents end to end. Useful is the share "
        "of positions with a token. The rest is padding, which among packed rows only the last one has.",
        table(padded, rows),
        _advice(found),
    ]
    if picture is not None:
        parts.insert(4, picture_link("Lengths of documents, and padding by sequence length", picture))
    return joined(*parts) + "\n"


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
        ("tokens of text per byte", cell(found.tokens_per_byte, "{:.4f}".format)),
        ("bytes per token of text", NOT_MEASURED if not found.tokens_per_byte else number(1 / found.tokens_per_byte)),
        ("unknown tokens", NO_UNKNOWN if unknown is None else _share(unknown)),
        ("special tokens within text", _share(found.special_share)),
        ("ids of the tokenizer in use", percent(found.vocabulary_used_share)),
        ("exact duplicates", f"{count(found.duplicate_documents, 'document')} ({_share(found.duplicate_share)}; "
         f"{_share(found.duplicate_bytes_share)} of bytes)"),
    ]  # fmt: skip


def _share(value: float) -> str:
    """Format a share (0 to 1) as a percentage. Exactly 0 is ``none``, because small shares also round to 0."""
    return "none" if value == 0 else percent(value)


def _bins(found: CorpusStatistics) -> list[tuple[str, ...]]:
    documents_max = max(bucket.documents for bucket in found.bins)
    documents, tokens = sum(bucket.documents for bucket in found.bins), sum(bucket.tokens for bucket in found.bins)
    return [
        (
            f"{bucket.low:,}" if bucket.low == bucket.high else f"{bucket.low:,} to {bucket.high:,}",
            f"{bucket.documents:,}",
            percent(bucket.documents / documents),
            percent(bucket.tokens / tokens),
            "█" * round(_BAR * bucket.documents / documents_max) or "▏",
        )
        for bucket in found.bins
    ]


def _advice(found: CorpusStatistics) -> str:
    """Return a warning each for unknown tokens, special tokens within the text and repeated documents; else ""."""
    unknown = (found.unknown_share or 0) > 0.001
    return " ".join([
        *["The tokenizer cannot encode part of this text, so a model cannot learn it."] * unknown,
        *["The text contains special tokens: a model treats them as ends or marks."]
        * (found.special_share > 0),
        *["Documents repeat: held-out copies are kept apart by content, but training sees them again."]
        * (found.duplicate_share > 0.01),
    ])  # fmt: skip


def picture(found: CorpusStatistics) -> Picture:
    """Draw the distribution of document lengths and the padding by sequence length, in a row or stacked (phones)."""
    return drawn(lengths_figure(found), narrow=lengths_figure(found, NARROW))


def lengths_figure(found: CorpusStatistics, sheet: Sheet = WIDE) -> Figure:
    """Draw the picture of :func:`picture` on a wide or narrow ``sheet``."""
    figure = sheet.figure(8.0 if sheet.stacked else 4.6)
    lengths, padding = (plain(panel, "y") for panel in figure.subplots(*((2, 1) if sheet.stacked else (1, 2))))
    documents, tokens = sum(bucket.documents for bucket in found.bins), sum(bucket.tokens for bucket in found.bins)
    _bars(lengths, [f"{bucket.low:,}" for bucket in found.bins], "tokens of a document, from", {
        "of the documents": (CURVES[0], [bucket.documents / documents for bucket in found.bins]),
        "of the tokens": (CURVES[4], [bucket.tokens / tokens for bucket in found.bins]),
    })  # fmt: skip
    _bars(padding, [f"{length.sequence_length:,}" for length in found.at], "sequence length of padded rows", {
        "padding, of all positions": (CURVES[1], [length.padding_share for length in found.at]),
        "cut off, of all tokens": (CURVES[7], [length.cut_off_share for length in found.at]),
    })  # fmt: skip
    for axes in (lengths, padding):
        columns = 1 if sheet.stacked else 2
        axes.legend(fontsize=TEXT, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)
    title(figure, f"{found.corpus}: how long its documents are, and what padding them costs")
    return fitted(figure, sheet)


def _bars(axes: Axes, ticks: Sequence[str], text: str, shares: Mapping[str, tuple[str, Sequence[float]]]) -> None:
    """Draw two bars per tick. ``text``: x axis label. ``shares``: {legend label: (colour, heights from 0 to 1)}."""
    for shift, (label, (colour, values)) in zip((-0.2, 0.2), shares.items(), strict=True):
        positions = [index + shift for index in range(len(values))]
        axes.bar(positions, [100 * value for value in values], 0.4, color=colour, label=label)
    axes.set_xticks(range(len(ticks)), ticks, rotation=60, fontsize=TEXT)
    axes.set_xlabel(text)
    axes.set_ylabel("share (%)")
