"""Sums up the causes of slow steps that an agent noted in a program: places that were sampled, and counted events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.explain.policy import GC_CAUSE_SHARE
from harness.study.records import RunFacts, made_of

Z_95 = 1.96  # standard deviations that hold 95 % of a normal distribution
CODE, GC = "code", "gc"  # kinds of what took time in measured steps: a place, sampled; garbage collections, measured
WAITING_MODULES = {"queue", "multiprocessing", "concurrent", "threading", "asyncio", "select", "selectors"}
GROWING, PADDING, SETTING = "growing", "padding", "setting"  # kinds of what is known of the whole program
REST = "other"  # what lies in no phase; its CPU time is not recorded
SAMPLED = "sampled"  # kind of a row: the measured steps of a block in which the recorded thread was sampled


@dataclass(frozen=True)
class SlowCause:
    """One cause. A place has times and milliseconds a step, of a few early steps that were audited.

    What is counted in every measured step has the number of steps with it, and how long these and the others took.
    """

    kind: str
    """``device wait``, ``copy`` or ``pageable`` (a place), ``retries`` or ``compiled`` (counted), or ``code`` or ``gc``
    (time spent in measured steps: sampled, or measured), ``growing`` (steps get longer), ``padding`` or ``setting``
    (left on)."""
    place: str = ""
    code: str = ""  # line of the program
    times: float = 0.0
    share: float | None = None  # of the audited steps, those in which the place waited; None: not noted
    ms: float | None = None  # None: not timed
    bytes: int = 0  # a step, from pageable memory
    steps: int = 0
    of: int = 0  # measured steps
    rest_ms: float = 0.0  # sum over the steps without it
    phase: str = ""  # "code": in which the place was sampled; "" outside of all phases
    function: str = ""  # "code": that the line is in
    late: bool = False  # "code": the time was spent in Python code that ended there
    called: str = ""  # "code": function of a library that the line called
    spent_ms: float = 0.0  # sum over the measured steps
    wall_ms: float = 0.0  # of these steps
    looks: int = 0  # number of samples of which ``spent_ms`` is a share; 0: it was measured
    low_ms: float | None = None  # 95 % interval of ``ms``
    high_ms: float | None = None
    at_most: bool = False  # ``ms`` is an upper bound
    figures: Mapping[str, float] = field(default_factory=dict)  # by name, see :mod:`harness.attach.program_causes`

    @property
    def cost_ms(self) -> float | None:
        """Milliseconds that it costs a measured step, on average; None if that is not known."""
        if self.spent_ms:
            return self.step_ms
        if self.steps:  # counted
            longer_ms = self.longer_ms
            return None if longer_ms is None else max(0.0, longer_ms) * self.steps / self.of
        return self.ms

    @property
    def step_ms(self) -> float:
        """Milliseconds a measured step, on average, that were spent there."""
        return self.spent_ms / self.of if self.of else 0.0

    @property
    def spent_share(self) -> float:
        """Share of the measured time that was spent there."""
        return self.spent_ms / self.wall_ms if self.wall_ms else 0.0

    @property
    def least_share(self) -> float:
        """Lower end of the 95 % interval of :attr:`spent_share`, over the samples (Wilson 1927) if it was sampled."""
        share, n = min(self.spent_share, 1.0), self.looks
        if not n:
            return share
        spread = Z_95 * math.sqrt(share * (1 - share) / n + (Z_95 / n / 2) ** 2)
        return (share + Z_95**2 / n / 2 - spread) / (1 + Z_95**2 / n)

    @property
    def is_wait(self) -> bool:
        """True if the line waits for what another thread or process makes: for batches, maybe."""
        return self.called.partition(".")[0] in WAITING_MODULES

    @property
    def longer_ms(self) -> float | None:
        """Milliseconds by which a step with it is longer than one without; None if there are no others."""
        if self.ms is None or not self.steps or self.of <= self.steps:
            return None
        return self.ms / self.steps - self.rest_ms / (self.of - self.steps)


def slow_causes(facts: Sequence[RunFacts]) -> tuple[SlowCause, ...]:
    """Return the causes of an arm's runs: places once, as they are notes of the whole program, counts summed."""
    found: dict[tuple[str, str, str, str], SlowCause] = {}
    for row in (row for one in facts for row in one.causes or ()):
        cause = made_of(SlowCause, row)
        key = cause.kind, cause.place, cause.phase, cause.called
        before = found.get(key)
        if before is None:
            found[key] = cause
        elif cause.of or cause.spent_ms:
            found[key] = replace(
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
    sampled = found.pop((SAMPLED, "", "", ""), SlowCause(SAMPLED))
    collecting_ms = {one.place: one.spent_ms for one in found.values() if one.kind == GC}
    return tuple(
        replace(one, of=sampled.of, wall_ms=sampled.wall_ms, looks=sampled.looks if one.kind == CODE else 0)
        if one.spent_ms
        else one
        for one in found.values()
        if one.kind != CODE or collecting_ms.get(one.place, 0.0) < GC_CAUSE_SHARE * one.spent_ms
    )
