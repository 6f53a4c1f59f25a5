"""Makes the configuration of each trial, and computes its steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from pydantic import ValidationError

from harness.scenario.errors import problems_of
from harness.scenario.overrides import expand, merge
from harness.scenario.yaml import dotted
from harness.sweep.model import SweepConfig, TokensOfATrial
from harness.sweep.trials import SearchSpace, TrialPlan
from trainer.config import EvaluationConfig, TrainerConfig
from trainer.devices.estimates import parameters
from trainer.errors import InputError
from trainer.json_types import Json, JsonObject
from trainer.model import shape_of

MAX_STEPS_ASKED = 10_000_000  # steps of a trial, from any setting


class TrialConfigs:
    """Makes trials' configurations from ``base``. Its methods raise InputError if one is not possible."""

    def __init__(
        self, settings: SweepConfig, config: TrainerConfig, vocabulary: Callable[[], int], *, compared: bool = True
    ) -> None:
        """Take ``config``; held-out data is added if it has none. ``vocabulary``: returns the tokenizer's size.

        ``compared``: False if only times are needed: an emulated device, which has no loss, is then allowed.
        """
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
        """Return the setting of the warm-up and its steps; 0 for ``warmup_fraction``, a share of a trial."""
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
    """Return the configuration ``content``. Raises InputError if it is invalid, at ``place`` (default: the key)."""
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
    """Return ``config`` with documents held out, because trials are compared by their loss. Raises InputError."""
    over: JsonObject = {"evaluation": EvaluationConfig().model_dump(mode="json")}
    return _checked(
        merge(config.model_dump(mode="json"), over), "evaluation: trials are compared by the evaluation loss;"
    )
