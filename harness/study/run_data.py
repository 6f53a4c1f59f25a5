"""Read one run back: its record, its tables (each on first use), and the reports of its probes (times in ns).

A long training also has a history: distributions of step times by minute, of steps that are in no table as well.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from harness.study.contract import SCHEMA
from harness.study.records import RunRecord, first_fault, read_record
from harness.study.tables import StoredTable
from trainer.errors import InputError
from trainer.files import read_json, write_text

if TYPE_CHECKING:
    import pyarrow as pa

Nanoseconds = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


def _ordered(range_: Sequence[int]) -> Sequence[int]:
    if any(first > last for first, last in zip(range_[::2], range_[1::2], strict=True)):
        raise ValueError("it ends before it begins")
    return range_


@dataclass(frozen=True, kw_only=True)
class TorchProfilerRecord:
    """The entry "torch_profiler" of probes.json: the profiled windows and the accuracy of their times."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    # For each window: start, end, first step, last step.
    windows: tuple[Annotated[tuple[Nanoseconds, Nanoseconds, Count, Count], AfterValidator(_ordered)], ...] = ()
    realtime_minus_monotonic_ns: tuple[Annotated[int, Field(ge=-(2**63), lt=2**63)], ...] = ()  # before and after
    clock_error_ns: Nanoseconds | None = None  # largest error of the difference between the clocks
    workers: tuple[str, ...] = ()  # roles of the loader workers that left a profile
    flops: dict[str, Annotated[float, Field(ge=0)]] = field(default_factory=dict)  # key: operator; over all windows


