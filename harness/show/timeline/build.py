"""Assembles the timeline: chooses windows, limits its size, and reports omissions.

The ledger is only shortened to fewer steps. Operators and samples are thinned out by duration; a launch counts with its
longest kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from harness.scenario.overrides import lookup_number
from harness.show.policy import TIMELINE_STEPS
from harness.show.timeline import operators
from harness.show.timeline.formats import CHROME_NAME, PROTOBUF_NAME, write_chrome, write_protobuf
from harness.show.timeline.model import (
    NO_SOURCES,
    Process,
    ShownRun,
    Sources,
    TimelineFacts,
    Trace,
    Window,
    choose,
    last_steps,
    resolve,
    roles,
)
from harness.show.timeline.tracks import DEVICE, MAIN, ledger, queue_depth, sampled
from harness.study.records import StudyRecord
from harness.study.run_data import RunData

if TYPE_CHECKING:
    import pyarrow as pa

Ranked = tuple[np.ndarray, np.ndarray]  # durations, events


@dataclass(frozen=True)
class SizeLimits:
    """Maximum number of events of each format that Perfetto opens in a few seconds; 0: the format is not used."""

    chrome_events: int = 1_000_000
    protobuf_events: int = 4_000_000 if find_spec("perfetto") is not None else 0  # package for Perfetto's own format


@dataclass(frozen=True)
class Timeline:
    """Result of :func:`timeline`: the bytes of a timeline file, and what was left out of it."""

    content: bytes  # gzipped
    name: str  # file name, by the format
    events: int
    cut: list[str]  # a sentence on each omission


@dataclass(frozen=True)
class TimelinePart:
    """One run on the timeline: its window of steps, and the probes' slices within it."""

    window: Window
    operators: pa.Table | None  # slices of torch.profiler; None: did not run
    stacks: pa.Table | None  # slices of py-spy; None: did not run

    @cached_property
    def ranked(self) -> tuple[Ranked | None, Ranked | None]:
        """(durations in ns, numbers of events) of operators and of samples; None for a probe that did not run."""
        samples = None if self.stacks is None else self.stacks["duration_ns"].to_numpy()
        return (
            None if self.operators is None else operators.ranked(self.operators),
            None if samples is None else (samples, np.ones(len(samples), dtype=np.int64)),
        )

    @property
    def details(self) -> int:
        """Number of events of all operators and samples."""
        return sum(int(costs.sum()) for _, costs in filter(None, self.ranked))


def timeline(
    study: StudyRecord,
    runs: Iterable[RunData],
    sources: Mapping[tuple[str, int], Sources] | None = None,
    limits: SizeLimits | None = None,
) -> Timeline:
    """Build the timeline of the last steps of each arm's first finished run and of its profiled run.

    ``sources``: files of the probes, by arm and block. ``limits``: None for the defaults. A timeline that is too large
    for Chrome's format is written in Perfetto's own format; without the ``perfetto`` package it is cut. The same input
    gives the same bytes.
    """
    steps = max(1, int(lookup_number(study.scenario_text, "probes.timeline_steps", TIMELINE_STEPS)))
    return _fitted(study, choose(study, runs), sources or {}, steps, limits or SizeLimits())


def run_timeline(study: StudyRecord, run: RunData, sources: Sources, limits: SizeLimits | None = None) -> Timeline:
    """Build the timeline of all steps of one run, which must have steps. ``limits``: None for the defaults."""
    return _fitted(study, [run], {_key(run): sources}, None, limits or SizeLimits())


def _fitted(
    study: StudyRecord,
    runs: Sequence[RunData],
    sources: Mapping[tuple[str, int], Sources],
    steps: int | None,
    limits: SizeLimits,
) -> Timeline:
    """Build a timeline within ``limits``: fewer of the last ``steps`` (None: all), then without short details."""
    longest = max((run.step_count for run in runs), default=0)
    wanted = longest if steps is None else min(steps, longest)
    shown = steps
    while True:
        parts = [_part(last_steps(run, sources.get(_key(run), NO_SOURCES), shown)) for run in runs]
        details = sum(part.details for part in parts)
        fixed = resolve(_trace(study, [TimelinePart(part.window, None, None) for part in parts])).events
        large = fixed + details > limits.chrome_events and limits.protobuf_events > 0
        budget = limits.protobuf_events if large else limits.chrome_events
        chosen = wanted if shown is None else shown
        if fixed <= budget or chosen <= 1:
            break
        shown = max(1, int(chosen * 0.9 * budget / fixed))  # 10 % less than fits if events are spread evenly
    cut = []
    if chosen < wanted:
        cut.append(
            f"only the last {chosen:,} of {wanted:,} steps of a run are shown: all would be over {budget:,} events"
        )
    room = max(budget - fixed, 0)
    if details > room:
        parts, sentence = _thinned(parts, 0.95 * room)  # the names of their rows are events too
        cut.append(sentence)
    resolved = resolve(_trace(study, parts, cut))
    content = write_protobuf(resolved) if large else write_chrome(resolved)
    return Timeline(content, PROTOBUF_NAME if large else CHROME_NAME, resolved.events, cut)


