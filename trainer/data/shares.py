"""Cuts a corpus into shares, runs of consecutive documents, which any machine tokenizes and one machine joins in order.

A share is a folder of flat tokens, renamed when it is whole, under a folder that all machines see. It is encoded by the
code that a single machine runs (``encoded_groups``).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer.data.corpus import CORPUS_ROW_GROUP, Corpus, tables
from trainer.data.formats.flat import PLACES, TOKENS, FlatWriter, open_flat, token_type
from trainer.data.token_groups import TokenGroup, encoded_groups, text_groups, texts_from
from trainer.data.tokenizers import TokenizerInfo
from trainer.errors import InputError
from trainer.files import read_json, remove

FACTS = "share.json"
_SHARES = 64  # shares of a corpus, unless they would be larger than the limit or smaller than a row group
_MOST_DOCUMENTS = 50_000  # documents of a share: the work to repeat when a machine is lost


@dataclass(frozen=True)
class ShareJob:
    """Description of the work for executors. All machines see ``folder``."""

    corpus: Corpus
    tokenizer: TokenizerInfo
    folder: str
    documents: int  # documents of each share except the last

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: TokenizerInfo, folder: Path) -> ShareJob:
        """Return the job, with the corpus divided into shares."""
        return cls(corpus, tokenizer, str(folder), documents_per_share(corpus.documents, _SHARES, _MOST_DOCUMENTS))

    @property
    def count(self) -> int:
        return -(-self.corpus.documents // self.documents)

    def place(self, number: int) -> Path:
        return Path(self.folder) / f"{number:06}"


def documents_per_share(documents: int, shares: int, most: int) -> int:
    """Return the documents per share, at most ``most``, for about ``shares`` shares of whole row groups."""
    even = -(-documents // shares // CORPUS_ROW_GROUP) * CORPUS_ROW_GROUP
    return max(CORPUS_ROW_GROUP, min(even, most))


@contextmanager
def share_folder(place: Path) -> Iterator[Path]:
    """Context with a temporary folder that gets the name ``place``, unless another task was faster.

    A task may be tried twice, on two machines; both make the same content.
    """
    temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        yield temporary
        try:
            temporary.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        remove(temporary)


def write_share(job: ShareJob, number: int) -> int:
    """Tokenize share ``number`` into its folder, unless that exists. Return ``number``.

    Raises InputError if the folder is not seen, or if the corpus has changed.
    """
    place = job.place(number)
    if place.is_dir():
        return number
    if not place.parent.is_dir():
        raise InputError(f"{place.parent}: not seen by every machine of the cluster; give a folder on a shared one")
    first = number * job.documents
    count = min(job.documents, job.corpus.documents - first)
    with share_folder(place) as folder:
        written = _write(job, documents(job.corpus, first, count), folder)
        if written != count:
            raise InputError(
                f"data.corpus: {written} of {count} documents of {job.corpus.name} found from document "
                f"{first} on; it was changed after it was prepared"
            )
    return number


def _write(job: ShareJob, texts: Iterator[list[str]], to: Path) -> int:
    """Tokenize ``texts`` into the share's folder ``to``. Return the number of documents."""
    written = text_bytes = 0
    with FlatWriter(to, token_type(job.tokenizer.vocab_size)) as writer:
        for group in encoded_groups(text_groups(texts), job.tokenizer, workers=1):
            writer.add(group.ids, group.lengths)
            written += len(group.lengths)
            text_bytes += group.text_bytes
    facts = {"documents": written, "text_bytes": text_bytes, "digests": _digests(to)}
    (to / FACTS).write_text(json.dumps(facts) + "\n")
    return written


def read_share(job: ShareJob, number: int, skip: int = 0) -> Iterator[TokenGroup]:
    """Yield the tokens of share ``number`` without its first ``skip`` documents, in groups.

    Raises InputError if the files are not the ones that an executor wrote.
    """
    place = job.place(number)
    flat = open_flat(place, token_type(job.tokenizer.vocab_size))
    try:
        facts = read_json(place / FACTS)
        is_intact = facts["digests"] == _digests(place) and facts["documents"] == flat.documents
        text_bytes = int(facts["text_bytes"])
    except (OSError, ValueError, TypeError, KeyError):
        is_intact, text_bytes = False, 0
    if not is_intact:
        raise InputError(f"{place}: was changed after it was written; delete the folder, and it will be made again")
    for first in range(skip, flat.documents, CORPUS_ROW_GROUP):
        last = min(first + CORPUS_ROW_GROUP, flat.documents)
        places = flat.places[first : last + 1]
        # An estimate, for the progress alone.
        group_bytes = text_bytes * last // flat.documents - text_bytes * first // flat.documents
        yield TokenGroup(flat.tokens[places[0] : places[-1]], places[1:] - places[:-1], group_bytes)


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for name in (TOKENS, PLACES):
        with (folder / name).open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def documents(corpus: Corpus, first: int, count: int) -> Iterator[list[str]]:
    """Yield ``count`` documents from number ``first`` on, in lists. Parquet row groups before are not read."""
    remaining = count
    for texts in _from(corpus, first):
        taken = texts[:remaining]
        remaining -= len(taken)
        yield taken
        if not remaining:
            return


def _from(corpus: Corpus, first: int) -> Iterator[list[str]]:
    if (corpus.format, corpus.content) != ("parquet", "text") or any("://" in name for name in corpus.files):
        yield from texts_from(corpus, first)
        return
    skip = first
    for name in corpus.files:
        if not Path(name).exists():
            raise InputError(f"{name}: not seen by every machine of the cluster")
        rows = tables.open_parquet(name).metadata.num_rows
        if skip < rows:
            for batch in tables.batches(name, "parquet", [corpus.column], skip):
                yield batch.column(0).to_pylist()
        skip = max(skip - rows, 0)
