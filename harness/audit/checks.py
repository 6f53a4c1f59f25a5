"""Checks one row against itself: do its figures agree under a setting (formula, sequence, devices, peak)?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

from harness.audit.table import AuditRow, Declared, Interval, common
from trainer.devices.estimates import flops_per_token, lookups, parameters
from trainer.model import Shape

Attention = Literal["full", "half", "none"]
Weights = Literal[
    "palm", "all, lookups", "all, positions", "no output projection", "no biases", "positions, no biases", "matrices",
    "layer matrices",
]  # fmt: skip
_ATTENTION_FACTOR: dict[Attention, float] = {"full": 12.0, "half": 6.0, "none": 0.0}


@dataclass(frozen=True)
class Convention:
    """Formula for training FLOPs per token: 6 x ``weights`` + ``attention_per_position`` x sequence length."""

    counted: Weights
    weights: int
    attention: Attention
    attention_per_position: float  # FLOPs per token for each position of the sequence

    def flops_per_token(self, sequence_length: float) -> float:
        return 6.0 * self.weights + self.attention_per_position * sequence_length

    def sequence_length(self, flops: float) -> float:
        """Return the sequence length at which a token costs ``flops``. ``attention_per_position`` must not be 0."""
        return (flops - 6.0 * self.weights) / self.attention_per_position


def conventions(shape: Shape) -> list[Convention]:
    """Return all distinct formulas for a model's FLOPs per token, PaLM's first (trainer/devices/estimates.py)."""
    distinct: list[Convention] = []
    per_position = float(shape.layers * shape.heads * (shape.width // shape.heads))
    for counted, weights in _weights(shape).items():
        for attention, factor in _ATTENTION_FACTOR.items():
            convention = Convention(counted, weights, attention, factor * per_position)
            if all(
                (convention.weights, convention.attention) != (other.weights, other.attention) for other in distinct
            ):
                distinct.append(convention)
    assert distinct[0].flops_per_token(1024) == flops_per_token(shape, 1024)  # Both modules must agree.
    return distinct


def _weights(shape: Shape) -> dict[Weights, int]:
    """Return the number of parameters by method of counting. A tied matrix (GPT-2) counts as output projection."""
    everything = parameters(shape)
    embedding = shape.vocab_size * shape.width
    palm = everything - lookups(shape)
    norm_weights = (2 * shape.layers + 1) * shape.width
    biases = 0
    # Biases per layer: attention 4 widths, feed-forward its own and 1 width, norms 2; and the last norm 1.
    if shape.family != "llama":
        biases = shape.layers * (7 * shape.width + shape.ffn_width) + shape.width
    if shape.family == "distilbert":  # The head has a matrix, a norm, and a bias for each token id.
        biases += 2 * shape.width + shape.vocab_size
        norm_weights += shape.width
    counts: dict[Weights, int] = {
        "palm": palm,
        "all, lookups" if shape.family == "llama" else "all, positions": everything,
        "no output projection": palm - embedding,
    }
    if biases:
        counts |= {"no biases": palm - biases, "positions, no biases": everything - biases}
    counts |= {"matrices": palm - biases - norm_weights, "layer matrices": palm - biases - norm_weights - embedding}
    return counts


TOKENS, TFLOPS, MFU, STEP = "tokens/s", "TFLOP/s", "MFU", "step time"
DURATION = "duration against steps x step time"
CheckReason = Literal[
    "no rate", "step time alone", "no shape", "no sequence", "no TFLOP/s", "no MFU", "no peak", "no duration",
    "no steps", "no step time", "rest of the duration",
]  # fmt: skip
AuditStatus = Literal["consistent", "apart", "inconsistent", "not checkable"]
"""apart: figures differ beyond rounding, yet not beyond what figures that were each measured apart may differ by."""


@dataclass(frozen=True)
class Setting:
    """Formula, length, devices, peak and scale by which a row's figures are compared. None: unknown."""

    convention: Convention | None
    sequence: float | None
    devices: float
    peak_flops_per_s: float | None
    scale: float = 1.0  # Share of the convention's FLOPs that the publication counts

    @property
    def flops_per_token(self) -> float | None:
        if self.convention is None or self.sequence is None:
            return None
        return self.scale * self.convention.flops_per_token(self.sequence)


@dataclass(frozen=True)
class AuditCheck:
    """Comparison of two figures: their relative difference, and the largest one that rounding explains."""

    name: str
    status: AuditStatus
    discrepancy: float | None = None
    allowed: float | None = None
    reasons: list[CheckReason] = field(default_factory=list)  # why it is impossible, or a difference no contradiction


def setting_of(row: AuditRow, declared: Declared, convention: Convention | None) -> Setting:
    """Return the setting of ``row``: its own declarations, else those of the table; one device by default."""
    return Setting(
        convention,
        row.sequence_length or declared.sequence_length,
        row.devices or declared.devices or 1,
        row.peak_flops_per_s or declared.peak_flops_per_s,
    )


def tokens_per_step(row: AuditRow, setting: Setting) -> float | None:
    """Return the tokens (positions) of an optimizer step, as printed or from the batch size; None if unknown."""
    if row.tokens_per_step is not None:
        return row.tokens_per_step
    if row.batch_size is None or setting.sequence is None:
        return None
    return row.batch_size * setting.sequence * setting.devices


