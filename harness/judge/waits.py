"""Compute where an arm waits for data, and whether all of its blocks wait alike.

Milliseconds of a stage are means over blocks, ratios medians. If mean and median of the waits differ, or blocks fall
into two kinds with nothing in between (:func:`uneven_waits`), the mean describes none of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import Literal

from harness.explain.bounds import Bound, agreed
from harness.explain.ledger import Blocks, RunLedger, mean_over, part_over
from harness.explain.policy import LOADERS_BUSY_SHARE
from harness.explain.statistics import Estimate, from_blocks, holding
from harness.judge.policy import UNEVEN_APART_MIN, UNEVEN_BLOCKS_MIN, UNEVEN_KIND_RATIO


@dataclass(frozen=True)
class UnevenWaits:
    """Blocks of an arm that wait longer for data, and the others; mean milliseconds per step of each kind."""

    blocks: tuple[int, ...]  # the blocks that wait longer
    of: int
    waited_ms: float  # of the blocks that wait longer
    step_ms: float  # of the blocks that wait longer
    others_ms: float  # wait of the other blocks
    waited_range_ms: tuple[float, float]  # minimum and maximum over the blocks that wait longer, scaled to ``step_ms``
    others_range_ms: tuple[float, float]  # minimum and maximum over the other blocks

    @property
    def half(self) -> bool:
        """True if exactly half of the blocks wait longer: a median over blocks then lies between both kinds."""
        return 2 * len(self.blocks) == self.of


@dataclass(frozen=True)
class UnevenSpeed:
    """Median speed ratio of two kinds of blocks: those that wait longer (``more``), and the others."""

    more: float
    others: float


def uneven_waits(runs: Sequence[RunLedger]) -> UnevenWaits | None:
    """Return the two kinds of blocks; None if all wait for a similar share of a step, or any share is unknown."""
    if not runs or any(run.waited_ms is None for run in runs):
        return None
    typical_ms = median(run.mean_step_ms for run in runs)  # One long step does not shorten a block's wait.
    run_shares = [(run, (run.waited_ms or 0.0) / typical_ms) for run in runs]
    shares = [share for _, share in run_shares]
    middle = (min(shares) + max(shares)) / 2
    longer = [run for run, share in run_shares if share > middle]
    shorter = [run for run, share in run_shares if share <= middle]
    if abs(mean(shares) - median(shares)) <= UNEVEN_APART_MIN and not _two_kinds(shares, middle):
        return None
    waited_ms, others_ms = ([run.waited_ms or 0.0 for run in kind] for kind in (longer, shorter))
    step_ms = mean(run.mean_step_ms for run in longer)
    # The longest wait may belong to the longest steps, so scale it by them.
    of_step_ms = [(run.waited_ms or 0.0) / run.mean_step_ms * step_ms for run in longer]
    return UnevenWaits(
        blocks=tuple(run.record.block for run in longer),
        of=len(run_shares),
        waited_ms=mean(waited_ms),
        step_ms=step_ms,
        others_ms=mean(others_ms),
        waited_range_ms=(min(of_step_ms), max(of_step_ms)),
        others_range_ms=(min(others_ms), max(others_ms)),
    )


def _two_kinds(shares: Sequence[float], middle: float) -> bool:
    """Return True if the ``shares`` above and below ``middle`` are far apart, and those on one side close together."""
    low, high = [share for share in shares if share <= middle], [share for share in shares if share > middle]
    if not high or min(len(low), len(high)) < min(UNEVEN_BLOCKS_MIN, len(shares) // 2):
        return False
    gap = min(high) - max(low)
    close = max(max(kind) - min(kind) for kind in (low, high))
    return gap > UNEVEN_APART_MIN and gap > close and mean(low) < UNEVEN_KIND_RATIO * mean(high)


def uneven_speed(uneven: UnevenWaits | None, speeds: Mapping[int, float]) -> UnevenSpeed | None:
    """Return the median of ``speeds`` (speed ratios by block) over blocks that wait longer, and over the others.

    None if ``uneven`` is None (all blocks wait alike), or if ``speeds`` has only one of both kinds."""
    if uneven is None:
        return None
    longer = [value for block, value in speeds.items() if block in uneven.blocks]
    shorter = [value for block, value in speeds.items() if block not in uneven.blocks]
    return UnevenSpeed(median(longer), median(shorter)) if longer and shorter else None


@dataclass(frozen=True, kw_only=True)
class StepMeans:
    """Means of an arm's runs in ms per step, by stage or cause; :func:`step_means`. None, empty: not measured."""

    exposed_ms: Mapping[str, float] = field(default_factory=dict)
    hidden_ms: Mapping[str, float] = field(default_factory=dict)
    parallel_ms: Mapping[str, float] = field(default_factory=dict)  # while the step waited for another batch
    between_steps_ms: Mapping[str, float] = field(default_factory=dict)  # between training steps
    contended_ms: float | None = None
    waited_range_ms: tuple[float, float] | None = None  # bounds of the wait for data; None: it is known exactly
    slack_ms: float | None = None  # only set with an asynchronous device, as ``starved_ms``
    starved_ms: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[Bound, int] = field(default_factory=dict)  # number of blocks by bound
    uneven: UnevenWaits | None = None  # set if blocks wait for different shares of a step

    @property
    def bound(self) -> Bound | None:
        """What limits the steps (such as "data" or "device") in all blocks; None if blocks differ or it is unknown."""
        return agreed(self.bounds)