def _key(run: RunData) -> tuple[str, int]:
    return run.record.arm, run.record.block


def _part(window: Window) -> TimelinePart:
    sources = window.sources
    table = None if sources.operators is None else operators.overlapping(sources.operators, window.ranges)
    samples = None if sources.stacks is None else operators.sample_slices(sources.stacks, window.ranges)
    return TimelinePart(window, None if table is None else operators.shown(table), samples)


def _thinned(parts: Sequence[TimelinePart], room: float) -> tuple[list[TimelinePart], str]:
    """Keep the longest operators, kernels and samples, at most ``room`` events, and a sentence on the omitted ones."""
    import pyarrow as pa

    ranked = [part.ranked for part in parts]
    ranks, costs = (np.concatenate([table[i] for part in ranked for table in part if table]) for i in (0, 1))
    order = np.argsort(-ranks, kind="stable")
    fitting = int(np.searchsorted(np.cumsum(costs[order]), room, side="right"))
    rank_min = int(ranks[order[min(fitting, len(order) - 1)]])

    def kept(table: pa.Table | None, ranked: Ranked | None) -> pa.Table | None:
        return None if table is None or ranked is None else table.filter(pa.array(ranked[0] > rank_min))

    thinned = [
        TimelinePart(part.window, kept(part.operators, calls), kept(part.stacks, samples))
        for part, (calls, samples) in zip(parts, ranked, strict=True)
    ]
    sentence = (
        f"{int((ranks <= rank_min).sum()):,} of {len(ranks):,} operators, kernels and samples are left out, each of at "
        f"most {rank_min / 1000:,.3f} microseconds: all would be too many for a browser"
    )
    return thinned, sentence


def _trace(study: StudyRecord, parts: Sequence[TimelinePart], cut: Sequence[str] = ()) -> Trace:
    trace = Trace(facts=_facts(study, parts, cut))
    for part in parts:
        window, name = part.window, part.window.name
        processes, arrows = ledger(window)
        if part.operators is not None:
            for role in (DEVICE,) if operators.has_kernels(part.operators) else ():
                processes.setdefault(role, Process(f"{name}: {window.run.record.facts.device or role}"))
            arrows += operators.add_operators(part.operators, name, processes, window.main_threads)
        if part.stacks is not None:
            operators.add_stacks(part.stacks, name, processes, roles(window.run))
        if window.sources.profiles:
            for role, counter in operators.memory(window.sources.profiles, window.ranges):
                processes.get(role, processes[MAIN]).counters.append(counter)
        depth = queue_depth(window.run, window.extent)
        if depth is not None:
            processes[MAIN].counters.append(depth)
        machine = sampled(window)
        trace.processes += [*processes.values(), *([machine] if machine.counters else [])]
        trace.arrows += arrows
    return trace


def _facts(study: StudyRecord, parts: Sequence[TimelinePart], cut: Sequence[str]) -> TimelineFacts:
    """Return metadata for the file: clock, shown steps and process id of each run, and omissions ``cut``."""
    runs = tuple(
        ShownRun(
            arm=part.window.run.record.arm,
            block=part.window.run.record.block,
            pid=part.window.run.record.pid,
            steps=len(part.window.steps),
            first_step=part.window.steps[0]["step"] if part.window.steps else None,
            realtime_minus_monotonic_ns=part.window.run.record.realtime_minus_monotonic_ns,
            clock_error_ns=_clock_errors(part.window.sources),
        )
        for part in parts
    )
    clock = "CLOCK_MONOTONIC: t_ns = base_monotonic_ns + 1000 * ts, one base for every process"
    return TimelineFacts(study.scenario, clock, runs, tuple(cut))


def _clock_errors(sources: Sources) -> dict[str, int]:
    """Return the error in ns against the ledger's clock of each probe with a clock of its own."""
    errors = {}
    profiled, sampled = sources.probes.torch_profiler, sources.probes.py_spy
    if profiled is not None and profiled.clock_error_ns is not None:
        errors["torch_profiler"] = profiled.clock_error_ns
    if sources.stacks is not None and sampled is not None:
        errors["py_spy"] = round(1e9 / sampled.rate_hz)  # the clock is known more exactly, but single samples are late
    return errors
