"""Writes and checks pretokenized files, each with a manifest of its origin: the founding study's formats, and flat.

*padded*: one document per row, ``input_ids`` (list<int32>) and ``attention_mask`` (list<int8>), both of fixed length.
*token-list*: one document per row, ``tokens`` (list<int32>), whole, ending in the end-of-document id if there is one.
*flat*: the same tokens end to end in a file that is mapped into memory (:mod:`trainer.data.formats.flat`).
Row i is document i of the corpus. An empty document is a row without a token (padded: mask 0 throughout).
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from trainer.data import cache
from trainer.data.corpus import ROW_GROUP, Corpus, iter_texts
from trainer.data.formats.flat import TOKENS, FlatTokens, FlatWriter, open_flat, token_type
from trainer.data.tokenizers import TokenizerInfo, document_tokens, load_tokenizer
from trainer.errors import InputError
from trainer.files import read_json

Format = Literal["padded", "token-list", "flat"]
MANIFEST_SCHEMA = 1


@dataclass(frozen=True)
class Manifest:
    """Records what a pretokenized folder was made from and what it holds."""

    schema: int
    format: str
    sequence_length: int | None  # None for token-list and flat: they hold whole documents
    corpus: str
    corpus_fingerprint: str
    tokenizer: str
    tokenizer_fingerprint: str
    engine: str  # library and version that tokenized
    pad_id: int
    eos_id: int | None
    documents: int
    empty: int  # documents without a token
    tokens: int  # of the whole documents, end-of-document ids included, truncation and padding not
    rows_tokens: int  # stored tokens: after truncation, without padding
    data_bytes: int
    data_fingerprint: str
    writer: str
    token_type: str | None = None  # of flat tokens: uint16 or uint32


@dataclass(frozen=True)
class ManifestOrigin:
    """What a manifest must say of where its data come from; its fields are the manifest's."""

    schema: int
    format: Format
    sequence_length: int | None
    corpus_fingerprint: str
    tokenizer_fingerprint: str
    engine: str
    pad_id: int
    eos_id: int | None
    documents: int


@dataclass(frozen=True)
class Pretokenized:
    """A checked pretokenized folder."""

    folder: str
    manifest: Manifest

    @property
    def data(self) -> Path:
        """The file with the tokens."""
        return Path(self.folder) / data_file(self.manifest.format)

    def flat(self) -> FlatTokens:
        """The tokens of the format *flat*, mapped into memory."""
        return open_flat(Path(self.folder), np.dtype(self.manifest.token_type).newbyteorder("<"))


def pretokenize(
    corpus: Corpus, info: TokenizerInfo, format: Format, sequence_length: int, out: Path | None = None
) -> Pretokenized:
    """Tokenize the corpus into ``out`` (or the cache), unless the same data are there already.

    Damaged data in the cache are made again. An ``out`` that holds something else is refused with the reason and never
    overwritten.
    """
    expected = _expected(corpus, info, format, sequence_length)

    def build(to: Path) -> None:
        _write(corpus, info, format, sequence_length, expected, to)

    def check(folder: Path) -> Manifest:
        return check_manifest(folder, corpus, info, format, sequence_length)

    if out is None:
        target = cache.folder("pretokenized", asdict(expected), build, check)
    else:
        target = out.absolute()
        if not target.exists():
            cache.create_folder(target, build)
    return Pretokenized(str(target), check(target))


def check_manifest(folder: Path, corpus: Corpus, info: TokenizerInfo, format: Format, sequence_length: int) -> Manifest:
    """Return the folder's manifest. Raises InputError with the first field that differs from the expected one."""
    manifest = read_manifest(folder)
    actual = asdict(manifest)
    for name, value in asdict(_expected(corpus, info, format, sequence_length)).items():
        if actual[name] != value:
            raise InputError(
                f"{folder}: stale or foreign pretokenized data: {name} is {actual[name]!r}, expected {value!r}; "
                "delete the folder or choose another"
            )
    data = folder / data_file(format)
    size = data.stat().st_size if data.is_file() else -1
    if size != manifest.data_bytes or cache.file_fingerprint(data) != manifest.data_fingerprint:
        what = (
            "is missing" if size < 0 else f"was changed after it was written ({size} bytes, {manifest.data_bytes} then)"
        )
        raise InputError(f"{data}: {what}; delete the folder, and it will be made again")
    if (found := cache.damage(folder, may_hold_more=True)) is not None:  # the user's folder may
        raise InputError(f"{folder}: {found}; delete the folder, and it will be made again")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest. Raises InputError where there is none, or where another program wrote it."""
    path = folder / "manifest.json"
    try:
        content = read_json(path)
        if content.get("schema") != MANIFEST_SCHEMA:
            raise InputError(f"{path}: schema {content.get('schema')!r}, this version reads {MANIFEST_SCHEMA}")
        return TypeAdapter(Manifest).validate_python(content)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{folder}: not a pretokenized folder (no readable manifest.json)") from error
    except (ValidationError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: not a pretokenization manifest") from error


def padding_id(info: TokenizerInfo) -> int:
    """Return the id that fills padding: the tokenizer's own, or 0. Its mask is 0 and its label -100 either way."""
    return info.pad_id if info.pad_id is not None else 0


