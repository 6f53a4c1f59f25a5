"""Regression checks of this project by its own fixture: only where benchmarks are enabled (`make bench`)."""

from __future__ import annotations


def test_rows_that_were_tokenized_beforehand_are_no_slower_than_text(scenario) -> None:
    found = scenario("scenarios/guard.yaml", arm="tokens-padded").no_slower_than(
        "text-padded", within="3%", budget="2m", startup_within="off"
    )
    assert found.verdict == "faster"
