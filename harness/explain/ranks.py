"""Finds what the ranks of one program lose to one another, in attached programs and in runs of this trainer.

Attached program (:func:`group_gain`): what its ranks would gain without data work. A rank waits for another one while
its main thread has no core in its backward pass (DDP); the exchange itself takes all ranks equally long:

    wait of a rank    time off its core in backward passes - the least of all ranks in that step
    saved             least over ranks of: the rank's own fetch time that is removed + its wait

The interval covers what the record leaves open: a thread that is ready without a core looks like one that waits, a rank
off its core in another phase may wait (FSDP), and a wait that keeps the core busy looks like work.

Run of this trainer (:func:`ranks_of`): which rank made the others wait, and by which part of its step. A rank *arrives*
(CLOCK_MONOTONIC) when its last gradients are ready (ddp), or when its first forward pass begins to gather weights
(fsdp):

    wait of a rank      last arrival - its own arrival
    exchange            end of the backward pass's exchange - last arrival (ddp)
    excess of a rank    mean time of one part of its step - the longest mean time of the other ranks
    saved               mean over steps of: last arrival - last arrival if that rank spent on that part what the next
                        rank does: its longest time becomes the other's longest, its second longest the second longest
    without data        mean over steps of: last arrival - last arrival if no rank waited for data in that step

An excess within the scatter of arrivals does not count. Waits within fsdp's passes, and with several micro-batches
within each pass, are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from harness.explain.ledger import derived_steps
from harness.explain.policy import RANK_STEPS_UNLIKE, STRAGGLER_BLOCKS_SHARE, STRAGGLER_ERRORS_MIN
from harness.explain.spans import FETCH, NOT_MEASURED, column, once_per_run, spans_of
from harness.explain.statistics import Estimate, from_blocks, holding, widening
from harness.scenario.overrides import lookup_number
from harness.study.contract import EXCHANGE, PHASES, SPAN_COLUMNS, STAGES, STEP_COLUMNS, rank_file
from harness.study.files import check
from harness.study.run_data import RunData
from harness.study.tables import StoredTable
from trainer.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Float = NDArray[np.float64]
BACKWARD = "backward"
_Edit = Callable[[Float], Float]  # maps the ranks' fetches (rank, step) to edited ones


@dataclass(frozen=True)
class RankSteps:
    """Measured steps of one rank in one block; all arrays (steps,), or (rank, step) for several ranks. Times in ns."""

    step: Float  # step numbers
    wall: Float
    fetch: Float
    off_core: Float  # time off a core within backward passes
    elsewhere: Float  # time off a core in phases other than fetches and backward passes
    ready: Float  # time ready without a core; the block's average share of each step
    unseen: Float  # time blocked outside of all phases; the block's average share of each step


@dataclass(frozen=True)
class GroupGain:
    """Estimated speed gain of a program with several ranks: step time / step time if fetches were shorter."""

    slowest: str  # rank with the longest fetches
    without_data: Estimate  # no rank has any data work
    slowest_alike: Estimate  # the slowest rank fetches no longer than the next one
    exchange_ms: float  # time per step for which all ranks are blocked, fetches excluded: the exchange, or other waits


def rank_steps(run: RunData) -> RankSteps | None:
    """Return the measured steps of one rank of a CPU program under ``harness exec``.

    None for other runs, for a program with one rank, and without CPU times."""
    facts = run.record.facts
    if facts.attached is None or (facts.ranks or 1) < 2 or facts.asynchronous:
        return None
    table = run.step_columns(["step", "warmup", "start_ns", "wall_ns", "fetch_ns"])
    if table is None or not len(table) or not run.has_spans:
        return None
    wall, fetch = (np.nan_to_num(column(table, f"{name}_ns")) for name in ("wall", "fetch"))
    measured = np.flatnonzero(np.not_equal(column(table, "warmup"), 1) & (wall > 0))
    off_core = _off_core(run, column(table, "start_ns"))
    if off_core is None or not measured.size:
        return None
    in_backward, elsewhere = off_core
    ready, unseen = ((share or 0.0) * wall for share in (facts.waiting_share, facts.unseen_share))
    parts = (column(table, "step"), wall, fetch, in_backward, elsewhere, ready, unseen)
    return RankSteps(*(part[measured] for part in parts))


def _off_core(run: RunData, starts: Float) -> tuple[Float, Float] | None:
    """Return two arrays of the ns by step that the main thread was off a core: in backward passes, in other phases.

    Fetches do not count. ``starts``: start of each step in ns. None if CPU times or starts are unknown."""
    spans = spans_of(run)
    phases = spans.phases
    if not len(phases) or (phases.cpu_ns == NOT_MEASURED).any() or np.isnan(starts).any():
        return None
    order = np.lexsort((-phases.ends, phases.starts))  # If two phases begin together, the outer one comes first.
    phases = phases.where(order.astype(np.int64))
    before = np.concatenate([[phases.starts[0]], np.maximum.accumulate(phases.ends)[:-1]])
    outermost = phases.starts >= before  # phases inside another phase are part of it
    off_core = phases.ends - phases.starts - phases.cpu_ns.astype(np.float64)
    step = np.searchsorted(starts, phases.starts, side="right") - 1
    inside = step >= 0

    def by_step(times: Float) -> Float:
        sums: Float = np.maximum(np.bincount(step[inside], times[inside], minlength=len(starts)), 0.0)
        return sums

    # Fetches are excluded. A fetch within another phase is subtracted from that phase.
    within = np.maximum.accumulate(np.where(outermost, np.arange(len(off_core)), 0))
    fetch = phases.names == spans.code(FETCH)
    counted = np.where(outermost & ~fetch, off_core, 0.0) - np.where(~outermost & fetch & ~fetch[within], off_core, 0.0)
    backward = (phases.names == spans.code(BACKWARD))[within]
    return by_step(np.where(backward, counted, 0.0)), by_step(np.where(backward, 0.0, counted))


def group_gain(steps: Mapping[str, Mapping[int, RankSteps]]) -> GroupGain | None:
    """Return what the ranks of a program would gain without data work. ``steps``: by rank (an arm each), then by block.

    None with one rank, without common steps, or if step times differ so much that ranks do not wait each step."""
    if len(steps) < 2:
        return None
    shared = sorted(set.intersection(*(set(by_block) for by_block in steps.values())))
    aligned = [
        block for number in shared if (block := _aligned([by_block[number] for by_block in steps.values()])) is not None
    ]
    if not aligned:
        return None
    walls = np.array([block.wall.mean(axis=1) for block in aligned]).mean(axis=0)
    if walls.max() / walls.min() - 1 > RANK_STEPS_UNLIKE:
        return None
    fetches = np.array([block.fetch.mean(axis=1) for block in aligned]).mean(axis=0)
    last = int(fetches.argmax())
    return GroupGain(
        slowest=list(steps)[last],
        without_data=_speed(aligned, lambda fetch: np.zeros_like(fetch)),
        slowest_alike=_speed(aligned, lambda fetch: _no_longer_than_the_next(fetch, last)),
        exchange_ms=float(np.mean([_exchange_ns(block).mean() for block in aligned])) / 1e6,
    )


def _exchange_ns(block: RankSteps) -> Float:
    """Return the ns by step, (steps,), for which every rank is blocked outside of its fetches."""
    blocked: Float = np.maximum(block.off_core + block.elsewhere - block.ready, 0.0).min(axis=0)
    return blocked


def _aligned(ranks: Sequence[RankSteps]) -> RankSteps | None:
    """Return the steps that all ranks measured, as (rank, step) arrays; None without such steps."""
    common = reduce(np.intersect1d, [rank.step for rank in ranks])
    if not common.size:
        return None
    places = [np.flatnonzero(np.isin(rank.step, common)) for rank in ranks]

    def together(name: str) -> Float:
        return np.stack([getattr(rank, name)[place] for rank, place in zip(ranks, places, strict=True)])

    return RankSteps(*(together(field.name) for field in fields(RankSteps)))


def _no_longer_than_the_next(fetch: Float, last: int) -> Float:
    edited = fetch.copy()
    edited[last] = np.minimum(fetch[last], np.delete(fetch, last, axis=0).max(axis=0))
    return edited


def _speed(blocks: Sequence[RankSteps], edit: _Edit) -> Estimate:
    """Return measured / edited step time if fetch times change as by ``edit``.

    The interval covers the least and the most time for which ranks may have waited for one another."""
    readings: list[Estimate] = []
    for saved_ns in (_saved, _saved_at_least, _saved_at_most):
        logs = []
        for block in blocks:
            wall = float(block.wall.mean())
            edited_wall = max(wall - float(np.mean(saved_ns(block, block.fetch - edit(block.fetch)))), 0.01 * wall)
            logs.append(math.log(wall / edited_wall))
        estimate = from_blocks(logs)
        assert estimate is not None
        readings.append(estimate)
    return holding(readings[0], readings[1:])


def _saved(block: RankSteps, gone: Float) -> Float:
    """Return the ns saved in each step, (steps,), if each rank's fetches get shorter by ``gone`` ns, (rank, step)."""
    saved: Float = (gone + block.off_core - block.off_core.min(axis=0)).min(axis=0)
    return saved


