"""Reads one run back: its record, its tables (each when it is first asked for), and what its probes reported."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from harness.study.contract import RUN_COLUMNS
from harness.study.probes_json import ProbesRecord
from harness.study.records import RunRecord
from harness.study.table_checks import check_names, completed
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Result = TypeVar("Result")
# A table up to this size stays in memory once it was read; a larger one is read again each time, so that the analysis
# of many long runs holds one of them at a time.
KEPT_BYTES = 32 * 2**20
SMALL_FILE_BYTES = 4 * 2**20  # parquet compresses these tables to about a quarter
BATCH_ROWS = 1 << 18  # of a table that is read in pieces
OF_RUN = {name for name, _ in RUN_COLUMNS}  # what the record of the run says: not read


class StoredTable:
    """A table of the results contract on disk. Its methods raise InputError where it is not one of ours."""

    def __init__(self, path: Path, columns: tuple[tuple[str, str], ...]) -> None:
        self._path, self._columns = path, columns
        self._kept: pa.Table | None = None

    def check(self, *, as_written: bool = False) -> None:
        """Read all of it once: a damaged file is known before anything is worked out from it.

        ``as_written``: it is known to be what a run wrote (``digests``), so that a large one need not be read for that.
        """
        if self._path.stat().st_size <= SMALL_FILE_BYTES:
            self.read()
            return
        _give_back_at_once()
        if as_written:
            self._opened().close()
            return
        import pyarrow as pa

        for _ in self.batches([name for name, _ in self._columns]):
            pass
        pa.default_memory_pool().release_unused()

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Only these columns of the whole table."""
        import pyarrow as pa

        kinds = dict(self._columns)
        schema = pa.schema([(one, pa.type_for_alias(kinds[one])) for one in names])
        # Another program may have written that no value is null, which is no schema of ours.
        batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in self.batches(names))
        return pa.Table.from_batches(batches, schema)

    def read(self) -> pa.Table:
        """The whole table; columns that came later are null where it lacks them."""
        if self._kept is not None:
            return self._kept
        with self._opened() as file:
            table = self._complete(file.read())
        if table.nbytes <= KEPT_BYTES:
            self._kept = table
        return table

    @property
    def rows(self) -> int:
        """How many rows it has; only the file's end is read for that."""
        if self._kept is not None:
            return len(self._kept)
        with self._opened() as file:
            return int(file.metadata.num_rows)

    def filtered(self, chosen: Any) -> pa.Table:
        """The rows that the pyarrow expression ``chosen`` selects; parts of the file that have none are not read."""
        if self._kept is not None:
            return self._kept.filter(chosen)
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self._opened() as file:
                names = file.own_names
            return self._complete(
                pq.read_table(self._path, columns=names, filters=chosen, page_checksum_verification=True)
            )
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The table in pieces of at most :data:`BATCH_ROWS` rows, with these columns; texts may come as dictionaries.

        Two row groups are in memory at a time, one being read: a run writes one a portion of its steps.
        """
        if self._kept is not None:
            yield from self._kept.select(columns).to_batches()
            return
        import pyarrow as pa

        with self._opened([name for name, kind in self._columns if kind == "string"]) as file:
            there = [name for name in columns if name in file.schema_arrow.names]
            try:
                # Group by group: half the time of reading across their borders.
                for group in _one_ahead(partial(file.read_row_group, columns=there), file.num_row_groups):
                    yield from self._complete(group, columns).select(columns).to_batches(BATCH_ROWS)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise self._unreadable(error) from error

    def _opened(self, dictionaries: Sequence[str] = ()) -> _Reading:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            file = pq.ParquetFile(self._path, read_dictionary=list(dictionaries), page_checksum_verification=True)
            check_names(self._path, file.schema_arrow.names)
            return _Reading(file, self)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> InputError:
        # Some of Arrow's have several lines, and bytes of the file in them.
        reason = " ".join("".join(one if one.isprintable() else " " for one in str(error)).split())
        return InputError(f"{self._path}: not a readable parquet file ({reason})")

    def _complete(self, table: pa.Table, wanted: Sequence[str] | None = None) -> pa.Table:
        return completed(self._path, table, self._columns, wanted)


class _Reading:
    """An open parquet file whose errors become InputError."""

    def __init__(self, file: Any, table: StoredTable) -> None:
        self._file, self._table = file, table

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    @property
    def own_names(self) -> list[str]:
        """Its columns but for those that say of which run it is."""
        return [name for name in self._file.schema_arrow.names if name not in OF_RUN]

    def read(self) -> pa.Table:
        import pyarrow as pa

        try:
            # Threads cost a small table more than they save.
            return self._file.read(self.own_names, use_threads=self._table._path.stat().st_size > SMALL_FILE_BYTES)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise self._table._unreadable(error) from error


class _Lazy:
    """A field that holds a table, or where it is stored; reading the field gives the table.

    Only the record that has the field sets it, when it is made: a frozen dataclass refuses everybody else.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, run: RunData | None, owner: type) -> pa.Table | None:
        if run is None:
            raise AttributeError  # a dataclass field without a default
        value = run.__dict__[self._name]
        return value.read() if isinstance(value, StoredTable) else value

    def __set__(self, run: RunData, value: pa.Table | StoredTable | None) -> None:
        run.__dict__[self._name] = value


