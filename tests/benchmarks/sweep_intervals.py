"""How often the 95 % interval of a fitted learning rate holds the true one, and what that costs in width.

``python -m tests.benchmarks.sweep_intervals --out results/reference/sweep-intervals`` simulates sweeps of curves whose
best rate is known (tests/harness/sweep/curves.py), some 6 minutes on one core. Beside the interval stands the one of
before, which took no account of noise: between the neighbours of the lowest rate, and as far as the vertex's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from harness.report.tables import table
from harness.sweep.fit import LearningRateOptimum, fit_optimum
from tests.harness.sweep.curves import CURVES, DrawnSweep, drawn_sweeps

SPACINGS = (1.5, 2.0, 3.0)
NOISES = (0.0, 0.3, 1.0, 2.0, 4.0)  # in steps between neighbours
SEEDS = (1, 3)


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
    held_before: float
    width: float
    """Median, in spacings."""
    width_before: float
    ratio: float
    """Mean over sweeps of the width by that of before."""
    open_ends: float
    """Share of sweeps with one."""
    open_before: float


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


def coverage(curve: str, spacing: float, noise: float, draws: int, seeds: int) -> Coverage:
    """Of sweeps of one kind; those without an optimum claim nothing."""
    pairs = []
    for sweep in drawn_sweeps(curve, spacing, noise, draws, seeds):
        found = fit_optimum(sweep.rates, sweep.losses)
        if isinstance(found, LearningRateOptimum):
            now = _interval(sweep, found.ci_low, found.ci_high)
            pairs.append((now, _before(sweep, found)))
    widths = [[(one.high - one.low) / math.log(spacing) for one in pair] for pair in pairs]
    return Coverage(
        len(pairs),
        fmean(now.holds for now, _ in pairs),
        fmean(now.holds for now, _ in pairs if not now.is_open),
        fmean(before.holds for _, before in pairs),
        median(now for now, _ in widths),
        median(before for _, before in widths),
        fmean(now / before for now, before in widths),
        fmean(now.is_open for now, _ in pairs),
        fmean(before.is_open for _, before in pairs),
    )


def _interval(sweep: DrawnSweep, low: float | None, high: float | None) -> Interval:
    holds = (low or 0.0) <= sweep.best <= (math.inf if high is None else high)
    first, last = math.log(min(sweep.rates)), math.log(max(sweep.rates))
    ends = (first if low is None else max(first, math.log(low)), last if high is None else min(last, math.log(high)))
    return Interval(*ends, low is None or high is None, holds)


def _before(sweep: DrawnSweep, found: LearningRateOptimum) -> Interval:
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
    rows, least = [], []
    for seeds in SEEDS:
        for noise in NOISES:
            found = []
            for curve in CURVES:
                for spacing in SPACINGS:
                    one = coverage(curve, spacing, noise, draws, seeds)
                    found.append(one)
                    rows.append([curve, f"{spacing:g}", f"{noise:g}", str(seeds), *_cells(one)])
            least.append([f"{noise:g}", str(seeds), *_summary(found)])
    heads = [
        "noise (steps)",
        "seeds",
        "held, least",
        "held, mean",
        "of two ends, least",
        "before, least",
        "before, mean",
    ]
    kinds = [
        "curve",
        "spacing",
        "noise (steps)",
        "seeds",
        "fitted",
        "held",
        "of two ends",
        "before",
        "median width (spacings)",
    ]
    wide = ["width, mean ratio", "with an open end", "before"]
    parts = [
        "# How often the interval of a sweep's learning rate holds the true one",
        f"{draws:,} simulated sweeps of each kind, of 6 to 12 rates. Noise is the standard deviation of a trial's "
        "loss, in steps: what one spacing off the best rate adds to the loss. Before: the interval reached between the "
        "neighbours of the lowest rate, and as far as the vertex's. Sweeps without a fitted optimum claim nothing and "
        "are left out. An open end excludes nothing, so intervals with two ends are counted by themselves, too. Widths "
        "end at the last tried rate, and their ratios are those by before. Of a kind whose intervals hold in 95 %, "
        f"{draws:,} sweeps show 95 % +- {1.96 * math.sqrt(0.95 * 0.05 / draws):.1%} (95 % of the time).",
        table([*heads, "median widths, median ratio", *wide], least),
        "## Every kind",
        table([*kinds, "median width before", *wide], rows),
    ]
    return "\n\n".join(parts) + "\n"


def _summary(found: Sequence[Coverage]) -> list[str]:
    return [
        f"{min(one.held for one in found):.1%}",
        f"{fmean(one.held for one in found):.1%}",
        f"{min(one.held_between for one in found):.1%}",
        f"{min(one.held_before for one in found):.1%}",
        f"{fmean(one.held_before for one in found):.1%}",
        f"{median(one.width / one.width_before for one in found):.2f}",
        f"{fmean(one.ratio for one in found):.2f}",
        f"{fmean(one.open_ends for one in found):.1%}",
        f"{fmean(one.open_before for one in found):.1%}",
    ]


def _cells(one: Coverage) -> list[str]:
    return [
        f"{one.fitted:,}",
        f"{one.held:.1%}",
        f"{one.held_between:.1%}",
        f"{one.held_before:.1%}",
        f"{one.width:.2f}",
        f"{one.width_before:.2f}",
        f"{one.ratio:.2f}",
        f"{one.open_ends:.1%}",
        f"{one.open_before:.1%}",
    ]


if __name__ == "__main__":
    sys.exit(main())
