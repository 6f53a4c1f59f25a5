"""Counts what the audit says of many made tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from random import Random

from harness.audit.checkup import audit
from harness.audit.table import Table
from harness.audit.text import reading
from tests.campaigns.audit_rates.tables import (
    KNOWN,
    PEAKS,
    Made,
    Printing,
    Shapes,
    Slip,
    any_shape,
    batch_sizes,
    declared,
    honest,
    independent,
    made_rows,
    models,
    sequence_sweep,
    slipped,
)
from tests.campaigns.audit_rates.tables import row as printed_row

Scattering = Callable[[Random, int], tuple[float, float]]
Maker = Callable[[Random, Printing], Table]


@dataclass(frozen=True)
class Rates:
    """Rows of honest tables. ``firm``: rows with a firm reading; ``inconsistent``: those, and others called so."""

    rows: int = 0
    apart: int = 0
    offered: int = 0
    inconsistent: int = 0
    firm: int = 0

    def __add__(self, other: Rates) -> Rates:
        return Rates(
            self.rows + other.rows,
            self.apart + other.apart,
            self.offered + other.offered,
            self.inconsistent + other.inconsistent,
            self.firm + other.firm,
        )

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share of firm rows."""
        share, z = self.firm / self.rows, 1.96
        middle = (share + z * z / 2 / self.rows) / (1 + z * z / self.rows)
        half = z * sqrt(share * (1 - share) / self.rows + z * z / 4 / self.rows**2) / (1 + z * z / self.rows)
        return max(middle - half, 0.0), middle + half


def honest_rates(random: Random, make: Maker, printing: Printing, tables: int) -> Rates:
    """Audit ``tables`` honest tables that ``make`` makes."""
    rows = apart = offered = inconsistent = firm = 0
    for _ in range(tables):
        for row in audit(make(random, printing), KNOWN).rows:
            named = [one for one in row.readings if not one.free]
            rows += 1
            apart += row.status != "consistent"
            offered += any(not one.firm for one in named)
            inconsistent += row.status == "inconsistent"
            firm += any(one.firm for one in named)
    return Rates(rows, apart, offered, inconsistent, firm)


@dataclass(frozen=True)
class SlipRates:
    """Rows with a slip that the printed digits show. ``elsewhere``: firm readings of the other rows."""

    rows: int
    inconsistent: int
    named: int
    firm: int
    elsewhere: int


def slip_rates(random: Random, slip: Slip, printing: Printing, every: bool, tables: int) -> SlipRates:
    """Audit ``tables`` tables of each shape with ``slip`` in one row or in every row."""
    rows = inconsistent = named = firm = elsewhere = 0
    for shape in (batch_sizes, models, sequence_sweep):
        for _ in range(tables):
            made = slipped(random, shape, slip, printing, every)
            if made is None:
                continue
            table, names = made
            for row in audit(table, KNOWN).rows:
                if row.name not in names:
                    elsewhere += any(one.firm for one in row.readings)
                elif row.status != "consistent":
                    right = [
                        one
                        for one in row.readings
                        if not one.free and one.kind == slip.kind and names[row.name] in reading(one)
                    ]
                    rows += 1
                    inconsistent += row.status == "inconsistent"
                    named += bool(right)
                    firm += any(one.firm for one in right)
    return SlipRates(rows, inconsistent, named, firm, elsewhere)


@dataclass(frozen=True)
class Family:
    """Honest tables of another kind than those by which the audit was built."""

    name: str
    make: Maker


def scattered(shape: Shapes, scatter: Callable[[Random], Scattering]) -> Maker:
    """Tables of one shape; ``scatter`` makes the scatter of one table."""
    return lambda random, printing: honest(random, shape, scatter(random), printing)


