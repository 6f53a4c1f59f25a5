"""Spends declared costs: *busy* is CPU time of the thread, which contention stretches, *sleep* wall time."""

from __future__ import annotations

import hashlib
import random
import time

from trainer.config import ComputeInject, DataInject, How

# A sleeping thread wakes tens of microseconds late. The last part is a busy loop, so that no wait ends late.
_SPIN_NS = 100_000
# Busy work is hashing. It releases the GIL, like the tokenizers' Rust code, so that a loader worker's helper thread can
# hand over the previous batch meanwhile. Each call hashes 2 MiB (about a millisecond) down to 8 KiB.
_WORK = memoryview(bytes(2 * 2**20))
_LEAST_BYTES = 8 * 1024


def spend(milliseconds: float, how: How) -> None:
    """Spend ``milliseconds`` of this thread's CPU time (busy) or of wall time (sleep); 0 or less spends nothing."""
    if milliseconds <= 0:
        return
    nanoseconds = round(milliseconds * 1e6)
    if how == "busy":
        _burn(nanoseconds)
        return
    wait_until(time.monotonic_ns() + nanoseconds)


def wait_until(deadline_ns: int) -> None:
    """Sleep until CLOCK_MONOTONIC reaches ``deadline_ns``. Returns at once if it already has."""
    remaining_ns = deadline_ns - time.monotonic_ns()
    if remaining_ns > _SPIN_NS:
        time.sleep((remaining_ns - _SPIN_NS) / 1e9)
    while time.monotonic_ns() < deadline_ns:
        pass


def _burn(nanoseconds: int) -> None:
    """Spend CPU time of this thread in few long calls. The last calls are short, so that it does not overshoot."""
    start = now_ns = time.thread_time_ns()
    size, done = _LEAST_BYTES, 0
    while (remaining_ns := start + nanoseconds - now_ns) > 0:
        if done:
            # three quarters of the rest, at the speed so far
            size = max(_LEAST_BYTES, min(len(_WORK), remaining_ns * done * 3 // (4 * max(now_ns - start, 1))))
        hashlib.sha256(_WORK[:size])
        done += size
        now_ns = time.thread_time_ns()


class Injector:
    """Spends one section's costs, each with its own seeded jitter. ``parts``: calls of spend that share a cost."""

    def __init__(
        self, inject: DataInject | ComputeInject | None, seed: int, parts: dict[str, int] | None = None
    ) -> None:
        self._how: How = inject.how if inject is not None else "busy"
        self._jitter = inject.jitter if isinstance(inject, DataInject) else 0.0
        section = inject.model_dump() if inject is not None else {}
        self._costs_ms: dict[str, float] = {
            name: value / (parts or {}).get(name, 1)
            for key, value in section.items()
            if key.endswith("_ms") and (name := key.removesuffix("_ms"))
        }
        self._random = {name: random.Random(f"{seed} {name}") for name in self._costs_ms}

    def cost_ms(self, name: str) -> float:
        """Return the declared cost of stage or phase ``name`` in milliseconds, before jitter; 0 if none is declared."""
        return self._costs_ms.get(name, 0.0)

    def draw_ms(self, name: str) -> float:
        """Draw the next cost of ``name`` in milliseconds: the declared one times uniform [1 - jitter, 1 + jitter]."""
        cost_ms = self.cost_ms(name)
        if cost_ms and self._jitter:
            cost_ms *= self._random[name].uniform(1 - self._jitter, 1 + self._jitter)
        return cost_ms

    def skip(self, draws: int, more: int = 1) -> None:
        """Skip the jitter draws of ``draws`` earlier batches: ``more`` of each stage per batch, one of ``transfer``."""
        if self._jitter:
            for name, random_state in self._random.items():
                for _ in range(draws * (1 if name == "transfer" else more)):
                    random_state.random()

    def spend(self, name: str) -> None:
        """Draw the next cost of stage or phase ``name`` (:meth:`draw_ms`), and spend it as CPU time or as sleep."""
        spend(self.draw_ms(name), self._how)
