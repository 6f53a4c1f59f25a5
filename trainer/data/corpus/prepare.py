"""Finds the corpus and checks it once: every document is read before the first run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainer.config import CorpusConfig
from trainer.data import cache, python_docs
from trainer.data.corpus import chat, columns, finding, formats, places
from trainer.data.corpus.base import CORPUS_ROW_GROUP, Content, Corpus, Format, Identity
from trainer.data.corpus.reading import check_unchanged, identities, pieces
from trainer.data.formats.flat import PLACES
from trainer.data.manifest import Pretokenized, check_data
from trainer.errors import InputError, visible
from trainer.files import expanded

_PARQUET = "data.corpus.parquet"
_LARGEST_ID = 2**31 - 1  # A model's embedding has a row for each id.
_DOCUMENTS: dict[Content, str] = {
    "text": "every document must be a string (an empty one is allowed)",
    "tokens": "every document must be a list of token ids (an empty one is allowed)",
    "chat": "every document must be a list of messages",
}


def prepare_corpus(config: CorpusConfig) -> Corpus:
    """Return the corpus of ``config``, checked once by its files' content, or size and ETag. Raises InputError."""
    cache.clean()
    corpus, key, file_identities = _named(config)
    remote = any(places.is_remote(name) for name in corpus.files)
    reading: list[object] = []
    if (corpus.format, corpus.content) != ("parquet", "text"):
        template = None if corpus.template is None else [corpus.template.source, corpus.template.tokens]
        reading = [corpus.format, corpus.content, corpus.split, template]
        if corpus.split == "blank-line":
            reading.append("a last line of white space is blank")  # An earlier version kept some.
        if corpus.masked:  # An earlier version took padding for tokens.
            reading.append(columns.MASK)
        if corpus.format == "flat":
            reading.append(cache.file_fingerprint(Path(corpus.files[0]).with_name(PLACES)))

    def check() -> list[Any]:
        counts = _check(corpus, key, config.documents, remote)
        check_unchanged(replace(corpus, known=tuple(file_identities)))
        return list(asdict(counts).values())

    # Records of earlier versions, which accepted more files and kept fewer counts, must not match.
    checked = [{"arrow": "to its end mark", "jsonl": "no key twice"}.get(corpus.format), "bytes of text"]
    remembered = cache.remember("corpus", [file_identities, corpus.column, config.documents, *reading, *checked], check)
    counts = _Checked(*remembered)
    if corpus.rows_expected not in (None, counts.documents) and config.documents is None:
        _print_once(
            f"{key}: {corpus.name}: {counts.documents:,} rows, and {corpus.rows_expected:,} in dataset_info.json: a "
            "selection was saved, or rows are missing; load it with datasets to compare"
        )
    contents = [counts.digest] if remote else file_identities
    return replace(
        corpus,
        documents=counts.documents,
        empty=counts.empty,
        fingerprint=cache.fingerprint(contents, corpus.column, counts.documents, *reading),
        largest_id=counts.largest_id,
        largest_at=counts.largest_at,
        text_bytes=counts.text_bytes,
        known=tuple(file_identities),
    )


def matching_files(pattern: str) -> list[Path]:
    """Return the file ``pattern``, or the files that it matches, in order. Raises InputError if there is no file."""
    return list(map(Path, _of_parquet(pattern).files))


def _of_parquet(pattern: str) -> finding.Matched:
    if expanded(pattern).is_dir():
        raise InputError(
            f"{_PARQUET}: {pattern} is a folder; give a file or a glob such as {pattern.rstrip('/')}/*.parquet, or "
            "data.corpus.path"
        )
    return finding.matching(pattern, _PARQUET)


def check_there(config: CorpusConfig) -> None:
    """Raise InputError if the corpus' files or its chat template do not exist; for a URL only check its scheme."""
    if config.parquet is not None:
        matching_files(config.parquet)
    if config.path is not None:
        if places.is_remote(config.path):
            places.check_scheme(config.path)
        elif not columns.find_pretokenized(config.path):
            formats.choose(config.path, config.format, config.column)
    if config.chat_template is not None:
        chat.load_template(config.chat_template)


