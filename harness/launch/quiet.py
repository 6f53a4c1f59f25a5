"""Measures the load of other processes before block 0. Warns about a busy machine, or waits until it is quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from harness.launch.progress import announced
from harness.machine.cpu import OTHER_SHARE, Load, allowed_cpus, load_between, read_counters
from trainer.errors import InputError, visible

QUIET_CORES = 0.25
SAMPLE_S = 1.0
QUIET_S = 3.0  # seconds of low load that end a wait
MOST_MINUTES = 7 * 24 * 60.0
OPTION = "--wait-until-quiet"


@dataclass(frozen=True)
class LoadCheck:
    """Check of other processes' load before block 0. ``wait_minutes``: for a quiet machine; None: only warn."""

    wait_minutes: float | None = None
    measure: Callable[[float], Load | None] | None = None
    """Returns the load over the given seconds; None: measure this machine."""

    def notes(self) -> list[str]:
        """Measure the load. On a busy machine, warn, or wait until it is quiet. Return the study's notes on that."""
        allowed = allowed_cpus()
        measure = self.measure or partial(_load_for, allowed)
        limit = max(QUIET_CORES, OTHER_SHARE * len(allowed))
        load = measure(SAMPLE_S)
        if load is None or load.other_cores <= limit:
            return []
        if self.wait_minutes is None:
            return [_warn(f"{_text(load, len(allowed))}; or use {OPTION} MINUTES")]
        begun_s = time.monotonic()
        end_s = begun_s + 60 * self.wait_minutes
        with announced(f"waiting until other processes use less than {limit:.2g} cores ({_users(load, len(allowed))})"):
            while load is not None and load.other_cores > limit and (left_s := end_s - time.monotonic()) > 0:
                load = measure(min(QUIET_S, max(left_s, SAMPLE_S)))
        waited = f"waited {(time.monotonic() - begun_s) / 60:.1f} minutes"
        if load is None or load.other_cores <= limit:
            note = f"{waited}; others now use less than {limit:.2g} cores"
            print(note, file=sys.stderr, flush=True)
            return [note]
        return [_warn(f"{waited}, started anyway: {_text(load, len(allowed))}")]


def load_check(wait_minutes: float | None, command: str) -> LoadCheck:
    """Return the check for ``--wait-until-quiet MINUTES``. Raises InputError for 0 or less, or above MOST_MINUTES."""
    if wait_minutes is not None and not 0 < wait_minutes <= MOST_MINUTES:
        raise InputError(f"{command}: {OPTION} {wait_minutes:g}: allowed: more than 0, at most {MOST_MINUTES:,.0f}")
    return LoadCheck(wait_minutes)


def _load_for(allowed: tuple[int, ...], seconds: float) -> Load | None:
    before = read_counters(allowed)
    time.sleep(seconds)
    after = read_counters(allowed)
    return None if before is None or after is None else load_between(before, after)


def _text(load: Load, cores: int) -> str:
    """Return a warning: load of other processes, consequence, remedy. ``cores``: those that runs may use."""
    return (
        f"this machine is busy: {_users(load, cores)}. Intervals get wider, and small changes stay undecided. End "
        "these processes"
    )


def _users(load: Load, cores: int) -> str:
    busiest = ", ".join(f"{name} {taken:.2f}" for name, taken in load.busiest)
    return f"others use {load.other_cores:.2f} of {cores} cores{f' ({busiest})' if busiest else ''}"


def _warn(text: str) -> str:
    print(visible(f"warning: {text}"), file=sys.stderr, flush=True)
    return text
