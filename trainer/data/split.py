"""Holds out documents for evaluation: those with a content hash below a bound, in any file or order.

Equal documents are in the same part, so a copy of a held-out document is not trained on. Row i of a pretokenized file
is document i of the corpus, so all data paths leave out the same documents.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import EvaluationConfig
from trainer.data import cache
from trainer.data.corpus import Corpus, iter_contents
from trainer.errors import InputError
from trainer.files import read_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_FRACTION = 0.05
BUCKETS = 1_000_000  # resolution of the fraction
_TRAINING, _HELD_OUT, _COUNTS = "training.npy", "held_out.npy", "split.json"


@dataclass(frozen=True)
class DocumentSplit:
    """Division of a corpus into training and held-out documents, kept in the cache.

    It is picklable, so that it can be sent to workers.
    """

    folder: str
    training: int  # documents, including empty ones
    held_out: int
    training_empty: int

    def training_rows(self) -> NDArray[np.int64]:
        """Return the rows of the training documents in the corpus, ascending."""
        return _load(self.folder, _TRAINING)

    def held_out_rows(self) -> NDArray[np.int64]:
        """Return the rows of the held-out documents, ordered by content hash.

        The first ones are the same in any corpus order.
        """
        return _load(self.folder, _HELD_OUT)


def content_hash(content: str | bytes) -> int:
    """Return 64 bits of a document's BLAKE2b, personalized so that no other use of the hash draws the same split."""
    encoded = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    digest = hashlib.blake2b(encoded, digest_size=8, person=b"held-out")
    return int.from_bytes(digest.digest(), "big")


def held_buckets(config: EvaluationConfig, documents: int) -> int:
    """Return how many of the :data:`BUCKETS` hash buckets are held out.

    Raises InputError if that would be all documents.
    """
    fraction = DEFAULT_FRACTION if config.fraction is None else config.fraction
    if config.documents is not None:
        if config.documents >= documents:
            raise InputError(
                f"evaluation.documents: {config.documents} of the corpus' {documents}; allowed: fewer, as the others "
                "are trained on"
            )
        fraction = config.documents / documents
    return max(1, round(fraction * BUCKETS))


def prepare_split(config: EvaluationConfig, corpus: Corpus) -> DocumentSplit:
    """Divide ``corpus`` into training and held-out documents, once; the cache keeps both.

    Raises InputError if a part has no text.
    """
    buckets = held_buckets(config, corpus.documents)

    def build(folder: Path) -> None:
        _write(corpus, buckets, folder)

    folder = cache.folder("split", ["blake2b", corpus.fingerprint, buckets], build)
    counts = read_json(folder / _COUNTS)
    split = DocumentSplit(str(folder), counts["training"], counts["held_out"], counts["training_empty"])
    share = f"a share of {buckets / BUCKETS:g} of {corpus.name}'s {corpus.documents} documents"
    if split.held_out == counts["held_out_empty"]:
        raise InputError(f"evaluation: {share} holds out none with text; give a larger fraction or another corpus")
    if split.training == split.training_empty:
        raise InputError(f"evaluation: {share} leaves none with text to train on; give a smaller fraction")
    return split


def _write(corpus: Corpus, buckets: int, folder: Path) -> None:
    import numpy as np

    training: list[int] = []
    held: list[tuple[int, int]] = []
    empty = held_empty = row = 0
    for contents in iter_contents(corpus):
        for content in contents:
            content_id = content_hash(content)
            if content_id % BUCKETS < buckets:
                held.append((content_id, row))
                held_empty += not content
            else:
                training.append(row)
                empty += not content
            row += 1
    np.save(folder / _TRAINING, np.array(training, dtype=np.int64))
    np.save(folder / _HELD_OUT, np.array([row for _, row in sorted(held)], dtype=np.int64))
    counts = {"training": len(training), "held_out": len(held), "training_empty": empty, "held_out_empty": held_empty}
    (folder / _COUNTS).write_text(json.dumps(counts) + "\n")


def _load(folder: str, name: str) -> NDArray[np.int64]:
    import numpy as np

    rows: NDArray[np.int64] = np.load(Path(folder) / name, allow_pickle=False)
    return rows
