"""Find causes that hold for a whole program: steps or memory that grow, padding, and settings left on.

Each row is a :class:`harness.explain.causes.SlowCause`; a data stage's has the place that makes it. ``figures`` by
kind:

    growing    first_ms, last_ms (typical steps), part_share (of the growth, in its phase), hooks_first, hooks_last
    memory     bytes_per_step, full_s (seconds until no memory is free, at this rate); place: "" or WORKERS
    padding    share (positions that train nothing), column_share (positions in columns of padding only)
    start-up   skipped (batches before the first one that is trained on)
    breaks     breaks (graph breaks in functions that steps call); place and code: the last break and its reason
    maker      row_us (CPU time of one row in microseconds, if the dataset is read row by row)
    busy       cores (requested by other threads and child processes: running, or waiting for a core)
    setting    passes (backward passes per step that synchronize gradients), for "gradient synchronization"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.attach.frames import AttachedProcess
from harness.attach.totals import StepTotals
from harness.explain import causes as kinds
from harness.explain import policy
from harness.explain.trend import trend
from harness.explain.wall import START_UP
from trainer.json_types import JsonObject


def program_causes(
    one: AttachedProcess, blocks: Sequence[StepTotals], readings: Sequence[tuple[int, int, int, int]] = ()
) -> Iterator[JsonObject]:
    """Yield the causes of the whole process ``one`` as rows. ``readings``: of memory in steps that no block has."""
    looks = [_Look(*content) for content in one.noted("look")]
    yield from _growing(looks, blocks)
    yield from _memory(blocks, readings)
    yield from _demand(blocks)
    yield from _padding(one, blocks)
    yield from _settings(one, looks, blocks)
    yield from _makers(one, blocks)


class _Look(NamedTuple):
    """One inspection by the agent: hooks on the model's modules, and settings that slow the training."""

    step: int
    hooks: dict[str, int]  # number by kind
    settings: Sequence[str]  # settings that are on
    place: str  # newest hook in the module with the most hooks


def _growing(looks: Sequence[_Look], blocks: Sequence[StepTotals]) -> Iterator[JsonObject]:
    names = dict.fromkeys(name for totals in blocks for name in totals.lengths.parts)
    lengths = [totals.lengths for totals in blocks if totals.measured]
    if not lengths:
        return
    kind, place, hooks = "", "", {}
    if looks:
        first, last = looks[0], looks[-1]
        added = {name: last.hooks[name] - first.hooks.get(name, 0) for name in last.hooks}
        most = max(added, key=lambda name: added[name])
        if added[most] >= policy.HOOKS_ADDED_MIN:
            kind, place = most, last.place
            hooks = {"hooks_first": first.hooks.get(most, 0), "hooks_last": last.hooks[most]}
    growth = trend(
        _joined(length.wall for length in lengths),
        {name: _joined(length.parts.get(name, [0.0] * len(length.wall)) for length in lengths) for name in names},
        _joined(length.work for length in lengths),
        before=next(totals.first_measured for totals in blocks if totals.measured),
        evident=bool(hooks),
    )
    if growth is None:
        return
    figures = {"first_ms": growth.first_ms, "last_ms": growth.last_ms, "part_share": growth.part_share, **hooks}
    bounds = {"ms": growth.ms, "low_ms": growth.low_ms, "high_ms": growth.high_ms}
    phase = "" if growth.part == kinds.REST else growth.part
    yield {"kind": kinds.GROWING, "phase": phase, "called": kind, "place": place, **bounds, "figures": figures}


def _joined(parts: Iterable[Sequence[float]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])


