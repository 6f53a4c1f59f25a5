"""Encodes a very long document in parts, so that it takes little memory: tokenizers takes 120 times a text's size.

A part ends where the text around it gives the same ids in one piece and in two: libraries split text into words first,
at white space among others, and encode each for itself. Where no such place is found, the document is encoded whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainer.data.engines.base import Encoded, Engine, concatenated

PART_CHARACTERS = 1 << 20
AROUND_CHARACTERS = 1 << 12  # before and after a place that is tried: hundreds of words
ENDS_TRIED = 8  # places of each kind before the next part's end is tried


def encode_long(engine: Engine, text: str) -> Encoded:
    """The ids of one document, as of ``engine.encode_flat([text])``."""
    import numpy as np

    parts = []
    start = 0
    for end in _ends(engine, text):
        parts.append(engine.encode_flat([text[start:end]]))
        start = end
    encoded = concatenated(parts)
    return Encoded(encoded.ids, np.array([len(encoded.ids)], np.int64))


def _ends(engine: Engine, text: str) -> Iterator[int]:
    """Where parts end, the text's own end last."""
    wanted = PART_CHARACTERS
    while wanted < len(text):
        end = next((place for place in _places(text, wanted) if _parts_are_the_whole(engine, text, place)), None)
        if end is not None:
            yield end
        wanted = (wanted if end is None else end) + PART_CHARACTERS
    yield len(text)


def _places(text: str, start: int) -> Iterator[int]:
    """Single line ends, then single spaces, from ``start`` on, within a part's length."""
    for separator in ("\n", " "):
        place = start - 1
        for _ in range(ENDS_TRIED):
            place = text.find(separator, place + 1, start + PART_CHARACTERS)
            if place < 1:
                break
            if not text[place - 1].isspace() and not text[place + 1 : place + 2].isspace():
                yield place


def _parts_are_the_whole(engine: Engine, text: str, place: int) -> bool:
    before = text[max(place - AROUND_CHARACTERS, 0) : place]
    after = text[place : place + AROUND_CHARACTERS]
    both = engine.encode_flat([before, after])
    return bool((ids := engine.encode_flat([before + after]).ids).shape == both.ids.shape and (ids == both.ids).all())
