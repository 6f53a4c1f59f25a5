"""A small part of ``python -m tests.campaigns audit_rates``: honest tables get no firm claim, true slips are found."""

from __future__ import annotations

from random import Random

import pytest

from tests.campaigns.audit_rates.rates import Rates, honest_rates, scattered, slip_rates
from tests.campaigns.audit_rates.tables import FULL, LOG, PAPER, SHAPES, SLIPS, independent

pytestmark = pytest.mark.slow  # simulations

TABLES = 6


@pytest.mark.parametrize("scatter", [0.0, 0.005, 0.02])
def test_honest_tables_get_a_firm_claim_in_at_most_one_row_of_a_hundred(scatter: float) -> None:
    found = Rates()
    for name, shape in SHAPES.items():
        for printing in (LOG, PAPER):
            random = Random(f"{name} {scatter} {printing.name}")
            found += honest_rates(random, scattered(shape, lambda _: independent(scatter)), printing, TABLES)
    assert found.rows == 2 * TABLES * (8 + 3 + 7)
    assert found.firm <= found.rows // 100
    assert found.inconsistent <= found.rows // 100
    # Most of them contradict themselves at the printed digits, so that there was something to be wrong about.
    assert found.apart == 0 if scatter == 0 else found.apart > found.rows / 2


@pytest.mark.parametrize("every", [False, True])
def test_every_slip_in_an_exact_table_is_named_and_firm(every: bool) -> None:
    seen = 0
    for slip in SLIPS:
        found = slip_rates(Random(f"slips {slip.name}"), slip, FULL, every, 1 if every else 2)
        seen += found.rows
        assert (found.inconsistent, found.named, found.firm) == (found.rows,) * 3, slip.name
        assert found.elsewhere == 0, slip.name
    assert seen >= 3 * len(SLIPS)


def test_slips_at_the_digits_of_a_log_are_named() -> None:
    for slip in SLIPS:
        found = slip_rates(Random(f"log {slip.name}"), slip, LOG, False, 1)
        if "position embeddings" not in slip.name:  # half a percent: hardly more than what two decimals leave open
            assert found.named == found.rows, slip.name
        assert found.elsewhere == 0, slip.name
