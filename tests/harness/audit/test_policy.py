"""Limits of harness/audit/policy.py: at each limit an audit finds or states something else."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from harness.audit import judge
from harness.audit.fits import FixedPart
from harness.audit.load import Published
from harness.audit.readings import Readings, _covered, averages
from harness.audit.scatter import Relation, scatters
from harness.audit.solve import plausible_lengths
from harness.audit.table import AuditRow, Interval, read_figure
from harness.audit.text import _rows_line, change, short


@pytest.mark.parametrize(("fixed_ms", "odd"), [(79.0, True), (81.0, False), (124.0, False), (126.0, True)])
def test_a_fixed_part_far_from_the_others_is_odd(fixed_ms: float, odd: bool) -> None:
    assert FixedPart(fixed_ms, 100.0, 100.0, 1).odd is odd


def test_lengths_are_powers_of_two_and_multiples() -> None:
    assert plausible_lengths(Interval(8, 200)) == [16, 32, 64, 128, 192]
    assert len(plausible_lengths(Interval(64, 2**20))) == 1001 + 5  # multiples, and the powers of two beyond them


@pytest.mark.parametrize(("apart", "found"), [(1.049, 1), (1.051, 0)])
def test_averages_are_close_to_the_step_time(apart: float, found: int) -> None:
    row = AuditRow(
        "row", tokens_per_step=1000, step_ms=read_figure("100.00"), tokens_per_s=read_figure(f"{10_000 * apart:.1f}")
    )
    setting = SimpleNamespace(sequence=None, flops_per_token=None, devices=1, peak_flops_per_s=None)
    assert len([*averages(row, setting)]) == found


def test_scatter_widens_figures_by_its_99_percent() -> None:
    figure = judge.widened(AuditRow("row", tflops=read_figure("100.00")), 0.1).tflops
    assert figure.interval.high == pytest.approx(100.005 * 1.13)


def test_a_window_reaches_twice_as_far_as_the_figure() -> None:
    covered = [_covered(np.array([shift]), SimpleNamespace(center=0.1), 0.001) for shift in (-0.19, -0.21)]
    assert (covered[0] > 0, covered[1]) == (True, 0)


@pytest.mark.parametrize(("rows", "refused"), [(1000, False), (1001, True)])
def test_a_table_has_a_most_number_of_rows(rows: int, refused: bool) -> None:
    content = {"title": "t", "source": "s", "rows": [{"name": f"r{number}"} for number in range(rows)]}
    if refused:
        with pytest.raises(ValidationError, match="rows"):
            Published.model_validate(content)
    else:
        assert len(Published.model_validate(content).rows) == rows


@pytest.mark.parametrize(("width", "ends"), [(0.009, False), (0.011, True)])
def test_a_gain_of_few_digits_is_a_range(width: float, ends: bool) -> None:
    gain = SimpleNamespace(measured=1.5, measured_low=1.5, measured_high=1.5 + width)
    assert (" to " in change(gain)) is ends


def test_the_first_line_names_a_few_rows_and_readings() -> None:
    rows = [SimpleNamespace(name=f"row-{number}", status="inconsistent", readings=[]) for number in range(5)]
    line = _rows_line(SimpleNamespace(rows=rows, evidence=[], scatters=[]))
    assert [f"row-{number} (" in line for number in range(5)] == [True, True, True, False, False]
    assert "and 2 more" in line
    of = {"was": None, "setting": None, "free": False, "firm": False, "changes": 1}
    one = SimpleNamespace(kind="unit", value=1000.0, figures=("MFU",), **of)
    text = short(SimpleNamespace(readings=[one] * 4))
    assert (text.count("MFU too small"), text.endswith("or 2 more readings")) == (2, True)


@pytest.mark.parametrize(("spread", "common"), [(0.019, True), (0.021, False)])
def test_rows_that_are_off_alike_have_one_cause(spread: float, common: bool) -> None:
    rows = {f"row-{end}": [Relation("MFU", "TFLOP/s", 0.1 + end * spread / 2, 0.001)] for end in (-1, 0, 1)}
    (found,) = scatters(rows, ())
    assert found.common is common
    wider = {name: [*pairs, Relation("MFU", "tokens/s", 0.3, 0.001)] for name, pairs in rows.items()}
    assert [one.second for one in scatters(wider, ())] == ["tokens/s"]  # of two in the same rows


@pytest.mark.parametrize(("after", "explains"), [(0.049, True), (0.051, False)])
def test_a_reading_of_another_row_leaves_little_unexplained(monkeypatch, after, explains):
    monkeypatch.setattr(judge, "under", lambda *_: (None, None))
    monkeypatch.setattr(judge, "worst", lambda *_: Relation("MFU", "TFLOP/s", after, 0.0))
    other = SimpleNamespace(worst=Relation("MFU", "TFLOP/s", 1.0, 0.0), row=None, setting=None)
    assert judge._explains(None, other) is explains


def test_lengths_and_devices_are_tried_up_to_a_most() -> None:
    tried = SimpleNamespace(setting=SimpleNamespace(convention=None))
    tried._by_length = lambda lengths, _: lengths
    tried._by_devices = lambda numbers: -numbers
    found = Readings._unusual.func(tried)
    assert (found.min(), found.max()) == (-4096, 2**20)
