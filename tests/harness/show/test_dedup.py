"""The page on near-duplicates says nothing that rounding makes false."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.show.dedup import DedupPage, page
from trainer.data.corpus.dedup.quality import KindCount, Quality
from trainer.data.corpus.dedup.run import DedupResult
from trainer.data.corpus.dedup.shingles import Shingling
from trainer.data.corpus.dedup.sketches import Banding, DedupSettings, banding_for

RESULT = DedupResult("corpus", "0" * 64, "local", 100_000, 0, 0, 1, 1, 0, 1, 1, None)
SETTINGS = DedupSettings(Shingling(), 0.8, banding_for(0.8))
ALMOST = Quality(100_000, 99_999, 100_000, 99_999, 0.99999, 1.0, (KindCount("copy", 100_000, 99_999, 1.0),))


def text(settings: DedupSettings, result: DedupResult = RESULT, quality: Quality | None = None) -> str:
    return page(DedupPage(settings, result, quality))


@pytest.mark.parametrize(
    ("threshold", "banding", "missed"),
    [
        (0.9, Banding(100, 1), "under 0.0001 %"),
        (0.8, banding_for(0.8), "0.17 %"),
        (0.2, Banding(1, 50), "over 99.9999 %"),
    ],
)
def test_what_may_happen_is_never_impossible_or_certain(threshold: float, banding: Banding, missed: str) -> None:
    found = text(DedupSettings(Shingling(), threshold, banding))
    assert f"a pair right at the threshold is missed with a probability of {missed}." in found
    curve = [line for line in found.splitlines() if line.endswith(" % |")]
    assert curve[-1] == "| 1.0 | 100 % |"
    assert not any(f"| {certain} % |" in line for line in curve[:-1] for certain in ("0", "0.0000", "100", "100.0000"))


def test_what_is_nearly_all_or_given_in_full_is_not_rounded() -> None:
    given = text(DedupSettings(Shingling(), 0.99999999, Banding(20, 1)))
    assert "Jaccard similarity of their shingles of 0.99999999 on" in given
    assert "| 0.99999999 (threshold) |" in given
    assert "| 1.0 | 100 % |" in given
    found = text(SETTINGS, quality=ALMOST)
    assert "| 99,999 | 100,000 | over 0.9999 |" in found
    assert "over 0.9999 have one label (precision)" in found
    assert "1.0000 are within a group (recall)" in found
    assert "99,999 of 100,000 documents (over 99 %) are removed" in text(SETTINGS, replace(RESULT, removed=99_999))
    assert "99 of 100 documents (99 %) are removed" in text(SETTINGS, replace(RESULT, documents=100, removed=99))


def test_documents_that_were_not_compared_with_all_are_named() -> None:
    assert "pairs farther apart may be missed" not in text(SETTINGS)
    found = text(SETTINGS, replace(RESULT, crowded=1))
    assert "1 document with more than 64 earlier ones in a band: there compared only with the previous 64" in found
