"""Trials over recorded blocks: the sequential decision, and the plain gate that compares one mean with another.

A block holds the base, its A/A control and one arm for each injected slowdown, which alternate. A trial takes
the next blocks in order and decides as `harness regress` does, at its looks. The plain gate is pytest-benchmark's own
check, given the steps of the same runs: a saved run's against a later one's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_benchmark.utils import parse_compare_fail

from harness.explain.ledger import measure
from harness.regress.decision import StateComparison, decide, is_look
from harness.regress.series import rounds, total_log, typical_log
from harness.study.run_data import RunData

LEVELS = (0, 1, 2, 3, 5, 10)  # per cent longer
BASE, TWIN = "base", "base+a-a"
WITHIN = 0.01
GATE = "mean:3%"


@dataclass(frozen=True)
class Block:
    """Values of one block: log(arm / base) of the typical round, and mean seconds per step of each arm."""

    loaded: bool  # whether something else ran beside it
    logs: Mapping[str, float]
    totals: Mapping[str, float]  # log(arm / base) of all measured time
    alone: Mapping[str, float]  # log(arm / base) of the typical round, without the rounds against the control
    unpaired: Mapping[str, float]  # log(arm / base) of each one's median round
    mean_s: Mapping[str, float]
    injected: Mapping[str, float]  # per cent of the base's typical step: time injected / step time


@dataclass(frozen=True)
class Trial:
    """One decision. ``blocks``: how many it took."""

    level: int
    loaded: bool
    outcome: str
    blocks: int
    change: float | None


def arm_of(level: int) -> str:
    return f"plus-{level}"


def blocks_of(runs: Sequence[RunData], injected_ms: Mapping[int, float], loaded: bool) -> list[Block]:
    """Every block that all arms finished. ``injected_ms``: what each level costs a step."""
    by_block: dict[int, dict[str, RunData]] = {}
    for run in runs:
        by_block.setdefault(run.record.block, {})[run.record.arm] = run
    found = []
    for _, arms in sorted(by_block.items()):
        sides = {name: one for name, run in arms.items() if (one := rounds(run)) is not None}
        ledgers = {name: ledger for name, run in arms.items() if (ledger := measure(run)) is not None}
        wanted = {BASE, TWIN, *map(arm_of, LEVELS)}
        if not wanted <= set(sides):
            continue
        base, control = sides[BASE], sides[TWIN]
        logs = {
            name: typical_log(base, sides[name], control=None if name == TWIN else control) or 0.0 for name in wanted
        }
        base_ms = sides[BASE].typical_ms("step") or float("nan")
        injected = {arm_of(level): 100 * injected_ms[level] / base_ms for level in LEVELS}
        totals, alone = ({name: way(base, sides[name]) or 0.0 for name in wanted} for way in (total_log, typical_log))
        unpaired = {name: math.log((sides[name].typical_ms("step") or base_ms) / base_ms) for name in wanted}
        mean_s = {name: one.mean_step_ms / 1e3 for name, one in ledgers.items()}
        found.append(Block(loaded, logs, totals, alone, unpaired, mean_s, injected))
    return found


def trials(blocks: Sequence[Block], most: int) -> list[Trial]:
    """For each level one trial from every ``most`` blocks in order: no block serves two trials of a level."""
    found = []
    for start in range(0, len(blocks) - most + 1, most):
        part = blocks[start : start + most]
        found += [_trial(level, part) for level in LEVELS]
    return found


def successive(blocks: Sequence[Block], most: int) -> list[Trial]:
    """For each level as many trials as the blocks are enough for: each goes on until it is decided or has ``most``
    blocks, and the next begins with the block after. A trial that the blocks could end in is left out.
    """
    found = []
    for level in LEVELS:
        start = 0
        while start + most <= len(blocks):  # else only those that end soon would count
            one = _trial(level, blocks[start : start + most])
            found.append(one)
            start += one.blocks
    return found


def _trial(level: int, blocks: Sequence[Block]) -> Trial:
    """As `harness regress` stops and decides, of one arm without its other limits."""
    comparison: StateComparison | None = None
    for count in range(1, len(blocks) + 1):
        if is_look(count) or count == len(blocks):
            logs, totals = ([one.logs for one in blocks[:count]], [one.totals for one in blocks[:count]])
            step, total = (
                decide([one[arm_of(level)] for one in values], WITHIN, [one[TWIN] for one in values])
                for values in (logs, totals)
            )
            comparison = StateComparison(arm_of(level), BASE, arm_of(level), count, step, total=total)
            if comparison.settled:
                break
    assert comparison is not None
    change = None if comparison.step.change is None else comparison.step.change.median
    return Trial(level, any(block.loaded for block in blocks[:count]), comparison.verdict, count, change)


@dataclass(frozen=True)
class GateRow:
    """How often the plain gate fails the arm: against a run of the block before, and against one of the same block."""

    level: int
    apart: float
    beside: float
    pairs: int


def plain_gate(blocks: Sequence[Block]) -> list[GateRow]:
    """pytest-benchmark's ``--benchmark-compare-fail=mean:3%`` on every block, and on every pair of neighbours."""
    check = parse_compare_fail(GATE)
    rows = []
    for level in LEVELS:
        name = arm_of(level)

        def fails(saved: Block, current: Block, name: str = name) -> bool:
            return bool(check.fails({"mean": current.mean_s[name]}, {"mean": saved.mean_s[BASE]}))

        apart = [fails(saved, current) for saved, current in pairwise(blocks)]
        beside = [fails(block, block) for block in blocks]
        rows.append(GateRow(level, statistics.fmean(apart), statistics.fmean(beside), len(apart)))
    return rows
