"""Makes the sentences about what would explain a row whose figures are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.audit import scatter_text
from harness.audit.checks import DURATION
from harness.audit.result import Formula, RowAudit
from harness.audit.scatter import Scatter
from harness.audit.solve import FittedReading
from harness.show.words import count, listing

NAMED_READINGS = 2  # in the first line


def explained(
    audited: RowAudit, formulas: Mapping[str, Formula], alike: Sequence[FittedReading], scatter: Scatter | None
) -> list[str]:
    """What would explain a row that is off, how sure that is, and what cannot be known."""
    unknown = scatter_text.unknown([one for one in audited.readings if one.free])
    named = [one for one in audited.readings if not one.free]
    contradicted = any(one.status == "inconsistent" and one.name != DURATION for one in audited.checks)
    beyond = [scatter_text.BEYOND] if audited.status == "inconsistent" and contradicted else []
    if not named:
        if audited.status == "apart":
            scattered = scatter is not None and not scatter.common  # said once, for all rows
            return [] if scattered else unknown + scatter_text.excluded(audited.excluded)
        tried = f" Tried: {'; '.join(audited.excluded)}." if audited.excluded else ""
        nothing = "No single change, and no pair of changes," if not audited.readings else "Nothing specific"
        return [f"{nothing} makes it consistent.{tried}", *beyond, *unknown]
    listed = []
    for number, one in enumerate(named, 1):
        text = f"({number}) {one.words}"
        formula = formulas.get(one.words.removeprefix("FLOPs counted "))
        if formula is not None and formula.of > 1:
            text += f", which fits {len(formula.rows)} of {formula.of} rows"
        listed.append(text + scatter_text.how_specific(one))
    firm = any(one.firm for one in named)
    opening = "What would make it consistent" if firm else "What may be, but cannot be distinguished from chance"
    parts = [f"{opening}: {'; '.join(listed)}.", *([] if firm else beyond), *unknown]
    numbers = [f"({n})" for n, one in enumerate(named, 1) if one.words in {two.text for two in alike}]
    if len(numbers) > 1:
        parts.append(
            f"For this shape {listing(numbers)} count the same {(alike[0].setting.flops_per_token or 0) / 1e9:.2f} "
            "GFLOP per token, so this row alone cannot distinguish them."
        )
    if audited.incomparable is not None:
        parts.append(f"Its tokens/s is not comparable with its neighbours': it {audited.incomparable}")
        slip = any(one.kind == "sequence" and one.firm and one.shared == 1 for one in audited.readings)
        parts[-1] += " (a length that reaches one row alone is a usual slip of launch scripts)." if slip else "."
    if audited.tokens_per_s_as_declared is not None:
        parts.append(
            "Inference: with the same FLOP/s at the declared sequence length it would have read "
            f"{audited.tokens_per_s_as_declared:,.0f} tokens/s (shorter steps usually reach fewer FLOP/s)."
        )
    return parts + scatter_text.excluded(audited.excluded)


def short(row: RowAudit) -> str:
    """What explains a row, briefly: ``fits with sequence length 4,096 instead of 2,048, or …``."""
    named = [one for one in row.readings if not one.free]
    firm = [one for one in named if one.firm]
    texts = [one.words.partition(" (its")[0] for one in firm or named]
    if not texts:
        return "nothing fits" if not row.readings else "the cause cannot be known from it"
    rest = len(texts) - NAMED_READINGS
    verb = "fits with" if firm else "may be"
    join = ", or with " if firm else ", or "
    more = f", or {count(rest, 'more reading')}" if rest > 0 else ""
    return f"{verb} {join.join(texts[:NAMED_READINGS])}{more}{'' if firm else '; that is no more than a possibility'}"