def _apart(count: int, sigma: float) -> Maker:
    """Tokens/s, MFU, TFLOP/s and step time each measured apart, of another model in each table."""

    def make(random: Random, printing: Printing) -> Table:
        shape, peak = any_shape(random), random.choice(PEAKS)
        settings = [
            (random.choice([1024, 2048, 3072, 4096]), random.choice([1, 2, 8, 16]), random.choice([1, 3, 6, 12]))
            for _ in range(count)
        ]
        rows = []
        for made in made_rows(random, shape, peak, settings):
            rate, share, flops, step = (1 + random.gauss(0, sigma) for _ in range(4))
            one = printed_row(
                replace(made, tokens_per_s=made.tokens_per_s * rate, flops_per_s=made.flops_per_s * share),
                peak,
                printing,
            )
            tokens = made.sequence * made.devices * made.batch_size
            tflops, step_ms = (
                printing.other(made.flops_per_s / 1e12 * flops),
                printing.rate(tokens / made.tokens_per_s * 1e3 * step),
            )
            rows.append(replace(one, tflops=tflops, step_ms=step_ms))
        return Table("", "", rows, declared(shape, peak))

    return make


def _heteroscedastic(random: Random) -> Scattering:
    """Every row has a scatter of its own, 0.2 to 5 %."""

    def scatter(_: Random, _row: int) -> tuple[float, float]:
        sigma = 0.01 * 2 ** random.uniform(-2.3, 2.3)
        return 1 + random.gauss(0, sigma), 1 + random.gauss(0, sigma)

    return scatter


def _heavy(random: Random) -> Scattering:
    """Student's t with 3 degrees of freedom, 1 %."""

    def one() -> float:
        return random.gauss(0, 1) / sqrt(random.gammavariate(1.5, 2) / 3)

    return lambda _random, _row: (1 + 0.01 * one(), 1 + 0.01 * one())


def _drift(random: Random) -> Scattering:
    """MFU of all rows is off by one factor (up to 3 %), as where it leaves out warm-up and tokens/s does not."""
    factor = 1 + random.uniform(-0.03, 0.03)
    return lambda _random, _row: (1.0, factor)


def _growing(random: Random) -> Scattering:
    """MFU drifts along the rows by up to 1 % a row, as on a device that gets warm."""
    slope = random.uniform(-0.01, 0.01)
    return lambda _random, row: (1.0, 1 + slope * row)


def _outlier(random: Random) -> Scattering:
    """One of the first three rows was measured again, 1 to 10 % away; all other rows are exact."""
    bad, factor = random.randrange(3), 1 + random.choice([-1, 1]) * random.uniform(0.01, 0.1)
    return lambda _random, row: (1.0, factor if row == bad else 1.0)


def _first(count: int, shape: Shapes) -> Shapes:
    def rows(random: Random, *arguments: object) -> list[Made]:
        return shape(random, *arguments)[:count]  # type: ignore[arg-type]

    return rows


FAMILIES = (
    Family("a scatter of its own in each row (0.2 to 5 %)", scattered(batch_sizes, _heteroscedastic)),
    Family("heavy tails (t of 3 degrees, 1 %)", scattered(sequence_sweep, _heavy)),
    Family("one factor on all rows (up to 3 %)", scattered(batch_sizes, _drift)),
    Family("one factor on all rows, lengths differ (up to 3 %)", scattered(sequence_sweep, _drift)),
    Family("drift along the rows (up to 1 % a row)", scattered(batch_sizes, _growing)),
    Family("one row measured again (1 to 10 % off), others exact", scattered(batch_sizes, _outlier)),
    Family("the same in tables of 3 rows", scattered(models, _outlier)),
    Family("one row, 2 %", scattered(_first(1, batch_sizes), lambda _: independent(0.02))),
    Family("one row, 0.1 %", scattered(_first(1, batch_sizes), lambda _: independent(0.001))),
    Family("two rows, 2 %", scattered(_first(2, batch_sizes), lambda _: independent(0.02))),
    Family("two rows, 0.1 %", scattered(_first(2, models), lambda _: independent(0.001))),
    Family("four figures measured apart, 1 row, 2 %", _apart(1, 0.02)),
    Family("four figures measured apart, 3 rows, 2 %", _apart(3, 0.02)),
    Family("four figures measured apart, 8 rows, 0.5 %", _apart(8, 0.005)),
    Family("four figures measured apart, 8 rows, 4 %", _apart(8, 0.04)),
)
