"""Shares and times as people write them."""

from __future__ import annotations

import pytest

from harness.regress.decision import read_seconds, read_share
from trainer.errors import InputError


@pytest.mark.parametrize(("text", "value"), [("3%", 0.03), ("0.5 %", 0.005), ("100%", 1.0)])
def test_shares(text: str, value: float) -> None:
    assert read_share(text, "within") == pytest.approx(value)


@pytest.mark.parametrize("text", ["3", "0.03", "-1%", "0%", "200%", "x%", ""])
def test_no_shares(text: str) -> None:
    with pytest.raises(InputError, match=r"within '.*': allowed: a share such as 3%"):
        read_share(text, "within")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("45", 45), ("2 min", 120)])
def test_times(text: str, seconds: float) -> None:
    assert read_seconds(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["0", "-3s", "10d", "m", ""])
def test_no_times(text: str) -> None:
    with pytest.raises(InputError, match=r"--budget '.*': allowed: a time such as 90s"):
        read_seconds(text, "--budget")
