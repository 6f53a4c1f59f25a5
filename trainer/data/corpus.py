"""Finds and checks the corpus: parquet files with one text column, identified by a fingerprint of their content."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import CorpusConfig
from trainer.data import cache, python_docs
from trainer.errors import InputError
from trainer.files import expanded

ROW_GROUP = 1000  # rows per row group of every parquet file this package writes
_KEY = "data.corpus.parquet"
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Corpus:
    """Text documents, in the order of ``files`` and rows. Only the first ``documents`` rows are used."""

    name: str
    files: tuple[str, ...]
    column: str
    documents: int  # rows used, empty ones included
    empty: int  # how many of these are the empty string: counted here, skipped by every data path
    fingerprint: str  # of the files' content, the column and the number of documents


def prepare_corpus(config: CorpusConfig) -> Corpus:
    """Find the corpus, or build the builtin one, and check it once. Raises InputError where it cannot be used.

    Its files are hashed at each call, which takes less time than a run's reading them; the check is remembered.
    """
    cache.clean()
    name: str
    if config.builtin is not None:
        name, files, column = config.builtin, [_builtin_file()], "text"
    else:
        assert config.parquet is not None
        name, files, column = Path(config.parquet).name, matching_files(config.parquet), config.column
    contents = [cache.file_fingerprint(file) for file in files]

    def check() -> list[int]:
        return list(_check(files, column, config.documents))

    documents, empty = cache.remember("corpus", [contents, column, config.documents], check)
    fingerprint = cache.fingerprint(contents, column, documents)
    return Corpus(name, tuple(str(file.absolute()) for file in files), column, documents, empty, fingerprint)


def iter_texts(corpus: Corpus, rows: int = ROW_GROUP) -> Iterator[list[str]]:
    """Yield the corpus' documents in order, in lists of at most ``rows``, without holding all of them in memory."""
    left = corpus.documents
    for file in corpus.files:
        for batch in _open(Path(file)).iter_batches(rows, columns=[corpus.column], use_threads=False):
            texts = batch.column(0).slice(0, left).to_pylist()
            left -= len(texts)
            if texts:
                yield texts
            if not left:
                return


def _builtin_file() -> Path:
    import sys

    root = python_docs.stdlib()

    def build(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"text": pa.array(python_docs.collect(root), pa.string())})
        pq.write_table(table, folder / "data.parquet", row_group_size=ROW_GROUP, compression="snappy")

    key = ["python-docs", python_docs.RECIPE, sys.version, sys.implementation.name, str(root)]
    return cache.folder("corpus", key, build) / "data.parquet"


def matching_files(pattern: str) -> list[Path]:
    """The file ``pattern``, or those that it matches, in order; InputError where there is none."""
    path = expanded(pattern)
    if path.is_dir():
        raise InputError(
            f"{_KEY}: {pattern} is a folder; give a file or a glob such as {pattern.rstrip('/')}/*.parquet"
        )
    if path.is_file():
        return [path.absolute()]
    names = glob.glob(str(path), recursive=True)  # noqa: PTH207 (Path.glob refuses absolute patterns)
    found = sorted(Path(name).absolute() for name in names if Path(name).is_file())
    if not found:
        raise InputError(f"{_KEY}: no file matches {pattern}")
    return found


def _open(path: Path) -> Any:
    """Open a ParquetFile. The error distinguishes a truncated file from one that never was parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Pages of a mapped file, and row groups that are read ahead, would stay in memory until its end.
        return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        with path.open("rb") as file:
            starts_as_parquet = file.read(4) == b"PAR1"
        if starts_as_parquet:
            raise InputError(f"{path}: truncated or damaged parquet file (its footer cannot be read)") from error
        raise InputError(f"{path}: not a parquet file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or _first_line(error)})") from error


def _check(files: list[Path], column: str, limit: int | None) -> tuple[int, int]:
    """Check the first ``limit`` rows and count (documents, empty documents)."""
    documents = empty = nulls = 0
    first_null = ""
    for path in files:
        before = documents
        for texts in _checked_columns(path, column):
            if limit is not None:
                texts = texts.slice(0, limit - documents)
            if texts.null_count and not nulls:
                first_null = f"{path}, row {documents - before + texts.is_null().index(True).as_py()}"
            nulls += texts.null_count
            documents += len(texts)
            empty += _count_empty(texts)
            if documents == limit:
                break
        if documents == limit:
            break
    if nulls:
        raise InputError(
            f"{_KEY}: column {column!r} holds {nulls} null{'s' if nulls > 1 else ''} (first: {first_null}, from 0);"
            " every document must be a string (an empty one is allowed)"
        )
    if documents == empty:
        what = "no documents" if not documents else f"{documents} documents, all of them empty"
        raise InputError(f"{_KEY}: empty corpus: {what} in column {column!r} of {', '.join(map(str, files[:3]))}")
    return documents, empty


def _checked_columns(path: Path, column: str) -> Iterator[Any]:
    import pyarrow as pa

    file = _open(path)
    schema = file.schema_arrow
    if column not in schema.names:
        raise InputError(f"{path}: no column {column!r}; it has {', '.join(schema.names) or 'no columns'}")
    if schema.names.count(column) > 1:
        raise InputError(f"{path}: {schema.names.count(column)} columns named {column!r}; it must be one")
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InputError(f"{path}: column {column!r} is {kind}, not string")
    try:
        for batch in file.iter_batches(ROW_GROUP, columns=[column], use_threads=False):
            texts = batch.column(0)
            texts.validate(full=True)  # UTF-8 too
            yield texts
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: damaged parquet file ({_first_line(error)})") from error


def _count_empty(texts: Any) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(pc.equal(pc.binary_length(texts), 0)).as_py() or 0)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
