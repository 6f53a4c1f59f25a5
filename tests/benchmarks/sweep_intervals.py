"""How often the 95 % interval of a fitted learning rate holds the true one, and what that costs in width.

``python -m tests.benchmarks.sweep_intervals --out results/reference/sweep-intervals`` simulates sweeps of curves whose
best rate is known (tests/harness/sweep/curves.py), some 15 minutes on one core. Beside the interval stands one
that takes no account of noise: between the neighbours of the lowest rate, and as far as the vertex's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from harness.show.tables import NOT_MEASURED, table
from harness.sweep.fit import LearningRateOptimum, fit_optimum
from harness.sweep.power_law import WIDEST, Extrapolation, PowerLaw, extrapolate, fit_power_law
from tests.harness.sweep.curves import (
    CURVES,
    SPAN,
    DrawnProjection,
    DrawnSweep,
    drawn_grids,
    drawn_hyperbands,
    drawn_projections,
    drawn_sweeps,
)

SPACINGS = (1.5, 2.0, 3.0)
NOISES = (0.0, 0.3, 1.0, 2.0, 4.0)  # in steps between neighbours
SEEDS = (1, 3)
OCTAVES = (0.1, 0.3, 1.0, 2.0)  # noise of close rates, in what a factor of two off the best rate adds
SEARCHES: dict[str, Callable[[str, float, int], Iterator[DrawnSweep]]] = {
    "grid of 24": lambda curve, noise, draws: drawn_grids(curve, 24, noise, draws),
    "grid of 40": lambda curve, noise, draws: drawn_grids(curve, 40, noise, draws),
    "hyperband, R = 27": lambda curve, noise, draws: drawn_hyperbands(curve, 27, noise, draws),
    "hyperband, R = 81": lambda curve, noise, draws: drawn_hyperbands(curve, 81, noise, draws),
}
RATES = (10, 16, 24)  # of each size of a projection
MIN_NAMED = 100  # projections that name a rate: the share that holds of fewer says little


@dataclass(frozen=True)
class Interval:
    """In log learning rates, within those that were tried; an open end is the last of them."""

    low: float
    high: float
    is_open: bool
    holds: bool


@dataclass(frozen=True)
class Coverage:
    """Of the fitted sweeps of one kind."""

    fitted: int
    held: float
    held_between: float
    """Of the sweeps whose interval has two ends."""
    held_alone: float
    """Of the intervals between the neighbours of the lowest rate, and as far as the vertex's."""
    width: float
    """Median, in logarithms."""
    width_alone: float
    mean_width: float
    ratio: float
    """Mean over sweeps of the width by that between neighbours."""
    open_ends: float
    """Share of sweeps with one."""
    open_alone: float


