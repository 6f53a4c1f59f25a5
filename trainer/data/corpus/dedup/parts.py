"""Writes a file of kept rows and a Parquet file of removals for each share.

Rows of JSON Lines keep their original lines; rows of other formats become Parquet.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.corpus.base import CORPUS_ROW_GROUP
from trainer.data.corpus.dedup.components import Removals
from trainer.data.corpus.dedup.pairs import similarities
from trainer.data.corpus.dedup.sketches import DedupJob, Sets, unseen
from trainer.data.corpus.dedup.whole_rows import LINE
from trainer.data.corpus.formats import COMPRESSED
from trainer.errors import InputError
from trainer.leftovers import remove

KEPT, REMOVED = "kept", "removed"  # folders of the result
COLUMNS = ("removed_row", "kept_row", "jaccard", "neighbour_row", "neighbour_jaccard")


def part(job: DedupJob, folder: str, number: int) -> Path:
    """Return the path of the file of share ``number`` in ``folder``: kept rows or removals.

    Kept lines are compressed if a file of the corpus was.
    """
    suffix = ".parquet"
    if folder == KEPT and job.corpus.format == "jsonl":
        is_compressed = any(name.lower().endswith(COMPRESSED) for name in job.corpus.files)
        suffix = ".jsonl.zst" if is_compressed else ".jsonl"
    return Path(job.out) / folder / f"part-{number:06}{suffix}"


def check_parts(job: DedupJob) -> None:
    """Raise InputError if a file of a share is missing, because an executor wrote it into a folder of another
    machine.
    """
    for folder in (KEPT, REMOVED):
        for number in range(job.count):
            if not part(job, folder, number).is_file():
                raise unseen(job)


def write_parts(job: DedupJob, number: int, tables: Iterable[Any], gone: Removals, sets: Sets) -> None:
    """Write the two files of share ``number``: kept rows and removals. Each file appears when it is whole.

    ``tables``: all rows of the share as Arrow tables. ``gone``: its removals. ``sets``: shingles, for exact
    similarities.
    """
    if not Path(job.work).is_dir():
        raise unseen(job)
    first, end = job.bounds(number)
    kept = np.ones(end - first, np.bool_)
    kept[gone.removed - first] = False

    def rows(file: Path) -> None:
        import pyarrow as pa

        row = 0
        with _rows_writer(job, file) as write:
            for table in tables:
                write(table.filter(pa.array(kept[row : row + table.num_rows])))
                row += table.num_rows
        if row != end - first:
            raise InputError(f"{job.corpus.name}: was changed after it was counted; run it again")

    def removals(file: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        exact = similarities(sets, gone.removed, gone.kept)
        columns = (gone.removed, gone.kept, exact, gone.neighbours, gone.similarities)
        pq.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True))), file, compression="snappy")

    _in_place(part(job, KEPT, number), rows)
    _in_place(part(job, REMOVED, number), removals)


@contextmanager
def _rows_writer(job: DedupJob, file: Path) -> Iterator[Callable[[Any], None]]:
    """Open ``file`` and yield a function that appends an Arrow table of whole rows, as Parquet or JSON Lines."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if job.corpus.format != "jsonl":
        with pq.ParquetWriter(file, job.schema, compression="snappy") as writer:
            yield lambda table: writer.write_table(table, row_group_size=CORPUS_ROW_GROUP)
        return
    packed = part(job, KEPT, 0).suffix == ".zst"
    with pa.CompressedOutputStream(str(file), "zstd") if packed else file.open("wb") as stream:

        def write(table: Any) -> None:
            stream.write(b"".join(line + b"\n" for line in table.column(LINE).to_pylist()))

        yield write


def _in_place(path: Path, write: Callable[[Path], None]) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # A task may be tried twice, on two machines.
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        remove(temporary)