def _named(config: CorpusConfig) -> tuple[Corpus, str, list[Identity]]:
    """Return the corpus without its counts, the scenario key that names it, and the identity of each file."""
    if config.builtin is not None:
        files: tuple[str, ...] = (str(_builtin_file()),)
        return _uncounted(config.builtin, files, "text"), "data.corpus.builtin", identities(files)
    if config.parquet is not None:
        matched = _of_parquet(config.parquet)
        corpus = _uncounted(Path(config.parquet).name, matched.files, config.column)
        corpus = replace(corpus, passed_over=matched.tally.result())
        if matched.pattern:
            _print_files(config.parquet, corpus, _PARQUET)
        return corpus, _PARQUET, identities(matched.files)
    assert config.path is not None
    if folders := columns.find_pretokenized(config.path):
        corpus = _of_pretokenized(config, folders)
        return corpus, places.KEY, identities(corpus.files)
    chosen = formats.choose(config.path, config.format, config.column)
    if chosen.format != "text" and config.split != "file":
        raise InputError(f"data.corpus.split: {config.split} divides text files, and {config.path} is {chosen.format}")
    file_identities = identities(chosen.files)
    content: Content = cache.remember(
        "column",
        # An earlier version's records for JSON Lines must not match: it took empty lists for token ids.
        [
            file_identities[0],
            chosen.format,
            config.column,
            *(["empty lists say nothing"] if chosen.format == "jsonl" else []),
        ],
        lambda: columns.content_of(chosen.files[0], chosen.format, config.column),
    )
    template = None
    if content == "chat":
        if config.chat_template is None:
            raise InputError(
                f"{places.KEY}: column {config.column!r} of {config.path} holds chats; give {chat.KEY}: a Jinja file, "
                "or the folder of a tokenizer that has a template"
            )
        template = chat.load_template(config.chat_template)
    elif config.chat_template is not None:
        raise InputError(
            f"{chat.KEY}: column {config.column!r} of {config.path} holds {content}, and no lists of messages"
        )
    corpus = _uncounted(Path(config.path.rstrip("/")).name or config.path, chosen.files, config.column)
    masked = content == "tokens" and bool(
        cache.remember("masked", [file_identities, chosen.format], lambda: _is_masked(chosen.files, chosen.format))
    )
    corpus = replace(
        corpus,
        format=chosen.format,
        content=content,
        split=config.split,
        template=template,
        masked=masked,
        passed_over=chosen.passed_over,
        rows_expected=chosen.rows,
    )
    if chosen.pattern:
        _print_files(config.path, corpus, places.KEY)
    return corpus, places.KEY, file_identities


def _is_masked(files: Sequence[str], format: Format) -> bool:
    """Return True if every file has a column that marks padding. Raises InputError if only some have it."""
    marked = [columns.has_mask(name, format) for name in files]
    if any(marked) and not all(marked):
        without, first = files[marked.index(False)], Path(files[marked.index(True)]).name
        raise InputError(
            f"{without}: no column {columns.MASK}, which {first} has; mask the tokens of all files or none"
        )
    return all(marked)


_printed: set[str] = set()  # lines that this process has printed


def _print_files(pattern: str, corpus: Corpus, key: str) -> None:
    """Print one line with the files that are read and those that are skipped, once per process."""
    files = len(corpus.files)
    first = ", ".join(visible(Path(name).name) for name in corpus.files[: finding.MOST_NAMES])
    line = f"{key}: {visible(pattern)}: {files:,} file{'s' * (files > 1)} read ({first}{', ...' * (files > 3)})"
    if corpus.passed_over:
        line += f"; passed over: {finding.described(corpus.passed_over)}"
    _print_once(line)


def _print_once(line: str) -> None:
    if line not in _printed:
        _printed.add(line)
        print(line, file=sys.stderr)


def _of_pretokenized(config: CorpusConfig, made: Sequence[Pretokenized]) -> Corpus:
    """Return the corpus of token ids in ``made[0]``. Raises InputError if files or keys of ``config`` do not fit."""
    first = made[0]
    column = columns.TOKEN_COLUMNS[first.manifest.format]
    options = {
        "format": config.format != "auto",
        "split": config.split != "file",
        "chat_template": config.chat_template,
    }
    if (wrong := next((key for key, value in options.items() if value), None)) is not None:
        raise InputError(f"data.corpus.{wrong}: {config.path} holds tokens of harness data pretokenize; leave it out")
    if config.column not in ("text", column):  # text: the default
        raise InputError(f"data.corpus.column: {config.column}, but the tokens in {first.folder} are {column}")
    check_data(Path(first.folder), first.manifest)
    if first.manifest.cut:
        _print_once(
            f"{places.KEY}: {config.path}: padded rows without {first.manifest.cut:,} of {first.manifest.tokens:,} "
            "tokens: each cut document is used as a whole one; give the folder of whole documents (flat) instead"
        )
    format: Format = "flat" if first.manifest.format == "flat" else "parquet"
    return replace(
        _uncounted(Path(first.folder).name, (str(first.data),), column),
        format=format,
        content="tokens",
        masked=first.manifest.format == "padded",
        pretokenized=tuple(part.folder for part in made),
    )


def _uncounted(name: str, files: tuple[str, ...], column: str) -> Corpus:
    return Corpus(name, files, column, documents=0, empty=0, fingerprint="")