def rates(row: AuditRow, setting: Setting) -> dict[str, Interval]:
    """Return tokens/s over all devices by source: :data:`TOKENS` as printed, :data:`STEP` from the step time."""
    result = {}
    if row.tokens_per_s is not None:
        result[TOKENS] = row.tokens_per_s.interval
    tokens = tokens_per_step(row, setting)
    if row.step_ms is not None and tokens is not None:
        result[STEP] = Interval(tokens, tokens) / (row.step_ms.interval * 1e-3)
    return result


def step_s(row: AuditRow, setting: Setting) -> Interval | None:
    """Return the seconds of one step: as printed, else from tokens/s. None if neither is possible."""
    if row.step_ms is not None:
        return row.step_ms.interval * 1e-3
    tokens = tokens_per_step(row, setting)
    if row.tokens_per_s is None or tokens is None:
        return None
    return Interval(tokens, tokens) / row.tokens_per_s.interval


def witnesses(row: AuditRow, setting: Setting) -> dict[str, Interval]:
    """Return the FLOP/s of one device by each figure (TOKENS, STEP, TFLOPS or MFU). In a correct row they overlap."""
    result = {}
    flops = setting.flops_per_token
    if flops is not None:
        result = {name: rate * (flops / setting.devices) for name, rate in rates(row, setting).items()}
    if row.tflops is not None:
        result[TFLOPS] = row.tflops.interval * 1e12
    if row.mfu_percent is not None and setting.peak_flops_per_s is not None:
        result[MFU] = row.mfu_percent.interval * (setting.peak_flops_per_s / 100)
    return result


def fits(row: AuditRow, setting: Setting) -> bool:
    """Return True if no figure of ``row`` contradicts another under ``setting``, or if it has no two to compare."""
    groups = [list(intervals.values()) for intervals in (rates(row, setting), witnesses(row, setting))]
    duration = _duration(row, setting)
    return all(not group or common(group) is not None for group in groups) and (
        duration is None or duration.status != "inconsistent"
    )


def checks(row: AuditRow, setting: Setting) -> list[AuditCheck]:
    """Compare every pair of figures of the row. Pairs that are not checkable are returned too, with the reasons."""
    figures = witnesses(row, setting)
    results = []
    for first, second in combinations((TOKENS, STEP, TFLOPS, MFU), 2):
        if {first, second} == {TOKENS, STEP}:
            rate = rates(row, setting)  # Needs neither the shape nor the peak.
            if len(rate) == 2:
                results.append(_compare(f"{first} against {second}", rate[first], rate[second]))
        elif first in figures and second in figures and not (first == STEP and TOKENS in figures):
            results.append(_compare(f"{first} against {second}", figures[first], figures[second]))
    results += [AuditCheck(name, "not checkable", reasons=reasons) for name, reasons in _missing(row, setting)]
    duration = _duration(row, setting)
    return results if duration is None else [*results, duration]


def _compare(name: str, first: Interval, second: Interval) -> AuditCheck:
    quotient = first / second
    return AuditCheck(
        name,
        "consistent" if first.overlaps(second) else "inconsistent",
        first.middle / second.middle - 1,
        (quotient.high - quotient.low) / 2 / quotient.middle,
    )


def _missing(row: AuditRow, setting: Setting) -> list[tuple[str, list[CheckReason]]]:
    """Return (check, reasons) for the checks that are impossible, because a figure or a declaration is missing."""
    reasons: dict[CheckReason, bool] = {
        "no rate": not rates(row, setting) and row.step_ms is None,
        "step time alone": not rates(row, setting) and row.step_ms is not None,
        "no shape": setting.convention is None,
        "no sequence": setting.convention is not None and setting.sequence is None,
        "no TFLOP/s": row.tflops is None,
        "no MFU": row.mfu_percent is None,
        "no peak": row.mfu_percent is not None and setting.peak_flops_per_s is None,
    }
    rate: tuple[CheckReason, ...] = ("no rate", "step time alone")
    work: tuple[CheckReason, ...] = ("no shape", "no sequence")
    mfu: tuple[CheckReason, ...] = ("no MFU", "no peak")
    needs: dict[str, tuple[CheckReason, ...]] = {
        f"{TOKENS} against {TFLOPS}": (*rate, *work, "no TFLOP/s"),
        f"{TOKENS} against {MFU}": (*rate, *work, *mfu),
        f"{TFLOPS} against {MFU}": ("no TFLOP/s", *mfu),
    }
    obstacles = {name: [reason for reason in needed if reasons[reason]] for name, needed in needs.items()}
    return [(name, missing) for name, missing in obstacles.items() if missing]


def _duration(row: AuditRow, setting: Setting) -> AuditCheck | None:
    """Compare the printed duration with steps x step time; None if neither is printed. Longer: evaluation too."""
    if row.duration_s is None and row.steps is None:
        return None
    one_step_s = step_s(row, setting)
    missing: list[CheckReason] = ["no duration"] * (row.duration_s is None)
    missing += ["no steps"] * (row.steps is None)
    missing += ["no step time"] * (one_step_s is None)
    if missing or row.duration_s is None or row.steps is None or one_step_s is None:
        return AuditCheck(DURATION, "not checkable", reasons=missing)
    training = one_step_s * row.steps
    check = _compare(DURATION, row.duration_s.interval, training)
    if check.status == "inconsistent" and row.duration_s.interval.low > training.high:
        return replace(check, status="consistent", reasons=["rest of the duration"])
    return check
