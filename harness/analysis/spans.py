"""The spans of one run as columns, by what they are: read once, in pieces, and kept small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.analysis.intervals import Int
from harness.study.contract import STAGES

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.study.run_data import RunData

FETCH = "fetch"
KEPT_SPANS = 1_000_000  # of one run: about 40 MB
NOT_MEASURED = -1  # of CPU times
# What analysis reads of the spans table.
COLUMNS = ("role", "rank", "name", "batch", "start_ns", "end_ns", "cpu_ns")


@dataclass(frozen=True)
class Spans:
    """Spans of one kind, in the order recorded; all (spans,), times in CLOCK_MONOTONIC nanoseconds."""

    names: NDArray[np.int32]  # index into RunSpans.names
    starts: Int
    ends: Int
    batches: NDArray[np.int32]  # -1 where none
    cpu_ns: NDArray[np.float32]  # NOT_MEASURED where it was not; to seven digits, for which half the room will do

    def where(self, chosen: NDArray[np.bool_] | Int | slice) -> Spans:
        """Those that are ``chosen``, as numpy selects rows."""
        return Spans(
            self.names[chosen], self.starts[chosen], self.ends[chosen], self.batches[chosen], self.cpu_ns[chosen]
        )

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class RunSpans:
    """What one run recorded. Only the first rank."""

    names: Sequence[str]
    phases: Spans  # of the main thread
    stages: Spans  # of whoever built the batch: a loader worker or the main thread
    kernels: Spans  # what an asynchronous device did
    launches: Spans  # when the host queued that, in the same order
    blocking: Spans  # calls of the main thread that waited for the device; their names are call sites

    @property
    def rows(self) -> int:
        """Spans of all kinds."""
        return sum(map(len, (self.phases, self.stages, self.kernels, self.launches, self.blocking)))

    def between(self, since_ns: int, until_ns: int) -> RunSpans:
        """The spans that overlap [since_ns, until_ns)."""

        def near(spans: Spans) -> Spans:
            return spans.where((spans.ends > since_ns) & (spans.starts < until_ns))

        kinds = (self.phases, self.stages, self.kernels, self.launches, self.blocking)
        return RunSpans(self.names, *map(near, kinds))

    def code(self, name: str) -> int:
        """The number that stands for ``name``; -1 where no span has it."""
        return self.names.index(name) if name in self.names else -1

    def of(self, spans: Spans, *names: str) -> Spans:
        """Those of ``spans`` that have one of ``names``."""
        return spans.where(np.isin(spans.names, [self.code(name) for name in names]))


def spans_of(run: RunData) -> RunSpans:
    """The spans of ``run``, read once; see ``whole_run.release`` for long runs."""
    return run.once("spans", lambda: begun_when_launched(read_spans(run.span_batches(COLUMNS))))


def read_spans(batches: Iterable[pa.RecordBatch]) -> RunSpans:
    """The spans in record batches of the spans table that have at least :data:`COLUMNS`; each is let go when read."""
    names: dict[str, int] = {}
    kinds: dict[str, list[Spans]] = {kind: [] for kind in ("phases", "stages", "kernels", "launches", "blocking")}
    for batch in batches:
        role, roles = _coded(batch.column("role"))
        name, found = _coded(batch.column("name"))
        known = np.array([names.setdefault(one, len(names)) for one in found] or [0], dtype=np.int32)
        numbers = {column: _integers(batch.column(column)) for column in COLUMNS[3:]}
        batches, cpu_ns = numbers["batch"].astype(np.int32), numbers["cpu_ns"].astype(np.float32)
        spans = Spans(known[name], numbers["start_ns"], numbers["end_ns"], batches, cpu_ns)
        first_rank = _integers(batch.column("rank"), 0) == 0
        is_stage = np.array([one in STAGES for one in found] or [False])[name]
        for kind, chosen in (
            ("phases", _among(role, roles, "main") & ~is_stage),
            ("stages", (_among(role, roles, "main") | _workers(role, roles)) & is_stage),
            ("kernels", _among(role, roles, "device")),
            ("launches", _among(role, roles, "launch")),
            ("blocking", _among(role, roles, "sync")),
        ):
            kinds[kind].append(spans.where(chosen & first_rank))
    return RunSpans(tuple(names), **{kind: _joined(kinds[kind]) for kind in kinds})


def begun_when_launched(spans: RunSpans) -> RunSpans:
    """All spans of a run, each piece of the device's work from its first launch on: nothing of it can run before.

    An event that counts as reached when the work before it was done, even if that was before it was recorded, would
    otherwise make the time that the device waited for the host look like work.
    """
    kernels, pieces = spans.kernels, min(len(spans.kernels), len(spans.launches))
    starts = kernels.starts.copy()
    starts[:pieces] = np.minimum(np.maximum(starts[:pieces], spans.launches.starts[:pieces]), kernels.ends[:pieces])
    return replace(spans, kernels=replace(kernels, starts=starts))


def _joined(parts: list[Spans]) -> Spans:
    """All of ``parts``, which is emptied on the way: memory that was not written to yet takes no room."""
    count = sum(map(len, parts))
    names, batches = (np.empty(count, dtype=np.int32) for _ in range(2))
    starts, ends = (np.empty(count, dtype=np.int64) for _ in range(2))
    found = Spans(names, starts, ends, batches, np.empty(count, dtype=np.float32))
    place = 0
    while parts:
        part = parts.pop(0)
        here = slice(place, place + len(part))
        found.names[here], found.starts[here], found.ends[here] = part.names, part.starts, part.ends
        found.batches[here], found.cpu_ns[here] = part.batches, part.cpu_ns
        place += len(part)
    return found


def _coded(column: pa.Array) -> tuple[NDArray[np.int32], list[str]]:
    """The column's texts as numbers, and what each stands for; a null is a text of its own."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    texts = [str(text) for text in column.dictionary.to_pylist()]
    codes = column.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False).astype(np.int32)
    return codes, [*texts, ""]


def _integers(column: pa.Array, null: int = NOT_MEASURED) -> Int:
    if column.null_count:
        column = column.fill_null(null)
    values: Int = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def _among(codes: NDArray[np.int32], texts: Sequence[str], text: str) -> NDArray[np.bool_]:
    return np.array([one == text for one in texts])[codes]


def _workers(codes: NDArray[np.int32], texts: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([one.startswith("loader") for one in texts])[codes]