def _saved_at_least(block: RankSteps, gone: Float) -> Float:
    """Return the least mean ns saved per step, (1,). Time in which a rank was ready but had no core does not count as a
    wait for other ranks. ``gone``: ns by which each rank's fetches get shorter, (rank, step)."""
    waiting = np.maximum(block.off_core - block.ready, 0.0).mean(axis=1)
    saved = (gone.mean(axis=1) + waiting - waiting.min()).min()
    return np.array([min(float(saved), float(_saved(block, gone).mean()))])


def _saved_at_most(block: RankSteps, gone: Float) -> Float:
    """Return the most ns saved in each step, (steps,). All blocked time outside of fetches counts as a wait for other
    ranks. ``gone``: ns by which each rank's fetches get shorter, (rank, step)."""
    waits = block.off_core + block.elsewhere + block.unseen - block.off_core.min(axis=0)
    saved: Float = np.minimum((gone + waits).min(axis=0), gone.max(axis=0))
    return saved


Unknown = Literal["", "device", "micro-batches", "not recorded"]
AFTER = ("optimizer", "sync", "log", "checkpoint", "other")  # phases from the exchange to the next step


@dataclass(frozen=True)
class RankTimes:
    """Times of one rank: means over its measured steps, in ms."""

    number: int
    step_ms: float
    tokens_per_s: float | None
    fetch_ms: float
    wait_ms: float | None = None  # time waiting for other ranks; None: unknown


