"""A sample of the campaign: whatever file of a cache is damaged, the data commands are right and say so in a line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.campaigns.faults.caches import DAMAGES, Result, campaign, outcome


def test_no_damage_of_a_cache_changes_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))  # the campaign sets it: given back afterwards
    found = list(campaign(tmp_path, seed=5, share=0.06, pretrained=False))
    assert len(found) > 10
    assert len({damage for _, damage, _, _ in found}) > len(DAMAGES) / 2
    counts = Counter(result for *_, result in found)
    assert counts["built again"] > len(found) / 2
    assert counts.keys() <= {"built again", "not needed"}, found


def test_a_wrong_result_is_counted_as_one() -> None:
    right = Result(0, "a", "", "b")
    assert outcome(right, right) == "not needed"
    assert outcome(Result(0, "a", "x\ndamaged in the cache: f: why; built again\n", "b"), right) == "built again"
    assert outcome(Result(0, "a", "", "c"), right) == "wrong result"
    assert outcome(Result(1, "a", "", "b"), right) == "wrong result"
    assert outcome(Result(2, "", "harness: one line\n"), right) == "refused"
    assert outcome(Result(2, "", "two\nlines\n"), right) == "wrong result"
