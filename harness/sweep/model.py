"""Define the sweep file, and make the configurations of its trials."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from harness.scenario.errors import problems_of
from harness.scenario.model import Name, Unchecked
from harness.scenario.overrides import expand, merge
from harness.scenario.yaml import dotted
from harness.sweep.strategies import StrategySettings
from harness.sweep.trials import SearchSpace, TrialPlan
from trainer.config import Config, EvaluationConfig, TrainerConfig
from trainer.devices.estimates import parameters
from trainer.errors import InputError
from trainer.json_types import Json, JsonObject
from trainer.model import shape_of

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
    """Limits of the whole sweep, which stops when one is spent. It does not start if one full trial needs more (with a
    strategy that projects: all trials of all sizes).
    """

    hours: float | None = Field(None, gt=0, le=1e6)
    usd: float | None = Field(None, gt=0, le=1e9)
    """A limit in USD needs a price: ``price_usd_per_hour``, or a device profile with one."""
    tokens: int | None = Field(None, ge=1, le=10**18)


class TrialLimits(Config):
    """Time limits of a trial. Beyond ``trial_hours`` the trial ends and the sweep goes on. Beyond another limit the
    trial hangs: the sweep fails, and its error names what the trial was doing.
    """

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

    @field_validator("seeds")
    @classmethod
    def _are_distinct(cls, seeds: list[int]) -> list[int]:
        """Refuse a repeated seed, because the same trial twice would count as two that agree."""
        repeated = [seed for place, seed in enumerate(seeds) if seed in seeds[:place]]
        if repeated:
            raise ValueError(f"{repeated[0]} is given twice; give each seed once")
        return seeds


MAX_STEPS_ASKED = 10_000_000  # steps of a trial, from any setting


class TrialConfigs:
    """Makes trials' configurations from ``base``. Its methods raise InputError if one is not possible."""

    def __init__(
        self, settings: SweepConfig, config: TrainerConfig, vocabulary: Callable[[], int], *, compared: bool = True
    ) -> None:
        """Take ``config``, with held-out data added unless only times count (``compared``: False, emulated device)."""
        self._settings = settings
        timed_alone = not compared and config.compute.emulated is not None
        self.base = config if config.evaluation is not None or timed_alone else _evaluated(config)
        self._vocabulary = cache(vocabulary)

    def space(self) -> SearchSpace:
        """Return the range, seeds and lengths of trials that a strategy searches."""
        rates, seeds = self._settings.learning_rate, tuple(self._settings.seeds)
        step_tokens = self.step_tokens(self.base)
        return SearchSpace(rates.low, rates.high, seeds, self._settings.search_seed, self.base, self.steps, step_tokens)

    def of(self, plan: TrialPlan) -> TrainerConfig:
        """Return the configuration of the trial that ``plan`` describes."""
        settings, config = self._settings, self._with(plan.overrides)
        steps = _allowed(plan.steps, self.step_tokens(config))
        optimizer: dict[str, Json] = {"learning_rate": plan.learning_rate}
        constant = config.optimizer.schedule == "constant"
        optimizer["schedule_steps"] = None if constant else steps
        warmup = self.warmup(config)[1]
        optimizer["lr_warmup_steps"] = (
            min(warmup, steps // 2) if settings.warmup_fraction is None else int(settings.warmup_fraction * steps)
        )
        optimizer["accumulation"] = self._accumulation(config)
        ledger = min(config.warmup_steps, steps - 1)  # number of steps that the ledger skips
        # Losses are read when a line is logged, and divergence is checked at every step. So log_every is 1.
        over: dict[str, Json] = {
            "optimizer": optimizer, "seed": plan.seed, "warmup_steps": ledger, "steps": steps - ledger, "log_every": 1,
        }  # fmt: skip
        return _checked(merge(config.model_dump(mode="json"), over))

    def steps(self, overrides: JsonObject) -> int:
        """Return the optimizer steps of a full trial whose configuration has ``overrides`` (dotted keys)."""
        setting = self._settings.steps
        if isinstance(setting, int):
            return setting
        config = self._with(overrides)
        step_tokens = self.step_tokens(config)
        if isinstance(setting, TokensOfATrial):
            tokens: float = setting.tokens
        else:
            tokens = self._settings.tokens_per_parameter * self.parameters(config)
        return _allowed(max(1, round(tokens / step_tokens)), step_tokens)

    def warmup(self, config: TrainerConfig) -> tuple[str, int]:
        """Return the key that sets the warm-up, and its steps (0 for ``warmup_fraction``, a share of each trial)."""
        settings = self._settings
        if settings.warmup_fraction is not None:
            return "warmup_fraction", 0
        if settings.warmup_steps is not None:
            return "warmup_steps", settings.warmup_steps
        return "optimizer.lr_warmup_steps", config.optimizer.lr_warmup_steps

    def parameters(self, config: TrainerConfig) -> int:
        """Return the model's parameters, embeddings included. Raises InputError for a ``model.factory``."""
        length = config.data.sequence_length
        shape = shape_of(config.model, 0, length)
        if shape is not None and not shape.vocab_size:
            shape = shape_of(config.model, self._vocabulary(), length)
        if shape is None:
            raise InputError(
                "steps: compute-optimal: the parameters of a model.factory are unknown before it is "
                "built; give a number of steps, or {tokens: N}"
            )
        return parameters(shape)

    def step_tokens(self, config: TrainerConfig) -> int:
        """Return the tokens (positions, including padding) of one optimizer step over all ranks."""
        return _micro_batch(config) * self._accumulation(config)

    def _accumulation(self, config: TrainerConfig) -> int:
        tokens = self._settings.batch_tokens
        if tokens is None:
            return config.optimizer.accumulation
        micro_batch = _micro_batch(config)
        if tokens % micro_batch:
            below, above = tokens // micro_batch * micro_batch, -(-tokens // micro_batch) * micro_batch
            ranks = f" x {config.ranks} ranks" if config.ranks > 1 else ""
            raise InputError(
                f"batch_tokens: {tokens:,} is not a multiple of data.batch_size {config.data.batch_size} x "
                f"data.sequence_length {config.data.sequence_length}{ranks} = {micro_batch:,}; nearest: "
                f"{f'{below:,} or ' if below else ''}{above:,}"
            )
        return tokens // micro_batch

    def _with(self, overrides: JsonObject) -> TrainerConfig:
        if not overrides:
            return self.base
        return _checked(merge(self.base.model_dump(mode="json"), expand(overrides)))


def _checked(content: JsonObject, place: str | None = None) -> TrainerConfig:
    """Return ``content`` as a configuration. Raises InputError, which begins with ``place`` or the invalid key."""
    try:
        return TrainerConfig.model_validate(content)
    except ValidationError as error:
        problem = next(iter(problems_of(error, TrainerConfig)))[1]
        raise InputError(f"{place or f'{dotted(problem.path)}:'} {problem.message}") from error


def _allowed(steps: int, each: int) -> int:
    if steps > MAX_STEPS_ASKED:
        raise InputError(f"steps: {steps:,} steps of {each:,} tokens; allowed: at most {MAX_STEPS_ASKED:,} steps")
    return steps


def _micro_batch(config: TrainerConfig) -> int:
    return config.data.batch_size * config.data.sequence_length * config.ranks


def _evaluated(config: TrainerConfig) -> TrainerConfig:
    """Return ``config`` with the default evaluation, by whose loss trials are compared. Raises InputError."""
    over: JsonObject = {"evaluation": EvaluationConfig().model_dump(mode="json")}
    return _checked(
        merge(config.model_dump(mode="json"), over), "evaluation: trials are compared by the evaluation loss;"
    )