@dataclass(frozen=True)
class Straggler:
    """Rank that the other ranks wait for most. ``part``: stage or phase of its step that they wait for."""

    number: int
    part: str
    excess_ms: float
    saved_ms: float  # per step, if the rank took no longer for ``part`` than the next one
    error_ms: float = 0.0  # standard error of the excess, corrected for steps that resemble their neighbours


@dataclass(frozen=True)
class RanksReport:
    """Times of the ranks of one run (or means over blocks), and how long the ranks wait for one another."""

    parallel: str
    step_ms: float
    ranks: tuple[RankTimes, ...]
    exchange_ms: float | None = None  # per step
    straggler: Straggler | None = None
    unknown: Unknown = ""  # why waits are unknown
    nodes: int = 1
    clock_error_ms: float | None = None  # clock error between nodes; None on one node
    data_costs_ms: float | None = None  # step time saved if no rank had data work; None: unknown

    @property
    def without_straggler_ms(self) -> float:
        """Step time in ms if the straggler took no longer for its ``part`` than the next slowest rank."""
        return self.step_ms - (0.0 if self.straggler is None else self.straggler.saved_ms)


@dataclass(frozen=True)
class _RankArrivals:
    """Measured steps of one rank, (steps,) each: numbers, tokens, and times in ns."""

    step: Float
    start: Float
    wall: Float
    tokens: Float
    arrival: Float  # when the rank was ready for the exchange; NaN: unknown
    data: Float  # time of all data work
    exchange_end: Float
    parts: dict[str, Float]  # time by part, from the previous exchange to the arrival


