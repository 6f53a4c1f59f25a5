"""Makes a corpus with labelled near-duplicates. A seed always gives the same bytes.

Its documents are sentences of made-up words, with word frequencies as in a language. Near-duplicates of an original are
exact copies, other line ends and capitals, edited words, truncations, and the text within a page's header and footer.
Other documents only look similar: texts that share half of their words with another one, and texts within the same
header and footer. Each similarity is measured by the Jaccard similarity of shingles of five words. A labelled
near-duplicate has at least 0.8 to its original, any other document at most 0.75.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.corpus.base import CORPUS_ROW_GROUP
from trainer.data.corpus.dedup.pairs import jaccard
from trainer.data.corpus.dedup.shingles import STEP, Shingler, Shingling
from trainer.data.order import mixed
from trainer.errors import InputError
from trainer.files import check_new, new_folder

SHINGLING = Shingling("word", 5)
LEAST_SIMILAR = 0.8  # minimum similarity of a labelled near-duplicate to its original
MOST_SIMILAR = 0.75  # maximum similarity of other documents
DUPLICATES = ("copy", "reformatted", "edit", "truncation", "boilerplate")
MOST_DOCUMENTS = 100_000_000
CORPUS_FILE, LABELS_FILE = "corpus.parquet", "labels.parquet"
_VOCABULARY = 30_000
_FEWEST, _MOST = 60, 400  # words of an original
_MOST_COPIES = 4  # variants of an original
_SITES = 40  # different headers and footers
_FIRST = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "ch", "st", "tr")
_SYLLABLES = [first + vowel for first in _FIRST for vowel in "aeiou"]


@dataclass(frozen=True)
class Planned:
    """Plan of a document. ``origin``: place of its original in the plan; ``variant``: 0 for an original, else 1, 2."""

    kind: str
    origin: int
    variant: int


@dataclass(frozen=True)
class Labelled:
    """A document with its row, its kind, the row of its original, and their Jaccard similarity."""

    row: int
    text: str
    kind: str
    origin: int
    similarity: float


class _Draws:
    """Random numbers of one purpose and document (``place``), which follow from it and ``seed`` alone."""

    def __init__(self, seed: int, *place: int) -> None:
        state = seed
        for part in place:
            state = _scrambled(state * 31 + part)
        self._state = state % 2**64

    def many(self, count: int) -> NDArray[np.float64]:
        """Return the next ``count`` random numbers, from 0 to below 1."""
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(STEP) + np.uint64(self._state)
        self._state = (self._state + count * STEP) % 2**64
        return (mixed(steps) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def one(self) -> float:
        self._state = (self._state + STEP) % 2**64
        return float((_scrambled(self._state) >> 11) * 2.0**-53)

    def below(self, limit: int) -> int:
        return int(self.one() * limit)


def _scrambled(value: int) -> int:
    """Return a 64-bit hash of an integer: for ``value`` modulo 2**64 the same as ``mixed``, which takes arrays."""
    value %= 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def check_count(count: int) -> None:
    """Raise InputError unless ``count``, the documents to generate, is at least 2, at most :data:`MOST_DOCUMENTS`."""
    if not 2 <= count <= MOST_DOCUMENTS:
        raise InputError(f"--make-labelled {count}: allowed: 2 to {MOST_DOCUMENTS:,} documents")


def labelled(count: int, seed: int) -> Iterator[Labelled]:
    """Generate documents in the order of rows, with kind, the original's row and the similarity to it (0 to 1)."""
    plan = _plan(count, seed)
    order = np.argsort(mixed(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(STEP) + np.uint64(_scrambled(seed))))
    rows = np.empty(count, np.int64)  # row of each document of the plan
    rows[order] = np.arange(count)
    maker = _LabelledMaker(seed)
    for row, place in enumerate(order.tolist()):
        text, kind, similarity = maker.document(plan[place])
        yield Labelled(row, text, kind, int(rows[plan[place].origin]), similarity)


def _plan(count: int, seed: int) -> list[Planned]:
    """Return the plans of ``count`` documents. Originals come before their variants."""
    plan: list[Planned] = []
    while len(plan) < count:
        origin = len(plan)
        draws = _Draws(seed, 1, origin)
        if draws.one() < 0.6:
            plan.append(Planned("page" if draws.one() < 0.2 else "single", origin, 0))
            continue
        plan.append(Planned("original", origin, 0))
        for variant in range(1, 2 + draws.below(_MOST_COPIES)):
            kind = "related" if draws.one() < 0.15 else DUPLICATES[draws.below(len(DUPLICATES))]
            plan.append(Planned(kind, origin, variant))
    return plan[:count]


