"""What a change of the data path is called."""

from __future__ import annotations

import pytest

from harness.show.names import _data_path


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
