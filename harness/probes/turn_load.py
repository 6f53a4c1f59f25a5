"""Whose CPU it was while a run had its turns: its own, other processes', or taken by the hypervisor."""

from __future__ import annotations

LEAST_S = 0.5  # of running: a clock tick of the kernel's (10 ms) is then 2 % of a core


class TurnLoad:
    """Sums turns, and tells whenever they come to enough: a single short turn says nothing."""

    def __init__(self) -> None:
        self._before: tuple[float, float, float, float] | None = None
        self._sums = [0.0, 0.0, 0.0, 0.0]  # seconds: elapsed, and CPU by this run, by everyone, stolen

    def begin(self, now_ns: int, own_s: float, machine: tuple[float, float] | None) -> None:
        """``own_s``: CPU of the run's processes so far; ``machine``: of everyone, and stolen; None where unknown."""
        self._before = None if machine is None else (now_ns / 1e9, own_s, *machine)

    def end(self, now_ns: int, own_s: float, machine: tuple[float, float] | None) -> list[tuple[str, float]]:
        """(metric, cores) where this turn and those not told of yet make up at least LEAST_S; else nothing."""
        if machine is None or self._before is None:
            return []
        now = (now_ns / 1e9, own_s, *machine)
        self._sums = [
            total + after - before for total, after, before in zip(self._sums, now, self._before, strict=True)
        ]
        self._before = None
        elapsed_s, own, busy, stolen = self._sums
        if elapsed_s < LEAST_S:
            return []
        self._sums = [0.0, 0.0, 0.0, 0.0]
        return [
            ("own_cpu_cores", own / elapsed_s),
            ("other_cpu_cores", max(busy - own, 0.0) / elapsed_s),
            ("stolen_cpu_cores", stolen / elapsed_s),
        ]