@dataclass(frozen=True)
class ProjectionCoverage:
    """Of the projections of one kind."""

    lines: float
    """Share of all that have a line through three optima."""
    held: float
    """Share of the lines whose interval includes the target's best rate, also where it is too wide to be named."""
    named: int
    """Lines that name a rate."""
    held_named: float | None
    """Share of these whose interval includes the best rate; None below MIN_NAMED."""
    width: float | None
    """Median of these, in logarithms."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, metavar="DIR", help="gets README.md")
    options.add_argument("--draws", type=int, default=4000, metavar="N", help="of each kind (default: %(default)s)")
    arguments = options.parse_args()
    text = page(arguments.draws)
    print(text)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "README.md").write_text(text)
    return 0


def coverage(sweeps: Iterable[DrawnSweep]) -> Coverage:
    """Of sweeps of one kind; those without an optimum claim nothing."""
    pairs = []
    for sweep in sweeps:
        found = fit_optimum(sweep.rates, sweep.losses)
        if isinstance(found, LearningRateOptimum):
            pairs.append((_interval(sweep, found.ci_low, found.ci_high), _between_neighbours(sweep, found)))
    widths = [[one.high - one.low for one in pair] for pair in pairs]
    return Coverage(
        len(pairs),
        fmean(one.holds for one, _ in pairs),
        fmean(one.holds for one, _ in pairs if not one.is_open),
        fmean(alone.holds for _, alone in pairs),
        median(one for one, _ in widths),
        median(alone for _, alone in widths),
        fmean(one for one, _ in widths),
        fmean(one / alone for one, alone in widths),
        fmean(one.is_open for one, _ in pairs),
        fmean(alone.is_open for _, alone in pairs),
    )


def projection_coverage(drawn: Iterable[DrawnProjection]) -> ProjectionCoverage:
    """Of projections of one kind; those without a line claim nothing."""
    number, found = 0, []
    for one in drawn:
        number += 1
        optima = [fit_optimum(sweep.rates, sweep.losses) for sweep in one.sweeps]
        fitted = [
            (size, optimum)
            for size, optimum in zip(one.sizes, optima, strict=True)
            if isinstance(optimum, LearningRateOptimum)
        ]
        law = fit_power_law([size for size, _ in fitted], [optimum for _, optimum in fitted])
        if not isinstance(law, PowerLaw):
            continue
        below, above = law.reach(one.target)
        off = math.log(one.best) - law.intercept - law.slope * math.log(one.target)
        is_named = isinstance(extrapolate(law, one.target), Extrapolation)
        found.append((-below - 1e-9 <= off <= above + 1e-9, is_named, below + above))
    named = [(held, width) for held, is_named, width in found if is_named]
    is_enough = len(named) >= MIN_NAMED
    return ProjectionCoverage(
        len(found) / number,
        fmean(held for held, _, _ in found) if found else math.nan,
        len(named),
        fmean(held for held, _ in named) if is_enough else None,
        median(width for _, width in named) if is_enough else None,
    )


def least_held(kinds: Iterable[ProjectionCoverage]) -> float:
    """The smallest share of lines that held, of all kinds."""
    return min(one.held for one in kinds if not math.isnan(one.held))


def least_held_named(kinds: Iterable[ProjectionCoverage]) -> float:
    """The same of the lines that name a rate."""
    return min(one.held_named for one in kinds if one.held_named is not None)


def _interval(sweep: DrawnSweep, low: float | None, high: float | None) -> Interval:
    holds = (low or 0.0) <= sweep.best <= (math.inf if high is None else high)
    first, last = math.log(min(sweep.rates)), math.log(max(sweep.rates))
    ends = (first if low is None else max(first, math.log(low)), last if high is None else min(last, math.log(high)))
    return Interval(*ends, low is None or high is None, holds)


def _between_neighbours(sweep: DrawnSweep, found: LearningRateOptimum) -> Interval:
    """Between the neighbours of the lowest rate, and as far as the vertex's."""
    by_rate: dict[float, list[float]] = {}
    for rate, loss in zip(sweep.rates, sweep.losses, strict=True):
        by_rate.setdefault(rate, []).append(loss)
    kept = {rate: [loss for loss in losses if not math.isnan(loss)] for rate, losses in by_rate.items()}
    rates = sorted(by_rate)
    lowest = rates.index(min((rate for rate in rates if kept[rate]), key=lambda rate: fmean(kept[rate])))
    low, high = rates[max(0, lowest - 1)], rates[min(len(rates) - 1, lowest + 1)]
    below = None if found.at_edge == "low" or found.vertex_low is None else min(low, found.vertex_low)
    above = None if found.at_edge == "high" or found.vertex_high is None else max(high, found.vertex_high)
    return _interval(sweep, below, above)


