"""The audit of the tables that are shipped: what each row turns out to be."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from harness.audit import text
from harness.audit.checkup import Audit, RowAudit, audit
from harness.audit.gains import Incomparable, NotComparable, unexplained
from harness.audit.load import load_published
from harness.audit.table import read_figure
from tests.harness.audit.test_audit import LLAMA_8B, PEAKS
from trainer.devices.estimates import parameters

PUBLISHED = Path(__file__).parents[3] / "profiles" / "published"


@cache
def founding() -> Audit:
    return audit(load_published(PUBLISHED / "founding-gh200.yaml"), PEAKS)


def test_founding_rows() -> None:
    rows = {one.name: one for one in founding().rows}
    assert len(rows) == 8
    wrong = rows.pop("padding-free b1")
    for one in rows.values():
        assert one.status == "consistent"
        assert one.gflops_per_token == pytest.approx(48.32, abs=0.001)
        assert all(check.status == "consistent" for check in one.checks)
        assert len(one.checks) == 3
    assert wrong.status == "inconsistent"
    assert wrong.gflops_per_token == pytest.approx(51.5418, abs=0.001)
    assert [(one.kind, one.value) for one in wrong.readings] == [("sequence", 4096), ("formula", None)]
    length, formula = wrong.readings
    assert length.low == pytest.approx(4095.9, abs=0.1)
    assert length.high == pytest.approx(4096.9, abs=0.1)
    assert (formula.setting.convention.counted, formula.setting.convention.attention) == ("all, lookups", "full")
    # 6 x vocabulary x width = 12 x layers x width x 2,048: a coincidence of this shape, to the last FLOP.
    assert length.gflops_per_token == formula.gflops_per_token
    discrepancies = {check.name: check.discrepancy for check in wrong.checks}
    assert discrepancies["tokens/s against TFLOP/s"] == pytest.approx(-0.0625, abs=1e-4)
    assert [check.name for check in wrong.checks if check.status == "consistent"] == ["TFLOP/s against MFU"]
    assert (wrong.alike, wrong.incomparable) == ([length, formula], Incomparable("sequence", 4096))
    assert wrong.tokens_per_s_as_declared == pytest.approx(7363, abs=1)
    assert [(one.kind, one.why) for one in wrong.excluded] == [
        ("devices", "needed"), ("peak", "figures disagree"), ("padding", "declared"),
    ]  # fmt: skip


def test_founding_conclusion_and_formula() -> None:
    found = founding()
    rows, gains = text.conclusion(found)
    assert rows.startswith("1 of 8 rows is inconsistent: padding-free b1 (fits with sequence length 4,096")
    assert "2 slower although the data path is faster" in gains
    assert found.table.noise is None
    fitting = {(key.counted, key.attention) for key, one in found.formulas.items() if len(one.rows) == 7}
    assert fitting == {("palm", "full"), ("all, lookups", "none")}


def test_founding_gains() -> None:
    padded1, padded2, free1, free2 = founding().gains
    assert padded1.verdict == padded2.verdict == "loss with a faster data path"
    assert padded1.measured == pytest.approx(6333.60 / 6544.40)
    assert padded1.step_ms == pytest.approx(2048 / 6544.40 * 1e3)
    assert padded1.isolated == pytest.approx(2.70 / 1.68)
    assert padded1.ceiling == pytest.approx(312.94 / (312.94 - 1.02), rel=1e-6)
    assert padded1.ceiling_all == pytest.approx(312.94 / (312.94 - 2.70), rel=1e-6)
    assert padded2.unexplained == pytest.approx(1 - 7605.06 / 7873.05, rel=1e-3)
    assert free1.verdict == "not comparable"
    assert free1.reason == NotComparable("padding-free b1", Incomparable("sequence", 4096))
    assert free2.verdict == "above the ceiling"
    assert free2.measured == pytest.approx(1.00868, abs=1e-5)
    assert free2.ceiling == pytest.approx(1.00817, abs=2e-5)
    assert all(gain.noise == "undecidable" for gain in (padded1, padded2, free2))
    worst = unexplained(founding().gains)
    assert (worst.candidate, worst.unexplained) == (padded2.candidate, padded2.unexplained)
    assert text.gains_sentence(founding()) is not None


def changed(name: str, tokens_per_s: str) -> tuple[Audit, RowAudit]:
    table = load_published(PUBLISHED / "founding-gh200.yaml")
    rows = [replace(one, tokens_per_s=read_figure(tokens_per_s)) if one.name == name else one for one in table.rows]
    found = audit(replace(table, rows=rows), PEAKS)
    return found, next(one for one in found.rows if one.name == name)


@pytest.mark.parametrize(
    ("name", "printed", "pairs"), [("padded b1", "3272.20", 0), ("pretokenized padded b2", "3802.53", 1)]
)
def test_a_row_that_may_count_real_tokens_only_is_not_compared(name: str, printed: str, pairs: int) -> None:
    """Half of the tokens/s were real ones: "FLOPs counted twice" and +94 % were printed, where the pair was at -3 %."""
    found, row = changed(name, printed)
    assert {one.kind for one in row.readings} == {"scale", "padding"}
    assert all(words in text.short(row) for words in ("FLOPs counted twice", "50.00 % real"))
    assert found.gains[pairs].verdict == "not comparable"


@pytest.mark.parametrize("times", [2, 3])
def test_a_row_that_may_count_several_devices_is_not_compared(times: int) -> None:
    """A firm reading beside it (a third of the FLOPs counted) let the pair of a tripled row be judged."""
    found, row = changed("padded b1", f"{times * 6544.40:.2f}")
    assert "devices" in {one.kind for one in row.readings}
    assert found.gains[0].verdict == "not comparable"
    assert found.gains[0].reason == NotComparable("padded b1", Incomparable("devices", times))


def test_founding_inferences() -> None:
    found = founding()
    fits = {fit.kind: fit for fit in found.fits}
    assert fits["padded"].fixed_ms == pytest.approx(105.6, abs=0.05)
    assert fits["padded"].per_sample_ms == pytest.approx(207.3, abs=0.05)
    assert fits["padded"].share_of_peak == pytest.approx(0.4826, abs=0.001)
    assert fits["padding-free"].doubtful == ["padding-free b1"]
    assert fits["padding-free"].fixed_ms == pytest.approx(40.7, abs=0.05)
    assert (found.traffic.passes, found.traffic.bytes) == (21, 21 * 2 * parameters(LLAMA_8B))
    assert found.traffic.ms_at_full_bandwidth == pytest.approx(84.56, abs=0.01)
    (clue,) = found.evidence
    assert (clue.row.name, clue.sequence, clue.supports) == ("padding-free b1", 4096, True)
    assert "355.77 TFLOP/s against 358.10 (-0.7 %)" in text.clue_sentence(clue)


def test_gpt2_tables_name_the_formula_behind_each_row() -> None:
    nanogpt = {one.name: one for one in audit(load_published(PUBLISHED / "nanogpt-gpt2-124m.yaml"), PEAKS).rows}
    (first, *rest) = nanogpt["RTX 4090, iter 10"].readings
    assert text.reading(first) == "FLOPs counted without biases"
    assert all(one.free for one in rest)
    assert nanogpt["torch.compile"].status == "not checkable"
    assert nanogpt["8x A100 40GB, ~4 days"].status == nanogpt["8x A100 40GB, ~5 days"].status == "consistent"
    slow = [one.discrepancy for one in nanogpt["8x A100 40GB, ~5 days"].checks]
    assert pytest.approx(0.28073, abs=1e-5) in slow
    llmc = {one.name: one for one in audit(load_published(PUBLISHED / "llmc-gpt2-124m.yaml"), PEAKS).rows}
    half = "FLOPs counted with position embeddings (all parameters) and with causal attention (half of it)"
    assert llmc["8x A100 80GB SXM"].status == llmc["1x A100 40GB PCIe"].status == "consistent"
    assert half in [text.reading(one) for one in llmc["1x A100, a user's step 1"].readings]
    averaged = llmc["1x A100, a user's step 80"].readings[0]
    assert (averaged.kind, averaged.changes, averaged.as_others) == ("average", 2, False)
    assert averaged.value == pytest.approx(0.0012, abs=1e-4)
    assert text.reading(averaged).endswith(half)