@dataclass(frozen=True, kw_only=True)
class PySpyRecord:
    """The entry "py_spy" of probes.json: how py-spy recorded its trace. Reading the trace requires this."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    rate_hz: float = Field(ge=0.1, le=1e6)
    seconds: float = 0  # requested duration
    native: bool = False
    gil: bool = False
    nonblocking: bool = False
    pid: int = 0  # id of the main process
    metronome: tuple[int, ...] = ()  # process ids, see harness.probes.profilers.spy_process.Metronome
    started: tuple[int, ...] = ()  # times when py-spy was started, and when it began to sample
    marks: tuple[tuple[int, int], ...] = ()  # times when each clock mark began and ended
    window: Annotated[tuple[Nanoseconds, Nanoseconds], AfterValidator(_ordered)]
    steps: Count = 0  # number of steps in the window
    samples: Count = 0
    errors: Count = 0
    roots: tuple[str, ...] = ()  # folders that modules were imported from, longest first


@dataclass(frozen=True)
class ProbesRecord:
    """Content of a run's probes.json. A probe's entry is None if it had no window in this run, or if it failed."""

    problems: tuple[str, ...] = ()  # errors, a line each
    missed_samples: dict[str, Count] = field(default_factory=dict)  # key: source (host, nvml)
    taken_samples: dict[str, Count] = field(default_factory=dict)
    torch_profiler: TorchProfilerRecord | None = None
    py_spy: PySpyRecord | None = None
    failed: tuple[str, ...] = ()  # names of probes


@cache
def _adapter() -> TypeAdapter[ProbesRecord]:
    return TypeAdapter(ProbesRecord)  # Building an adapter takes milliseconds.


def read_facts(path: Path) -> ProbesRecord:
    """Read the probes.json at ``path``. Raises InputError with one line if it is invalid."""
    try:
        content = read_json(path)
        if isinstance(content, dict) and content.get("py_spy") == {}:  # Older files have {} after a failure of py-spy.
            content["py_spy"] = None
        # Strict mode accepts an array for a tuple only from JSON.
        return _adapter().validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise InputError(f"{path}: not a valid record of a run's probes: {first_fault(error)}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


Result = TypeVar("Result")


class _Lazy:
    """Descriptor of a field that holds a table or its place on disk; returns the table. Set by the constructor only."""

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
    """One run, read back from its folder: record, tables (None if missing) and ``probes`` (probes.json). A large table
    is read anew at each access of its field, so keep the result while you need it.
    """

    record: RunRecord
    steps: pa.Table | None = _Lazy()
    spans: pa.Table | None = _Lazy()
    samples: pa.Table | None = _Lazy()
    probes: ProbesRecord = field(default_factory=ProbesRecord)
    folder: Path | None = None  # folder of the profiler's own files
    evaluations: pa.Table | None = None  # passes over held-out data; small, so it is read at once
    # key: arm; value: the run that profiled its steps
    windows: Mapping[str, RunData] = field(default_factory=dict, repr=False)
    _results: dict[str, object] = field(default_factory=dict, init=False, repr=False)  # results of :meth:`once`

    @property
    def step_count(self) -> int:
        """Number of rows of the steps table; 0 if it is missing. The table is not read."""
        value = self.__dict__["_steps"]
        return 0 if value is None else value.rows if isinstance(value, StoredTable) else len(value)

    def step_columns(self, names: Sequence[str]) -> pa.Table | None:
        """Return the columns ``names`` of the steps table; None if the run has no steps table."""
        value = self.__dict__["_steps"]
        if isinstance(value, StoredTable):
            return value.columns(names)
        return None if value is None else value.select(names)

    def steps_where(self, chosen: Any) -> pa.Table | None:
        """Return the rows of the steps table that ``chosen`` (pyarrow) selects; None without a table."""
        return _filtered(self.__dict__["_steps"], chosen)

    def spans_where(self, chosen: Any) -> pa.Table | None:
        """Return the rows of the spans table that ``chosen`` (pyarrow) selects; None without a table."""
        return _filtered(self.__dict__["_spans"], chosen)

    @property
    def window(self) -> RunData | None:
        """The finished run that profiled steps of this arm, which may be this run; None without such a run."""
        return self.windows.get(self.record.arm)

    def profiles(self) -> tuple[list[pa.Table], list[str]]:
        """Read the run's torch.profiler files. Return their tables, and a line for each unreadable file."""
        from harness.study.traces.kineto import read_profiles

        if self.folder is None:
            return [], []
        facts = self.probes.torch_profiler
        return read_profiles(self.folder, () if facts is None else facts.realtime_minus_monotonic_ns)

    @property
    def has_steps(self) -> bool:
        """True if there is a steps table, even an empty one. Does not read it."""
        return self.__dict__["_steps"] is not None

    @property
    def has_spans(self) -> bool:
        """True if there is a spans table. Does not read it."""
        return self.__dict__["_spans"] is not None

    def span_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the spans table in pieces, with only ``columns``; nothing if the run has no spans table."""
        value = self.__dict__["_spans"]
        if isinstance(value, StoredTable):
            yield from value.batches(columns)
        elif value is not None:
            yield from value.select(columns).to_batches()

    def once(self, what: str, make: Callable[[], Result]) -> Result:
        """Return the result of ``make``, called only the first time for ``what``. Results should be small."""
        if what not in self._results:
            self._results[what] = make()
        return cast("Result", self._results[what])

    def knows(self, what: str) -> bool:
        """Return True if :meth:`once` has a cached result for the key ``what``."""
        return what in self._results

    def forget(self, what: str) -> None:
        """Drop the cached result of :meth:`once` for ``what``, and return its memory to the system."""
        import pyarrow as pa

        self._results.pop(what, None)
        pa.default_memory_pool().release_unused()
        # glibc keeps memory that is freed in pieces, which adds up over long runs.
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)


def _filtered(value: StoredTable | pa.Table | None, chosen: Any) -> pa.Table | None:
    if isinstance(value, StoredTable):
        return value.filtered(chosen)
    return None if value is None else value.filter(chosen)


HISTORY = "history.json"  # file in a study's folder, written for programs of more than one segment


@dataclass(frozen=True)
class LongStep:
    """A step that took several times as long as the median step of its minute."""

    step: int  # number in the program
    start_utc_s: float  # seconds since 1970-01-01 UTC
    ms: float
    parts_ms: dict[str, float] = field(default_factory=dict)  # by phase
    collecting_ms: float = 0.0  # garbage collections
    waiting_ms: float = 0.0  # runnable without a core
    counted: dict[str, int] = field(default_factory=dict)  # events, such as compilations, by kind


@dataclass(frozen=True)
class Minute:
    """The measured steps of one segment of a program's record: a minute, or longer (few steps) or less (very many)."""

    first_step: int  # number in the program
    start_utc_s: float  # seconds since 1970-01-01 UTC
    span_s: float  # until the end of its last step
    steps: int  # measured steps
    wall_s: float  # total time of the measured steps
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    parts_ms: dict[str, float]  # mean of a step by phase, without phases inside it
    waiting_ms: float  # mean of a step: runnable without a core
    collecting_ms: float  # mean of a step: garbage collections
    evaluating_s: float  # total time of the steps with an evaluation, which are not measured
    tokens: int  # 0: unknown
    samples: int
    memory_bytes: int | None  # of the process and its children, at the last reading; None without one
    long_steps: tuple[LongStep, ...] = ()
    long_steps_left_out: int = 0  # shorter ones than these
    # Readings of memory: step, bytes of the process, bytes of its children, free bytes
    memory: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True)
class History:
    """Content of history.json: the record of each arm of a long program in pieces of about a minute, in order, and the
    number of pieces whose steps are not in the tables.
    """

    minutes: dict[str, tuple[Minute, ...]]
    thinned: dict[str, int] = field(default_factory=dict)  # minutes of each arm whose steps are not in the tables


def write_history(folder: Path, history: History) -> None:
    write_text(folder / HISTORY, json.dumps({"schema": SCHEMA, **asdict(history)}, allow_nan=False) + "\n")


def read_history(folder: Path) -> History | None:
    """Return the history of the study in ``folder``; None if it has none. Raises InputError for a damaged file."""
    return read_record(folder / HISTORY, History, SCHEMA)
