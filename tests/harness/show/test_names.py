"""Short names of arms: different for every arm, and nothing is lost that tells them apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.show.names import ArmNames, _data_path
from harness.show.policy import NAME_FITS, NAME_LONGEST

MATRIX = [
    f"{arm}@batch_size={b},workers={w}" for arm in ("text-padded", "tokens-padded") for b in (1, 4) for w in (0, 2)
]


def test_names_that_fit_stay_and_a_matrix_is_shortened_by_what_varies() -> None:
    names = ArmNames(["text-padded", "8b-b1-tokens-padded"])
    assert names.short("8b-b1-tokens-padded") == "8b-b1-tokens-padded"
    assert names.legend == []
    names = ArmNames([f"{name},sequence_length=2048" for name in MATRIX])
    assert names.short(f"{MATRIX[0]},sequence_length=2048") == "text-padded bs1 w0"
    assert names.legend == [("bs", "batch_size"), ("w", "workers"), ("all arms", "sequence_length=2048")]
    # Keys with the same initials are written out.
    names = ArmNames([f"arm@learning_rate={a},log_rate={b}" for a in (1, 2) for b in (1, 2)])
    assert names.short("arm@learning_rate=1,log_rate=2") == "arm learning_rate=1 log_rate=2"


@pytest.mark.parametrize(
    ("candidate", "baseline", "label"),
    [
        ("tokens-padded", "text-padded", "tokens-padded vs text-padded"),
        ("8b-b1-tokens-padded", "8b-b1-text-padded", "8b-b1-tokens-padded vs 8b-b1-text-padded"),
        ("text-padded@batch_size=4,workers=0", "tokens@batch_size=4,workers=0", "text-padded vs tokens"),
        ("fast", "slow", "fast vs slow"),
        ("text-padded-2", "text-padded", "text-padded-2 vs text-padded"),
    ],
)
def test_a_comparison_is_labelled_by_its_arms(candidate: str, baseline: str, label: str) -> None:
    assert ArmNames([candidate, baseline]).pair(candidate, baseline) == label


@given(st.lists(st.text(alphabet="ab-@=,._", min_size=1, max_size=60), min_size=1, max_size=12, unique=True))
def test_short_names_tell_arms_apart_whatever_they_are(full: list[str]) -> None:
    names = ArmNames(full)
    short = [names.short(name) for name in full]
    assert len(set(short)) == len(full)
    assert all(len(name) <= max(NAME_FITS, NAME_LONGEST) for name in short)


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("text-stream", "tokens-stream", "Pretokenizing"),
        ("text-stream", "tokens-mmap", "Pretokenizing and packing out of a memory map"),
        ("tokens-stream", "tokens-mmap", "Packing out of a memory map"),
        ("tokens-mmap", "tokens-padded", "Padding"),
        ("tokens-mmap", "text-stream", "Tokenizing on the fly and packing out of token lists"),
        ("tokens-mmap", "elsewhere", None),
    ],
)
def test_a_change_of_the_data_path_has_a_name(before: str, after: str, name: str | None) -> None:
    assert _data_path(before, after) == name