def data_file(format: str) -> str:
    """The name of the file that holds a format's tokens."""
    return TOKENS if format == "flat" else "data.parquet"


def _expected(corpus: Corpus, info: TokenizerInfo, format: Format, sequence_length: int) -> ManifestOrigin:
    return ManifestOrigin(
        schema=MANIFEST_SCHEMA,
        format=format,
        sequence_length=sequence_length if format == "padded" else None,
        corpus_fingerprint=corpus.fingerprint,
        tokenizer_fingerprint=info.fingerprint,
        engine=info.engine,
        pad_id=padding_id(info),
        eos_id=info.eos_id,
        documents=corpus.documents,
    )


def _write(
    corpus: Corpus, info: TokenizerInfo, format: Format, sequence_length: int, expected: ManifestOrigin, to: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if format == "flat":
        _write_flat(corpus, info, expected, to)
        return
    fields = (
        {"tokens": pa.int32()} if format == "token-list" else {"input_ids": pa.int32(), "attention_mask": pa.int8()}
    )
    schema = pa.schema([(name, pa.list_(kind)) for name, kind in fields.items()])
    data = to / "data.parquet"
    documents = empty = tokens = rows_tokens = 0
    with pq.ParquetWriter(data, schema, compression="snappy") as writer:
        for encoded in _encoded(corpus, info):
            lengths = [len(row) for row in encoded]
            documents += len(encoded)
            empty += lengths.count(0)
            tokens += sum(lengths)
            if format == "padded":
                rows_tokens += sum(min(length, sequence_length) for length in lengths)
                columns = _padded_columns(encoded, sequence_length, padding_id(info))
            else:
                rows_tokens += sum(lengths)
                columns = [pa.array(encoded, pa.list_(pa.int32()))]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP)
    if not tokens:
        raise InputError(f"data.corpus: none of {corpus.name}'s {documents} documents has a token under this tokenizer")
    manifest = Manifest(
        **asdict(expected) | {"documents": documents},
        corpus=corpus.name,
        tokenizer=info.kind,
        empty=empty,
        tokens=tokens,
        rows_tokens=rows_tokens,
        data_bytes=data.stat().st_size,
        data_fingerprint=cache.file_fingerprint(data),
        writer=f"pyarrow {pa.__version__}",
    )
    (to / "manifest.json").write_text(json.dumps(asdict(manifest), indent=1) + "\n")


def _write_flat(corpus: Corpus, info: TokenizerInfo, expected: ManifestOrigin, to: Path) -> None:
    documents = empty = tokens = 0
    kind = token_type(info.vocab_size)
    with FlatWriter(to, kind) as writer:
        for encoded in _encoded(corpus, info):
            lengths = [len(row) for row in encoded]
            documents += len(encoded)
            empty += lengths.count(0)
            tokens += sum(lengths)
            writer.add(np.fromiter((one for row in encoded for one in row), np.uint32, sum(lengths)), lengths)
    if not tokens:
        raise InputError(f"data.corpus: none of {corpus.name}'s {documents} documents has a token under this tokenizer")
    data = to / TOKENS
    manifest = Manifest(
        **asdict(expected) | {"documents": documents},
        corpus=corpus.name,
        tokenizer=info.kind,
        empty=empty,
        tokens=tokens,
        rows_tokens=tokens,
        data_bytes=data.stat().st_size,
        data_fingerprint=cache.file_fingerprint(data),
        writer=f"numpy {np.__version__}",
        token_type=kind.name,
    )
    (to / "manifest.json").write_text(json.dumps(asdict(manifest), indent=1) + "\n")


def _padded_columns(encoded: list[list[int]], length: int, pad_id: int) -> list[Any]:
    import pyarrow as pa

    ids = np.full((len(encoded), length), pad_id, dtype=np.int32)
    mask = np.zeros((len(encoded), length), dtype=np.int8)
    for row, tokens in enumerate(encoded):
        kept = tokens[:length]
        ids[row, : len(kept)] = kept
        mask[row, : len(kept)] = 1
    offsets = pa.array(np.arange(len(encoded) + 1, dtype=np.int32) * length)
    return [pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1))) for values in (ids, mask)]


def _encoded(corpus: Corpus, info: TokenizerInfo) -> Iterator[list[list[int]]]:
    """Yield token lists by row group, in order. Encoding releases the GIL, so plain threads use every core."""
    tokenizer = load_tokenizer(info)
    threads = os.cpu_count() or 1
    pending: deque[Future[list[list[int]]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for texts in _row_groups(corpus):
            pending.append(pool.submit(tokenizer.encode_batch, texts))
            if len(pending) > threads:
                yield document_tokens(pending.popleft().result(), info.eos_id)
        while pending:
            yield document_tokens(pending.popleft().result(), info.eos_id)
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted, it waits for what is being encoded, not for the queue


def _row_groups(corpus: Corpus) -> Iterator[list[str]]:
    """Yield ``ROW_GROUP`` documents at a time, whatever the files' own row groups are; fewer only at the end."""
    held: list[str] = []
    for texts in iter_texts(corpus):
        held.extend(texts)
        while len(held) >= ROW_GROUP:
            yield held[:ROW_GROUP]
            held = held[ROW_GROUP:]
    if held:
        yield held
