"""Writes the same documents in every format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

ROWS_PER_BATCH = 7


def table(values: Sequence[Any], kind: pa.DataType | None = None, column: str = "text") -> pa.Table:
    others = {"id": list(range(len(values)))}
    return pa.table({**others, column: pa.array(values, kind)})


def parquet(folder: Path, values: Sequence[Any], kind: pa.DataType | None = None, column: str = "text") -> Path:
    pq.write_table(table(values, kind, column), folder / "data.parquet", row_group_size=ROWS_PER_BATCH)
    return folder / "data.parquet"


def jsonl(folder: Path, values: Sequence[Any], column: str = "text") -> Path:
    lines = (json.dumps({"id": at, column: value, "more": {"a": [at]}}) for at, value in enumerate(values))
    (folder / "data.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder / "data.jsonl"


def compressed(path: Path, suffix: str) -> Path:
    """The same file, compressed, in two parts as ``cat a.gz b.gz`` makes them."""
    content = path.read_bytes()
    halves = content[: len(content) // 2], content[len(content) // 2 :]
    target = path.with_name(path.name + suffix)
    target.write_bytes(b"".join(gzip.compress(half) if suffix == ".gz" else zstd(half) for half in halves))
    return target


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def arrow(path: Path, values: Sequence[Any], kind: pa.DataType | None = None, column: str = "text") -> Path:
    """A file, or a stream where the name ends in arrows."""
    found = table(values, kind, column)
    make = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
    with make(path, found.schema) as writer:
        writer.write_table(found, max_chunksize=ROWS_PER_BATCH)
    return path


def saved_to_disk(folder: Path, values: Sequence[Any], column: str = "text") -> Path:
    """As Hugging Face's save_to_disk writes it: streams, and a state that names them."""
    names = []
    cut = len(values) // 3
    for number, part in enumerate((values[:cut], values[cut:])):
        names.append(f"data-{number:05}-of-00002.arrow")
        arrow(folder / f"{number}.arrows", part, None, column).rename(folder / names[-1])
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return folder


def texts_in_files(folder: Path, values: Sequence[str], suffix: str = ".txt") -> Path:
    for at, value in enumerate(values):
        place = folder / f"part{at // 10}"
        place.mkdir(exist_ok=True)
        (place / f"{at:04}{suffix}").write_text(value)
    return folder


def feather(folder: Path, values: Sequence[Any]) -> Path:
    return arrow(folder / "data.feather", values)


WRITERS: dict[str, Callable[[Path, Sequence[Any]], Path]] = {
    "parquet": parquet,
    "large strings": lambda folder, values: parquet(folder, values, pa.large_string()),
    "dictionary": lambda folder, values: parquet(folder, values, pa.dictionary(pa.int32(), pa.string())),
    "string views": lambda folder, values: arrow(folder / "data.arrow", values, pa.string_view()),
    "jsonl": jsonl,
    "jsonl.gz": lambda folder, values: compressed(jsonl(folder, values), ".gz"),
    "jsonl.zst": lambda folder, values: compressed(jsonl(folder, values), ".zst"),
    "arrow file": lambda folder, values: arrow(folder / "data.arrow", values),
    "arrow stream": lambda folder, values: arrow(folder / "data.arrows", values),
    "feather": feather,
    "save_to_disk": saved_to_disk,
    "text files": texts_in_files,
}
