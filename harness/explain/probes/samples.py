"""Splits the samples table into series, and sums up counters for every reader of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[np.float64]


class Sampled(NamedTuple):
    """One metric of one source over a run: times (CLOCK_MONOTONIC, ns) and values, each (samples,), in order."""

    t_ns: npt.NDArray[np.int64]
    values: Array


Split = Mapping[tuple[str, str], Sampled]  # by source and metric


def split(samples: pa.Table | None) -> Split:
    """Every series of a run's samples table; rows without a value are left out."""
    if samples is None or len(samples) == 0:
        return {}
    columns = [samples.column(name).combine_chunks().dictionary_encode() for name in ("source", "metric")]
    sources, metrics = (column.dictionary.to_pylist() for column in columns)
    keys = columns[0].indices.to_numpy() * len(metrics) + columns[1].indices.to_numpy()
    t_ns = samples.column("t_ns").to_numpy()
    values = samples.column("value").to_numpy(zero_copy_only=False).astype(np.float64)
    found = {}
    for key in np.unique(keys):
        rows = np.flatnonzero((keys == key) & np.isfinite(values))
        rows = rows[np.argsort(t_ns[rows], kind="stable")]
        if rows.size:
            found[sources[key // len(metrics)], metrics[key % len(metrics)]] = Sampled(t_ns[rows], values[rows])
    return found


def total(runs: Iterable[Split], source: str, metric: str) -> float | None:
    """Sum over all samples of all runs; None where it was not sampled."""
    sums = [float(run[source, metric].values.sum()) for run in runs if (source, metric) in run]
    return sum(sums) if sums else None


def pooled(runs: Iterable[Split], source: str, metric: str) -> Array:
    """All its values, run after run; empty where it was not sampled."""
    found = [run[source, metric].values for run in runs if (source, metric) in run]
    return np.concatenate(found) if found else np.empty(0)


def mean(values: Array) -> float | None:
    return float(values.mean()) if values.size else None


def most(values: Array) -> float | None:
    return float(values.max()) if values.size else None