def _memory(blocks: Sequence[StepTotals], others: Sequence[tuple[int, int, int, int]] = ()) -> Iterator[JsonObject]:
    """Yield a row if memory grows evenly after the first third of readings and is full within MEMORY_FULL_S seconds."""
    by_step = {
        reading[0]: reading for readings in (others, *(totals.memory for totals in blocks)) for reading in readings
    }
    readings = [by_step[step] for step in sorted(by_step)]
    readings = readings[len(readings) // 3 :]
    steps, wall_ns = (sum(getattr(totals, name) for totals in blocks) for name in ("measured", "wall_ns"))
    if len(readings) < policy.MEMORY_READINGS_MIN or not steps:
        return
    parts = np.array_split(np.asarray(readings, dtype=np.float64), 3)
    step, own, children, free = np.asarray([np.median(part, axis=0) for part in parts]).T
    (first, second), used = np.diff(own + children), own + children
    if min(first, second) < policy.EVEN_GROWTH_MIN * (first + second) or used[-1] - used[0] < policy.GROWN_BYTES_MIN:
        return
    bytes_per_step = (used[-1] - used[0]) / (step[-1] - step[0])
    full_s = free[-1] / bytes_per_step * wall_ns / steps / 1e9
    if full_s <= policy.MEMORY_FULL_S:
        workers = children[-1] - children[0] > own[-1] - own[0]
        yield {
            "kind": kinds.MEMORY,
            "place": kinds.WORKERS if workers else "",
            "figures": {"bytes_per_step": float(bytes_per_step), "full_s": float(full_s)},
        }


def _demand(blocks: Sequence[StepTotals]) -> Iterator[JsonObject]:
    """Yield a row with the mean number of cores that other threads and child processes asked for, if measured."""
    asked_ns, passed_ns = (sum(totals.demand_ns[place] for totals in blocks) for place in range(2))
    if asked_ns and passed_ns:
        yield {"kind": kinds.BUSY, "figures": {"cores": asked_ns / passed_ns}}


def _padding(one: AttachedProcess, blocks: Sequence[StepTotals]) -> Iterator[JsonObject]:
    """Yield a row with the share of padding; none without any. "ms": time of passes on it; None on a device."""
    positions, padded, columns = (sum(totals.data.padding[place] for totals in blocks) for place in range(3))
    steps = sum(totals.measured for totals in blocks)
    if not padded or not steps:
        return
    passes_ms = sum(sum(totals.lengths.parts.get(name, ())) for totals in blocks for name in ("forward", "backward"))
    packers = (maker for maker in one.noted("maker") if maker[0] == "pack" and maker[1])
    yield {
        "kind": kinds.PADDING,
        "called": next((f"{function}, {place}" for _, place, function, _ in packers), ""),
        "ms": None if one.noted("device") else padded / positions * passes_ms / steps,
        "figures": {"share": padded / positions, "column_share": columns / positions},
    }


def _settings(one: AttachedProcess, looks: Sequence[_Look], blocks: Sequence[StepTotals]) -> Iterator[JsonObject]:
    """Yield rows for slow settings left on, graph breaks, evaluation with gradients, repeated synchronization."""
    late = looks[len(looks) // 2 :]
    if len(late) >= policy.LOOKS_MIN:
        for name in late[0].settings:
            if all(name in look.settings for look in late):
                yield {"kind": kinds.SETTING, "place": name}
    for breaks, place, reason in one.noted("breaks")[-1:]:
        row = {"kind": kinds.BREAKS, "place": place, "code": reason}
        yield {**row, "figures": {"breaks": float(breaks)}}
    if sum(totals.excluded.evaluated[True] - totals.excluded.evaluated[False] for totals in blocks) > 0:
        yield {"kind": kinds.SETTING, "place": kinds.GRADIENTS}
    for _, synced, steps in one.noted("synced"):
        if synced >= policy.SYNCED_PASSES_MIN * steps:
            yield {"kind": kinds.SETTING, "place": kinds.SYNCHRONIZATION, "figures": {"passes": synced / steps}}


def _makers(one: AttachedProcess, blocks: Sequence[StepTotals]) -> Iterator[JsonObject]:
    """Yield a row per stage of a batch with the code that makes it, and a START_UP row if the first batch took long."""
    rows = sum(totals.data.rows for totals in blocks)
    row_us = sum(totals.data.making_cpu_ns for totals in blocks) / 1e3 / max(rows, 1)
    stages: set[str] = set()
    for stage, place, function, row_by_row in one.noted("maker"):
        if stage not in stages:
            stages.add(stage)
            made: JsonObject = {"place": place, "function": function}
            yield {
                "kind": kinds.MAKER,
                "phase": stage,
                **made,
                "figures": {"row_us": row_us} if row_by_row and rows else {},
            }
            waited_ms = sum(totals.first.fetch_ns for totals in blocks) / 1e6
            if stage == "read" and waited_ms >= policy.FIRST_FETCH_MS_MIN:
                first = max((totals.first for totals in blocks), key=lambda first: first.batches)
                # A program may fetch all batches of a step at once, or each before its passes.
                usual = max(totals.data.fetches_per_step for totals in blocks)
                skipped = min(first.ahead - 1, first.batches - usual)
                yield {"kind": START_UP, **made, "ms": waited_ms, "figures": {"skipped": max(skipped, 0)}}
