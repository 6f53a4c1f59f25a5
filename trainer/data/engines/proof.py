"""Proves that an engine's ids are the reference tokenizer's, and measures how fast each is on text it has not seen.

One difference refuses an engine. The text is compared in parts. The reference and all engines without a difference
encode each part, in an order that rotates. The CPU time of each is one measurement, because wall time would depend on
other programs. No engine is timed on text that it has encoded before: a cache of words would make it look faster than
it is on a corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from time import process_time_ns

import numpy as np

from trainer.data.engines.base import Encoded, Engine, concatenated, joined, utf8_bytes
from trainer.data.engines.libraries import Reference
from trainer.data.engines.proof_texts import HARD, Excerpt, parts, special_cases
from trainer.errors import InputError, literal

_REPEATED_BYTES = 4_000_000  # text that several threads encode a second time at once
_THREADS = 2  # threads; the second one starts at the other end
_AROUND = 24  # characters shown on either side of a difference
_MOST_IDS = 4  # ids shown of a difference


@dataclass(frozen=True)
class Proof:
    """Result of a proof: the amount of text compared, the speed of each engine, and the reason of each refusal."""

    documents: int = 0
    bytes: int = 0  # text of these documents that was compared
    hard_cases: int = 0  # further texts that the reference encodes, including each token of the vocabulary
    mb_per_cpu_s: Mapping[str, float] = field(default_factory=dict)  # one thread each, median over the parts
    refused: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""  # library and version that the tokenizer was made for
    whole_corpus: bool = False

    @property
    def text(self) -> str:
        """The proof as one line of text, for a run's record."""
        speeds = sorted(sorted(self.mb_per_cpu_s.items()), key=lambda item: -item[1])
        refused = [f"{name} is out: {reason}" for name, reason in sorted(self.refused.items())]
        if len(speeds) < 2:
            return "; ".join(["no other engine gives its ids", *refused])
        extent = "all" if self.whole_corpus else "a sample of"
        text = (
            f"proved to give the ids of {self.reference} on {extent} the corpus ({self.documents:,} documents, "
            f"{self.bytes / 1e6:.1f} MB) and on {self.hard_cases:,} other texts; MB of new text per CPU second: "
            + ", ".join(f"{name} {speed:.1f}" for name, speed in speeds)
        )
        return "; ".join([text, *refused])


def prove(name: str, reference: Reference, candidates: Mapping[str, Engine], pieces: Iterable[Excerpt]) -> Proof:
    """Compare ``candidates`` with the reference (among speeds: ``name``) on the hard set and on ``pieces``."""
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
    speeds: dict[str, list[float]] = {engine: [] for engine in (name, *candidates)}
    documents = compared = 0
    last = None  # document of the previous excerpt: one document may have several
    for rotation, part in enumerate(parts(pieces) if trial.engines else ()):
        part_texts = [piece.text for piece in part]
        size = sum(map(utf8_bytes, part_texts))
        ids, took_ns = trial.compare([piece.place for piece in part], part_texts, rotation)
        for engine, ns in took_ns.items():
            speeds[engine or name].append(size * 1e3 / max(ns, 1))
        if compared < _REPEATED_BYTES:
            texts += part_texts
            expected.append(ids)
        compared += size
        for excerpt in part:
            documents += excerpt.document != last
            last = excerpt.document
        if not trial.engines:
            break
    trial.repeat_in_threads(texts, concatenated(expected))
    trial.repeat_one_by_one(texts, concatenated(expected))
    accepted = {engine: rates for engine, rates in speeds.items() if rates and engine not in trial.refused}
    mb_per_cpu_s = {engine: round(median(rates), 2) for engine, rates in accepted.items()}
    return Proof(documents, compared, proved + len(tokens), mb_per_cpu_s, trial.refused)


