"""Causes of slow steps in a program's records: places in the code, collections, settings, threads and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.explain.policy import CHEAP_ROW_US_MAX, GC_CAUSE_RATIO
from harness.study.records import RunFacts, made_of

Z_95 = 1.96  # standard deviations on each side that include 95 % of a normal distribution
CODE, GC = "code", "gc"  # kinds of causes in measured steps: a sampled place; measured garbage collections
LOCK, EVALUATION = "lock", "evaluation"  # kinds of sampled places: another thread ran there; in an evaluation
BUSY = "busy"  # kind of a row: cores that other threads and child processes of the program occupy or wait for
THREAD_LOCK = "threading.Lock"  # ``called`` of a line that waits for a lock; must match agent/own_time.py
HOLDER = "lock holder"  # kind of a place where another thread was while the recorded one waited for a lock
WAITING_MODULES = {"queue", "multiprocessing", "concurrent", "threading", "asyncio", "select", "selectors"}
GROWING, PADDING, SETTING = "growing", "padding", "setting"  # kinds of causes that concern the whole program
MAKER = "maker"  # kind of a row: the function that makes a stage of the data
LOADER_MODULE = "torch.utils.data."  # a line that calls this belongs to the training loop, not to a batch's maker
COMPILED, COMPILATION = "compiled", "compilation"  # kind of steps that compile, and the part's name if it has no place
BREAKS = "breaks"  # kind of a row: the place of a graph break
GRADIENTS = "evaluation gradients"  # name of a setting
MEMORY, WORKERS = "memory", "loader workers"  # kind of memory growth, and its place if the loader workers grow
SYNCHRONIZATION = "gradient synchronization"  # name of a setting; the agent has the other names (inspection.py)
HOOKS = "gradient hooks"  # phase of sampled program code that a backward pass calls
PASSES = ("forward", "backward")  # phases that need a batch
REST = "other"  # time outside of all phases
SAMPLED = "sampled"  # kind of a row: the measured steps of a block during which the recorded thread was sampled


@dataclass(frozen=True)
class SlowCause:
    """One cause of slow steps of a user's program.

    It was seen in a few audited steps (run with extra checks), or counted in all measured steps."""

    kind: str
    """One of these kinds:

    * a place: ``device wait``, ``copy``, ``pageable``
    * counted in every measured step: ``retries``, ``compiled``
    * time in measured steps: ``code`` (sampled), ``gc`` (measured)
    * ``lock``: CPU time of another thread at a place, with the interpreter's lock
    * ``lock holder``: time of another thread at a place while the recorded one waited for a lock of the program
    * ``busy``: cores that other threads and child processes occupy or wait for
    * ``evaluation``: time in evaluations at a place
    * ``growing``: steps get longer
    * ``memory``: memory grows
    * ``padding``
    * ``setting``: a setting that was left on
    * ``breaks``: graph breaks in functions that steps call
    * ``maker``: maker of the stage of the data that ``phase`` names
    * ``start-up``: wait for the first batch, in milliseconds of the whole program
    """
    place: str = ""
    code: str = ""  # line of the program
    times: float = 0.0  # calls per audited step
    share: float | None = None  # share of the audited steps in which the place waited; None: not recorded
    ms: float | None = None  # None: not timed
    bytes: int = 0  # bytes per step from pageable memory
    steps: int = 0
    of: int = 0  # measured steps
    rest_ms: float = 0.0  # sum over the steps without it
    phase: str = ""  # "code": phase in which the line was sampled, or HOOKS; "" outside of all phases
    function: str = ""  # "code": function that has the line
    late: bool = False  # "code": the time was spent in Python code that ended there
    called: str = ""  # "code": library function that the line called
    spent_ms: float = 0.0  # sum over the measured steps
    wall_ms: float = 0.0  # sum over the same steps of their whole time
    looks: int = 0  # number of samples behind ``spent_ms``; 0: it was measured
    low_ms: float | None = None  # 95 % interval of ``ms``
    high_ms: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)  # values by name; see harness.attach.program_causes

    @property
    def cost_ms(self) -> float | None:
        """Mean cost in ms per measured step; None if unknown.

        Unknown: the cause was not timed, or all measured steps have it, so that none shows the time without it."""
        if self.spent_ms:
            return self.step_ms
        if self.steps:  # counted
            longer_ms = self.longer_ms
            return None if longer_ms is None else max(0.0, longer_ms) * self.steps / self.of
        return self.ms

    @property
    def step_ms(self) -> float:
        """Mean time in ms per measured step spent at :attr:`place`, such as a line of the program; 0 if not timed."""
        return self.spent_ms / self.of if self.of else 0.0

    @property
    def spent_share(self) -> float:
        """Share of the measured time that was spent at the place, 0 to 1."""
        return self.spent_ms / self.wall_ms if self.wall_ms else 0.0

    @property
    def least_share(self) -> float:
        """Lower end of the 95 % interval of :attr:`spent_share` if sampled (Wilson 1927), else the share itself."""
        share, n = min(self.spent_share, 1.0), self.looks
        if not n:
            return share
        spread = Z_95 * math.sqrt(share * (1 - share) / n + (Z_95 / n / 2) ** 2)
        return (share + Z_95**2 / n / 2 - spread) / (1 + Z_95**2 / n)

    @property
    def longer_ms(self) -> float | None:
        """Milliseconds by which a step with the cause is longer than one without; None without steps of both kinds."""
        if self.ms is None or not self.steps or self.of <= self.steps:
            return None
        return self.ms / self.steps - self.rest_ms / (self.of - self.steps)


def is_own_code(one: SlowCause) -> bool:
    """Return True if the cause is a line of the program, sampled in work of neither the model nor the loader."""
    return one.kind == CODE and one.phase in ("", HOOKS) and not asks_loader(one)


def asks_loader(one: SlowCause) -> bool:
    """Return True if the cause is a line that requests a batch from a DataLoader, sampled outside of all phases."""
    return one.kind == CODE and not one.phase and one.called.startswith(LOADER_MODULE)


def is_wait(called: str) -> bool:
    """Return True if the function ``called`` waits for another thread or process, judged by its module."""
    return called.partition(".")[0] in WAITING_MODULES


def reads_cheap_rows(causes: Sequence[SlowCause]) -> bool:
    """Return True if the loader calls its dataset for each row and a row costs little more than that call."""
    return any(0 < cause.figures.get("row_us", 0.0) <= CHEAP_ROW_US_MAX for cause in causes if cause.kind == MAKER)


def busy_cores(causes: Sequence[SlowCause]) -> float:
    """Return the mean number of cores that the program uses or waits for besides its training thread.

    Counts its other threads and its child processes, such as loader workers."""
    cores = [cause.figures["cores"] for cause in causes if cause.kind == BUSY]
    return max(cores) if cores else sum(cause.spent_share for cause in causes if cause.kind == LOCK)


def library_loops(facts: Sequence[RunFacts]) -> frozenset[tuple[str, str]]:
    """Return (place, called) of lines that call a library's training loop, within which the model's phases run."""
    causes = [made_of(SlowCause, row) for run_facts in facts for row in run_facts.causes or () if row["kind"] == CODE]
    lines = {(cause.place, cause.called) for cause in causes if cause.phase in PASSES and cause.called}
    return frozenset((place, called) for place, called in lines if called.partition(".")[0] != "torch")


def slow_causes(facts: Sequence[RunFacts], loops: frozenset[tuple[str, str]] | None = None) -> tuple[SlowCause, ...]:
    """Return the causes of slow steps in an arm's runs; a cause of several runs is one, with summed figures. ``loops``:
    (place, called) of lines to leave out, because they call a library's training loop; None: found in ``facts``."""
    loops = library_loops(facts) if loops is None else loops
    causes: dict[tuple[str, str, str, str], SlowCause] = {}
    for row in (row for run_facts in facts for row in run_facts.causes or ()):
        cause = made_of(SlowCause, row)
        key = cause.kind, cause.place, cause.phase, cause.called
        before = causes.get(key)
        if before is None:
            causes[key] = cause
        elif cause.of or cause.spent_ms:
            causes[key] = replace(
                before,
                times=before.times + cause.times,
                ms=None if cause.ms is None and before.ms is None else (before.ms or 0.0) + (cause.ms or 0.0),
                steps=before.steps + cause.steps,
                of=before.of + cause.of,
                rest_ms=before.rest_ms + cause.rest_ms,
                spent_ms=before.spent_ms + cause.spent_ms,
                wall_ms=before.wall_ms + cause.wall_ms,
                looks=before.looks + cause.looks,
                late=before.late and cause.late,
            )
    sampled = causes.pop((SAMPLED, "", "", ""), SlowCause(SAMPLED))
    collecting_ms = {entry.place: entry.spent_ms for entry in causes.values() if entry.kind == GC}
    return tuple(
        replace(entry, of=sampled.of, wall_ms=sampled.wall_ms, looks=sampled.looks if entry.kind in (CODE, LOCK) else 0)
        if entry.spent_ms
        else entry
        for entry in causes.values()
        if entry.kind != CODE
        or (
            collecting_ms.get(entry.place, 0.0) < GC_CAUSE_RATIO * entry.spent_ms
            and (entry.phase or (entry.place, entry.called) not in loops)
        )
    )
