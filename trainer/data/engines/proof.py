"""Proves that an engine's ids are the reference tokenizer's, and measures how fast each is on text it has not seen.

One difference refuses an engine. The text is compared in parts: each part is encoded by the reference and by every
engine that is still in, in an order that rotates, and the CPU time that each takes is one measurement (on a busy
machine the wall's would tell engines apart by chance). So nobody is timed on text that it has encoded before: a cache
of words would make it look faster than it is on a corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from time import process_time_ns

import numpy as np

from trainer.data.engines.base import Encoded, Engine, concatenated, joined
from trainer.data.engines.hard_set import HARD, special_cases
from trainer.data.engines.own import Reference
from trainer.data.engines.sample import Excerpt, byte_length, parts
from trainer.errors import InputError, literal

_REPEATED_BYTES = 4_000_000  # of text that is encoded a second time, by several threads at once
_THREADS = 2  # one of them from the other end
_AROUND = 24  # characters of text on either side of a difference
_MOST_IDS = 4  # of a difference that are shown


@dataclass(frozen=True)
class Proof:
    """What was compared, how fast each engine was, and why each of the others is refused."""

    documents: int = 0
    bytes: int = 0  # of their text that was compared
    hard_cases: int = 0  # texts beside the corpus that the reference encodes, tokens of the vocabulary among them
    mb_per_cpu_s: Mapping[str, float] = field(default_factory=dict)  # median over the parts
    refused: Mapping[str, str] = field(default_factory=dict)


def prove(name: str, reference: Reference, candidates: Mapping[str, Engine], pieces: Iterable[Excerpt]) -> Proof:
    """Compare each of ``candidates`` with ``reference``, called ``name``, on the hard set and on ``pieces``.

    It ends where all are refused. Raises InputError where the reference itself cannot encode.
    """
    trial = _Trial(reference, dict(candidates))
    hard = {**HARD, **special_cases(reference.special_tokens())}
    texts: list[str] = []
    expected: list[Encoded] = []
    for case, text in hard.items():
        if (ids := trial.compare_one(f"hard case {case!r}", text)) is not None:
            texts.append(text)
            expected.append(ids)
    proved = len(texts)
    tokens = reference.token_texts() if trial.engines else []
    trial.compare([f"token {number} of the vocabulary" for number in range(len(tokens))], tokens)
    speeds: dict[str, list[float]] = {one: [] for one in (name, *candidates)}
    documents = compared = 0
    last = None  # document, of which several excerpts may follow one another
    for rotation, part in enumerate(parts(pieces) if trial.engines else ()):
        own = [piece.text for piece in part]
        size = sum(map(byte_length, own))
        ids, took_ns = trial.compare([piece.place for piece in part], own, rotation)
        for one, ns in took_ns.items():
            speeds[one or name].append(size * 1e3 / max(ns, 1))
        if compared < _REPEATED_BYTES:
            texts += own
            expected.append(ids)
        compared += size
        for excerpt in part:
            documents += excerpt.document != last
            last = excerpt.document
        if not trial.engines:
            break
    trial.repeat_in_threads(texts, concatenated(expected))
    trial.repeat_one_by_one(texts, concatenated(expected))
    left = {one: found for one, found in speeds.items() if found and one not in trial.refused}
    mb_per_cpu_s = {one: round(median(found), 2) for one, found in left.items()}
    return Proof(documents, compared, proved + len(tokens), mb_per_cpu_s, trial.refused)


class _Trial:
    """The engines that are still in. One that differs, or raises, leaves with its reason in ``refused``."""

    def __init__(self, reference: Reference, engines: dict[str, Engine]) -> None:
        self._reference, self.engines = reference, engines
        self.refused: dict[str, str] = {}

    def compare(self, places: Sequence[str], texts: list[str], rotation: int = 0) -> tuple[Encoded, dict[str, int]]:
        """Encode them by each, in an order that ``rotation`` rotates.

        Returns the reference's ids, and how long each that agrees took, in ns; "" is the reference.
        """
        order = ["", *self.engines]
        found: dict[str, Encoded] = {}
        took_ns: dict[str, int] = {}
        for name in order[rotation % len(order) :] + order[: rotation % len(order)]:
            engine: Engine = self.engines[name] if name else self._reference
            begun = process_time_ns()
            try:
                found[name] = engine.encode_flat(texts)
            except InputError as error:
                if not name:
                    raise
                self._refuse(name, f"{error} ({' to '.join(dict.fromkeys((places[0], places[-1])))})")
            took_ns[name] = process_time_ns() - begun
        expected = found[""]
        for name in list(self.engines):
            if (at := _first_difference(expected, found[name])) is not None:
                ours, theirs = (_document(one, at) for one in (found[name], expected))
                self._refuse(name, f"{places[at]}: {self._message(texts[at], ours, theirs)}")
        return expected, {name: ns for name, ns in took_ns.items() if not name or name in self.engines}

    def compare_one(self, place: str, text: str) -> Encoded | None:
        """The same for one text, by all three methods. One that the reference refuses proves nothing: None."""
        if not self.engines:
            return None
        try:
            expected = self._reference.encode(text)
        except InputError:
            return None
        ids, _ = self.compare([place], [text])
        for name, engine in list(self.engines.items()):
            try:
                lists = [engine.encode(text), *engine.encode_batch([text, "", text])]
            except InputError as error:
                self._refuse(name, f"{error} ({place})")
                continue
            if lists != [expected, expected, [], expected]:
                self._refuse(name, f"{place}: its methods disagree with one another")
        return ids

    def repeat_in_threads(self, texts: list[str], expected: Encoded) -> None:
        """Encode the same text again, now that engines know its words, in threads that do it at the same time.

        One of them begins at the other end, so that long texts meet short ones.
        """
        backward = _reversed(expected)
        for name, engine in list(self.engines.items() if texts else ()):
            with ThreadPoolExecutor(_THREADS) as pool:
                try:
                    found = list(pool.map(engine.encode_flat, (texts, texts[::-1])))
                except InputError as error:
                    self._refuse(name, f"{error} (in {_THREADS} threads at once)")
                    continue
            if any(_first_difference(*pair) is not None for pair in zip((expected, backward), found, strict=True)):
                self._refuse(name, f"its ids change when {_THREADS} threads encode the same text once more")

    def repeat_one_by_one(self, texts: list[str], expected: Encoded) -> None:
        """Encode the same text once more, each by itself: an engine may encode a few in another way than many."""
        for name, engine in list(self.engines.items()):
            try:
                found = concatenated([engine.encode_flat([text]) for text in texts])
            except InputError as error:
                self._refuse(name, f"{error} (one text at a time)")
                continue
            if (at := _first_difference(expected, found)) is not None:
                self._refuse(name, f"its ids change when {literal(texts[at][:_AROUND])} is encoded by itself")

    def _refuse(self, name: str, reason: str) -> None:
        self.refused[name] = reason.removeprefix("data.tokenizer.engine: ")
        del self.engines[name]

    def _message(self, text: str, ours: list[int], theirs: list[int]) -> str:
        same = (one == other for one, other in zip(ours, theirs, strict=False))
        position = next((at for at, agrees in enumerate(same) if not agrees), min(len(ours), len(theirs)))
        place = self._reference.place(text, position)
        around = text[max(0, place - _AROUND) : place + _AROUND]
        return (
            f"token {position} is {_ids(ours, position)}, the tokenizer's own is {_ids(theirs, position)}, "
            f"at character {place}, within {literal(around)}"
        )


def _ids(ids: list[int], position: int) -> str:
    shown = ids[position : position + _MOST_IDS]
    return " ".join(map(str, shown)) + (" ..." if len(ids) > position + _MOST_IDS else "") if shown else "none"


def _document(encoded: Encoded, number: int) -> list[int]:
    begin = int(encoded.lengths[:number].sum())
    return list(encoded.ids[begin : begin + int(encoded.lengths[number])].tolist())


def _reversed(encoded: Encoded) -> Encoded:
    ends = np.cumsum(encoded.lengths)[:-1]
    return joined(np.split(encoded.ids, ends)[::-1]) if len(encoded.lengths) else encoded


def _first_difference(expected: Encoded, found: Encoded) -> int | None:
    """The first document whose ids are not the same; None where all are."""
    if np.array_equal(expected.lengths, found.lengths) and np.array_equal(expected.ids, found.ids):
        return None
    if len(expected.lengths) != len(found.lengths):
        return min(len(expected.lengths), len(found.lengths)) - 1
    firsts = [int(np.argmax(expected.lengths != found.lengths))] if (expected.lengths != found.lengths).any() else []
    least = min(len(expected.ids), len(found.ids))
    differs = expected.ids[:least] != found.ids[:least]
    if differs.any():
        ends = np.cumsum(expected.lengths)
        firsts.append(int(np.searchsorted(ends, int(np.argmax(differs)), side="right")))
    return min(firsts)