class _Trial:
    """Compares engines with the reference. One that differs or raises moves to ``refused``, with the reason."""

    def __init__(self, reference: Reference, engines: dict[str, Engine]) -> None:
        self._reference, self.engines = reference, engines
        self.refused: dict[str, str] = {}

    def compare(self, places: Sequence[str], texts: list[str], rotation: int = 0) -> tuple[Encoded, dict[str, int]]:
        """Encode ``texts`` by all, refuse differing engines; return the reference's ids, CPU ns by engine ("": it)."""
        order = ["", *self.engines]
        encoded: dict[str, Encoded] = {}
        took_ns: dict[str, int] = {}
        for name in order[rotation % len(order) :] + order[: rotation % len(order)]:
            engine: Engine = self.engines[name] if name else self._reference
            begun = process_time_ns()
            try:
                encoded[name] = engine.encode_flat(texts)
            except InputError as error:
                if not name:
                    raise
                self._refuse(name, f"{error} ({' to '.join(dict.fromkeys((places[0], places[-1])))})")
            took_ns[name] = process_time_ns() - begun
        expected = encoded[""]
        for name in list(self.engines):
            if (document := _first_difference(expected, encoded[name])) is not None:
                actual, reference = (_document(ids, document) for ids in (encoded[name], expected))
                self._refuse(name, f"{places[document]}: {self._message(texts[document], actual, reference)}")
        return expected, {name: ns for name, ns in took_ns.items() if not name or name in self.engines}

    def compare_one(self, place: str, text: str) -> Encoded | None:
        """Encode one text by every method, refuse differing engines; return the reference's ids, None without any."""
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
        """Encode again in two threads, from first to last and back, and refuse engines whose ids change."""
        backward = _reversed(expected)
        for name, engine in list(self.engines.items() if texts else ()):
            with ThreadPoolExecutor(_THREADS) as pool:
                try:
                    encoded = list(pool.map(engine.encode_flat, (texts, texts[::-1])))
                except InputError as error:
                    self._refuse(name, f"{error} (in {_THREADS} threads at once)")
                    continue
            if any(_first_difference(*pair) is not None for pair in zip((expected, backward), encoded, strict=True)):
                self._refuse(name, f"its ids change when {_THREADS} threads encode the same text once more")

    def repeat_one_by_one(self, texts: list[str], expected: Encoded) -> None:
        """Encode the same texts once more, one per call, and refuse engines whose ids change."""
        for name, engine in list(self.engines.items()):
            try:
                encoded = concatenated([engine.encode_flat([text]) for text in texts])
            except InputError as error:
                self._refuse(name, f"{error} (one text at a time)")
                continue
            if (document := _first_difference(expected, encoded)) is not None:
                self._refuse(name, f"its ids change when {literal(texts[document][:_AROUND])} is encoded by itself")

    def _refuse(self, name: str, reason: str) -> None:
        self.refused[name] = reason.removeprefix("data.tokenizer.engine: ")
        del self.engines[name]

    def _message(self, text: str, ours: list[int], theirs: list[int]) -> str:
        agreements = (actual == expected for actual, expected in zip(ours, theirs, strict=False))
        position = next((index for index, agrees in enumerate(agreements) if not agrees), min(len(ours), len(theirs)))
        place = self._reference.place(text, position)
        around = text[max(0, place - _AROUND) : place + _AROUND]
        return (
            f"token {position} is {_ids(ours, position)}, the tokenizer's own is {_ids(theirs, position)}, "
            f"at character {place}, within {literal(around)}"
        )


def _ids(ids: list[int], position: int) -> str:
    excerpt = ids[position : position + _MOST_IDS]
    return " ".join(map(str, excerpt)) + (" ..." if len(ids) > position + _MOST_IDS else "") if excerpt else "none"


def _document(encoded: Encoded, number: int) -> list[int]:
    begin = int(encoded.lengths[:number].sum())
    return list(encoded.ids[begin : begin + int(encoded.lengths[number])].tolist())


def _reversed(encoded: Encoded) -> Encoded:
    ends = np.cumsum(encoded.lengths)[:-1]
    return joined(np.split(encoded.ids, ends)[::-1]) if len(encoded.lengths) else encoded


def _first_difference(expected: Encoded, encoded: Encoded) -> int | None:
    """Return the number of the first document with different ids; None if all are the same."""
    if np.array_equal(expected.lengths, encoded.lengths) and np.array_equal(expected.ids, encoded.ids):
        return None
    if len(expected.lengths) != len(encoded.lengths):
        return min(len(expected.lengths), len(encoded.lengths)) - 1
    positions = (
        [int(np.argmax(expected.lengths != encoded.lengths))] if (expected.lengths != encoded.lengths).any() else []
    )
    least = min(len(expected.ids), len(encoded.ids))
    differs = expected.ids[:least] != encoded.ids[:least]
    if differs.any():
        ends = np.cumsum(expected.lengths)
        positions.append(int(np.searchsorted(ends, int(np.argmax(differs)), side="right")))
    return min(positions)
