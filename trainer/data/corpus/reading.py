"""Streams a corpus' documents in order, with memory for some of them only: texts, tokens or bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer.data.corpus import columns
from trainer.data.corpus.base import CORPUS_ROW_GROUP, MAX_ROW_GROUP_BYTES, Corpus, bounded
from trainer.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainer.data.engines.base import Encoded


def pieces(corpus: Corpus, documents: int | None) -> Iterator[tuple[str, int, Any]]:
    """Yield (file, row of its first value, Arrow array) of the first ``documents`` (None: all); chats as texts.

    An array may hold nulls, which :func:`trainer.data.corpus.prepare.prepare_corpus` refuses.
    """
    left = documents
    for name in corpus.files:
        row = 0
        how = corpus.format, corpus.column, corpus.content, corpus.split
        for values in columns.read(name, *how, masked=corpus.masked):
            taken = values if left is None else values[:left]
            if corpus.content == "chat":
                taken = _rendered(corpus, taken, name, row)
            yield name, row, taken
            row += len(taken)
            if left is not None:
                left -= len(taken)
                if not left:
                    return


def iter_texts(corpus: Corpus, rows: int = CORPUS_ROW_GROUP) -> Iterator[list[str]]:
    """Yield the documents in order, in lists of at most ``rows``: of fewer where they are large.

    Raises InputError for a corpus of token ids, which has no text.
    """
    if corpus.content == "tokens":
        raise InputError(
            f"data.corpus: column {corpus.column!r} of {corpus.name} holds token ids, and no text: nothing can be "
            "learned from it or tokenized; give the tokenizer that made them (data.tokenizer.pretrained or "
            "sentencepiece), and data.path: tokens-padded, tokens-stream or tokens-mmap"
        )
    for group in _groups(corpus, rows):
        yield [text for piece in group for text in piece.to_pylist()]


def iter_encoded(corpus: Corpus, rows: int = CORPUS_ROW_GROUP, eos_id: int | None = None) -> Iterator[Encoded]:
    """Yield the documents of a corpus of token ids in order, at most ``rows`` at a time, as they are stored.

    ``eos_id``: taken off the end of a document that ends with it, for readers who append one to every document.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from trainer.data.engines.base import Encoded

    assert corpus.content == "tokens", "a corpus of text is tokenized by an engine"
    for group in _groups(corpus, rows):
        ids = np.concatenate([piece.flatten().cast(pa.uint32()).to_numpy(zero_copy_only=False) for piece in group])
        lengths = np.concatenate([pc.list_value_length(piece).to_numpy(zero_copy_only=False) for piece in group])
        encoded = Encoded(ids, lengths.astype(np.int64))
        yield encoded if eos_id is None else _without_end(encoded, eos_id)


def iter_contents(corpus: Corpus, rows: int = CORPUS_ROW_GROUP) -> Iterator[list[bytes]]:
    """Yield what each document is known by: its text as UTF-8, or its token ids as little-endian uint32."""
    if corpus.content != "tokens":
        for texts in iter_texts(corpus, rows):
            yield [text.encode() for text in texts]
        return
    for encoded in iter_encoded(corpus, rows):
        content, ends = encoded.ids.astype("<u4", copy=False).tobytes(), encoded.lengths.cumsum() * 4
        yield [content[end - 4 * length : end] for end, length in zip(ends, encoded.lengths, strict=True)]


def check_vocabulary(corpus: Corpus, vocab_size: int) -> None:
    """InputError where a corpus of token ids has one that the tokenizer does not know."""
    if corpus.largest_id is not None and corpus.largest_id >= vocab_size:
        raise InputError(
            f"data.corpus: {corpus.largest_at}: column {corpus.column!r} holds the id {corpus.largest_id:,}, and the "
            f"tokenizer's ids end at {vocab_size - 1:,}; give the tokenizer that made them"
        )


def _groups(corpus: Corpus, rows: int) -> Iterator[list[Any]]:
    """Arrow arrays, as many together as have ``rows`` rows or :data:`MAX_ROW_GROUP_BYTES`."""
    group: list[Any] = []
    count = size = 0
    for _, _, values in pieces(corpus, corpus.documents):
        rest = values
        while len(rest):
            piece = next(bounded(rest, rows - count))
            if group and size + piece.nbytes > MAX_ROW_GROUP_BYTES:
                yield group
                group, count, size = [], 0, 0
            rest = rest.slice(len(piece))
            group.append(piece)
            count += len(piece)
            size += piece.nbytes
            if count == rows:
                yield group
                group, count, size = [], 0, 0
    if group:
        yield group


def _rendered(corpus: Corpus, chats: list[Any], name: str, row: int) -> Any:
    import pyarrow as pa

    from trainer.data.corpus.chat import rendered

    assert corpus.template is not None
    if any(one is None for one in chats):  # refused by whoever counts; a template would say something else of it
        return pa.array([None if one is None else "" for one in chats], pa.large_string())
    return pa.array(rendered(corpus.template, chats, name, row), pa.large_string())


def _without_end(encoded: Encoded, eos_id: int) -> Encoded:
    import numpy as np

    from trainer.data.engines.base import Encoded

    ends = np.cumsum(encoded.lengths) - 1
    ended: NDArray[np.bool_] = encoded.lengths > 0
    ended[ended] = encoded.ids[ends[ended]] == eos_id
    return Encoded(np.delete(encoded.ids, ends[ended]), encoded.lengths - ended)
