"""Makes honest tables, whose figures were measured apart and rounded, and exact tables with one true slip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from harness.audit.figures import AuditedFigure, read_figure
from harness.audit.flops import conventions
from harness.audit.table import AuditRow, Declared, Peak, Table
from trainer.model import Shape

MODELS = (
    Shape("gpt2", 12, 768, 12, 12, 3072, 50304, 1024),
    Shape("gpt2", 48, 1600, 25, 25, 6400, 50257, 1024),
    Shape("llama", 16, 2048, 32, 8, 8192, 128256, 2048),
    Shape("llama", 32, 4096, 32, 8, 14336, 131072, 2048),
    Shape("llama", 80, 8192, 64, 8, 28672, 128256, 2048),
)
PEAKS = (989.4e12, 312e12, 756e12)
KNOWN = (
    Peak("h100-sxm", "bf16", 989.4e12),
    Peak("h100-pcie", "bf16", 756e12),
    Peak("a100-80gb-sxm", "bf16", 312e12),
    Peak("a100-80gb-sxm", "tf32", 156e12),
    Peak("b200", "bf16", 2250e12),
    Peak("l4", "bf16", 121e12),
    Peak("a10g", "bf16", 70e12),
)


@dataclass(frozen=True)
class Printing:
    """Significant digits of tokens/s and of MFU and TFLOP/s; 0: two decimals, as logs print them."""

    name: str
    tokens: int
    share: int

    def rate(self, value: float) -> AuditedFigure:
        return _printed(value, self.tokens)

    def other(self, value: float) -> AuditedFigure:
        return _printed(value, self.share)


def _printed(value: float, digits: int) -> AuditedFigure:
    return read_figure(f"{value:.2f}" if digits == 0 and value >= 1 else f"{value:.{(digits or 4) - 1}e}")


LOG = Printing("two decimals", 0, 0)
PAPER = Printing("3 digits", 3, 3)
COARSE = Printing("3 and 2 digits", 3, 2)
PRINTINGS = (LOG, PAPER, COARSE)
FULL = Printing("8 digits", 8, 8)


@dataclass(frozen=True)
class Made:
    """One row before anything is rounded: what ran, and how the publication counts its FLOPs."""

    name: str
    sequence: int
    devices: int
    batch_size: int
    tokens_per_s: float
    flops_per_s: float
    """Of one device."""


Shapes = Callable[[Random, Shape, float], list[Made]]


def _made(random: Random, shape: Shape, peak: float, settings: Sequence[tuple[int, int, int]]) -> list[Made]:
    """Rows of (sequence, devices, batch size), whose device reaches 25 to 60 % of its peak."""
    count = conventions(shape)[0].flops_per_token
    rows = []
    for number, (sequence, devices, batch) in enumerate(settings):
        work = peak * random.uniform(0.25, 0.6)
        rows.append(Made(f"row {number}", sequence, devices, batch, work * devices / count(sequence), work))
    return rows


def batch_sizes(random: Random, shape: Shape, peak: float) -> list[Made]:
    """One model at eight batch sizes."""
    sequence, devices = random.choice([1024, 2048, 4096]), random.choice([1, 1, 8])
    return _made(random, shape, peak, [(sequence, devices, 2**power) for power in range(8)])


def models(random: Random, shape: Shape, peak: float) -> list[Made]:
    """Three rows for each model: a file declares one model, so several models are several small tables."""
    sequence = random.choice([1024, 2048, 4096])
    return _made(random, shape, peak, [(sequence, devices, 4) for devices in (1, 8, 64)])


def sequence_sweep(random: Random, shape: Shape, peak: float) -> list[Made]:
    """One model at seven sequence lengths."""
    return _made(random, shape, peak, [(2**power, 1, 2 ** (15 - power)) for power in range(9, 16)])


SHAPES: dict[str, Shapes] = {
    "batch sizes": batch_sizes, "several models": models, "sequence sweep": sequence_sweep,
}  # fmt: skip


def declared(shape: Shape, peak: float) -> Declared:
    return Declared(shape, peak_flops_per_s=peak)


def row(made: Made, peak: float, printing: Printing, tflops: bool = False) -> AuditRow:
    """``made`` as a publication prints it."""
    return AuditRow(
        made.name,
        batch_size=made.batch_size,
        sequence_length=made.sequence,
        devices=made.devices,
        tokens_per_s=printing.rate(made.tokens_per_s),
        mfu_percent=printing.other(made.flops_per_s / peak * 100),
        tflops=printing.other(made.flops_per_s / 1e12) if tflops else None,
    )


def honest(
    random: Random, rows: Shapes, scatter: Callable[[Random, int], tuple[float, float]], printing: Printing
) -> Table:
    """A table without a slip. ``scatter``: of row n, the factors on its tokens/s and on its MFU and TFLOP/s."""
    shape, peak = random.choice(MODELS), random.choice(PEAKS)
    tflops = random.random() < 0.5
    found = []
    for number, made in enumerate(rows(random, shape, peak)):
        rate, share = scatter(random, number)
        made = replace(made, tokens_per_s=made.tokens_per_s * rate, flops_per_s=made.flops_per_s * share)
        found.append(row(made, peak, printing, tflops))
    return Table("", "", found, declared(shape, peak))


def independent(sigma: float) -> Callable[[Random, int], tuple[float, float]]:
    """Tokens/s and MFU measured apart, each with the relative standard deviation ``sigma``."""
    return lambda random, _: (1 + random.gauss(0, sigma), 1 + random.gauss(0, sigma))