@dataclass(frozen=True)
class Waits(StepMeans):
    """Waits of one arm for data, mean ms per step; :func:`waits_of` makes it. None, missing stages: not measured."""

    step_ms: float
    waited_ms: float | None
    stage_work_ms: Mapping[str, float] = field(default_factory=dict)  # all work, in any process
    open_ms: float | None = None  # the device worked or waited for launches, outside of launch-bound phases
    busy_loader: bool = False  # True if the loader workers of every run were almost always busy
    room_unknown: bool = False  # True if some run does not show how much longer fetches could have lasted
    ranks: int = 1  # number of ranks; if several, every figure here is of rank 0

    @property
    def work_ms(self) -> float:
        """All data work of the host in ms per step, waited for or not."""
        return sum(self.stage_work_ms.values())


def gain_from_waits(blocks: Blocks) -> Estimate | None:
    """Return how many times as fast steps of all ranks would be without any wait for data: wall / (wall - waited). None
    if waits are unknown, or if a run only waits. The interval covers what the record leaves open: when the device
    worked."""
    likely: list[float] = []
    lows: list[float] = []
    highs: list[float] = []
    for run in split_runs([*blocks.values()]):
        several = run.ranks > 1
        waited, wall = run.data_costs_all_ms if several else run.waited_ms, run.mean_step_ms
        if waited is None:
            return None
        costs = (waited,) * 3 if several else _least_likely_most(run, waited)
        for logs, cost in zip((lows, likely, highs), costs, strict=True):
            if cost >= wall * (1 - 1e-6):  # only waiting: no finite ceiling
                return None
            logs.append(math.log(wall / (wall - cost)))
    gain = from_blocks(likely)
    if gain is None:
        return None
    bounds = [estimate for logs in (lows, highs) if logs != likely and (estimate := from_blocks(logs)) is not None]
    gain = holding(gain, bounds)
    return gain if gain.ci_low is None else replace(gain, ci_low=min(gain.median, max(1.0, gain.ci_low)))


def open_ranks(blocks: Blocks) -> bool:
    """Return True if a run has several ranks, and what data work costs them together is unknown."""
    return any(run.ranks > 1 and run.data_costs_all_ms is None for run in blocks.values())


def _least_likely_most(run: RunLedger, waited_ms: float) -> tuple[float, float, float]:
    low, high = run.waited_range_ms or (waited_ms, waited_ms)
    return low, waited_ms, high


def split_runs(runs: Sequence[RunLedger]) -> list[RunLedger]:
    """Return the runs for figures of data work: those whose waits are split by stage, or all if there are none."""
    return [run for run in runs if run.exposed_ms] or list(runs)


def waited_over(runs: Sequence[RunLedger]) -> float | None:
    """Return the mean ms per step that all data work together costs; None if unknown. Each stage costs at most this."""
    return part_over(runs, lambda run: run.waited_ms, split_runs(runs))


def waited_range(runs: Sequence[RunLedger]) -> tuple[float, float] | None:
    """Return (least, most) ms per step that data work may cost, means over ``runs``; None if every cost is exact."""
    if all(run.waited_range_ms is None for run in runs):
        return None

    def end(run: RunLedger, place: int) -> float | None:
        return None if run.waited_ms is None else _least_likely_most(run, run.waited_ms)[place]

    low, high = (part_over(runs, lambda run, position=bound: end(run, position), split_runs(runs)) for bound in (0, 2))  # type: ignore[misc]
    return None if low is None or high is None else (low, high)


def waits_of(blocks: Blocks) -> Waits:
    runs = list(blocks.values())
    return Waits(
        step_ms=mean_over(runs, lambda run: run.mean_step_ms) or 0.0,
        waited_ms=waited_over(runs),
        **vars(step_means(runs)),
        stage_work_ms=stage_means(runs, "work_ms"),
        open_ms=part_over(runs, lambda run: run.device_open_ms),
        busy_loader=all(run.bound_shares is not None and run.bound_shares.loader > LOADERS_BUSY_SHARE for run in runs),
        room_unknown=any(math.isnan(run.device_room_ms or 0.0) for run in runs),
        ranks=max((run.ranks for run in runs), default=1),
    )


def bounds_of(runs: Sequence[RunLedger]) -> Mapping[Bound, int]:
    """Return the number of ``runs`` by what limits their steps, most common first. Unknown limits do not count."""
    return dict(Counter(run.bound for run in runs if run.bound is not None).most_common())


def step_means(runs: Sequence[RunLedger]) -> StepMeans:
    return StepMeans(
        exposed_ms=stage_means(runs, "exposed_ms"),
        hidden_ms=stage_means(runs, "hidden_ms"),
        parallel_ms=stage_means(runs, "parallel_ms"),
        between_steps_ms=stage_means(runs, "between_steps_ms"),
        contended_ms=part_over(runs, lambda run: run.contended_ms),
        waited_range_ms=waited_range(runs),
        slack_ms=part_over(runs, lambda run: run.device_slack_ms),
        starved_ms=stage_means(runs, "starved_ms"),
        bounds=bounds_of(runs),
        uneven=uneven_waits(split_runs(runs)),
    )


StageFigure = Literal[
    "exposed_ms", "hidden_ms", "work_ms", "during_wait_ms", "parallel_ms", "between_steps_ms", "phase_ms",
    "starved_ms",
]  # fmt: skip


def stage_means(runs: Sequence[RunLedger], name: StageFigure) -> dict[str, float]:
    """Return {stage or phase: mean ms per step} of the ledger's figure ``name``, such as "hidden_ms".

    All means are over the same runs, so that they add up."""
    measured = [run for run in (runs if name in ("phase_ms", "starved_ms") else split_runs(runs)) if getattr(run, name)]
    means = {}
    for key in dict.fromkeys(key for run in measured for key in getattr(run, name)):
        average = part_over(runs, lambda run, key=key: getattr(run, name).get(key, 0.0), measured)  # type: ignore[misc]
        assert average is not None
        means[key] = average
    return means
