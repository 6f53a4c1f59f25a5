"""The audit of reported gains: what a faster data path could have bought at most, and what noise leaves of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.audit.checkup import Audit, audit
from harness.audit.gains import NotComparable
from harness.audit.table import AuditRow, Declared, Noise, Table, read_figure
from harness.audit.text import gain_sentence

ISOLATED = {"slow": read_figure("10.0"), "fast": read_figure("2.0")}


def pair(baseline: str, candidate: str, noise: Noise | None = None, **changes: object) -> Audit:
    """Two rows of 1,000 tokens a step: ``slow`` at ``baseline`` tokens/s (10 ms of data), ``fast`` at ``candidate``."""
    first = AuditRow("slow", data="slow", batch_size=1, tokens_per_s=read_figure(baseline))
    second = replace(first, name="fast", data="fast", tokens_per_s=read_figure(candidate), **changes)  # type: ignore[arg-type]
    return audit(Table("", "", [first, second], Declared(sequence_length=1000), ISOLATED, noise=noise))


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [  # a 100 ms step: without the 8 ms that the fast path saves, 1.087 times as fast at most
        ("10500", "possible"),
        ("10860", "possible"),
        ("10900", "above the ceiling"),
        ("9900", "loss with a faster data path"),
    ],
)
def test_verdicts(candidate: str, verdict: str) -> None:
    (gain,) = pair("10000", candidate).gains  # derived: the slowest data path is the baseline
    assert (gain.baseline, gain.candidate, gain.verdict, gain.noise) == ("slow", "fast", verdict, "undecidable")
    assert gain.ceiling == pytest.approx(100 / 92, rel=1e-3)
    assert gain.ceiling_all == pytest.approx(100 / 90, rel=1e-3)


def test_a_slower_data_path_has_a_floor() -> None:
    for candidate, verdict in (
        ("10100", "gain with a slower data path"),
        ("9500", "possible"),
        ("9000", "below the floor"),
    ):
        figures = zip(pair_rows()[::-1], ("10000", candidate), strict=True)
        rows = [replace(one, tokens_per_s=read_figure(figure)) for one, figure in figures]
        table = Table("", "", rows, Declared(sequence_length=1000), ISOLATED, compare=[("fast", "slow")])
        assert audit(table).gains[0].verdict == verdict


def test_noise_decides_only_where_it_is_published() -> None:
    for fraction, said in ((0.03, "outside the noise"), (0.06, "inside the noise")):
        found = pair("10000", "10500", Noise(fraction, fraction, "five repeats"))
        assert found.gains[0].noise == said
        assert "five repeats" in gain_sentence(found.gains[0], found.table)
    typical = replace(
        Table("", "", pair_rows(), Declared(sequence_length=1000), ISOLATED),
        typical_noise=Noise(0.01, 0.03, "another study"),
    )
    gain = audit(typical).gains[0]
    assert gain.noise == "undecidable"
    assert "1.0 % to 3.0 % (another study)" in gain_sentence(gain, typical)


def pair_rows() -> list[AuditRow]:
    first = AuditRow("slow", data="slow", batch_size=1, tokens_per_s=read_figure("10000"))
    return [first, replace(first, name="fast", data="fast", tokens_per_s=read_figure("10500"))]


def test_steps_of_other_sizes_are_not_compared() -> None:
    table = Table("", "", [pair_rows()[0], replace(pair_rows()[1], batch_size=2)], Declared(sequence_length=1000),
                  ISOLATED, compare=[("slow", "fast")])  # fmt: skip
    gain = audit(table).gains[0]
    assert gain.verdict == "not comparable"
    assert gain.reason == NotComparable(tokens=(1000, 2000))


def test_data_that_takes_longer_than_the_step_gives_no_ceiling() -> None:
    (gain,) = pair("200000", "210000").gains  # a 5 ms step
    assert (gain.verdict, gain.ceiling, gain.ceiling_all) == ("no ceiling", None, None)
    assert (gain.data_ms, gain.step_ms) == pytest.approx((10, 5), rel=1e-3)
    (gain,) = pair("105000", "106000").gains  # 9.5 ms: without the 8 ms that the fast path saves, 1.5 ms remain
    assert gain.ceiling_all is None
    assert gain.ceiling == pytest.approx(9.524 / 1.524, rel=1e-3)
    assert gain.verdict == "possible"