def _builtin_file() -> Path:
    root = python_docs.stdlib()

    def build(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"text": pa.array(python_docs.collect(root), pa.string())})
        pq.write_table(table, folder / "data.parquet", row_group_size=CORPUS_ROW_GROUP, compression="snappy")

    key = ["python-docs", python_docs.PYTHON_DOCS_RECIPE, sys.version, sys.implementation.name, str(root)]
    return cache.folder("corpus", key, build) / "data.parquet"


@dataclass(frozen=True)
class _Checked:
    """Documents and bytes that a corpus' check counted. ``largest_at``: file and row of the largest token id."""

    documents: int
    empty: int
    largest_id: int | None = None
    largest_at: str = ""
    digest: str = ""  # hash of the documents; only for remote files
    text_bytes: int | None = None  # length of the documents in UTF-8; None for token ids


def _check(corpus: Corpus, key: str, limit: int | None, hashed: bool) -> _Checked:
    """Count the first ``limit`` documents (None: all), and hash them if asked. Raises InputError, naming ``key``."""
    import pyarrow.compute as pc

    digest, ids = _Digest(), _LargestId()
    documents = empty = nulls = text_bytes = 0
    first_null = ""
    for name, row, values in pieces(corpus, limit):
        if values.null_count:
            first_null = first_null or f"{name}, row {row + values.is_null().index(True).as_py()}"
            nulls += values.null_count
        elif corpus.content == "tokens":
            ids.add(name, row, values)
        documents += len(values)
        lengths = _lengths(values, corpus.content)
        empty += int(pc.sum(pc.equal(lengths, 0)).as_py() or 0)
        text_bytes += int(pc.sum(lengths).as_py() or 0)
        if hashed:
            digest.add(values, corpus.content)
    if nulls:
        raise InputError(
            f"{key}: column {corpus.column!r} holds {nulls} null{'s' if nulls > 1 else ''} (first: {first_null}, "
            f"from 0); {_DOCUMENTS[corpus.content]}"
        )
    if documents == empty:
        content = "no documents" if not documents else f"{documents} documents, all of them empty"
        origin = "" if corpus.format == "text" else f"column {corpus.column!r} of "
        raise InputError(f"{key}: empty corpus: {content} in {origin}{', '.join(corpus.files[:3])}")
    known_bytes = text_bytes if corpus.content == "text" else None
    return _Checked(documents, empty, ids.largest, ids.place, digest.text() if hashed else "", known_bytes)


class _LargestId:
    """Finds the largest token id of a corpus and the place of its first occurrence."""

    def __init__(self) -> None:
        self.largest: int | None = None
        self.place = ""

    def add(self, name: str, row: int, values: Any) -> None:
        """Take lists of ids, from ``row`` of the file ``name`` on. Raises InputError for an invalid id."""
        import pyarrow.compute as pc

        flat = values.flatten()

        def place(at: int) -> str:
            lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
            return f"{name}, row {row + int(lengths.cumsum().searchsorted(at, side='right'))} (from 0)"

        if flat.null_count:
            raise InputError(f"{place(flat.is_null().index(True).as_py())}: a token id is null")
        bounds = pc.min_max(flat).as_py()
        least, most = bounds["min"], bounds["max"]
        if least is None:  # All documents are empty.
            return
        invalid = least if least < 0 else most if most > _LARGEST_ID else None
        if invalid is not None:
            raise InputError(
                f"{place(flat.index(invalid).as_py())}: {invalid} is no token id; allowed: 0 to {_LARGEST_ID:,}"
            )
        if self.largest is None or most > self.largest:
            self.largest, self.place = most, place(flat.index(most).as_py())


def _lengths(values: Any, content: Content) -> Any:
    """Return the length of each document, in tokens or in bytes of UTF-8."""
    import pyarrow.compute as pc

    return pc.list_value_length(values) if content == "tokens" else pc.binary_length(values)


class _Digest:
    """Hashes the documents' bytes and lengths, independently of their division into arrays."""

    def __init__(self) -> None:
        self._bytes, self._lengths = hashlib.sha256(), hashlib.sha256()

    def add(self, values: Any, content: Content) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if content == "tokens":
            self._bytes.update(values.flatten().cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes())
            lengths = pc.list_value_length(values)
        else:
            plain = pc.fill_null(values, "").cast(pa.large_string())
            _, offsets, data = plain.buffers()
            ends = memoryview(offsets).cast("q")[plain.offset : plain.offset + len(plain) + 1]
            if data is not None and len(plain):
                self._bytes.update(memoryview(data)[ends[0] : ends[-1]])
            lengths = pc.binary_length(plain)
        self._lengths.update(lengths.cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes())

    def text(self) -> str:
        return hashlib.sha256(self._bytes.digest() + self._lengths.digest()).hexdigest()
