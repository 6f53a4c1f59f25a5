"""The table of doubts: one rule for each kind, and the first one that bars a claim is the cause."""

from __future__ import annotations

from typing import get_args

import pytest

from harness.judge.doubts import CLAIMS_OF, RULES, Bars, Claim, DoubtKind, Unseen, barred, doubt, in_order


def test_each_kind_has_one_rule_in_the_order_of_the_table() -> None:
    assert tuple(rule.kind for rule in RULES) == get_args(DoubtKind)
    assert set(CLAIMS_OF) == set(get_args(Bars))
    assert {claim for claims in CLAIMS_OF.values() for claim in claims} == set(get_args(Claim))


def test_the_first_doubt_that_bars_a_claim_is_its_cause_whatever_the_order_of_the_list() -> None:
    found = [doubt("long steps"), doubt("drift"), doubt("too coarse"), doubt("sampler")]
    for order in (found, found[::-1]):
        assert barred(order, "none") == doubt("too coarse")
        assert barred(order, "workers") == doubt("sampler")
        assert barred(order, "prefetch") is None
        assert in_order(order)[-1].kind == "drift"


@pytest.mark.parametrize(
    ("kind", "bars"),
    [
        ("no core", {"gain", "loss", "none", "workers", "prefetch", "prediction", "recommendation"}),
        ("blocked", {"workers", "prefetch", "prediction", "recommendation"}),
        ("diverged", {"gain"}),
        ("a-a apart", {"gain", "loss"}),
        ("too noisy", {"gain", "loss", "none", "ratio"}),
        ("no loader", {"workers", "prefetch"}),
        ("host load", set()),
    ],
)
def test_a_doubt_bars_only_what_it_makes_unknown(kind: DoubtKind, bars: set[Claim]) -> None:
    assert {claim for claim in get_args(Claim) if barred([doubt(kind)], claim)} == bars


def test_ranks_bar_a_prediction_whether_or_not_the_device_was_recorded() -> None:
    found = Unseen(device=True, ranks=2)
    assert (found.reason, Unseen(device=True).reason) == ("ranks", "device")
    assert [one.kind for one in found.doubts(recorded=True)] == ["ranks", "one stream"]


def test_a_remedy_carries_its_number() -> None:
    found = doubt("too coarse", share=0.3, blocks=12)
    assert (found.remedy.kind, found.remedy.blocks) == ("more blocks", 12)
    other = doubt("too coarse", remedy="more steps a block").remedy
    assert other.kind == "more steps a block"
