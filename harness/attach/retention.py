"""Bound the disk that a long program's record takes: keep some segments whole, and a distribution of each.

The launcher looks at the record folder while the program runs. Of each series (the files of one process), it keeps the
first and the last closed segments, and evenly spread ones between them, as long as they fit into RETAINED_BYTES. It
appends a :class:`Minute` of every closed segment to the file DIGEST, and the notes of every deleted one. Files of
loader workers go when no kept segment uses their batches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.attach.agent import events as kinds
from harness.attach.frames import (
    DIGEST,
    MINUTE,
    NOTES,
    AttachedProcess,
    ProcessFacts,
    Series,
    append,
    events,
    frames,
    is_worker,
    read_file,
)
from harness.attach.steps import StepSeen, steps_of
from harness.attach.totals import Event, own_ns, waited_ns
from harness.study.run_data import LongStep, Minute

FIRST, LAST = 5, 2  # closed segments that are always kept whole
RETAINED_BYTES = 8 << 20  # total size of further closed segments that are kept whole, unless a single one is larger
WORKER_MARGIN_NS = 120 * 1_000_000_000  # maximum time between the making of a batch by a loader worker and its step
LONG_RATIO = 4.0  # a step longer than so many medians of its minute is kept as a LongStep
MOST_LONG_STEPS = 20  # of one minute


class _Closed(NamedTuple):
    path: Path
    bytes: int
    begun_ns: int  # CLOCK_MONOTONIC
    ended_ns: int


class _Trainer:
    """Files of one process that trains: closed ones, kept ones, and the STEP event of the step open at their end."""

    def __init__(self) -> None:
        self.closed: list[_Closed] = []
        self.whole: set[int] = set()  # numbers of the closed segments that are not deleted
        self.open_step: Event | None = None


class Retention:
    """Keeps the record in the folder ``raw`` small. Each :meth:`look` handles files closed since the last one."""

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        self._facts: dict[Path, ProcessFacts] = {}
        self._trainers: dict[Series, _Trainer] = {}
        self._workers: set[Path] = set()  # closed files of loader workers

    def look(self) -> None:
        files = self._files()
        for series, paths in files.items():
            trainer = self._trainers.get(series)
            known = self._workers if trainer is None else {trainer.closed[number].path for number in trainer.whole}
            for path in paths[:-1]:  # The last one may still be written.
                if path in known:
                    continue
                if is_worker(path):
                    self._workers.add(path)
                else:
                    self._close(series, path)
            if paths[-1] not in self._workers and not _is_alive(series[0]) and is_worker(paths[-1]):
                self._workers.add(paths[-1])
            if series in self._trainers:
                self._thin(series)
        self._workers &= self._facts.keys()
        self._remove_unused()

    def _files(self) -> dict[Series, list[Path]]:
        """Return the files of each series (the files of one process that continue each other), oldest first."""
        files: dict[Series, list[Path]] = {}
        present = set(self._raw.glob(f"*{kinds.SUFFIX}"))
        self._facts = {path: facts for path, facts in self._facts.items() if path in present}
        for path in present:
            if path not in self._facts:
                try:
                    word, content = next(frames(path), ("", None))
                except FileNotFoundError:  # A thread of the program opened a file after another one had.
                    continue
                if word != kinds.PROCESS or content is None:
                    continue
                self._facts[path] = ProcessFacts(**content)
            files.setdefault(self._facts[path].series, []).append(path)
        for paths in files.values():
            paths.sort(key=lambda path: self._facts[path].segment)
        return files

    def _close(self, series: Series, path: Path) -> None:
        trainer = self._trainers.setdefault(series, _Trainer())
        facts = self._facts[path]
        minute, open_step, ended_ns = summarize(path, facts, trainer.open_step)
        size = path.stat().st_size
        if minute is not None:
            append(self._raw / DIGEST, MINUTE, (series, facts.segment, asdict(minute)))
        trainer.open_step = open_step  # An error before this line changes nothing: the next look tries again.
        trainer.whole.add(len(trainer.closed))
        trainer.closed.append(_Closed(path, size, facts.now_ns, ended_ns))

    def _thin(self, series: Series) -> None:
        trainer = self._trainers[series]
        for number in trainer.whole - kept([segment.bytes for segment in trainer.closed]):
            self._delete(trainer.closed[number].path)
            trainer.whole.discard(number)

    def _delete(self, path: Path) -> None:
        file = read_file(path)
        if file is not None and file.notes:
            append(self._raw / DIGEST, NOTES, (file.process.series, file.process.segment, file.notes))
        path.unlink(missing_ok=True)
        self._facts.pop(path, None)

    def _remove_unused(self) -> None:
        """Delete closed files of loader workers once every training segment that used their batches is deleted."""
        whole: list[_Closed] = []
        latest_ns = 0  # end of the last deleted segment
        for trainer in self._trainers.values():
            for number, segment in enumerate(trainer.closed):
                if number in trainer.whole:
                    whole.append(segment)
                else:
                    latest_ns = max(latest_ns, segment.ended_ns)
        for path in sorted(self._workers):
            begun_ns = self._facts[path].now_ns
            ended_ns = time.monotonic_ns() - round((time.time() - path.stat().st_mtime) * 1e9)
            used = any(segment.begun_ns < ended_ns and begun_ns < segment.ended_ns for segment in whole)
            if not used and ended_ns + WORKER_MARGIN_NS < latest_ns:
                self._delete(path)
                self._workers.discard(path)


def kept(sizes: Sequence[int]) -> set[int]:
    """Return the indices of the closed segments to keep. ``sizes``: their bytes, oldest first.

    Between the first FIRST and last LAST every n-th, n the smallest power of two that fits into RETAINED_BYTES.
    """
    count = len(sizes)
    always = {number for number in range(count) if number < FIRST or number >= count - LAST}
    stride = 1
    while stride < count and sum(sizes[FIRST : count - LAST : stride]) > RETAINED_BYTES:
        stride *= 2
    return always | set(range(FIRST, max(FIRST, count - LAST), stride))


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def summarize(path: Path, facts: ProcessFacts, open_step: Event | None) -> tuple[Minute | None, Event | None, int]:
    """Return (summary, STEP event that is open at the end, end of the last measured step in ns) of the file ``path``.

    ``open_step``: STEP event that the segment before left open. The summary is None without a measured step.
    """
    steps: list[StepSeen] = []  # measured
    evaluating_ns = 0
    last: Event | None = None
    ended_ns = facts.now_ns
    for step in steps_of(events([path]), open_step):
        if step.ended is None:
            last = step.begun
        elif not step.excluding and not step.begun[5]:
            steps.append(step)
            ended_ns = step.ended[1]
        elif any(event[0] == kinds.EVALUATION for event in step.excluding):
            evaluating_ns += step.ended[1] - step.begun[1]
    return (_minute(facts, steps, evaluating_ns, ended_ns) if steps else None), last, ended_ns


def _minute(facts: ProcessFacts, steps: Sequence[StepSeen], evaluating_ns: int, ended_ns: int) -> Minute:
    wall_ns = np.array([step.end_ns - step.begun[1] for step in steps])
    count = len(steps)
    median_ns, p90_ns, p99_ns = map(float, np.quantile(wall_ns, (0.5, 0.9, 0.99)))
    long = [int(number) for number in np.argsort(wall_ns)[::-1] if wall_ns[number] > LONG_RATIO * median_ns]
    tokens = samples = collecting_ns = waiting_ns = 0
    memory: list[tuple[int, int, int, int]] = []
    parts_ns: Counter[str] = Counter()
    for step in steps:
        waiting_ns += _waiting_ns(step)
        parts_ns.update(own_ns(step.body))
        for event in step.body:
            if event[0] == kinds.RECEIVED:
                tokens += event[2]
                samples += event[4]
            elif event[0] == kinds.COLLECTED:
                collecting_ns += event[2]
            elif event[0] == kinds.MEMORY_READ:
                memory.append((step.number, event[1], event[2], event[3]))
    begun_ns = steps[0].begun[1]
    return Minute(
        first_step=steps[0].number,
        start_utc_s=_utc_s(facts, begun_ns),
        span_s=(ended_ns - begun_ns) / 1e9,
        steps=count,
        wall_s=float(wall_ns.sum()) / 1e9,
        mean_ms=float(wall_ns.mean()) / 1e6,
        p50_ms=median_ns / 1e6,
        p90_ms=p90_ns / 1e6,
        p99_ms=p99_ns / 1e6,
        max_ms=float(wall_ns.max()) / 1e6,
        parts_ms={name: ns / 1e6 / count for name, ns in parts_ns.items()},
        waiting_ms=waiting_ns / 1e6 / count,
        collecting_ms=collecting_ns / 1e6 / count,
        evaluating_s=evaluating_ns / 1e9,
        tokens=tokens,
        samples=samples,
        memory_bytes=memory[-1][1] + memory[-1][2] if memory else None,
        long_steps=tuple(_long_step(facts, steps[number]) for number in long[:MOST_LONG_STEPS]),
        long_steps_left_out=len(long[MOST_LONG_STEPS:]),
        memory=tuple(memory),
    )


def _waiting_ns(step: StepSeen) -> int:
    return 0 if step.ended is None else waited_ns(step.begun, step.ended)


def _long_step(facts: ProcessFacts, step: StepSeen) -> LongStep:
    return LongStep(
        step.number,
        _utc_s(facts, step.begun[1]),
        (step.end_ns - step.begun[1]) / 1e6,
        {name: ns / 1e6 for name, ns in own_ns(step.body).items()},
        sum(event[2] for event in step.body if event[0] == kinds.COLLECTED) / 1e6,
        _waiting_ns(step) / 1e6,
        {event[1]: event[2] for event in step.body if event[0] == kinds.COUNTED},
    )


def _utc_s(facts: ProcessFacts, now_ns: int) -> float:
    return (now_ns + facts.realtime_minus_monotonic_ns) / 1e9


def minutes_of(process: AttachedProcess) -> dict[int, Minute]:
    """Return a summary (:class:`Minute`) of each file of ``process`` by its number: stored, or else computed."""
    minutes = dict(process.minutes)
    for stretch in process.stretches:
        open_step: Event | None = None
        for segment in stretch:
            if segment.number in minutes and segment.number + 1 in minutes:
                open_step = None
                continue
            minute, open_step, _ = summarize(segment.path, process.process, open_step)
            if minute is not None:
                minutes.setdefault(segment.number, minute)
    return dict(sorted(minutes.items()))


def thinned(process: AttachedProcess, minutes: Mapping[int, Minute]) -> list[Minute]:
    """Return those of ``minutes`` (summaries by number of the file) whose files of ``process`` were deleted."""
    present = {segment.number for segment in process.segments}
    return [minute for number, minute in minutes.items() if number not in present]
