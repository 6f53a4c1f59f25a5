"""Simulates studies whose truth is known and asks the harness's own functions for verdicts, intervals and decisions.

Only the values of blocks are drawn; everything else is the code that judges real studies: ``comparisons.compare``,
``statistics.from_block_values``, ``across.compare_series``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.explain import statistics
from harness.explain.ledger import Blocks, RepetitionTotals, RunLedger
from harness.explain.statistics import from_block_values
from harness.judge.comparisons import Controls, Measured, compare
from harness.regress.across import compare_series
from harness.regress.decision import Limits
from harness.regress.series import BlockSeries, Days, session_of
from harness.study.records import RunRecord
from tests.ledgers import ledger

SCATTER = 0.01  # standard deviation of the logarithm of one arm in one block
LIMIT = 0.05  # what a check against a kept baseline allows
BASE = "base"
Values = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Values]


def normal(generator: np.random.Generator, blocks: int) -> Values:
    return generator.normal(0, SCATTER, blocks)


def heavy(generator: np.random.Generator, blocks: int) -> Values:
    """Student's t with 3 degrees of freedom: now and then a block is far out."""
    return SCATTER * generator.standard_t(3, blocks)


def skewed(generator: np.random.Generator, blocks: int) -> Values:
    """Mostly quick, sometimes long, as beside a neighbour who comes and goes."""
    return SCATTER * np.exp(generator.normal(0, 1, blocks))


def autoregressive(generator: np.random.Generator, blocks: int, rho: float) -> Values:
    """Unit variance, correlation ``rho`` between neighbours."""
    values = generator.normal(0, 1, blocks)
    for place in range(1, blocks):
        values[place] = rho * values[place - 1] + np.sqrt(1 - rho**2) * values[place]
    return values


def alike(rho: float) -> Noise:
    """Blocks that follow one another with lag-1 correlation ``rho``, each arm's by themselves."""
    return lambda generator, blocks: SCATTER * autoregressive(generator, blocks, rho)


def runs(name: str, logs: Values) -> dict[int, RunLedger]:
    """Finished runs of one arm whose steps take 10 ms times exp(log), one a block."""
    record = RunRecord(name, 0, "done")
    empty = ledger(record)
    return {
        block: replace(
            empty,
            repetitions={0: RepetitionTotals(100, 1e8 * step_ms, 1e8 * step_ms, None, None)},
            step_ms=np.full(100, step_ms),
        )
        for block, step_ms in enumerate(10 * float(np.exp(log)) for log in logs)
    }


@dataclass(frozen=True)
class StudyRates:
    """Shares of studies: with any false verdict, and were each interval judged alone, without a floor, at 95 %."""

    studies: int
    wrong: float
    alone: float


def study(
    generator: np.random.Generator,
    comparisons: int,
    blocks: int,
    noise: Noise = normal,
    faster: float = 0.0,
    declared: float | None = None,
) -> list[Measured]:
    """The comparisons of one study: every candidate ``faster`` than the baseline by a fraction. With an A/A control, or
    with the noise floor that its scenario ``declared`` instead.
    """
    arms: dict[str, Blocks] = {BASE: runs(BASE, noise(generator, blocks))}
    for number in range(comparisons):
        arms[f"c{number}"] = runs(f"c{number}", noise(generator, blocks) - np.log1p(faster))
    controls = Controls({} if declared else {("a-a", BASE): runs("control", noise(generator, blocks))})
    found = [
        compare(BASE, f"c{number}", arms, controls, comparisons=comparisons, allowance=declared)
        for number in range(comparisons)
    ]
    return [one for one in found if isinstance(one, Measured)]


def false_verdicts(
    studies: int,
    comparisons: int,
    blocks: int,
    noise: Noise = normal,
    seed: int = 0,
    declared: float | None = None,
) -> StudyRates:
    """Of studies whose arms are all alike."""
    generator = np.random.default_rng([seed, comparisons, blocks])
    wrong = alone = 0
    for _ in range(studies):
        found = study(generator, comparisons, blocks, noise, declared=declared)
        wrong += any(one.verdict in ("gain", "loss") for one in found)
        alone += any((one.ratio.ci_low or 0) > 1 or (one.ratio.ci_high or 2) < 1 for one in found)
    return StudyRates(studies, wrong / studies, alone / studies)


