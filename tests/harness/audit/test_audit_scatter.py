"""What the audit does not claim: scatter, readings that fit by chance, free parameters."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, log, sqrt
from random import Random

import pytest

from harness.audit.checks import TFLOPS, TOKENS, conventions, setting_of
from harness.audit.checkup import Audit, RowAudit, audit
from harness.audit.readings import Readings
from harness.audit.report import as_text
from harness.audit.scatter import Relation, beyond_scatter, chance_of_scatter, relations
from harness.audit.solve import FittedReading, sequences
from harness.audit.table import AuditRow, Declared, Table
from harness.audit.text import BEYOND, row_sentence
from tests.harness.audit.test_audit import LLAMA_8B, PEAKS, printed, row

EXACT = conventions(LLAMA_8B)[0]
RATES = (6544.4, 7873.1, 8102.7, 8300.2, 8411.9, 8450.3)


LONGER = EXACT.flops_per_token(4096) / EXACT.flops_per_token(2048)


def table(factors: Sequence[float], digits: int = 5) -> Table:
    """One model at several speeds, whose printed FLOP/s are off by ``factors``."""
    rows = []
    for number, (rate, factor) in enumerate(zip(RATES, factors, strict=False)):
        mfu = rate * EXACT.flops_per_token(2048) * factor / 989e12 * 100
        rows.append(AuditRow(f"b{2**number}", tokens_per_s=printed(rate, digits), mfu_percent=printed(mfu, digits)))
    return Table("made", "made", rows, Declared(LLAMA_8B, 2048, 1, 989e12))


def judged(factors: Sequence[float], digits: int = 5) -> Audit:
    return audit(table(factors, digits), PEAKS)


def statuses(found: Audit) -> list[str]:
    return [one.status for one in found.rows]


def lengths(row: RowAudit) -> list[FittedReading]:
    return [one for one in row.readings if one.kind == "sequence"]


def test_scatter_is_recognised_and_explained_by_no_setting() -> None:
    factors = [1.021, 0.987, 0.969, 1.013, 1.032, 0.978]
    found = judged(factors)
    assert statuses(found) == ["apart"] * 6
    assert not [each for one in found.rows for each in one.readings if not each.free]
    (scatter,) = found.scatters
    assert (scatter.rows, scatter.of, scatter.above, scatter.common) == ([f"b{2**n}" for n in range(6)], 6, 3, False)
    assert scatter.typical == pytest.approx(0.0215 * 1.4826, rel=0.1)  # the median of the distances
    text = as_text(found, table(factors))
    assert "no single setting explains these rows" in text
    assert "sequence length 2,0" not in text.partition("## Rows")[2]
    assert "fits with" not in text.partition("## How to read this")[0]


def test_a_common_offset_is_no_scatter() -> None:
    found = judged([1.011] * 6)
    assert ([one.common for one in found.scatters], statuses(found)) == ([True], ["apart"] * 6)
    # Some length fits an offset at four digits; that it fits four rows with one offset does not make it likelier.
    assert not [each for one in judged([1.025] * 4, digits=4).rows for each in one.readings if each.firm]


def test_one_row_off_in_an_exact_table_is_inconsistent_even_where_nothing_explains_it() -> None:
    found = judged([1, 1, 1.0417, 1, 1, 1])
    assert statuses(found) == ["consistent"] * 2 + ["inconsistent"] + ["consistent"] * 3
    assert not [one for one in found.rows[2].readings if one.firm]
    assert BEYOND in row_sentence(found.rows[2], found)


def test_a_length_is_firm_among_exact_rows_and_not_offered_among_scattered_ones() -> None:
    exact = judged([1, 1, LONGER, 1, 1, 1]).rows[2]
    assert next((one.kind, one.value) for one in exact.readings if one.firm) == ("sequence", 4096)
    scattered = judged([1.04, 0.95, LONGER, 1.05, 0.94, 0.97]).rows[2]
    assert (scattered.status, [one for one in scattered.readings if not one.free]) == ("apart", [])


def test_a_reading_that_many_figures_would_have_is_offered_and_not_firm() -> None:
    """The row is far beyond scatter, but at four digits some length fits one figure in nine."""
    one = judged([1, 1, 1.5, 1, 1, 1], digits=4).rows[2]
    assert one.status == "inconsistent"
    (length,) = lengths(one)
    # among others of that kind: a multiple of 64 that nobody trains with
    assert (length.value, length.firm, length.coverage) == (17408, False, pytest.approx(0.115, abs=0.01))
    assert lengths(judged([1.04, 1, 1, 1, 1, 1], digits=2).rows[0]) == []  # it would fit most figures


def test_a_setting_that_several_rows_share_is_firm() -> None:
    for one in judged([LONGER] * 6).rows:
        assert [(each.firm, each.value, each.shared) for each in lengths(one)] == [(True, 4096, 6)]
    # The length leaves 31 % of what the second row is off: they do not share it.
    one = judged([LONGER, 1.03 * LONGER, 1, 1, 1, 1]).rows[0]
    assert [each.shared for each in one.readings if each.value == 4096] == [1]


def test_a_row_that_another_reading_explains_says_how_exact_the_table_is() -> None:
    """A slip in one of two other rows looks like wide scatter, until its own reading explains it."""
    found = judged([1, 1 / 3, LONGER]).rows
    assert [one.kind for one in found[1].readings if one.firm] == ["scale"]
    assert ("sequence", 4096) in [(one.kind, one.value) for one in found[2].readings if one.firm]
    found = judged([1.021, 0.987, 1 / 3, 1.013, 1.032, 0.978])  # found through scatter, and another row is not touched
    assert statuses(found) == ["apart"] * 2 + ["inconsistent"] + ["apart"] * 3


def test_one_row_alone_claims_nothing() -> None:
    """No other row shows how exact the table is, and honest figures are often two percent apart."""
    (one,) = judged([1.0667], digits=3).rows
    assert (one.status, [each for each in one.readings if each.firm], one.scatter) == ("apart", [], None)
    (length,) = lengths(judged([EXACT.flops_per_token(2560) / EXACT.flops_per_token(2048)]).rows[0])
    # of figures as far off: specific enough by itself
    assert (length.value, length.firm, length.coverage) == (2560, False, pytest.approx(0.023, abs=0.002))


def test_coverage_is_the_share_of_random_figures_that_the_search_itself_fits() -> None:
    """The closed form against the search: move the figure at random, and count how often a length fits."""
    made = row(EXACT, sequence=2048, tokens_per_s=7000.0, digits=(6, 4, 8, 8))
    declared = Declared(LLAMA_8B, 2048, 1, 989e12)
    random, window, fitted, tried = Random(5), 0.05, 0, 600
    for _ in range(tried):
        factor = 1 + random.uniform(-2, 2) * window
        shifted = AuditRow("row", tokens_per_s=made.tokens_per_s, tflops=printed(made.tflops.value * factor, 4))
        fitted += any(sequences(shifted, setting_of(shifted, declared, EXACT), []))
    shifted = AuditRow("row", tokens_per_s=made.tokens_per_s, tflops=printed(made.tflops.value * (1 + window), 4))
    setting = setting_of(shifted, declared, EXACT)
    (pair,) = relations(shifted, setting)
    assert (pair.first, pair.second) == (TOKENS, TFLOPS)
    reading = FittedReading("sequence", setting, 2112)
    closed = Readings(shifted, setting, [], [], pair).coverage(reading)
    assert closed == pytest.approx(fitted / tried, abs=0.03)
    assert 0.05 < closed < 0.4


def test_the_chance_of_scatter_is_that_of_a_simulation() -> None:
    random, others, trials, beyond = Random(2), 5, 4000, 0
    for _ in range(trials):
        distances = sorted(abs(random.gauss(0, 0.01)) for _ in range(others))
        beyond += abs(random.gauss(0, 0.01)) > 3 * distances[others // 2]
    made = [Relation("a", "b", value, 0.0) for value in (0.001, 0.002, 0.01, 0.02, 0.03)]  # their median is 0.01
    assert chance_of_scatter(Relation("a", "b", 0.03, 0.0), made) == pytest.approx(beyond / trials, rel=0.25)


def test_few_rows_know_little_of_scatter() -> None:
    exact = Relation("a", "b", 0.0, 1e-4)
    off = Relation("a", "b", 0.004, 1e-4)
    assert not beyond_scatter(off, [])
    assert not beyond_scatter(off, [exact])  # 39 times as far, and still one row
    assert beyond_scatter(off, [exact] * 7)
    half_of_them = [Relation("a", "b", 0.01, 0.0)] * 10 + [Relation("a", "b", 0.0, 0.01)] * 10
    apart = Relation("a", "b", 0.06, 0.0)
    assert beyond_scatter(apart, half_of_them)
    assert not beyond_scatter(apart, [Relation("a", "b", 0.01, 0.0)] * 20)  # as far; the tails of scatter are not known
    far = Relation("a", "b", log(2), 1e-4)
    assert chance_of_scatter(far, []) == pytest.approx(1 - erf((log(2) - 1e-4) / 0.05 / sqrt(2)), abs=1e-12)
    assert beyond_scatter(far, [])


def test_rows_that_scatter_by_more_than_is_usual_overrule_it_and_a_common_offset_does_not() -> None:
    wide = [Relation("a", "b", center, 0.0) for center in (-0.2, -0.15, -0.1, 0.1, 0.15, 0.2)]
    off = Relation("a", "b", 0.3, 0.0)
    assert chance_of_scatter(off, []) < 1e-8
    assert chance_of_scatter(off, wide) > 0.05
    assert not beyond_scatter(off, wide)
    offset = [Relation("a", "b", 0.15 + center / 100, 0.0) for center in (-0.2, -0.15, -0.1, 0.1, 0.15, 0.2)]
    assert chance_of_scatter(off, offset) < 1e-8
    assert beyond_scatter(off, offset)
