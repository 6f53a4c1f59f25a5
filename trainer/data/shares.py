"""Cuts a corpus into shares, runs of consecutive documents, whose tokens any machine can make and one joins in order.

A share is a folder of flat tokens under a folder that all machines see, renamed when it is whole. It is encoded by the
code that a single machine runs (``encoded_groups``).
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.corpus import CORPUS_ROW_GROUP, Corpus, iter_texts
from trainer.data.formats.flat import PLACES, TOKENS, FlatWriter, open_flat, token_type
from trainer.data.token_groups import TokenGroup, encoded_groups, text_groups
from trainer.data.tokenizers import TokenizerInfo
from trainer.errors import InputError
from trainer.files import read_json
from trainer.leftovers import remove

FACTS = "share.json"
_SHARES = 64  # of a corpus, where they get no larger than the most and no smaller than a row group
_MOST_DOCUMENTS = 50_000  # of a share: what a machine that is lost has to do again


@dataclass(frozen=True)
class ShareJob:
    """What an executor must know to make any share. ``folder`` is one that all machines see."""

    corpus: Corpus
    tokenizer: TokenizerInfo
    folder: str
    documents: int  # of each share but the last

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: TokenizerInfo, folder: Path) -> ShareJob:
        """Shares of whole row groups."""
        documents = -(-corpus.documents // _SHARES // CORPUS_ROW_GROUP) * CORPUS_ROW_GROUP
        return cls(corpus, tokenizer, str(folder), max(CORPUS_ROW_GROUP, min(documents, _MOST_DOCUMENTS)))

    @property
    def count(self) -> int:
        return -(-self.corpus.documents // self.documents)

    def place(self, number: int) -> Path:
        return Path(self.folder) / f"{number:06}"


def write_share(job: ShareJob, number: int) -> int:
    """Make one share, on an executor or anywhere else: its documents are read, tokenized and put in place at once."""
    place = job.place(number)
    if place.is_dir():
        return number
    if not place.parent.is_dir():
        raise InputError(f"{place.parent}: not seen by every machine of the cluster; give a folder on a shared one")
    first = number * job.documents
    count = min(job.documents, job.corpus.documents - first)
    temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")  # a task may be tried twice, on two machines
    temporary.mkdir()
    try:
        facts = _write(job, documents(job.corpus, first, count), temporary)
        if facts["documents"] != count:
            raise InputError(
                f"data.corpus: {facts['documents']} of {count} documents of {job.corpus.name} found from document "
                f"{first} on; it was changed after it was prepared"
            )
        try:
            temporary.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    finally:
        remove(temporary)
    return number


def _write(job: ShareJob, texts: Iterator[list[str]], to: Path) -> dict[str, Any]:
    found = text_bytes = 0
    with FlatWriter(to, token_type(job.tokenizer.vocab_size)) as writer:
        for group in encoded_groups(text_groups(texts), job.tokenizer, workers=1):
            writer.add(group.ids, group.lengths)
            found += len(group.lengths)
            text_bytes += group.text_bytes
    facts = {"documents": found, "text_bytes": text_bytes, "digests": _digests(to)}
    (to / FACTS).write_text(json.dumps(facts) + "\n")
    return facts


def read_share(job: ShareJob, number: int, skip: int = 0) -> Iterator[TokenGroup]:
    """The finished tokens of a share without its first ``skip`` documents, a bounded group at a time.

    Raises InputError where the files are not those that an executor wrote.
    """
    place = job.place(number)
    flat = open_flat(place, token_type(job.tokenizer.vocab_size))
    try:
        facts = read_json(place / FACTS)
        whole = facts["digests"] == _digests(place) and facts["documents"] == flat.documents
        text_bytes = int(facts["text_bytes"])
    except (OSError, ValueError, TypeError, KeyError):
        whole, text_bytes = False, 0
    if not whole:
        raise InputError(f"{place}: was changed after it was written; delete the folder, and it will be made again")
    for first in range(skip, flat.documents, CORPUS_ROW_GROUP):
        last = min(first + CORPUS_ROW_GROUP, flat.documents)
        places = flat.places[first : last + 1]
        share = text_bytes * last // flat.documents - text_bytes * first // flat.documents  # for the progress alone
        yield TokenGroup(flat.tokens[places[0] : places[-1]], places[1:] - places[:-1], share)


def _digests(folder: Path) -> dict[str, str]:
    found = {}
    for name in (TOKENS, PLACES):
        with (folder / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def documents(corpus: Corpus, first: int, count: int) -> Iterator[list[str]]:
    """``count`` documents of the corpus from number ``first`` on. Parquet's row groups before them are not read."""
    left = count
    for texts in _from(corpus, first):
        taken = texts[:left]
        left -= len(taken)
        yield taken
        if not left:
            return


def _from(corpus: Corpus, first: int) -> Iterator[list[str]]:
    local = all("://" not in file for file in corpus.files)
    if local and (corpus.format, corpus.content) == ("parquet", "text"):
        yield from _from_row_groups(corpus, first)
        return
    skip = first
    for texts in iter_texts(corpus):
        if skip < len(texts):
            yield texts[skip:]
        skip = max(skip - len(texts), 0)


def _from_row_groups(corpus: Corpus, first: int) -> Iterator[list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    skip = first
    for name in corpus.files:
        try:
            with pq.ParquetFile(name, pre_buffer=False) as file:
                for number in range(file.num_row_groups):
                    if skip >= file.metadata.row_group(number).num_rows:
                        skip -= file.metadata.row_group(number).num_rows
                        continue
                    batches = file.iter_batches(CORPUS_ROW_GROUP, [number], columns=[corpus.column], use_threads=False)
                    for batch in batches:
                        if skip < len(batch):
                            yield batch.column(0).slice(skip).to_pylist()
                        skip = max(skip - len(batch), 0)
        except FileNotFoundError as error:
            raise InputError(f"{name}: not seen by every machine of the cluster") from error
        except (pa.ArrowException, OSError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise InputError(f"{name}: cannot be read ({reason})") from error