def power(studies: int, comparisons: int, blocks: int, faster: float, seed: int = 1) -> float:
    """Share of comparisons called a gain where every candidate is ``faster``."""
    generator = np.random.default_rng([seed, comparisons, blocks, round(faster * 1000)])
    found = [one for _ in range(studies) for one in study(generator, comparisons, blocks, faster=faster)]
    return sum(one.verdict == "gain" for one in found) / len(found)


@dataclass(frozen=True)
class Coverage:
    """Share of 95 % intervals that hold the truth, and their mean width in standard deviations of a block."""

    studies: int
    covered: float
    width: float


def coverage(studies: int, blocks: int, rho: float, seed: int = 2) -> Coverage:
    """Of blocks that follow one another with lag-1 correlation ``rho``."""
    generator = np.random.default_rng([seed, blocks, round(rho * 100)])
    covered, width = 0, 0.0
    for _ in range(studies):
        found = from_block_values(list(autoregressive(generator, blocks, rho)))
        assert found is not None
        assert found.ci_low is not None
        assert found.ci_high is not None
        covered += found.ci_low <= 0 <= found.ci_high
        width += found.ci_high - found.ci_low
    return Coverage(studies, covered / studies, width / studies)


@contextmanager
def believing(probability: float) -> Iterator[None]:
    """Intervals as they would be if blocks were held to be independent with another probability."""
    chosen = statistics.INDEPENDENT_BLOCKS
    statistics.INDEPENDENT_BLOCKS = probability
    statistics._of_block_values.cache_clear()
    try:
        yield
    finally:
        statistics.INDEPENDENT_BLOCKS = chosen
        statistics._of_block_values.cache_clear()


def independent(generator: np.random.Generator, days: int, deviation: float) -> Values:
    return generator.normal(0, deviation, days)


def uniform(generator: np.random.Generator, days: int, deviation: float) -> Values:
    """Anywhere between plus and minus ``deviation``."""
    return generator.uniform(-deviation, deviation, days)


def lasting(generator: np.random.Generator, days: int, deviation: float) -> Values:
    """Each day half as the day before."""
    return deviation * autoregressive(generator, days, 0.5)


@dataclass(frozen=True)
class DayRates:
    """Shares of checks by what was decided, and of those that the blocks alone would have called slower."""

    checks: int
    slower: float
    same: float
    undecided: float
    blocks_only: float


def checks(
    number: int,
    sessions: int,
    blocks: int,
    deviation: float,
    slower: float = 0.0,
    drift: Callable[[np.random.Generator, int, float], Values] = independent,
    seed: int = 3,
) -> DayRates:
    """Checks of one study against a baseline of ``sessions``, each on a day of its own."""
    generator = np.random.default_rng([seed, sessions, blocks, round(deviation * 1000), round(slower * 1000)])
    outcomes: list[str] = []
    alone = 0
    for _ in range(number):
        days = drift(generator, sessions + 1, deviation)
        kept = [_series(normal(generator, blocks) + day) for day in days[:-1]]
        candidate = _series(normal(generator, blocks) + days[-1] + np.log1p(slower))
        held = Days(tuple(session_of(one, 0) for one in kept), centred=True)
        comparison = compare_series(kept[-1], candidate, Limits(LIMIT, None, None), days=held).comparison
        outcomes.append(comparison.verdict)
        between = comparison.step.between
        assert between is not None
        assert between.blocks_only is not None
        alone += (between.blocks_only.ci_low or 0) > LIMIT
    shares = [outcomes.count(one) / number for one in ("slower", "same", "undecided")]
    return DayRates(number, *shares, alone / number)


def _series(logs: Sequence[float] | Values) -> BlockSeries:
    return BlockSeries("simulated", BASE, "", list(range(len(logs))), {"step": [10 * float(np.exp(x)) for x in logs]})