def ranks_of(runs: Sequence[RunData]) -> RanksReport | None:
    """Return the report on the ranks of one arm, mean over its runs; None with one rank, or for a user's program."""
    return _mean([report for run in runs if (report := ranks_of_run(run)) is not None])


@once_per_run("ranks")
def ranks_of_run(run: RunData) -> RanksReport | None:
    """Return the report on the ranks of a run, computed once; None as :func:`ranks_of`, or if a table is missing."""
    facts = run.record.facts
    count = facts.ranks or 1
    if facts.attached is not None or count < 2 or run.folder is None or run.record.status != "done":
        return None
    arrivals = []
    for number in range(count):
        with suppress(InputError):  # A damaged table is reported elsewhere.
            hidden = bool(facts.asynchronous) or _gathers_often(run)
            rank = _read(run if number == 0 else _other(run, number), number, hidden=hidden)
            if rank is not None:
                arrivals.append(rank)
    if len(arrivals) < count:
        return None
    common = reduce(np.intersect1d, [rank.step for rank in arrivals])
    if not common.size:
        return None
    ranks = [_only(arrival, common) for arrival in arrivals]
    own_tokens = ranks[0].tokens - sum((arrival.tokens for arrival in ranks[1:]), np.zeros(len(common)))
    ranks[0] = replace(ranks[0], tokens=own_tokens)  # The table of rank 0 counts the tokens of all ranks.
    error_ms = None if facts.clock_error_ns is None else facts.clock_error_ns / 1e6
    report = replace(_report(facts.parallel or "", ranks), nodes=facts.nodes or 1, clock_error_ms=error_ms)
    if all(times.wait_ms is not None for times in report.ranks):
        return report
    return replace(
        report, unknown="device" if facts.asynchronous else "micro-batches" if _gathers_often(run) else "not recorded"
    )


def _gathers_often(run: RunData) -> bool:
    """Return True if a step has several forward passes that each begin with a wait for the other ranks (fsdp)."""
    accumulated = lookup_number(run.record.config, "optimizer.accumulation", 1) > 1
    return run.record.facts.parallel == "fsdp" and accumulated


def _other(run: RunData, number: int) -> RunData:
    assert run.folder is not None
    names = [rank_file(table, number) for table in ("steps", "spans")]
    check(run.folder, run.record.digests, names)
    steps = StoredTable(run.folder / names[0], STEP_COLUMNS)
    spans = StoredTable(run.folder / names[1], SPAN_COLUMNS)
    return RunData(run.record, steps, spans, None)


def _read(run: RunData, number: int, *, hidden: bool) -> _RankArrivals | None:
    """Return the measured steps of rank ``number``; None without a table.

    ``hidden``: True if it is not recorded when the rank was ready for the exchange; ``arrival`` is then NaN."""
    table = derived_steps(run).table
    if table is None or not len(table):
        return None
    start, wall, step = (column(table, name) for name in ("start_ns", "wall_ns", "step"))
    forward, exchanges = _moments(run, number)
    arrival, end = np.full(len(step), np.nan), np.full(len(step), np.nan)
    if not hidden:  # The host's clock does not show when a device arrives.
        first = exchanges if len(exchanges) else forward
        place = np.searchsorted(start, first[:, 0], side="right") - 1
        inside = (place >= 0) & (first[:, 0] < start[place] + wall[place])
        for where, (moment, ended) in zip(place[inside][::-1], first[inside][::-1], strict=True):  # the first one wins
            arrival[where] = moment
            end[where] = ended if len(exchanges) else np.nan
    phases = {name: np.nan_to_num(column(table, f"{name}_ns")) for name in PHASES}
    parts = _parts(table, phases)
    consecutive = np.concatenate([[False], np.abs(start[1:] - start[:-1] - wall[:-1]) < 1e6])
    for name in AFTER:  # The phases at the end of a step delay the next step.
        parts[name] = np.where(consecutive, np.concatenate([[0.0], phases[name][:-1]]), 0.0)
    before = sum((phases[name] for name in (FETCH, "h2d", "forward")), np.zeros(len(step)))
    if len(exchanges):
        parts["backward"] = np.maximum(arrival - start - before, 0.0)
    else:
        parts.pop("forward")
        parts["backward"] = np.where(consecutive, np.concatenate([[0.0], phases["backward"][:-1]]), 0.0)
    measured = np.flatnonzero(np.not_equal(column(table, "warmup"), 1) & (wall > 0))
    tokens = column(table, "tokens")
    data = phases[FETCH] + phases["h2d"]
    return _only(_RankArrivals(step, start, wall, tokens, arrival, data, end, parts), step[measured])


