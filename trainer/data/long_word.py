"""Leaves giant words out of the text that a tokenizer is trained on.

Each merge that training tries goes through the whole word, so its time grows with the square of a word's length: one
of 200,000 letters (a genome, an encoded picture) takes 8 to 14 s, fifty of them minutes. Encoding them is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

LONGEST_WORD_BYTES = 2000  # of UTF-8: a whole sample of nothing but such words takes half a minute, not hours
_FEWEST_CHARACTERS = LONGEST_WORD_BYTES // 4  # of a longer word
_BLANK = re.compile(rf"\s{{{_FEWEST_CHARACTERS}}}")  # white space is a word too


class WithoutGiants:
    """Iterates over texts without their giant words; ``left_out`` counts these."""

    def __init__(self, texts: Iterable[str], tokenizer: Any) -> None:
        """``tokenizer``: its normalizer and pre-tokenizer say what a word is."""
        self._texts = texts
        self._normalizer, self._pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        self.left_out = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            if not _may_hold_a_giant(text):
                yield text
            elif (found := self._cut(text)).strip():
                yield found

    def _cut(self, text: str) -> str:
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        kept, since = [], 0
        for _, (start, end) in self._pre_tokenizer.pre_tokenize_str(text):
            if end - start >= _FEWEST_CHARACTERS and len(text[start:end].encode()) > LONGEST_WORD_BYTES:
                kept.append(text[since:start])
                since = end
                self.left_out += 1
        return "\n".join([*kept, text[since:]]) if kept else text


def _may_hold_a_giant(text: str) -> bool:
    longest = max(map(len, text.split()), default=0)
    return longest >= _FEWEST_CHARACTERS - 1 or _BLANK.search(text) is not None
