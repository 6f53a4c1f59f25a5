"""The audit: a true table is never called inconsistent, a falsified one names what was falsified."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.audit.checks import Convention, conventions
from harness.audit.checkup import RowAudit, audit
from harness.audit.gains import Incomparable
from harness.audit.solve import Excluded, FittedReading, NamedPeak
from harness.audit.table import AuditedFigure, AuditRow, Declared, Optimizer, Peak, Table, read_duration, read_figure
from tests.examples import examples
from trainer.devices.estimates import flops_per_token, parameters
from trainer.model import Shape, build_model

LLAMA_8B = Shape("llama", 32, 4096, 32, 8, 14336, 131072, 2048)
GPT2 = Shape("gpt2", 12, 768, 12, 12, 3072, 50304, 1024)
PEAKS = [Peak("gh200", "bf16", 989.4e12), Peak("a100", "bf16", 312e12), Peak("a100", "tf32", 156e12)]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    family: Literal["gpt2", "llama"] = draw(st.sampled_from(["gpt2", "llama"]))
    heads, head_dim = draw(st.integers(1, 64)), 2 * draw(st.integers(16, 64))
    kv_heads = heads if family == "gpt2" else draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    sizes = map(draw, (st.integers(64, 40_000), st.integers(256, 262_144), st.integers(64, 8192)))
    return Shape(family, draw(st.integers(1, 96)), heads * head_dim, heads, kv_heads, *sizes)


LENGTHS = st.one_of(st.integers(4, 17).map(lambda power: 2**power), st.integers(1, 512).map(lambda n: 64 * n))
DIGITS = st.integers(1, 8)


def printed(value: float, digits: int) -> AuditedFigure:
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
) -> AuditRow:
    """A true row: every figure follows from ``tokens_per_s`` and is then rounded."""
    flops = tokens_per_s * convention.flops_per_token(sequence) / devices
    tokens = None if batch_size is None else batch_size * sequence * devices
    return AuditRow(
        "row",
        batch_size=batch_size,
        tokens_per_s=printed(tokens_per_s, digits[0]),
        tflops=printed(flops / 1e12, digits[1]),
        mfu_percent=printed(flops / peak * 100, digits[2]),
        step_ms=None if tokens is None else printed(tokens / tokens_per_s * 1e3, digits[3]),
    )


def judge(one: AuditRow, declared: Declared) -> RowAudit:
    return audit(Table("", "", [one], declared), PEAKS).rows[0]


def reading(found: RowAudit, kind: str) -> FittedReading:
    return next(one for one in found.readings if one.kind == kind)


def holds(found: FittedReading, value: float) -> bool:
    return found.low - 1e-9 * max(value, 1) <= value <= found.high + 1e-9 * max(value, 1)


@given(shapes(), LENGTHS, st.floats(1, 1e9), st.floats(1e9, 1e16), st.integers(1, 64), st.integers(1, 512), st.data())
@examples(100)
def test_a_true_row_is_consistent_at_any_rounding(shape, sequence, tokens_per_s, peak, devices, batch_size, data):
    digits = data.draw(st.tuples(DIGITS, DIGITS, DIGITS, DIGITS))
    facts = {"sequence": sequence, "peak": peak, "devices": devices, "batch_size": batch_size}
    made = row(conventions(shape)[0], tokens_per_s=tokens_per_s, digits=digits, **facts)  # type: ignore[arg-type]
    found = judge(made, Declared(shape, sequence, devices, peak))
    assert (found.status, found.readings) == ("consistent", []), found


@given(shapes(), LENGTHS, LENGTHS, st.floats(1, 1e9), st.booleans())
@examples(80)
def test_another_sequence_length_is_named(shape, declared, actual, tokens_per_s, with_step):
    made = row(conventions(shape)[0], sequence=actual, tokens_per_s=tokens_per_s, batch_size=4 if with_step else None)
    found = judge(made, Declared(shape, declared, 1, 989e12))
    assume(found.status == "inconsistent")  # equal lengths, or ones that eight digits cannot tell apart
    named = reading(found, "sequence")
    assert holds(named, actual)
    # else no other plausible length is in reach
    assert named.value == actual or (named.high or 0) - (named.low or 0) > 16
    assert found.incomparable is not None


@given(shapes(), LENGTHS, st.floats(1, 1e9), st.data())
@examples(80)
def test_another_formula_is_named(shape: Shape, sequence: int, tokens_per_s: float, data: st.DataObject) -> None:
    counted = data.draw(st.sampled_from(conventions(shape)[1:]))
    found = judge(row(counted, sequence=sequence, tokens_per_s=tokens_per_s), Declared(shape, sequence, 1, 989e12))
    assume(found.status == "inconsistent")
    assert counted in [one.setting.convention for one in found.readings if one.kind == "formula"], found


@given(shapes(), LENGTHS, st.floats(1, 1e9), st.floats(0.3, 3))
@examples(50)
def test_another_peak_is_solved_for(shape: Shape, sequence: int, tokens_per_s: float, factor: float) -> None:
    made = row(conventions(shape)[0], sequence=sequence, tokens_per_s=tokens_per_s, peak=factor * 989e12)
    found = judge(made, Declared(shape, sequence, 1, 989e12))
    assume(found.status == "inconsistent")
    assert holds(reading(found, "peak"), factor * 989e12)
    assert not [one for one in found.readings if one.kind in ("sequence", "devices", "formula")]


@given(shapes(), LENGTHS, st.floats(1, 1e9), st.integers(1, 128), st.integers(1, 128))
@examples(50)
def test_another_number_of_devices_is_named(shape, sequence, tokens_per_s, declared, actual):
    made = row(conventions(shape)[0], sequence=sequence, tokens_per_s=tokens_per_s, devices=actual)
    found = judge(made, Declared(shape, sequence, declared, 989e12))
    assert (found.status == "consistent") == (declared == actual)
    if declared != actual:
        assert reading(found, "devices").value == actual


@given(shapes(), LENGTHS, st.floats(100, 1e9), st.floats(0.05, 0.99))
@examples(50)
def test_the_share_of_real_tokens_is_solved_for(shape: Shape, sequence: int, rate: float, share: float) -> None:
    true = row(conventions(shape)[0], sequence=sequence, tokens_per_s=rate)
    found = judge(replace(true, tokens_per_s=printed(rate * share, 8)), Declared(shape, sequence, 1, 989e12))
    named = reading(found, "padding")
    assert (holds(named, share), named.free) == (True, True)
    unpadded = replace(true, tokens_per_s=printed(rate * share, 8), padded=False)
    told = judge(unpadded, Declared(shape, sequence, 1, 989e12))
    assert not [one for one in told.readings if one.kind == "padding"]
    assert ("padding", "declared") in [(one.kind, one.why) for one in told.excluded]


def test_names_of_peaks() -> None:
    true = row(conventions(GPT2)[0], sequence=1024, tokens_per_s=1e5, digits=(8, 6, 4, 4))
    for peak, expected in (
        (312e12, (NamedPeak("a100", ("bf16",)), NamedPeak("a100", ("tf32",), sparse=True))),
        (2 * 989e12, (NamedPeak("", sparse=True),)),
        (500e12, ()),
    ):
        made = replace(true, mfu_percent=printed(1e5 * flops_per_token(GPT2, 1024) / peak * 100, 4))
        named = reading(judge(made, Declared(GPT2, 1024, 1, 989e12)), "peak")
        assert (named.peaks, named.was, named.free) == (expected, 989e12, not expected)


def test_two_changes_are_found_where_no_single_one_fits() -> None:
    counted = next(one for one in conventions(GPT2) if (one.counted, one.attention) == ("no biases", "full"))
    found = judge(row(counted, sequence=2048, tokens_per_s=1e5), Declared(GPT2, 1024, 1, 989e12))
    pairs = [one for one in found.readings if one.changes == 2]
    assert any(one.value == 2048 and one.setting.convention == counted for one in pairs)
    assert all(one.free for one in found.readings if one.changes == 1)


def test_where_nothing_fits_it_says_so() -> None:
    bad = AuditRow("bad", tokens_per_s=read_figure("1000"), tflops=read_figure("300"), mfu_percent=read_figure("77.77"),
              padded=False)  # fmt: skip
    found = judge(bad, Declared(GPT2, 1024, 1, 989e12))
    assert (found.status, found.readings, found.incomparable) == ("inconsistent", [], Incomparable("nothing fits"))
    assert Excluded("formula", "none fits") in found.excluded


@pytest.mark.parametrize("shape", [LLAMA_8B, GPT2, Shape("gpt2", 4, 128, 4, 4, 500, 999, 77)])
def test_formulas(shape: Shape) -> None:
    found = conventions(shape)
    assert (found[0].counted, found[0].attention) == ("palm", "full")
    assert found[0].flops_per_token(512) == flops_per_token(shape, 512)
    assert parameters(shape) in {one.weights for one in found}
    assert len({(one.weights, one.attention) for one in found}) == len(found)


def test_parameters_that_formulas_leave_out_are_those_of_the_model() -> None:
    shape = Shape("gpt2", 2, 64, 2, 2, 200, 300, 50)
    sizes = {name: value.numel() for name, value in build_model(shape).named_parameters()}
    weights = {one.counted: one.weights for one in conventions(shape) if one.attention == "full"}
    biases = sum(size for name, size in sizes.items() if name.endswith(".bias"))
    vectors = sum(size for name, size in sizes.items() if ".ln_" in name or name.endswith(".bias"))
    assert weights["palm"] == sum(sizes.values()) - sizes["transformer.wpe.weight"]
    assert weights["all, positions"] == sum(sizes.values())
    assert weights["no biases"] == weights["palm"] - biases
    assert weights["matrices"] == weights["palm"] - vectors
    published = {one.counted: one.weights for one in conventions(GPT2) if one.attention == "full"}
    assert published["all, positions"] == 124_475_904  # llm.c prints it
    assert published["no biases"] == 123_587_328  # nanoGPT's get_num_params(), bias=False


def test_figures() -> None:
    for text, low, high in (
        ("6544.40", 6544.395, 6544.405), ("6544.4", 6544.35, 6544.45), ("135", 134.5, 135.5), ("100", 99.5, 100.5),
        ("~100", 50, 150), ("~250", 245, 255), ("178e3", 177_500, 178_500), ("1.5E-3", 0.00145, 0.00155),
        ("48-49", 47.5, 49.5), ("48 to 49.5", 47.5, 49.55),
    ):  # fmt: skip
        found = read_figure(text).interval
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-14), text
    for text in ("", "0", "-1", "0.00", "fast", "1,000", "49-48", "1e999", "nan", "~", "3 ms"):
        with pytest.raises(ValueError, match="figure"):
            read_figure(text)


def test_durations() -> None:
    assert read_duration("94.3 min").value == pytest.approx(94.3 * 60)
    days = read_duration("~4 days").interval
    assert (days.low, days.high) == (3.5 * 86400, 4.5 * 86400)
    with pytest.raises(ValueError, match="not a duration"):
        read_duration("4 weeks")


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.lists(st.integers(1, 64), min_size=2, max_size=5, unique=True))
@examples(50)
def test_a_line_through_batch_sizes_is_found(fixed: float, each: float, sizes: list[int]) -> None:
    rows = [AuditRow(f"b{n}", kind="k", batch_size=n, step_ms=printed(fixed + n * each, 12)) for n in sizes]
    (fit,) = audit(Table("", "", rows, Declared(GPT2, 1024, 1, 312e12))).fits
    assert (fit.fixed_ms, fit.per_sample_ms) == pytest.approx((fixed, each), rel=1e-4, abs=1e-3)
    assert fit.flops_per_s == pytest.approx(flops_per_token(GPT2, 1024) * 1024 / each * 1e3, rel=1e-4)


def test_traffic_of_a_fused_optimizer() -> None:
    rows = [AuditRow(f"b{n}", kind="k", batch_size=n, step_ms=read_figure(str(100 + 50 * n))) for n in (1, 2)]
    optimizer = Optimizer("AdamW", True, 4, "clip", None)
    found = audit(Table("", "", rows, Declared(GPT2, 1024, optimizer=optimizer))).traffic
    assert (found.passes, found.bytes, found.ms_at_full_bandwidth) == (10, 40 * parameters(GPT2), None)


def test_a_table_of_names_alone_says_what_is_missing() -> None:
    rows = [AuditRow("a"), AuditRow("b", tokens_per_s=read_figure("5"), mfu_percent=read_figure("5"))]
    found = audit(Table("", "", rows))
    assert ([one.status for one in found.rows], found.gains) == (["not checkable"] * 2, [])
    assert {"no shape", "no peak"} <= {reason for check in found.rows[1].checks for reason in check.reasons}


def test_a_duration_too_short_for_its_steps() -> None:
    one = AuditRow("run", steps=1000, step_ms=read_figure("100"), duration_s=read_duration("90 s"))
    found = judge(one, Declared())
    assert (found.status, reading(found, "duration").value) == ("inconsistent", pytest.approx(90))