def _parts(table: pa.Table, phases: dict[str, Float]) -> dict[str, Float]:
    """Return {part of a step before the exchange of gradients: ns by step}. ``phases``: ns by step of each phase.

    The wait for data is split by stage if that is known, else it is "fetch"."""
    within = {stage: column(table, f"during_wait_{stage}_ns") for stage in STAGES}
    split = not any(np.isnan(times).all() for times in within.values())
    data = {stage: np.nan_to_num(times) for stage, times in within.items()} if split else {FETCH: phases[FETCH]}
    return {**data, "h2d": phases["h2d"], "forward": phases["forward"]}


def _moments(run: RunData, number: int) -> tuple[Float, Float]:
    """Return the (start, end) of forward passes and of gradient exchanges of one rank, (spans, 2) each, in order."""
    forward, exchanges = [], []
    for batch in run.span_batches(["role", "rank", "name", "start_ns", "end_ns"]):
        columns = (batch.column(name).to_pylist() for name in ("role", "rank", "name", "start_ns", "end_ns"))
        for role, rank, name, start, end in zip(*columns, strict=True):
            if rank == number and role == EXCHANGE:
                exchanges.append((start, end))
            elif rank == number and role == "main" and name == "forward":
                forward.append((start, end))
    return _in_order(forward), _in_order(exchanges)


def _in_order(pairs: list[tuple[int, int]]) -> Float:
    return np.array(sorted(pairs), dtype=np.float64).reshape(-1, 2)


def _only(rank: _RankArrivals, steps: Float) -> _RankArrivals:
    chosen = np.flatnonzero(np.isin(rank.step, steps))
    columns = {field.name: getattr(rank, field.name)[chosen] for field in fields(rank) if field.name != "parts"}
    return replace(rank, parts={name: times[chosen] for name, times in rank.parts.items()}, **columns)


def _report(parallel: str, ranks: Sequence[_RankArrivals]) -> RanksReport:
    arrivals = np.stack([rank.arrival for rank in ranks])
    complete = np.asarray(np.isfinite(arrivals).all(axis=0))
    last = arrivals[:, complete].max(axis=0)
    times = []
    for number, measured in enumerate(ranks):
        seconds = measured.wall.sum() / 1e9
        times.append(
            RankTimes(
                number,
                step_ms=float(measured.wall.mean()) / 1e6,
                tokens_per_s=None if np.isnan(measured.tokens).any() else float(measured.tokens.sum() / seconds),
                fetch_ms=float(sum(measured.parts.get(name, np.zeros(1)).mean() for name in (*STAGES, FETCH))) / 1e6,
                wait_ms=float((last - measured.arrival[complete]).mean()) / 1e6 if complete.any() else None,
            )
        )
    ends = np.stack([rank.exchange_end for rank in ranks])[:, complete]
    timed = complete.any() and not np.isnan(ends).any()
    return RanksReport(
        parallel,
        step_ms=float(np.mean([rank.step_ms for rank in times])),
        ranks=tuple(times),
        exchange_ms=float((ends.max(axis=0) - last).mean()) / 1e6 if timed else None,
        straggler=_straggler(ranks, complete) if complete.any() else None,
        data_costs_ms=_data_costs_ms(ranks, complete) if complete.any() else None,
    )


def _data_costs_ms(ranks: Sequence[_RankArrivals], known: NDArray[np.bool_]) -> float:
    arrivals, data = (
        np.stack(rows)[:, known] for rows in ([rank.arrival for rank in ranks], [rank.data for rank in ranks])
    )
    return float((arrivals.max(axis=0) - (arrivals - data).max(axis=0)).mean()) / 1e6


