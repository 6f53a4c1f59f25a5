"""Reports near-duplicates: criteria, S-curve, results, and the quality of the results if there are labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.show.drawing import CURVES, LOSS, NARROW, WIDE, Picture, Sheet, drawn, fitted, picture_link, title
from harness.show.tables import NOT_MEASURED, code, column_table, joined, plain_json, record_json, table
from harness.show.words import count, listing, percent
from trainer.data.corpus.dedup.labelled import DUPLICATES
from trainer.data.corpus.dedup.pairs import BEFORE, KEPT_RULE
from trainer.data.corpus.dedup.quality import ClusterQuality, KindCount, Quality
from trainer.data.corpus.dedup.run import DedupResult
from trainer.data.corpus.dedup.shingles import Shingling
from trainer.data.corpus.dedup.sketches import DedupSettings
from trainer.json_types import Json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "s-curve.png"
_UNITS = {"word": "word", "char": "character"}
_POINTS = 200  # points of the drawn curve


@dataclass(frozen=True)
class DedupPage:
    """Results of a near-duplicate search."""

    settings: DedupSettings
    result: DedupResult
    quality: Quality | None  # missing without labels
    clusters: ClusterQuality | None = None


def as_json(found: DedupPage) -> dict[str, Json]:
    """Return settings, S-curve, result and quality as JSON; with labels also ``precision`` and ``recall`` on top."""
    settings = found.settings
    plain: dict[str, Json] = {
        "settings": record_json(settings),
        "s_curve": [[similarity, settings.banding.probability(similarity)] for similarity in similarities(settings)],
        "result": record_json(found.result),
        "quality": plain_json(found.quality),
        "clusters": plain_json(found.clusters),
    }
    best = found.quality if found.quality is not None or found.clusters is None else found.clusters.at[0]
    return plain if best is None else {**plain, "precision": best.precision, "recall": best.recall}


def similarities(settings: DedupSettings) -> list[float]:
    """Return the similarities at which the S-curve is printed: tenths, the threshold, and 0.05 below and above it."""
    around_threshold = [round(settings.threshold + step, 6) for step in (-0.05, 0.05)]
    points = {settings.threshold, *(tenth / 10 for tenth in range(1, 11)), *around_threshold}
    return sorted(point for point in points if 0 < point <= 1)


def page(found: DedupPage, picture: str | None = None) -> str:
    """Return the Markdown page of a search. ``picture``: file name of the drawn S-curve; None for a page without it."""
    settings, result = found.settings, found.result
    labelled = found.quality is not None or found.clusters is not None
    page = joined(
        f"# Near-duplicates in {code(result.corpus)}",
        _sentence(found),
        "## Method",
        _criteria(settings),
        table(
            ["similarity", "becomes a candidate"],
            [_point(settings, similarity) for similarity in similarities(settings)],
        ),
        picture_link("The S-curve", picture) if picture is not None else "",
        "## Results",
        table(["of the corpus", "value"], _facts(result)),
        _rules(found),
        "## Against the labels" if labelled else "",
        "" if found.quality is None else _against(found.quality),
        "" if found.clusters is None else _by_threshold(found.clusters),
    )
    return f"{page}\n"


def _against(quality: Quality) -> str:
    def counted(one: KindCount, text: str) -> str:
        return text if one.kind in (*DUPLICATES, "related") else NOT_MEASURED

    return joined(
        table(
            ["", "documents", "of", "share"],
            [
                ("precision: removals whose kept document has the same original",
                 f"{quality.right:,}", f"{quality.removed:,}", _share(quality.precision)),
                ("recall: labelled near-duplicates in one group with their original",
                 f"{quality.found:,}", f"{quality.labelled:,}", _share(quality.recall)),
            ],
        ),
        f"Of pairs within a group, {_share(quality.pair_precision)} have one label (precision); of pairs with one "
        f"label, {_share(quality.pair_recall)} are within a group (recall).",
        column_table(quality.kinds, {
            "kind": lambda kind: kind.kind,
            "documents": lambda kind: f"{kind.documents:,}",
            "in one group with their original": lambda kind: counted(kind, f"{kind.grouped:,}"),
            "least similarity to it": lambda kind: counted(kind, f"{kind.least_similarity:.3f}"),
        }),
        f"Near-duplicates are {', '.join(DUPLICATES)}; no others should be grouped. They are labelled in runs of 5 "
        "words and for a threshold of 0.8: for others, some labels are wrong.",
    )  # fmt: skip


def _by_threshold(quality: ClusterQuality) -> str:
    uncounted = [f"{quality.unlabelled:,} documents have no label and are not counted"] if quality.unlabelled else []
    uncounted += [f"{quality.unknown:,} labels match no document of the corpus"] if quality.unknown else []
    return joined(
        f"{quality.labelled:,} documents are labelled, in {count(quality.clusters, 'cluster')} of several documents "
        f"with {count(quality.pairs, 'pair')}{''.join(f'; {text}' for text in uncounted)}.",
        column_table(quality.at, {
            "threshold": lambda point: f"{point.threshold:g}",
            "removed": lambda point: f"{point.removed:,}",
            "pairs within a group": lambda point: f"{point.found:,}",
            "of these within a cluster": lambda point: f"{point.right:,}",
            "precision": lambda point: _share(point.precision),
            "recall": lambda point: _share(point.recall),
        }),
        "Precision and recall count pairs of labelled documents. A lower `--threshold` adds rows to the table.",
    )  # fmt: skip


def _sentence(found: DedupPage) -> str:
    result = found.result
    if not result.removed:
        subject = "1 document; it is" if result.documents == 1 else f"{result.documents:,} documents; all are"
        return f"No near-duplicates were found in {subject} kept."
    share = percent(result.removed / result.documents) if result.removed < 0.995 * result.documents else "over 99 %"
    return (
        f"{result.removed:,} of {result.documents:,} documents ({share}) are removed as near-duplicates, in "
        f"{count(result.groups, 'group')}, each with one kept document; {result.documents - result.removed:,} "
        "documents stay."
    )


def _criteria(settings: DedupSettings) -> str:
    shingling, banding = settings.shingling, settings.banding
    unit = _UNITS[shingling.kind]
    shingle = f"each {unit}" if shingling.size == 1 else f"each run of {shingling.size} {unit}s"
    return (
        f"A shingle is {shingle}, whatever its {_ignored(shingling)}; a shorter document is one shingle. Documents are "
        f"near-duplicates from a Jaccard similarity of their shingles of {settings.threshold} on. Candidates share "
        f"one of {count(banding.bands, 'band')} of {count(banding.rows, 'row')} ({banding.permutations} permutations, "
        f"seed {settings.seed}): the S-curve 1 - (1 - s^{banding.rows})^{banding.bands}, which rises around "
        f"{banding.steepest:.2f}. For independent permutations, a pair right at the threshold is missed with a "
        f"probability of {_probability(banding.missed(settings.threshold))}."
    )


def _ignored(shingling: Shingling) -> str:
    """Name the differences between texts that do not count: white space and, by the settings, case and Unicode form."""
    case = {"lower": "case", "fold": "case (folded)", "keep": ""}[shingling.case]
    form = {"nfc": "Unicode form (NFC)", "nfkc": "Unicode form (NFKC)", "none": ""}[shingling.unicode]
    return listing([part for part in (case, "white space", form) if part])


def _point(settings: DedupSettings, similarity: float) -> tuple[str, str]:
    mark = " (threshold)" if similarity == settings.threshold else ""
    probability = settings.banding.probability(similarity)
    return f"{similarity}{mark}", "100 %" if similarity == 1 else _probability(probability)


def _probability(value: float) -> str:
    """Format a probability between 0 and 1 as a percentage that is never rounded to 0 % or 100 %."""
    if value < 1e-6:
        return "under 0.0001 %"
    if value > 1 - 1e-6:
        return "over 99.9999 %"
    return f"{100 * value:.4f} %" if not 0.0001 <= value <= 0.9999 else f"{100 * value:.2f} %"


def _facts(result: DedupResult) -> list[tuple[str, str]]:
    return [
        ("engine", result.engine),
        *([] if result.master is None else [("Spark's master", code(result.master))]),
        ("documents", f"{result.documents:,}"),
        ("without shingles (empty or blank; they are kept)", f"{result.without_shingles:,}"),
        ("with the same shingles as an earlier one", f"{result.identical:,}"),
        ("candidate pairs of the others", f"{result.candidates:,}"),
        ("of these similar enough", f"{result.verified:,}"),
        *([] if result.rounds is None else [("rounds of joining groups", f"{result.rounds:,}")]),
        ("groups of near-duplicates", f"{result.groups:,}"),
        ("removed", f"{result.removed:,}"),
        ("kept", f"{result.documents - result.removed:,}"),
    ]


def _rules(found: DedupPage) -> str:
    rules = [
        f"Similar pairs connect the documents of a group; {KEPT_RULE}. So a removed document may be less similar to "
        "the kept one than the threshold: `removed/` lists both rows (from 0, in the corpus' order) and their exact "
        "similarity (of 64-bit hashes of shingles), and the most similar document that connects it."
    ]
    if found.result.crowded:
        rules.append(
            f"{count(found.result.crowded, 'document')} with more than {BEFORE} earlier ones in a band: there "
            f"compared only with the previous {BEFORE}, so pairs farther apart may be missed."
        )
    return " ".join(rules)


def _share(value: float | None) -> str:
    """Format a share (0 to 1) with four decimals; a share below 1 is never printed as 1. A dash for None."""
    if value is None:
        return NOT_MEASURED
    return "over 0.9999" if 0.99995 <= value < 1 else f"{value:.4f}"


def picture(settings: DedupSettings) -> Picture:
    """Draw the S-curve (chance to become a candidate by similarity) with the threshold."""
    return drawn(s_curve_figure(settings), narrow=s_curve_figure(settings, NARROW))


def s_curve_figure(settings: DedupSettings, sheet: Sheet = WIDE) -> Figure:
    """Draw the picture of :func:`picture` on a wide or narrow ``sheet``."""
    figure, axes = sheet.plot(4.2, "both")
    banding = settings.banding
    grid = [index / _POINTS for index in range(_POINTS + 1)]
    axes.plot(grid, [100 * banding.probability(similarity) for similarity in grid], color=CURVES[0], linewidth=2)
    axes.axvline(settings.threshold, color=LOSS, linestyle="--", linewidth=1.2)
    at_threshold = banding.probability(settings.threshold)
    axes.plot([settings.threshold], [100 * at_threshold], "o", color=LOSS)
    axes.set(xlim=(0, 1), ylim=(0, 104), xlabel="Jaccard similarity", ylabel="becomes a candidate (%)")
    bands = f"{count(banding.bands, 'band')} of {count(banding.rows, 'row')}"
    title(figure, f"S-curve of {bands}: {_probability(at_threshold)} at the threshold of {settings.threshold}")
    return fitted(figure, sheet)