@dataclass(frozen=True, eq=False)
class RunData:
    """One run as read back: its record and, where it left them, its tables (None where missing).

    A table that is stored is read when its field is; ask once and keep it while it is needed. ``probes`` is its
    probes.json, empty where there is none.
    """

    record: RunRecord
    steps: pa.Table | None = _Lazy()
    spans: pa.Table | None = _Lazy()
    samples: pa.Table | None = _Lazy()
    probes: ProbesRecord = field(default_factory=ProbesRecord)
    folder: Path | None = None  # where the profiler's own files lie
    evaluations: pa.Table | None = None  # passes over held-out data: small, so it is not read late
    windows: Mapping[str, RunData] = field(default_factory=dict, repr=False)  # by arm: the run that profiled its steps
    _results: dict[str, object] = field(default_factory=dict, init=False, repr=False)  # of :meth:`once`

    @property
    def step_count(self) -> int:
        """Rows of the steps table; it is not read for that."""
        value = self.__dict__["_steps"]
        return 0 if value is None else value.rows if isinstance(value, StoredTable) else len(value)

    def step_columns(self, names: Sequence[str]) -> pa.Table | None:
        """Some columns of the steps table; None where there is no table."""
        value = self.__dict__["_steps"]
        if isinstance(value, StoredTable):
            return value.columns(names)
        return None if value is None else value.select(names)

    def steps_where(self, chosen: Any) -> pa.Table | None:
        """The steps that the pyarrow expression ``chosen`` selects; None where there is no table."""
        return _filtered(self.__dict__["_steps"], chosen)

    def spans_where(self, chosen: Any) -> pa.Table | None:
        """The spans that the pyarrow expression ``chosen`` selects; None where there is no table."""
        return _filtered(self.__dict__["_spans"], chosen)

    @property
    def window(self) -> RunData | None:
        """The finished run in which steps of this arm were profiled, which may be this one; None without such a run."""
        return self.windows.get(self.record.arm)

    def profiles(self) -> tuple[list[pa.Table], list[str]]:
        """Read what torch.profiler left in the run's folder, with a line per file that could not be read."""
        from harness.study.traces.profiles import read_profiles

        if self.folder is None:
            return [], []
        facts = self.probes.torch_profiler
        return read_profiles(self.folder, () if facts is None else facts.realtime_minus_monotonic_ns)

    @property
    def has_steps(self) -> bool:
        """Whether there is a steps table, empty or not; it is not read for that."""
        return self.__dict__["_steps"] is not None

    @property
    def has_spans(self) -> bool:
        """Whether there is a spans table; it is not read for that."""
        return self.__dict__["_spans"] is not None

    def span_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The spans table in pieces; nothing where there is none."""
        value = self.__dict__["_spans"]
        if isinstance(value, StoredTable):
            yield from value.batches(columns)
        elif value is not None:
            yield from value.select(columns).to_batches()

    def once(self, what: str, make: Callable[[], Result]) -> Result:
        """What ``make`` returns, worked out the first time it is asked for ``what``; keep it small."""
        if what not in self._results:
            self._results[what] = make()
        return cast("Result", self._results[what])

    def knows(self, what: str) -> bool:
        """Whether :meth:`once` has that result."""
        return what in self._results

    def forget(self, what: str) -> None:
        """Let go of a result of :meth:`once`, and give its memory back to the system."""
        import pyarrow as pa

        self._results.pop(what, None)
        pa.default_memory_pool().release_unused()
        with suppress(AttributeError, OSError):  # glibc keeps what is freed in pieces, which adds up over long runs
            ctypes.CDLL(None).malloc_trim(0)


def _one_ahead(read: Callable[[int], Result], count: int) -> Iterator[Result]:
    """``read(0)`` to ``read(count - 1)``, each while the one before is used."""
    if count < 2:
        yield from map(read, range(count))
        return
    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(read, 0)
        for number in range(1, count + 1):
            found = ahead.result()
            if number < count:
                ahead = reader.submit(read, number)
            yield found


def _give_back_at_once() -> None:
    """Let the system have each large array back when it is freed: glibc learns to keep them, for runs of millions.

    Smaller ones it keeps: to ask for a new page for each takes a quarter of the time of such an analysis.
    """
    m_mmap_threshold, m_trim_threshold = -3, -1  # malloc.h
    with suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 8 << 20)
        libc.mallopt(m_trim_threshold, 16 << 20)


def _filtered(value: StoredTable | pa.Table | None, chosen: Any) -> pa.Table | None:
    if isinstance(value, StoredTable):
        return value.filtered(chosen)
    return None if value is None else value.filter(chosen)
