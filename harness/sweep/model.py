"""Define the sweep file: model, range of the learning rate, length of a trial, strategy and budget.

Relative paths are relative to the current directory, in ``extends`` and ``scenario`` to the file that has them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from harness.scenario.model import Name, Unchecked
from harness.sweep.strategies import StrategySettings
from trainer.config import Config

TOKENS_PER_PARAMETER = 20.0  # about the ratio of Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models"

LOWEST_RATE = 1e-30


class LearningRateRange(Config):
    """Searched range of the learning rate. Strategies work with its logarithm."""

    low: float = Field(gt=0, le=1e6, allow_inf_nan=False)
    high: float = Field(gt=0, le=1e6, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_a_range(self) -> LearningRateRange:
        if self.low == self.high:
            raise ValueError(f"empty: low and high are both {self.low:g}; allowed: low below high")
        if self.low > self.high:
            raise ValueError(f"reversed: low {self.low:g} is above high {self.high:g}; allowed: low below high")
        if self.low < LOWEST_RATE:  # Squares and fractions of the rate must not become 0.
            raise ValueError(f"too low: {self.low:g}; allowed: at least {LOWEST_RATE:g}")
        return self


class TokensOfATrial(Config):
    """Length of a trial, given in tokens."""

    tokens: int = Field(ge=1, le=10**16)
    """Positions computed, including padding; rounded to whole steps."""


class DivergenceConfig(Config):
    """Limits that end a trial as diverged, besides a loss or gradient norm that is not finite."""

    above_start: float | None = Field(0.1, ge=0, le=100)
    """Largest rise of the mean loss of the last ``window`` steps above the first step's loss, as a share of the latter.
    Losses of small batches scatter by several per cent around a start that a low rate hardly leaves. null: only values
    that are not finite end a trial.
    """
    window: int = Field(10, ge=1, le=100_000)
    """Number of steps of the mean."""


class SweepBudget(Config):
    """Limits of the whole sweep. The sweep stops when one is spent.

    It does not start if one full trial needs more. With a strategy that projects, all trials of all sizes must fit,
    assuming that none ends early.
    """

    hours: float | None = Field(None, gt=0, le=1e6)
    usd: float | None = Field(None, gt=0, le=1e9)
    """A limit in USD needs a price: ``price_usd_per_hour``, or a device profile with one."""
    tokens: int | None = Field(None, ge=1, le=10**18)


class TrialLimits(Config):
    """Time limits of a trial. A trial that passes a limit ends. The sweep goes on, or reports the cause of a hang."""

    start_s: float = Field(900, gt=0, le=86_400)
    """Seconds until the trial's first heartbeat: building model and data path."""
    silence_s: float = Field(600, gt=0, le=86_400)
    """Seconds without a step or a heartbeat."""
    trial_hours: float = Field(24, gt=0, le=10_000)
    """Hours of a trial, including all its parts if it was resumed. Beyond it the trial counts as late."""


class SweepConfig(Config):
    """A resolved sweep file: ``extends`` is merged, and dotted keys of ``base`` are nested."""

    name: Name
    """Name of the sweep's folder."""
    question: str = ""
    """First line of the report."""
    extends: str | None = None
    """Another sweep file, relative to this one. This file overrides it key by key (a strategy as a whole)."""
    scenario: str | None = None
    """A scenario file, relative to this one, or the name of a shipped one. Its arm is trained."""
    arm: str | None = None
    """Arm of the scenario. Optional if there is only one."""
    base: dict[str, Unchecked] = Field(default_factory=dict)
    """Keys of the trainer's configuration, nested or dotted, that override the arm's."""
    learning_rate: LearningRateRange
    """Range of optimizer.learning_rate to search."""
    strategy: StrategySettings
    """Search strategy: a name, or a mapping with the name and its settings."""
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**62)]], Field(min_length=1, max_length=1000)] = Field([0])
    """Seeds of weights and document order. Each rate is trained once with each."""
    search_seed: int = 0
    """Seed of a strategy's random rates."""
    steps: Annotated[int, Field(ge=1, le=10_000_000)] | Literal["compute-optimal"] | TokensOfATrial
    """Optimizer steps of a full trial; {tokens: N}; or compute-optimal: tokens_per_parameter tokens for each parameter
    of the model, including embeddings.
    """
    tokens_per_parameter: float = Field(TOKENS_PER_PARAMETER, gt=0, le=1e6)
    batch_tokens: int | None = Field(None, ge=1, le=10**10)
    """Tokens of an optimizer step (positions, including padding). Sets optimizer.accumulation. null: as in the base."""
    warmup_fraction: float | None = Field(None, ge=0, lt=1)
    """Share of a trial's steps over which its learning rate rises. null: the base's optimizer.lr_warmup_steps, at most
    half of the trial's steps."""
    warmup_steps: int | None = Field(None, ge=0, le=1_000_000_000)
    """Warm-up in optimizer steps, in place of warmup_fraction; at most half of a trial's steps."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] | None = None
    """Schedule of the learning rate, which ends with the trial. null, here and below: as in the base."""
    final_fraction: float | None = Field(None, ge=0, le=1)
    weight_decay: float | None = Field(None, ge=0, le=1e6)
    divergence: DivergenceConfig = DivergenceConfig()
    evaluate_behind: bool = False
    """Evaluate on held-out data at the end of a trial that stops early as behind. The report shows its loss, and no fit
    uses it."""
    budget: SweepBudget = SweepBudget()
    price_usd_per_hour: float | None = Field(None, gt=0, le=1e6)
    """Price of the machine with all its devices; null: the price of the device's profile, if it has one."""
    limits: TrialLimits = TrialLimits()
    keep: Literal["best", "all", "none"] = "best"
    """Trials whose checkpoints are kept: the one with the lowest loss, all that ended, or none."""

    @model_validator(mode="after")
    def _has_one_warmup(self) -> SweepConfig:
        if self.warmup_fraction is not None and self.warmup_steps is not None:
            raise ValueError("warmup_fraction and warmup_steps both set the warm-up; give one (null removes one)")
        return self

    @field_validator("seeds")
    @classmethod
    def _are_distinct(cls, seeds: list[int]) -> list[int]:
        """Refuse a repeated seed, because the same trial twice would count as two that agree."""
        repeated = [seed for place, seed in enumerate(seeds) if seed in seeds[:place]]
        if repeated:
            raise ValueError(f"{repeated[0]} is given twice; give each seed once")
        return seeds