def page(draws: int) -> str:
    """Markdown: the least of each noise, then every kind."""
    sparse = {
        (curve, spacing, noise, seeds): coverage(drawn_sweeps(curve, spacing, noise, draws, seeds))
        for seeds in SEEDS
        for noise in NOISES
        for curve in CURVES
        for spacing in SPACINGS
    }
    close = {
        (search, curve, noise): coverage(SEARCHES[search](curve, noise, draws))
        for search in SEARCHES
        for noise in OCTAVES
        for curve in CURVES
    }
    projections = {
        (rates, noise, curve): projection_coverage(drawn_projections(curve, rates, noise, draws // 2))
        for rates in RATES
        for noise in (0.0, *OCTAVES[:3])
        for curve in CURVES
    }
    parts = [
        "# How often the interval of a sweep's learning rate holds the true one",
        f"{draws:,} simulated sweeps of each kind, of {len(CURVES)} shapes of curves: {', '.join(CURVES)} "
        "(tests/harness/sweep/curves.py). Neighbours: an interval that takes no account of noise, between the "
        "neighbours of the lowest rate and as far as the vertex's. Sweeps without a fitted optimum claim nothing and "
        "are left out. An open end excludes nothing, so intervals with two ends are counted by themselves, too. Widths "
        "end at the last tried rate. Of a kind whose intervals hold in "
        f"95 %, {draws:,} sweeps show 95 % +- {1.96 * math.sqrt(0.95 * 0.05 / draws):.1%} (95 % of the time).",
        "## Grids of 6 to 12 rates",
        "Rates are 1.5, 2 or 3 times apart. Noise is the standard deviation of a trial's loss, in steps: what one "
        "spacing off the best rate adds to the loss. Widths are in spacings.",
        table(["noise (steps)", "seeds", *_HEADS, "median width", "mean width", *_RATIOS], _sparse_rows(sparse)),
        "## Grids of 24 and 40 rates, and Hyperband",
        f"Rates span a factor of {SPAN:,.0f}. Noise is in octaves: what a factor of two off the best rate adds to the "
        "loss. So a denser grid is not less noisy. Hyperband draws its rates at random; in the fit are those that it "
        "trains to the end, 8 of R = 27 and 10 of R = 81, and some of them lie close together. The best rate of its "
        "shorter trials is higher. Widths are factors, from end to end.",
        table(["search", "noise (octaves)", *_HEADS, "median width", "mean width", *_RATIOS], _close_rows(close)),
        "## Projections",
        "Of optima of three sizes (1, 2 and 4) to a size of 16, by a power law, which the true optima follow exactly; "
        f"{draws // 2:,} of each kind. The rates span a factor of {SPAN:,.0f}, the noise is in octaves. Curves of all "
        "sizes have one shape. An optimum without an interval is in no line. A line names a rate where its interval "
        f"spans a factor of {WIDEST:g} at most. Shares of fewer than {MIN_NAMED} such lines are left out.",
        f"The interval includes the target's best rate in at least {least_held(projections.values()):.1%} of the lines "
        f"of every kind, and in at least {least_held_named(projections.values()):.1%} of those that name a rate.",
        table(
            ["rates", "noise (octaves)", "curve", "lines", "held", "name a rate", "held", "median width"],
            [
                [
                    *(f"{rates}", f"{noise:g}", curve, _share(one.lines), _share(one.held), f"{one.named:,}"),
                    NOT_MEASURED if one.held_named is None else _share(one.held_named),
                    NOT_MEASURED if one.width is None else _factor(one.width),
                ]
                for (rates, noise, curve), one in projections.items()
            ],
        ),
        "## Every kind of grids of 6 to 12 rates",
        table(
            ["curve", "spacing", "noise (steps)", "seeds", *_KIND_HEADS],
            [
                [curve, f"{spacing:g}", f"{noise:g}", f"{seeds}", *_cells(one, _spacings(spacing))]
                for (curve, spacing, noise, seeds), one in sparse.items()
            ],
        ),
        "## Every kind of close rates",
        table(
            ["search", "curve", "noise (octaves)", *_KIND_HEADS],
            [[search, curve, f"{noise:g}", *_cells(one, _factor)] for (search, curve, noise), one in close.items()],
        ),
    ]
    return "\n\n".join(parts) + "\n"


_HEADS = ["held, least", "held, mean", "of two ends, least", "neighbours held, least", "neighbours held, mean"]
_RATIOS = ["mean of width by neighbours", "with an open end", "neighbours with one"]
_WIDTHS = ["median width", "neighbours' median width", "mean width"]
_KIND_HEADS = ["fitted", "held", "of two ends", "neighbours held", *_WIDTHS, *_RATIOS]


def _sparse_rows(sparse: dict[tuple[str, float, float, int], Coverage]) -> list[list[str]]:
    rows = []
    for seeds in SEEDS:
        for noise in NOISES:
            found = {key: one for key, one in sparse.items() if key[2:] == (noise, seeds)}
            spacings = [math.log(key[1]) for key in found]
            widths = [
                f"{fmean(width / spacing for width, spacing in zip(of, spacings, strict=True)):.2f}"
                for of in ([one.width for one in found.values()], [one.mean_width for one in found.values()])
            ]
            rows.append([f"{noise:g}", f"{seeds}", *_summary([*found.values()], widths)])
    return rows


def _close_rows(close: dict[tuple[str, str, float], Coverage]) -> list[list[str]]:
    rows = []
    for search in SEARCHES:
        for noise in OCTAVES:
            found = [one for key, one in close.items() if (key[0], key[2]) == (search, noise)]
            widths = [_factor(fmean(one.width for one in found)), _factor(fmean(one.mean_width for one in found))]
            rows.append([search, f"{noise:g}", *_summary(found, widths)])
    return rows


def _summary(found: Sequence[Coverage], widths: Sequence[str]) -> list[str]:
    return [
        _share(min(one.held for one in found)),
        _share(fmean(one.held for one in found)),
        _share(min(one.held_between for one in found)),
        _share(min(one.held_alone for one in found)),
        _share(fmean(one.held_alone for one in found)),
        *widths,
        f"{fmean(one.ratio for one in found):.2f}",
        _share(fmean(one.open_ends for one in found)),
        _share(fmean(one.open_alone for one in found)),
    ]


def _cells(one: Coverage, width: Callable[[float], str]) -> list[str]:
    return [
        f"{one.fitted:,}",
        _share(one.held),
        _share(one.held_between),
        _share(one.held_alone),
        width(one.width),
        width(one.width_alone),
        width(one.mean_width),
        f"{one.ratio:.2f}",
        _share(one.open_ends),
        _share(one.open_alone),
    ]


def _share(one: float) -> str:
    return f"{one:.1%}"


def _factor(width: float) -> str:
    return f"{math.exp(width):.3g}"


def _spacings(spacing: float) -> Callable[[float], str]:
    return lambda width: f"{width / math.log(spacing):.2f}"


if __name__ == "__main__":
    sys.exit(main())
