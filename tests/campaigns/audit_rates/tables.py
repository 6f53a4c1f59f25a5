"""Makes honest tables, whose figures were measured apart and rounded, and exact tables with one true slip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from harness.audit.checks import conventions
from harness.audit.table import AuditedFigure, AuditRow, Declared, Peak, Table, read_figure
from harness.audit.text import convention
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


def any_shape(random: Random) -> Shape:
    """A model of no particular size."""
    family, heads = random.choice(["gpt2", "llama"]), random.choice([8, 12, 16, 32, 40])
    width, layers = heads * random.choice([64, 128]), random.choice([6, 12, 24, 32, 48])
    kv_heads = heads if family == "gpt2" else heads // 4
    vocabulary = random.choice([32000, 50257, 50304, 128256])
    return Shape(family, layers, width, heads, kv_heads, 4 * width, vocabulary, 2048)  # type: ignore[arg-type]


Shapes = Callable[[Random, Shape, float], list[Made]]


def made_rows(random: Random, shape: Shape, peak: float, settings: Sequence[tuple[int, int, int]]) -> list[Made]:
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
    return made_rows(random, shape, peak, [(sequence, devices, 2**power) for power in range(8)])


def models(random: Random, shape: Shape, peak: float) -> list[Made]:
    """Three rows for each model: a file declares one model, so several models are several small tables."""
    sequence = random.choice([1024, 2048, 4096])
    return made_rows(random, shape, peak, [(sequence, devices, 4) for devices in (1, 8, 64)])


def sequence_sweep(random: Random, shape: Shape, peak: float) -> list[Made]:
    """One model at seven sequence lengths."""
    return made_rows(random, shape, peak, [(2**power, 1, 2 ** (15 - power)) for power in range(9, 16)])


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


@dataclass(frozen=True)
class Slip:
    """A mistake in an otherwise exact table. ``kind`` and ``holds`` tell the reading that names it."""

    name: str
    kind: str
    make: Callable[[Random, Made, Shape, float], tuple[Made, dict[str, float]] | None]
    """The row as it really was counted, and factors on printed figures; None where the slip changes nothing."""


def _length(random: Random, made: Made, shape: Shape, _: float) -> tuple[Made, dict[str, float]] | None:
    """The row ran at another length than is declared for it."""
    actual = random.choice([512, 1024, 2048, 4096, 8192])
    if actual == made.sequence:
        return None
    count = conventions(shape)[0].flops_per_token
    return replace(made, tokens_per_s=made.flops_per_s * made.devices / count(actual)), {"value": actual}


def _formula(words: str) -> Callable[[Random, Made, Shape, float], tuple[Made, dict[str, float]] | None]:
    def make(_: Random, made: Made, shape: Shape, _peak: float) -> tuple[Made, dict[str, float]] | None:
        one = next((each for each in conventions(shape) if convention(each) == words), None)
        if one is None:
            return None
        return replace(made, flops_per_s=made.tokens_per_s * one.flops_per_token(made.sequence) / made.devices), {}

    return make


def _scale(factor: float) -> Callable[[Random, Made, Shape, float], tuple[Made, dict[str, float]] | None]:
    return lambda _random, made, _shape, _peak: (replace(made, flops_per_s=made.flops_per_s * factor), {})


def _peak(factor: float | None) -> Callable[[Random, Made, Shape, float], tuple[Made, dict[str, float]] | None]:
    """The MFU is of another peak: ``factor`` times the declared one, or (None) that of another device."""

    def make(random: Random, made: Made, _: Shape, peak: float) -> tuple[Made, dict[str, float]] | None:
        other = factor * peak if factor else random.choice([one for one in PEAKS if one != peak])
        return made, {"mfu": peak / other, "value": other}

    return make


def _tokens(factor: float) -> Callable[[Random, Made, Shape, float], tuple[Made, dict[str, float]] | None]:
    return lambda _random, made, _shape, _peak: (replace(made, tokens_per_s=made.tokens_per_s * factor), {})


def _one_device(_: Random, made: Made, _shape: Shape, _peak: float) -> tuple[Made, dict[str, float]] | None:
    """Tokens/s of one device in a row that declares several."""
    return (replace(made, tokens_per_s=made.tokens_per_s / made.devices), {"value": 1}) if made.devices > 1 else None


def _total(_: Random, made: Made, _shape: Shape, _peak: float) -> tuple[Made, dict[str, float]] | None:
    return (made, {"tflops": made.devices}) if made.devices > 1 else None


EMBEDDINGS = (
    "with embedding lookups (all parameters)",
    "with position embeddings (all parameters)",
    "without the output projection (no embeddings at all)",
)
SLIPS = (
    Slip("another sequence length", "sequence", _length),
    *(Slip(f"FLOPs {words}", "formula", _formula(words)) for words in EMBEDDINGS),
    Slip("half of the attention", "formula", _formula("with causal attention (half of it)")),
    Slip("attention left out", "formula", _formula("without attention")),
    Slip("forward pass alone", "scale", _scale(1 / 3)),
    Slip("recomputation counted", "scale", _scale(4 / 3)),
    Slip("multiply-add as one", "scale", _scale(1 / 2)),
    Slip("sparse peak", "peak", _peak(2.0)),
    Slip("peak of another device", "peak", _peak(None)),
    Slip("tokens/s in thousands", "unit", _tokens(1e-3)),
    Slip("tokens/s of one device", "devices", _one_device),
    Slip("TFLOP/s of all devices", "total", _total),
)


def slipped(
    random: Random, rows: Shapes, slip: Slip, printing: Printing, every: bool
) -> tuple[Table, dict[str, str]] | None:
    """An exact table with ``slip`` in one row or in every row; row -> part of the words that name it."""
    shape, peak = random.choice(MODELS), random.choice(PEAKS)
    tflops = slip.kind == "total" or random.random() < 0.5
    plain = rows(random, shape, peak)
    hit = range(len(plain)) if every else [random.randrange(len(plain))]
    names: dict[str, str] = {}
    printed = []
    state = random.getstate()
    for number, made in enumerate(plain):
        factors: dict[str, float] = {}
        if number in hit:
            random.setstate(state)  # every row slips alike
            changed = slip.make(random, made, shape, peak)
            if changed is not None:
                made, factors = changed
                names[made.name] = f"{factors['value']:,.0f}" if slip.kind == "sequence" else ""
        one = row(made, peak, printing, tflops)
        mfu, work = factors.get("mfu", 1.0), factors.get("tflops", 1.0)
        if mfu != 1.0:
            one = replace(one, mfu_percent=printing.other(made.flops_per_s / peak * 100 * mfu))
        if work != 1.0:
            one = replace(one, tflops=printing.other(made.flops_per_s / 1e12 * work))
        printed.append(one)
    return (Table("", "", printed, declared(shape, peak)), names) if names else None
