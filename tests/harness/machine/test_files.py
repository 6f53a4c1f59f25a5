"""Parsing what the kernel writes, and what it does not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.machine.check import size, span
from harness.machine.files import parse_list, read_fields, read_int, read_mounts, read_text
from tests.harness.machine.tree import plant


@given(st.sets(st.integers(0, 2000)))
def test_lists_of_cpus_round_trip(numbers: set[int]) -> None:
    assert parse_list(span(numbers)) == tuple(sorted(numbers))


@given(st.text())
def test_any_text_is_a_list_or_none(text: str) -> None:
    assert all(number >= 0 for number in parse_list(text[:12]))


def test_lists() -> None:
    assert parse_list("0-2,8") == (0, 1, 2, 8)
    assert parse_list("0-1, 4") == (0, 1, 4)
    assert parse_list("") == parse_list(None) == parse_list("all") == ()


@given(st.text())
def test_any_mountinfo_is_read(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proc/self/mountinfo"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8", errors="replace")
        read_mounts(Path(folder))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert (read_text(tmp_path), read_text(tmp_path / "none"), read_int(tmp_path / "none")) == (None, None, None)
    assert read_fields(tmp_path / "none") == {}
    plant(tmp_path, {"max": "max", "number": "-1", "fields": "a 1\na 2\nb\nc 3 4"})
    assert (read_int(tmp_path / "max"), read_int(tmp_path / "number")) == (None, -1)
    assert read_fields(tmp_path / "fields") == {"a": "1", "c": "3 4"}


@given(st.integers(0, 2**60))
def test_sizes_are_short(number: int) -> None:
    assert len(size(number)) <= 12
