"""Reads what slowed the steps of an attached program, as its agent noted it (harness/attach/agent/causes.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.study.run_facts import RunFacts
from harness.study.validation import made_of


@dataclass(frozen=True)
class SlowCause:
    """One cause. A place has times and milliseconds a step, of a few early steps that were audited.

    What is counted in every measured step has the number of steps with it, and how long these and the others took.
    """

    kind: str
    """``device wait``, ``copy`` or ``pageable`` (a place), or ``retries`` or ``compiled`` (counted)."""
    place: str = ""
    code: str = ""  # line of the program
    times: float = 0.0
    share: float | None = None  # of the audited steps, those in which the place waited; None: not noted
    ms: float | None = None  # None: not timed
    bytes: int = 0  # a step, from pageable memory
    steps: int = 0
    of: int = 0  # measured steps
    rest_ms: float = 0.0  # sum over the steps without it

    @property
    def longer_ms(self) -> float | None:
        """Milliseconds by which a step with it is longer than one without; None if there are no others."""
        if self.ms is None or not self.steps or self.of <= self.steps:
            return None
        return self.ms / self.steps - self.rest_ms / (self.of - self.steps)


def slow_causes(facts: Sequence[RunFacts]) -> tuple[SlowCause, ...]:
    """Return the causes of an arm's runs: places once, as they are notes of the whole program, counts summed."""
    found: dict[tuple[str, str], SlowCause] = {}
    for row in (row for one in facts for row in one.causes or ()):
        cause = made_of(SlowCause, row)
        key = cause.kind, cause.place
        before = found.get(key)
        if before is None:
            found[key] = cause
        elif cause.of:
            found[key] = replace(
                before,
                times=before.times + cause.times,
                ms=(before.ms or 0.0) + (cause.ms or 0.0),
                steps=before.steps + cause.steps,
                of=before.of + cause.of,
                rest_ms=before.rest_ms + cause.rest_ms,
            )
    return tuple(found.values())
