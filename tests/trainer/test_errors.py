"""How errors are written as one line."""

from __future__ import annotations

import pytest

from trainer.errors import in_words, plain_reason


@pytest.mark.parametrize(("error", "line"), [
    (ValueError("a\n b"), "ValueError: a b"),
    (MemoryError(), "MemoryError"),
    (TimeoutError("nothing came"), "nothing came"),
    (TimeoutError(), "TimeoutError"),
])  # fmt: skip
def test_an_error_is_one_line_and_no_colon_ends_it(error: Exception, line: str) -> None:
    assert in_words(error) == line


@pytest.mark.parametrize(("error", "line"), [
    (NotADirectoryError(20, "Not a directory"), "Not a directory"),
    (OSError("[Errno 20] Cannot create directory 'f'. Detail: [errno 20] Not a directory"),
     "Cannot create directory 'f': Not a directory"),
    (ValueError("a [Errno] of somebody"), "a [Errno] of somebody"),
])  # fmt: skip
def test_error_numbers_are_left_out(error: Exception, line: str) -> None:
    assert plain_reason(error) == line
