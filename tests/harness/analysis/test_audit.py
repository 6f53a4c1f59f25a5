"""The audit: a true table is never called inconsistent, a falsified one names what was falsified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.analysis.audit.checkup import audit
from harness.analysis.audit.figures import Figure, read_duration, read_figure
from harness.analysis.audit.flops import PALM, Convention, conventions
from harness.analysis.audit.result import Audit, NamedReading, RowAudit
from harness.analysis.audit.table import Declared, Noise, Optimizer, Peak, Row, Table
from harness.published import load_published
from trainer.flops import flops_per_token, parameters
from trainer.model import Shape, build_model

PUBLISHED = Path(__file__).parents[3] / "profiles" / "published"
LLAMA_8B = Shape("llama", 32, 4096, 32, 8, 14336, 131072, 2048)
GPT2 = Shape("gpt2", 12, 768, 12, 12, 3072, 50304, 1024)
PEAKS = [Peak("gh200", "bf16", 989.4e12), Peak("a100", "bf16", 312e12), Peak("a100", "tf32", 156e12)]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    family = draw(st.sampled_from(["gpt2", "llama"]))
    heads, head_dim = draw(st.integers(1, 64)), 2 * draw(st.integers(16, 64))
    kv_heads = heads if family == "gpt2" else draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    return Shape(
        family,  # type: ignore[arg-type]
        layers=draw(st.integers(1, 96)),
        width=heads * head_dim,
        heads=heads,
        kv_heads=kv_heads,
        ffn_width=draw(st.integers(64, 40_000)),
        vocab_size=draw(st.integers(256, 262_144)),
        positions=draw(st.integers(64, 8192)),
    )


LENGTHS = st.one_of(st.integers(4, 17).map(lambda power: 2**power), st.integers(1, 512).map(lambda n: 64 * n))
DIGITS = st.integers(1, 8)


def printed(value: float, digits: int) -> Figure:
    """As a publication would print it: ``digits`` significant digits."""
    return read_figure(f"{value:.{digits - 1}e}")


def row(
    convention: Convention,
    *,
    sequence: int,
    tokens_per_s: float,
    peak: float = 989e12,
    devices: int = 1,
    batch_size: int | None = None,
    digits: tuple[int, int, int, int] = (8, 8, 8, 8),
) -> Row:
    """A true row: every figure follows from ``tokens_per_s`` and is then rounded."""
    flops = tokens_per_s * convention.flops_per_token(sequence) / devices
    tokens = None if batch_size is None else batch_size * sequence * devices
    return Row(
        "row",
        batch_size=batch_size,
        tokens_per_s=printed(tokens_per_s, digits[0]),
        tflops=printed(flops / 1e12, digits[1]),
        mfu_percent=printed(flops / peak * 100, digits[2]),
        step_ms=None if tokens is None else printed(tokens / tokens_per_s * 1e3, digits[3]),
    )


def judge(one: Row, declared: Declared) -> RowAudit:
    return audit(Table("", "", [one], declared), PEAKS).rows[0]


def reading(found: RowAudit, kind: str) -> NamedReading:
    named = [one for one in found.readings if one.kind == kind]
    assert named, found.sentence
    return named[0]


@given(shapes(), LENGTHS, st.floats(1, 1e9), st.floats(1e9, 1e16), st.integers(1, 64), st.integers(1, 512), st.data())
@settings(max_examples=200, deadline=None)
def test_a_true_row_is_consistent_at_any_rounding(
    shape: Shape, sequence: int, tokens_per_s: float, peak: float, devices: int, batch_size: int, data: st.DataObject
) -> None:
    digits = data.draw(st.tuples(DIGITS, DIGITS, DIGITS, DIGITS))
    made = row(
        conventions(shape)[0],
        sequence=sequence,
        tokens_per_s=tokens_per_s,
        peak=peak,
        devices=devices,
        batch_size=batch_size,
        digits=digits,
    )
    found = judge(made, Declared(shape, sequence, devices, peak))
    assert (found.status, found.readings) == ("consistent", []), found.sentence


@given(shapes(), LENGTHS, LENGTHS, st.floats(1, 1e9), st.booleans())
@settings(max_examples=150, deadline=None)
def test_another_sequence_length_is_named(
    shape: Shape, declared: int, actual: int, tokens_per_s: float, with_step: bool
) -> None:
    made = row(conventions(shape)[0], sequence=actual, tokens_per_s=tokens_per_s, batch_size=4 if with_step else None)
    found = judge(made, Declared(shape, declared, 1, 989e12))
    assume(found.status == "inconsistent")  # equal lengths, or ones that eight digits cannot tell apart
    named = reading(found, "sequence")
    assert named.low is not None
    assert named.high is not None
    assert named.low * (1 - 1e-9) <= actual <= named.high * (1 + 1e-9)
    assert named.value == actual or named.high - named.low > 16  # else no other plausible length is in reach
    assert found.incomparable is not None


@given(shapes(), LENGTHS, st.floats(1, 1e9), st.data())
@settings(max_examples=150, deadline=None)
def test_another_formula_is_named(shape: Shape, sequence: int, tokens_per_s: float, data: st.DataObject) -> None:
    counted = data.draw(st.sampled_from(conventions(shape)[1:]))
    found = judge(row(counted, sequence=sequence, tokens_per_s=tokens_per_s), Declared(shape, sequence, 1, 989e12))
    assume(found.status == "inconsistent")
    assert f"FLOPs counted {counted.words}" in [one.words for one in found.readings], found.sentence


@given(shapes(), LENGTHS, st.floats(1, 1e9), st.floats(0.3, 3))
@settings(max_examples=100, deadline=None)
def test_another_peak_is_solved_for(shape: Shape, sequence: int, tokens_per_s: float, factor: float) -> None:
    made = row(conventions(shape)[0], sequence=sequence, tokens_per_s=tokens_per_s, peak=factor * 989e12)
    found = judge(made, Declared(shape, sequence, 1, 989e12))
    assume(found.status == "inconsistent")
    named = reading(found, "peak")
    assert named.low is not None
    assert named.high is not None
    assert named.low * (1 - 1e-9) <= factor * 989e12 <= named.high * (1 + 1e-9)
    assert not [one for one in found.readings if one.kind in ("sequence", "devices", "formula")]


@given(shapes(), LENGTHS, st.floats(1, 1e9), st.integers(1, 128), st.integers(1, 128))
@settings(max_examples=100, deadline=None)
def test_another_number_of_devices_is_named(
    shape: Shape, sequence: int, tokens_per_s: float, declared: int, actual: int
) -> None:
    made = row(conventions(shape)[0], sequence=sequence, tokens_per_s=tokens_per_s, devices=actual)
    found = judge(made, Declared(shape, sequence, declared, 989e12))
    assert (found.status == "consistent") == (declared == actual)
    if declared != actual:
        assert reading(found, "devices").value == actual


@given(shapes(), LENGTHS, st.floats(100, 1e9), st.floats(0.05, 0.99))
@settings(max_examples=100, deadline=None)
def test_the_share_of_real_tokens_is_solved_for(shape: Shape, sequence: int, rate: float, share: float) -> None:
    true = row(conventions(shape)[0], sequence=sequence, tokens_per_s=rate)
    found = judge(replace(true, tokens_per_s=printed(rate * share, 8)), Declared(shape, sequence, 1, 989e12))
    named = reading(found, "padding")
    assert named.low is not None
    assert named.high is not None
    assert named.low - 1e-9 <= share <= named.high + 1e-9
    assert named.free
    unpadded = replace(true, tokens_per_s=printed(rate * share, 8), padded=False)
    told = judge(unpadded, Declared(shape, sequence, 1, 989e12))
    assert not [one for one in told.readings if one.kind == "padding"]
    assert any(text.startswith("no padding") for text in told.excluded)


def test_names_of_peaks() -> None:
    true = row(conventions(GPT2)[0], sequence=1024, tokens_per_s=1e5, digits=(8, 6, 4, 4))
    for peak, expected in (
        (312e12, "a peak of 312 TFLOP/s instead of 989: a100 (bf16) and a100 (tf32) with 2:4 sparsity"),
        (2 * 989e12, "twice the declared peak, as with 2:4 sparsity"),
        (500e12, "(no known device has it)"),
    ):
        made = replace(true, mfu_percent=printed(1e5 * flops_per_token(GPT2, 1024) / peak * 100, 4))
        named = reading(judge(made, Declared(GPT2, 1024, 1, 989e12)), "peak")
        assert expected in named.words
        assert named.free == ("no known" in expected)


def test_two_changes_are_found_where_no_single_one_fits() -> None:
    counted = next(one for one in conventions(GPT2) if one.words == "without biases")
    found = judge(row(counted, sequence=2048, tokens_per_s=1e5), Declared(GPT2, 1024, 1, 989e12))
    pairs = [one for one in found.readings if one.changes == 2]
    assert any(one.value == 2048 and one.words.endswith("FLOPs counted without biases") for one in pairs)
    assert all(one.free for one in found.readings if one.changes == 1)


def test_where_nothing_fits_it_says_so() -> None:
    bad = Row("bad", tokens_per_s=read_figure("1000"), tflops=read_figure("300"), mfu_percent=read_figure("77.77"),
              padded=False)  # fmt: skip
    found = judge(bad, Declared(GPT2, 1024, 1, 989e12))
    assert found.sentence.startswith("Inconsistent")
    assert "No single change, and no pair of changes, makes it consistent." in found.sentence
    assert found.incomparable == "is inconsistent, and no reading explains it"


@pytest.mark.parametrize("shape", [LLAMA_8B, GPT2, Shape("gpt2", 4, 128, 4, 4, 500, 999, 77)])
def test_formulas(shape: Shape) -> None:
    found = conventions(shape)
    assert found[0].words == PALM
    assert found[0].flops_per_token(512) == flops_per_token(shape, 512)
    assert parameters(shape) in {one.weights for one in found}
    assert len({(one.weights, one.attention) for one in found}) == len(found)


def test_parameters_that_formulas_leave_out_are_those_of_the_model() -> None:
    shape = Shape("gpt2", 2, 64, 2, 2, 200, 300, 50)
    sizes = {name: value.numel() for name, value in build_model(shape).named_parameters()}
    weights = {one.words: one.weights for one in conventions(shape) if one.attention == "full"}
    biases = sum(size for name, size in sizes.items() if name.endswith(".bias"))
    vectors = sum(size for name, size in sizes.items() if ".ln_" in name or name.endswith(".bias"))
    assert weights[PALM] == sum(sizes.values()) - sizes["transformer.wpe.weight"]
    assert weights["with position embeddings (all parameters)"] == sum(sizes.values())
    assert weights["without biases"] == weights[PALM] - biases
    assert weights["with weight matrices alone (no biases, no norms)"] == weights[PALM] - vectors


def test_published_parameter_counts_of_gpt2() -> None:
    weights = {one.words: one.weights for one in conventions(GPT2)}
    assert weights["with position embeddings (all parameters)"] == 124_475_904  # llm.c prints it
    assert weights["without biases"] == 123_587_328  # nanoGPT's get_num_params(), bias=False


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("6544.40", 6544.395, 6544.405),
        ("6544.4", 6544.35, 6544.45),
        ("135", 134.5, 135.5),
        ("100", 99.5, 100.5),
        ("~100", 50, 150),
        ("~250", 245, 255),
        ("178e3", 177_500, 178_500),
        ("1.5E-3", 0.00145, 0.00155),
        ("48-49", 47.5, 49.5),
        ("48 to 49.5", 47.5, 49.55),
    ],
)
def test_figures(text: str, low: float, high: float) -> None:
    found = read_figure(text).interval
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-14)


@pytest.mark.parametrize("text", ["", "0", "-1", "0.00", "fast", "1,000", "49-48", "1e999", "nan", "~", "3 ms"])
def test_what_is_no_figure(text: str) -> None:
    with pytest.raises(ValueError, match="figure"):
        read_figure(text)


def test_durations() -> None:
    assert read_duration("94.3 min").value == pytest.approx(94.3 * 60)
    days = read_duration("~4 days").interval
    assert (days.low, days.high) == (3.5 * 86400, 4.5 * 86400)
    with pytest.raises(ValueError, match="not a duration"):
        read_duration("4 weeks")


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
    assert formula.words == "FLOPs counted with embedding lookups (all parameters)"
    # 6 x vocabulary x width = 12 x layers x width x 2,048: a coincidence of this shape, to the last FLOP.
    assert length.gflops_per_token == formula.gflops_per_token
    for said in (
        "+6.67 %",
        "TFLOP/s against MFU agree",
        "(1) sequence length 4,096 instead of 2,048",
        "which fits 1 of 8 rows",
        "(1) and (2) count the same 51.54 GFLOP per token, so this row alone cannot tell them apart",
        "not comparable with its neighbours'",
        "it would have read 7,363 tokens/s",
        "no other number of devices",
        "no padding",
    ):
        assert said in wrong.sentence


def test_founding_conclusion_and_formula() -> None:
    found = founding()
    assert found.conclusion[0].startswith(
        "7 of 8 rows consistent, 1 inconsistent: padding-free b1 (fits with sequence length 4,096 instead of 2,048, or "
        "with FLOPs counted with embedding lookups (all parameters); the other rows speak for sequence length 4,096)"
    )
    assert "2 a loss although the data path is faster" in found.conclusion[1]
    assert "no noise floor is published" in found.conclusion[1]
    assert found.formula_sentence is not None
    assert "fit 7 of 8 rows" in found.formula_sentence
    assert "with embedding lookups (all parameters) and without attention" in found.formula_sentence


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
    assert "padding-free b1 may have run at sequence length 4,096" in free1.sentence
    assert free2.verdict == "above the ceiling"
    assert free2.measured == pytest.approx(1.00868, abs=1e-5)
    assert free2.ceiling == pytest.approx(1.00817, abs=2e-5)
    assert all(gain.noise == "undecidable" for gain in (padded1, padded2, free2))
    scatter = founding().gains_sentence
    assert scatter is not None
    assert "3.4 %" in scatter
    assert "token-list b2 against padding-free b2 (+0.87 %) cannot be told from them" in scatter


def test_founding_inferences() -> None:
    found = founding()
    fits = {fit.kind: fit for fit in found.fits}
    assert fits["padded"].fixed_ms == pytest.approx(105.6, abs=0.05)
    assert fits["padded"].per_sample_ms == pytest.approx(207.3, abs=0.05)
    assert fits["padded"].share_of_peak == pytest.approx(0.4826, abs=0.001)
    assert fits["padding-free"].doubtful == ["padding-free b1"]
    assert fits["padding-free"].fixed_ms == pytest.approx(40.7, abs=0.05)
    assert found.traffic is not None
    assert (found.traffic.passes, found.traffic.bytes) == (21, 21 * 2 * parameters(LLAMA_8B))
    assert found.traffic.ms_at_full_bandwidth == pytest.approx(84.56, abs=0.01)
    (clue,) = found.evidence
    assert (clue.row, clue.reading, clue.supports) == ("padding-free b1", "sequence length 4,096", True)
    assert "355.77 TFLOP/s against 358.10 (-0.7 %)" in clue.sentence


def test_gpt2_tables_name_the_formula_behind_each_row() -> None:
    nanogpt = {one.name: one for one in audit(load_published(PUBLISHED / "nanogpt-gpt2-124m.yaml"), PEAKS).rows}
    (first, *rest) = nanogpt["RTX 4090, iter 10"].readings
    assert first.words == "FLOPs counted without biases"
    assert all(one.free for one in rest)
    assert nanogpt["torch.compile"].status == "not checkable"
    assert nanogpt["8x A100 40GB, ~4 days"].status == nanogpt["8x A100 40GB, ~5 days"].status == "consistent"
    assert "+28.073 %" in nanogpt["8x A100 40GB, ~5 days"].sentence
    llmc = {one.name: one for one in audit(load_published(PUBLISHED / "llmc-gpt2-124m.yaml"), PEAKS).rows}
    half = "FLOPs counted with position embeddings (all parameters) and with causal attention (half of it)"
    assert llmc["8x A100 80GB SXM"].status == llmc["1x A100 40GB PCIe"].status == "consistent"
    assert half in [one.words for one in llmc["1x A100, a user's step 1"].readings]
    averaged = llmc["1x A100, a user's step 80"].readings[0]
    assert averaged.words.startswith("tokens/s averaged over other steps than this step time (+0.12 %)")
    assert averaged.words.endswith(half)


ISOLATED = {"slow": read_figure("10.0"), "fast": read_figure("2.0")}


def pair(baseline: str, candidate: str, noise: Noise | None = None, **changes: object) -> Audit:
    """Two rows of 1,000 tokens a step: ``slow`` at ``baseline`` tokens/s (10 ms of data), ``fast`` at ``candidate``."""
    first = Row("slow", data="slow", batch_size=1, tokens_per_s=read_figure(baseline))
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
        table = Table(
            "", "",
            [
                Row("fast", data="fast", batch_size=1, tokens_per_s=read_figure("10000")),
                Row("slow", data="slow", batch_size=1, tokens_per_s=read_figure(candidate)),
            ],
            Declared(sequence_length=1000), ISOLATED, compare=[("fast", "slow")],
        )  # fmt: skip
        assert audit(table).gains[0].verdict == verdict


def test_noise_decides_only_where_it_is_published() -> None:
    for fraction, said in ((0.03, "outside the noise"), (0.06, "inside the noise")):
        found = pair("10000", "10500", Noise(fraction, fraction, "five repeats"))
        assert found.gains[0].noise == said
        assert "five repeats" in found.gains[0].sentence
    typical = replace(
        Table("", "", pair_rows(), Declared(sequence_length=1000), ISOLATED),
        typical_noise=Noise(0.01, 0.03, "another study"),
    )
    gain = audit(typical).gains[0]
    assert gain.noise == "undecidable"
    assert "identical runs elsewhere differ by 1.0 % to 3.0 % (another study)" in gain.sentence


def pair_rows() -> list[Row]:
    first = Row("slow", data="slow", batch_size=1, tokens_per_s=read_figure("10000"))
    return [first, replace(first, name="fast", data="fast", tokens_per_s=read_figure("10500"))]


def test_steps_of_other_sizes_are_not_compared() -> None:
    table = Table("", "", [pair_rows()[0], replace(pair_rows()[1], batch_size=2)], Declared(sequence_length=1000),
                  ISOLATED, compare=[("slow", "fast")])  # fmt: skip
    gain = audit(table).gains[0]
    assert gain.verdict == "not comparable"
    assert "their steps hold 1,000 and 2,000 tokens" in gain.sentence


def test_data_that_takes_longer_than_the_step_gives_no_ceiling() -> None:
    (gain,) = pair("200000", "210000").gains  # a 5 ms step
    assert (gain.verdict, gain.ceiling, gain.ceiling_all) == ("no ceiling", None, None)
    assert "data takes 10.00 ms of a 5.0 ms step (200 %): most of it must run beside the step" in gain.sentence
    (gain,) = pair("105000", "106000").gains  # 9.5 ms: without the 8 ms that the fast path saves, 1.5 ms remain
    assert gain.ceiling_all is None
    assert gain.ceiling == pytest.approx(9.524 / 1.524, rel=1e-3)
    assert (gain.verdict, "no data time at all" in gain.sentence) == ("possible", False)


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.lists(st.integers(1, 64), min_size=2, max_size=5, unique=True))
@settings(max_examples=50, deadline=None)
def test_a_line_through_batch_sizes_is_found(fixed: float, each: float, sizes: list[int]) -> None:
    rows = [Row(f"b{n}", kind="k", batch_size=n, step_ms=printed(fixed + n * each, 12)) for n in sizes]
    (fit,) = audit(Table("", "", rows, Declared(GPT2, 1024, 1, 312e12))).fits
    assert (fit.fixed_ms, fit.per_sample_ms) == pytest.approx((fixed, each), rel=1e-4, abs=1e-3)
    assert fit.flops_per_s == pytest.approx(flops_per_token(GPT2, 1024) * 1024 / each * 1e3, rel=1e-4)


def test_traffic_of_a_fused_optimizer() -> None:
    rows = [Row(f"b{n}", kind="k", batch_size=n, step_ms=read_figure(str(100 + 50 * n))) for n in (1, 2)]
    optimizer = Optimizer("AdamW", True, 4, "clip", None)
    found = audit(Table("", "", rows, Declared(GPT2, 1024, optimizer=optimizer))).traffic
    assert found is not None
    assert (found.passes, found.bytes, found.ms_at_full_bandwidth) == (10, 40 * parameters(GPT2), None)


def test_a_table_of_names_alone_says_what_is_missing() -> None:
    found = audit(Table("", "", [Row("a"), Row("b", tokens_per_s=read_figure("5"), mfu_percent=read_figure("5"))]))
    assert [one.status for one in found.rows] == ["not checkable", "not checkable"]
    assert "no model shape is declared" in found.rows[1].sentence
    assert "no peak is declared" in found.rows[1].sentence
    assert found.conclusion[1] == "No comparison is declared, and none can be derived."


def test_a_duration_too_short_for_its_steps() -> None:
    one = Row("run", steps=1000, step_ms=read_figure("100"), duration_s=read_duration("90 s"))
    found = judge(one, Declared())
    assert found.status == "inconsistent"
    assert reading(found, "duration").value == pytest.approx(90)