class _LabelledMaker:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._shingler = Shingler(SHINGLING)

    def document(self, planned: Planned) -> tuple[str, str, float]:
        """Return text, kind ("copy" if no change suits the planned one), and similarity to the original (0 to 1)."""
        original = self._original(planned.origin)
        draws = _Draws(self._seed, 2, planned.origin, planned.variant)
        if planned.kind in ("original", "single", "copy"):
            return " ".join(original), planned.kind, 1.0
        if planned.kind == "page":
            return self._within_page(original, draws, len(original) // 2), planned.kind, 1.0
        if planned.kind == "reformatted":
            text = "\n".join(" ".join(original[start : start + 9]) for start in range(0, len(original), 9))
            return text.upper() if draws.one() < 0.3 else f"  {text}\n", planned.kind, 1.0
        if planned.kind == "related":
            return self._measured(planned, original, [0.6, 0.4, 0.2, 0.0], draws)
        similarity = LEAST_SIMILAR + (1 - LEAST_SIMILAR) * draws.one()
        strengths = [1 - similarity, (1 - similarity) / 2, (1 - similarity) / 4, 0.01, 0.0]
        return self._measured(planned, original, strengths, draws)

    def _measured(
        self, planned: Planned, original: list[str], strengths: list[float], draws: _Draws
    ) -> tuple[str, str, float]:
        """Return (text, kind, similarity) by the first of ``strengths`` (shares) that suits; else of an exact copy."""
        for strength in strengths:
            text = self._changed(planned.kind, original, strength, draws)
            sets = self._shingler.sets([" ".join(original), text])
            first, second = np.split(sets.hashes, [sets.lengths[0]])
            similarity = jaccard(first, second)
            if similarity <= MOST_SIMILAR if planned.kind == "related" else similarity >= LEAST_SIMILAR:
                return text, planned.kind, similarity
        return " ".join(original), "copy", 1.0

    def _changed(self, kind: str, original: list[str], strength: float, draws: _Draws) -> str:
        if kind == "related":  # the original's beginning, then another text
            unrelated = self._text(draws, len(original))
            return " ".join(original[: int(len(original) * strength)] + unrelated[int(len(original) * strength) :])
        if kind == "truncation":
            return " ".join(original[: max(1, int(len(original) * (1 - strength)))])
        if kind == "boilerplate":
            return self._within_page(original, draws, max(2, int(len(original) * strength)))
        changed = list(original)  # Each edit changes up to five shingles.
        for _ in range(max(1, int(strength / (2 - strength) * len(original) / 5))):
            place, change = draws.below(len(changed)), draws.below(3)
            if change == 0:
                changed[place] = _word(draws.below(_VOCABULARY))
            elif change == 1:
                changed.insert(place, _word(draws.below(_VOCABULARY)))
            else:
                del changed[place]
        return " ".join(changed)

    def _within_page(self, text: list[str], draws: _Draws, size: int) -> str:
        frame = self._text(_Draws(self._seed, 3, draws.below(_SITES)), 2 * _MOST)
        return "\n".join([" ".join(frame[: size // 2]), " ".join(text), " ".join(frame[-(size - size // 2) :])])

    def _original(self, number: int) -> list[str]:
        draws = _Draws(self._seed, 4, number)
        return self._text(draws, _FEWEST + draws.below(_MOST - _FEWEST))

    def _text(self, draws: _Draws, count: int) -> list[str]:
        """Return ``count`` random words; few words are frequent. Word 10 and every 14th after it end in a period."""
        drawn = draws.many(count)
        text = list(map(_word, (drawn * drawn * drawn * _VOCABULARY).astype(np.int64).tolist()))
        for place in range(9, count, 14):
            text[place] += "."
        return text


@lru_cache(maxsize=_VOCABULARY)
def _word(rank: int) -> str:
    text, rest = "", _scrambled(rank + 1)
    for _ in range(2 + rank % 3):
        rest, place = divmod(rest, len(_SYLLABLES))
        text += _SYLLABLES[place]
    return text


def write_labelled(out: Path, count: int, seed: int) -> None:
    """Write the new folder ``out`` with :data:`CORPUS_FILE` and :data:`LABELS_FILE`. Raises InputError if it exists."""
    check_new(out)
    check_count(count)
    with new_folder(out.absolute()) as folder:
        _write_files(folder, count, seed)


def _write_files(folder: Path, count: int, seed: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("length", pa.int64())])
    types = (pa.int64(), pa.string(), pa.int64(), pa.float64())
    names = ("row", "kind", "origin_row", "jaccard")
    digest = {"corpus_sha256": "", "seed": str(seed)}
    labels: list[Any] = []
    with pq.ParquetWriter(folder / CORPUS_FILE, schema, compression="snappy") as writer:
        documents = labelled(count, seed)
        while group := list(islice(documents, CORPUS_ROW_GROUP)):
            texts = [document.text for document in group]
            ids = [f"document-{document.row:09}" for document in group]
            writer.write_table(pa.table([ids, texts, list(map(len, texts))], schema=schema), CORPUS_ROW_GROUP)
            rows = ((document.row, document.kind, document.origin, document.similarity) for document in group)
            columns = zip(*rows, strict=True)
            arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
            labels.append(pa.record_batch(arrays, list(names)))
    with (folder / CORPUS_FILE).open("rb") as file:
        digest["corpus_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    table = pa.Table.from_batches(labels).replace_schema_metadata(digest)
    pq.write_table(table, folder / LABELS_FILE, compression="snappy")
