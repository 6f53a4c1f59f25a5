"""Makes the sentences about what a table cannot show: scatter, readings that fit by chance, free parameters."""

from __future__ import annotations

from collections.abc import Sequence

from harness.audit.result import NamedReading
from harness.audit.scatter import Scatter
from harness.show.words import percent

BEYOND = (
    "It is further apart than honest scatter would part it: a setting is not what is declared, or its figures are not "
    "of the same measurement; the table does not show which."
)


def scatter_sentence(one: Scatter) -> str:
    """``tokens/s and MFU differ beyond rounding in 8 of 8 rows …, as if each was measured apart``."""
    text = (
        f"{one.first} and {one.second} differ beyond rounding in {len(one.rows)} of {one.of} rows "
        f"({one.low * 100:+.2g} to {one.high * 100:+.2g} %)"
    )
    if one.common:
        return (
            f"{text}, by about the same in each: that is one cause which they share, and no scatter. Whether it is "
            "another setting, another formula or other steps that were measured cannot be known from this table."
        )
    return (
        f"{text}: about {percent(one.typical)} (one standard deviation), the first the larger in {one.above} and the "
        f"second in {len(one.rows) - one.above}, as if each was measured apart. No single setting explains "
        "these rows. What lies within that scatter cannot be known from this table: another sequence length, another "
        "way to count FLOPs, another peak, a share of padding, an average over other steps."
    )


def of_table(scatters: Sequence[Scatter]) -> str:
    """What ends ``3 apart beyond rounding …`` in the first line."""
    if not scatters:
        return "(measured apart, or another setting: too few rows to tell)"
    widest = max(scatters, key=lambda one: (len(one.rows), one.typical))
    text = f"{widest.first} and {widest.second} differ by about"
    if widest.common:
        return f"({text} {percent((widest.low + widest.high) / 2)} in each: one cause that they share, not known)"
    return f"({text} {percent(widest.typical)}, as if each was measured apart; no single setting explains them)"


def apart(scatter: Scatter | None) -> str:
    """Why a row that is off is not called inconsistent."""
    if scatter is None:
        return (
            "That is more than rounding, and no more than figures of different steps or runs may differ by; the other "
            "rows are too few, or too roughly printed, to show which it is."
        )
    if scatter.common:
        return (
            f"That is more than rounding, and about the same in {len(scatter.rows)} rows "
            f"({scatter.low * 100:+.2g} to {scatter.high * 100:+.2g} %): one cause that they share."
        )
    return (
        "That is more than rounding, and no more than the rows of this table differ among themselves (about "
        f"{percent(scatter.typical)}), as if {scatter.first} and {scatter.second} were measured apart; no setting "
        "follows from it."
    )


def how_specific(one: NamedReading) -> str:
    """What a fit is worth where it is not firm."""
    if one.firm or one.coverage is None:
        return ""
    return f" [readings as simple fit {percent(one.coverage)} of figures up to twice as far off]"


def unknown(free: Sequence[NamedReading]) -> list[str]:
    """Readings with a free parameter fit any figure, so they are named as what cannot be known."""
    if not free:
        return []
    return [f"Cannot be known from this table (each would fit any figure): {'; '.join(one.words for one in free)}."]


def excluded(what: Sequence[str]) -> list[str]:
    return [f"What does not: {'; '.join(what)}."] if what else []