def _straggler(ranks: Sequence[_RankArrivals], known: NDArray[np.bool_]) -> Straggler | None:
    """Return the rank and part of its step that others wait for most, or None. ``known``: steps with all arrivals."""
    steps = int(known.sum())
    arrivals = np.stack([rank.arrival[known] for rank in ranks])
    last = arrivals.max(axis=0)
    stragglers: list[Straggler] = []
    for part in ranks[0].parts:
        if any(part not in rank.parts for rank in ranks):
            continue
        spent = [np.nan_to_num(rank.parts[part][known]) for rank in ranks]
        means = [float(values.mean()) for values in spent]
        for number, mean in enumerate(means):
            following = max((peer for peer in range(len(means)) if peer != number), key=means.__getitem__)
            excess = mean - means[following]
            if excess > 0:
                earlier = arrivals.copy()
                earlier[number] -= _beyond(spent[number], spent[following])
                saved = float((last - earlier.max(axis=0)).mean())
                difference = spent[number] - spent[following]
                error = float(difference.std()) / math.sqrt(max(1, steps - 1)) * widening(difference)
                stragglers.append(Straggler(number, part, excess / 1e6, saved / 1e6, error / 1e6))
    return max(stragglers, key=lambda straggler: straggler.saved_ms, default=None)


def _beyond(slow: Float, other: Float) -> Float:
    """Return by how much each of ``slow`` exceeds the equally ranked value (shortest with shortest, ...) of ``other``.

    Both have the same length. The result is in the order of ``slow``."""
    beyond = np.empty(len(slow))
    beyond[np.argsort(slow, kind="stable")] = np.sort(slow) - np.sort(other)
    return beyond


def _mean(reports: Sequence[RanksReport]) -> RanksReport | None:
    """Return the mean of the reports of all blocks; None without reports. It has a straggler if STRAGGLER_BLOCKS_SHARE
    of the blocks name the same rank and part, and the mean excess is over STRAGGLER_ERRORS_MIN standard errors."""
    if not reports:
        return None
    named = [report.straggler for report in reports if report.straggler is not None]
    places = [(candidate.number, candidate.part) for candidate in named]
    worst = max(places, key=places.count, default=None)
    matches = [candidate for candidate in named if (candidate.number, candidate.part) == worst]
    straggler = None
    if worst is not None and len(matches) >= STRAGGLER_BLOCKS_SHARE * len(reports):
        error_ms = math.sqrt(sum(candidate.error_ms**2 for candidate in matches)) / len(matches)
        excess_ms = _average([candidate.excess_ms for candidate in matches])
        if excess_ms > STRAGGLER_ERRORS_MIN * error_ms:
            straggler = Straggler(*worst, excess_ms, _average([candidate.saved_ms for candidate in matches]), error_ms)
    exchanges = [report.exchange_ms for report in reports if report.exchange_ms is not None]
    costs = [report.data_costs_ms for report in reports]
    return RanksReport(
        reports[0].parallel,
        _average([report.step_ms for report in reports]),
        tuple(_mean_rank(group) for group in zip(*(report.ranks for report in reports), strict=True)),
        _average(exchanges) if exchanges else None,
        straggler,
        next((report.unknown for report in reports if report.unknown), ""),
        reports[0].nodes,
        max((report.clock_error_ms for report in reports if report.clock_error_ms is not None), default=None),
        None if any(cost is None for cost in costs) else _average([cost or 0.0 for cost in costs]),
    )


def _mean_rank(group: Sequence[RankTimes]) -> RankTimes:
    tokens = [rank.tokens_per_s for rank in group if rank.tokens_per_s is not None]
    waits = [rank.wait_ms for rank in group if rank.wait_ms is not None]
    return RankTimes(
        group[0].number,
        _average([rank.step_ms for rank in group]),
        _average(tokens) if len(tokens) == len(group) else None,
        _average([rank.fetch_ms for rank in group]),
        _average(waits) if waits else None,
    )


def _average(values: Sequence[float]) -> float:
    return float(np.mean(values))
