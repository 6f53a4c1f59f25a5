"""Sums up what probes sampled: series of counters, and stacks by phase and stage.

A stack belongs to the innermost span of its own thread that holds its time:

    spans    |------------- fetch -------------|--- forward ---|
                |-- read --|---- tokenize ----|
    samples    .     .         .      .     .      .        .     .
             fetch  read       tokenize            forward        none
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from harness.explain.policy import KEPT_STACKS, ROUGH_PLACE_SHARE
from harness.explain.statistics import wilson
from harness.study.contract import STAGES
from harness.study.run_data import PySpyRecord
from harness.study.traces.py_spy import FittedClock, clock_of

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[np.float64]


class Sampled(NamedTuple):
    """One metric of one source over a run: times (CLOCK_MONOTONIC, ns) and values, (samples,) each, in time order."""

    t_ns: npt.NDArray[np.int64]
    values: Array


Split = Mapping[tuple[str, str], Sampled]  # keys are (source, metric)


def split(samples: pa.Table | None) -> Split:
    """Return every series of a run's samples table, by (source, metric). Rows without a value are left out."""
    if samples is None or len(samples) == 0:
        return {}
    columns = [samples.column(name).combine_chunks().dictionary_encode() for name in ("source", "metric")]
    sources, metrics = (column.dictionary.to_pylist() for column in columns)
    keys = columns[0].indices.to_numpy() * len(metrics) + columns[1].indices.to_numpy()
    t_ns = samples.column("t_ns").to_numpy()
    values = samples.column("value").to_numpy(zero_copy_only=False).astype(np.float64)
    series = {}
    for key in np.unique(keys):
        rows = np.flatnonzero((keys == key) & np.isfinite(values))
        rows = rows[np.argsort(t_ns[rows], kind="stable")]
        if rows.size:
            series[sources[key // len(metrics)], metrics[key % len(metrics)]] = Sampled(t_ns[rows], values[rows])
    return series


def total(runs: Iterable[Split], source: str, metric: str) -> float | None:
    """Return the sum of a metric over all samples of all runs; None if it was not sampled."""
    sums = [float(run[source, metric].values.sum()) for run in runs if (source, metric) in run]
    return sum(sums) if sums else None


def pooled(runs: Iterable[Split], source: str, metric: str) -> Array:
    """Return all values of a metric, run after run; empty if it was not sampled."""
    series = [run[source, metric].values for run in runs if (source, metric) in run]
    return np.concatenate(series) if series else np.empty(0)


def mean(values: Array) -> float | None:
    return float(values.mean()) if values.size else None


def most(values: Array) -> float | None:
    return float(values.max()) if values.size else None


MAIN, WORKERS = "main thread", "loader workers"
OUTSIDE = "none"  # neither phase nor stage: between steps, or a worker that waits for a request
# Files of the ledger's recorder. py-spy samples its system calls out of proportion to their cost.
RECORDER = ("harness/probes/", "harness/attach/agent/", "trainer/telemetry.py")
_LINE = re.compile(r":\d+\)$")


class StackSpan(NamedTuple):
    """Phase or loader stage of one thread, CLOCK_MONOTONIC; stack samples belong to it by time."""

    start_ns: int
    end_ns: int
    name: str


class StackRow(TypedDict):
    """Columns of py-spy's samples table that are used here; one row per sampled stack."""

    time_ns: int
    role: str
    stack: list[str]


@dataclass(frozen=True)
class Share:
    """Share (0 to 1) of a place's samples with one function or stack, and Wilson's 95 % interval.

    The interval assumes independent samples."""

    name: str
    samples: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Place:
    """Samples of one phase or stage of the main thread, or of one stage of all loader workers."""

    threads: str  # MAIN or WORKERS
    name: str  # "forward"; an inline stage: "fetch: tokenize"; or OUTSIDE
    whole: Share  # share of all samples of these threads
    functions: tuple[Share, ...]  # largest self time first: innermost frame with a name, "function (file)"
    python: Share  # most sampled Python function, including its calls into other languages
    stacks: tuple[Share, ...]  # whole stacks; frames from the outermost, joined by ";"
    near: int  # samples so close to the end of a span that they may belong beyond it (clock.doubt_ns)

    @property
    def rough(self) -> bool:
        """True if many samples are so close to a span's end that they may belong elsewhere: its shares are rough."""
        return self.near > ROUGH_PLACE_SHARE * self.whole.samples


@dataclass(frozen=True)
class StackReport:
    """Stack samples of one profiled run, by phase and stage; :func:`explain` makes it."""

    places: tuple[Place, ...]  # main thread first; largest first; OUTSIDE last
    samples: Mapping[str, int]  # keys MAIN, WORKERS, or "other threads" for threads without spans
    readings: int  # number of samples of the main thread
    expected_readings: int  # number of samples at the requested rate
    clock: FittedClock
    near_edges: int  # sum of Place.near over all places
    lower_bound: bool  # sampled with --gil, which favours changing stacks

    @property
    def tokenization(self) -> tuple[Place, ...]:
        """Tokenization in the main thread and in loader workers, in this order.

        Each of the two is listed only if these threads have more samples in it than in any other phase or stage."""
        places = []
        for threads in (MAIN, WORKERS):
            largest = next((place for place in self.places if place.threads == threads and place.name != OUTSIDE), None)
            if largest is not None and largest.name.removeprefix("fetch: ") == "tokenize":
                places.append(largest)
        return tuple(places)


class _Met(NamedTuple):
    """A sample: its stack, outermost frame first, and True if it is near the end of a span."""

    stack: tuple[str, ...]
    near: bool


def process_roles(spans: Iterable[pa.RecordBatch]) -> dict[int, str]:
    """Return the role ("main" or "loader-K") by process id, from batches of spans with columns pid and role."""
    import pyarrow as pa

    pairs: set[tuple[int, str | None]] = set()
    for batch in spans:
        roles = batch.column("role")
        roles = roles.cast("string") if hasattr(roles, "dictionary") else roles
        distinct = pa.table({"pid": batch.column("pid"), "role": roles}).group_by(["pid", "role"]).aggregate([])
        pairs |= set(zip(distinct["pid"].to_pylist(), distinct["role"].to_pylist(), strict=True))
    return {pid: role for pid, role in pairs if role is not None and (role == "main" or role.startswith("loader-"))}


def explain(samples: pa.Table, spans: pa.Table, facts: PySpyRecord) -> StackReport:
    """Count sampled stacks by the phase or stage that ran.

    A sample in the recorder of the ledger (our own code) counts for the function that called the recorder."""
    clock = clock_of(samples)
    native = facts.native
    rows = samples.to_pylist()
    by_threads: dict[str, dict[str, list[_Met]]] = {}
    readings = 0
    by_role: dict[str, list[StackRow]] = {}
    for row in rows:
        by_role.setdefault(row["role"], []).append(row)
    spans_of_role = _spans_by_role(spans, by_role)
    for role, role_rows in by_role.items():
        if role not in spans_of_role:
            continue
        readings += len(role_rows) if role == "main" else 0
        times = np.array([row["time_ns"] for row in role_rows], dtype=np.int64)
        edges, names = segments(spans_of_role[role])
        near = (_distance(times, edges) <= clock.doubt_ns).tolist()
        by_name = by_threads.setdefault(MAIN if role == "main" else WORKERS, {})
        for row, name, is_near in zip(role_rows, names_at(times, edges, names), near, strict=True):
            stack = _without_recorder(tuple(row["stack"]), native)
            by_name.setdefault(name or OUTSIDE, []).append(_Met(stack, is_near))
    placed = {threads: sum(map(len, by_place.values())) for threads, by_place in by_threads.items()}
    places = tuple(
        _place(threads, name, met, placed[threads], native)
        for threads in (MAIN, WORKERS)
        for name, met in sorted(
            by_threads.get(threads, {}).items(), key=lambda item: (item[0] == OUTSIDE, -len(item[1]))
        )
    )
    start_ns, end_ns = facts.window
    return StackReport(
        places=places,
        samples={**placed, "other threads": len(rows) - sum(placed.values())},
        readings=readings,
        expected_readings=round((end_ns - start_ns) / 1e9 * facts.rate_hz),
        clock=clock,
        near_edges=sum(place.near for place in places),
        lower_bound=facts.gil,
    )


def segments(spans: Iterable[StackSpan]) -> tuple[NDArray[np.int64], list[str | None]]:
    """Return the times (ns) at which the innermost span (the one begun last) changes, and its name from then on."""
    begun = sorted(span for span in spans if span.end_ns > span.start_ns)
    times = sorted({time for span in begun for time in span[:2]})
    edges: list[int] = []
    names: list[str | None] = []
    stack: list[tuple[int, int, str]] = []  # a heap: latest start first, then earliest end
    place = 0
    for time in times:
        while place < len(begun) and begun[place].start_ns <= time:
            span = begun[place]
            heapq.heappush(stack, (-span.start_ns, span.end_ns, span.name))
            place += 1
        while stack and stack[0][1] <= time:
            heapq.heappop(stack)
        edges.append(time)
        names.append(stack[0][2] if stack else None)
    return np.array(edges, dtype=np.int64), names


def names_at(times: NDArray[np.int64], edges: NDArray[np.int64], names: Sequence[str | None]) -> list[str | None]:
    """Return the innermost span's name at each time; None outside of all. ``edges``, ``names``: from segments()."""
    places = np.searchsorted(edges, times, side="right") - 1
    return [names[place] if place >= 0 else None for place in places]


def _spans_by_role(spans: pa.Table, roles: Iterable[str]) -> dict[str, list[StackSpan]]:
    """Return the phases and stages of each sampled role. The name of an inline stage includes its phase."""
    wanted = {role for role in roles if role == "main" or role.startswith("loader-")}
    by_role: dict[str, list[StackSpan]] = {role: [] for role in wanted}
    columns = (spans[name].to_pylist() for name in ("role", "start_ns", "end_ns", "name"))
    for role, start, end, name in zip(*columns, strict=True):
        if role in wanted:
            by_role[role].append(StackSpan(start, end, f"fetch: {name}" if role == "main" and name in STAGES else name))
    return by_role


def _distance(times: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ns from each time to the nearest start or end of a span; the largest int64 if there is no span."""
    if not len(edges):
        return np.full(len(times), np.iinfo(np.int64).max)
    after = np.clip(np.searchsorted(edges, times), 0, len(edges) - 1)
    before = np.clip(after - 1, 0, len(edges) - 1)
    nearest: NDArray[np.int64] = np.minimum(np.abs(edges[after] - times), np.abs(edges[before] - times))
    return nearest


def _place(threads: str, name: str, met: Sequence[_Met], total: int, native: bool) -> Place:
    functions = Counter(_function(_named(stack, native)) for stack, _ in met)
    python = Counter(_function([frame for frame in stack if _is_python(frame, native)]) for stack, _ in met)
    stacks = Counter(";".join(stack) for stack, _ in met)
    return Place(
        threads=threads,
        name=name,
        whole=_share(name, len(met), total),
        functions=_top(functions, len(met)),
        python=_top(python, len(met))[0],
        stacks=_top(stacks, len(met)),
        near=sum(near for _, near in met),
    )


def _function(frames: Sequence[str]) -> str:
    return _LINE.sub(")", frames[-1]) if frames else "no Python frame"


def _without_recorder(stack: tuple[str, ...], native: bool) -> tuple[str, ...]:
    """Return the stack up to the function that called the ledger's recorder; all of it if it does not end there."""
    python = [place for place, frame in enumerate(stack) if _is_python(frame, native)]
    outside = [place for place in python if not _file(stack[place]).startswith(RECORDER)]
    return stack[: outside[-1] + 1] if outside and outside[-1] != python[-1] else stack


def _named(stack: tuple[str, ...], native: bool) -> tuple[str, ...]:
    """Return the stack without its innermost frames that have no name, such as those of libraries without symbols."""
    named = [
        place for place, frame in enumerate(stack) if _is_python(frame, native) or not frame.startswith("unnamed (")
    ]
    return stack[: named[-1] + 1] if named else stack


def _is_python(frame: str, native: bool) -> bool:
    """Return True for a Python frame. Without native stacks all frames are Python, whatever their file is called."""
    return not native or (file := _file(frame)).endswith(".py") or file.startswith("<")


def _file(frame: str) -> str:
    return _LINE.sub(")", frame).rpartition(" (")[2].removesuffix(")")


def _top(counts: Counter[str], total: int) -> tuple[Share, ...]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(_share(name, count, total) for name, count in ordered[:KEPT_STACKS])


def _share(name: str, count: int, total: int) -> Share:
    return Share(name, count, count / total, *wilson(count, total))
