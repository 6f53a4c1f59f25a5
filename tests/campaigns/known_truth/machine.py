"""What this machine adds to any declaration, measured beside the pipelines: on their a-a controls.

A control is another process with the same configuration, whose runs alternate with the pipeline's own. From its
spans come the five costs that no declaration holds. The pipeline's own runs are judged; the control's are not.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.study.run_data import RunData
from tests.campaigns.known_truth.pipelines import Pipeline
from tests.campaigns.known_truth.truth import Machine

ENOUGH = 30  # batches or blocking calls of one twin; where it has fewer, those of all twins of the study are used
_SURELY_READY_MS = 5.0  # a batch that was done this long before it was asked for lies ready


@dataclass
class Costs:
    """Single costs in milliseconds, of one or more runs. The names are those of :class:`Machine`."""

    handover: list[float] = field(default_factory=list)
    receive: list[float] = field(default_factory=list)
    request: list[float] = field(default_factory=list)
    turnaround: list[float] = field(default_factory=list)
    wake: list[float] = field(default_factory=list)

    def machine(self, others: Costs) -> Machine:
        """Their means, for the ledger's figures are means; those of ``others`` where these are too few."""
        means = {}
        for name, own in vars(self).items():
            values = own if len(own) >= ENOUGH else getattr(others, name)
            means[name] = statistics.fmean(values) if values else getattr(Machine, name)
        return Machine(**means)


def costs_of(runs: Iterable[RunData], pipeline: Pipeline) -> Costs:
    """What the spans of a pipeline's twin show, beyond what ``pipeline`` declares."""
    costs = Costs()
    for run in runs:
        assert run.spans is not None
        rows: list[dict[str, Any]] = run.spans.to_pylist()
        if pipeline.workers:
            _batches(costs, rows, pipeline, _measured_since(run))
        costs.wake += _wakes(rows)
    return costs


def pooled(costs: Iterable[Costs]) -> Costs:
    """All of them as one."""
    whole = Costs()
    for one in costs:
        for name, values in vars(one).items():
            getattr(whole, name).extend(values)
    return whole


def _measured_since(run: RunData) -> float:
    """When its first measured step began, in milliseconds. Before that a run stands still until its turn comes."""
    columns = run.step_columns(("warmup", "start_ns"))
    assert columns is not None
    return min(step["start_ns"] for step in columns.to_pylist() if not step["warmup"]) / 1e6


def _batches(costs: Costs, rows: list[dict[str, Any]], pipeline: Pipeline, since: float) -> None:
    every = [row for row in rows if row["role"] == "main" and row["name"] == "fetch"]
    began: dict[int, float] = {}
    built: dict[int, float] = {}
    for row in rows:
        if row["role"].startswith("loader"):
            batch = row["batch"]
            began[batch] = min(began.get(batch, float("inf")), row["start_ns"] / 1e6)
            built[batch] = max(built.get(batch, 0.0), row["end_ns"] / 1e6)
    least, most = pipeline.transfer * (1 - pipeline.jitter), pipeline.transfer * (1 + pipeline.jitter)
    ahead = pipeline.workers * pipeline.prefetch
    received = {fetch["batch"]: fetch["end_ns"] / 1e6 for fetch in every}
    fetches = [fetch for fetch in every if fetch["start_ns"] / 1e6 >= since]
    for fetch in fetches:
        batch, start, end = fetch["batch"], fetch["start_ns"] / 1e6, fetch["end_ns"] / 1e6
        if batch in built and built[batch] + most + _SURELY_READY_MS < start:
            costs.receive.append(end - start)
        elif batch in built and built[batch] + least > start:
            costs.handover.append(end - built[batch] - pipeline.transfer)
        # The batch asked for now is begun at once by a worker that has nothing left to do.
        asked, last = batch + ahead, batch + ahead - pipeline.workers
        if asked in began and last in built and built[last] + most + _SURELY_READY_MS < end:
            costs.request.append(began[asked] - end)
        # A batch that was asked for long before its worker had done the one before follows that at once.
        before, when = built.get(batch - pipeline.workers), received.get(batch - ahead)
        if before is not None and when is not None and batch in began and max(since, when + _SURELY_READY_MS) < before:
            costs.turnaround.append(began[batch] - before - pipeline.transfer)


def _wakes(rows: list[dict[str, Any]]) -> Iterator[float]:
    """How much later than the device's end each blocking call returned that waited for it."""
    ends = sorted(row["end_ns"] for row in rows if row["role"] == "device")
    for row in rows:
        if row["role"] == "sync" and (place := bisect_right(ends, row["end_ns"])):
            end = ends[place - 1]
            if end > row["start_ns"]:
                yield (row["end_ns"] - end) / 1e6
