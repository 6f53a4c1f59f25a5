"""How errors are written as one line."""

from __future__ import annotations

import pytest

from trainer.errors import in_words


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\n b"), "ValueError: a b"),
        (MemoryError(), "MemoryError"),
        (TimeoutError("nothing came"), "nothing came"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_is_one_line_and_no_colon_ends_it(error: Exception, line: str) -> None:
    assert in_words(error) == line
