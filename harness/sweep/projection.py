"""Strategies that search small models or short trainings, whose optima ``harness.sweep.power_law`` projects."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.sweep.searches import Draw, brackets, hyperband, rates_of, shortened
from harness.sweep.sizes import (
    LEAST,
    SIZES,
    TOKENS,
    ModelSize,
    ProjectionPlan,
    SizeOfTrials,
    data_sizes,
    model_sizes,
    widths_under_mup,
)
from harness.sweep.trials import SearchSpace, TrialPlan, Trials, TrialStage
from trainer.config import Config
from trainer.errors import InputError

Sizes = Annotated[list[ModelSize], Field(min_length=LEAST, max_length=100)]
WIDTHS = [64]
Tokens = Annotated[list[Annotated[int, Field(ge=1, le=10**16)]], Field(min_length=LEAST, max_length=100)]
Lengths = Annotated[list[Annotated[int, Field(ge=1, le=10_000_000)]], Field(min_length=LEAST, max_length=100)]


class _GridOfEachSize(Config):
    """A grid of rates for each of several sizes, whose optima are extrapolated to the sweep's training."""

    trials: int = Field(10, ge=4, le=10_000)
    """Number of rates for each size."""
    draw: Draw = "grid"
    """Choice of learning rates. grid: evenly spaced in their logarithm, including both bounds; random: uniform in it,
    with different rates for each size."""

    def projects(self, space: SearchSpace) -> ProjectionPlan:
        """Return the sizes to search, and the sweep's own."""
        raise NotImplementedError

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        trials = self.trials * len(space.seeds)
        return [
            TrialStage(self.draw, trials, size.steps, of=size.group, group=size.group, overrides=size.overrides)
            for size in self.projects(space).sizes
        ]

    def search(self, space: SearchSpace) -> Trials:
        for size in self.projects(space).sizes:
            for rate in rates_of(self.draw, self.trials, space, f"{size.group}/{space.seed}"):
                for seed in space.seeds:
                    yield TrialPlan(rate, size.steps, seed, size.group, overrides=size.overrides)


class ModelScalingStrategy(_GridOfEachSize):
    """A grid of rates for each of several smaller models, whose optima are extrapolated to the sweep's model."""

    name: Literal["model-scaling"]
    sizes: Sizes = SIZES
    """Layers, width and heads of each."""

    def projects(self, space: SearchSpace) -> ProjectionPlan:
        """Return the model sizes to search, and the size of the sweep's own model."""
        return model_sizes(space, self.sizes)


class _ShorterTrainings(Config):
    """Lengths of the shorter trainings of a projection, in tokens or in steps."""

    tokens: Tokens | None = None
    """Tokens of each training, including padding, rounded to whole steps. The schedule ends with the training. null:
    26M, 52M and 105M, unless ``steps`` are given."""
    steps: Lengths | None = None
    """Optimizer steps of each training, in place of ``tokens``."""

    @model_validator(mode="after")
    def _are_of_one_kind(self) -> Self:
        if self.tokens is not None and self.steps is not None:
            raise ValueError("tokens and steps both set the lengths; give one of them")
        return self

    def lengths(self, space: SearchSpace) -> ProjectionPlan:
        """Return the shorter trainings to search, and the length of the sweep's own training."""
        if self.steps is not None:
            return data_sizes(space, self.steps, "steps")
        tokens = TOKENS if self.tokens is None else self.tokens
        return data_sizes(space, [max(1, round(length / space.step_tokens)) for length in tokens], "tokens")


class DataScalingStrategy(_GridOfEachSize, _ShorterTrainings):
    """A grid of rates for each of several shorter trainings, whose optima are extrapolated to the sweep's steps."""

    name: Literal["data-scaling"]

    def projects(self, space: SearchSpace) -> ProjectionPlan:
        """Return the lengths of training to search, and the sweep's own."""
        return self.lengths(space)


class HybridStrategy(_ShorterTrainings):
    """Hyperband for each of several smaller models or shorter trainings, whose optima are extrapolated."""

    name: Literal["hybrid"]
    project: Literal["model", "data"] = "model"
    """model: sizes; data: tokens, or steps."""
    sizes: Sizes = SIZES
    eta: int = Field(3, ge=2, le=100)
    """One in eta of a rung's rates goes on, with eta times as many steps."""
    R: int = Field(27, ge=1, le=10_000_000)
    """Units of the longest trials, which have the steps of their size: a rung of k units has k / R of these."""
    draw: Draw = "random"
    """Choice of learning rates, as in hyperband."""

    def projects(self, space: SearchSpace) -> ProjectionPlan:
        """Return the sizes or lengths to search, and the sweep's own. Raises InputError for several seeds."""
        if len(space.seeds) > 1:
            raise InputError("seeds: hybrid trains each rate with one seed; give one")
        return model_sizes(space, self.sizes) if self.project == "model" else self.lengths(space)

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        return [
            TrialStage(
                f"rung {place}",
                rung.trials,
                self._steps(size, rung.steps),
                of=f"{size.group}, s = {bracket.s}",
                group=size.group,
                overrides=size.overrides,
            )
            for size in self.projects(space).sizes
            for bracket in brackets(self.R, self.eta)
            for place, rung in enumerate(bracket.rungs)
        ]

    def search(self, space: SearchSpace) -> Trials:
        for size in self.projects(space).sizes:
            asking = hyperband(space, self.R, self.eta, size.group, size.overrides, self.draw)
            plan = next(asking)
            with suppress(StopIteration):
                while True:
                    ended = yield replace(plan, steps=self._steps(size, plan.steps))
                    plan = asking.send(ended)

    def _steps(self, one: SizeOfTrials, units: int) -> int:
        return shortened(one.steps, units / self.R)


class MupStrategy(_GridOfEachSize):
    """A grid of rates for a narrow model under maximal update parametrization, whose optimum is that of a wide one.

    The wide model must be trained with the same section model.mup, which the report names.
    """

    name: Literal["mup"]
    widths: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1, max_length=100)] = WIDTHS
    """The first is the base. Further ones test that the optimum is the same at every width."""
    fraction: float = Field(1, gt=0, le=1)
    """Share of the sweep's steps that a trial has. Its schedule ends with it."""

    def projects(self, space: SearchSpace) -> ProjectionPlan:
        """Return the widths to search, and the width of the sweep's model."""
        return widths_under_mup(space, self.widths, shortened(space.steps, self.fraction))


PROJECTING = (ModelScalingStrategy, DataScalingStrategy, HybridStrategy, MupStrategy)


def projection_of(strategy: Config, space: SearchSpace) -> ProjectionPlan | None:
    """Return the sizes of a strategy that projects the rate from them; None for any other strategy."""
    return strategy.projects(space) if isinstance(strategy, PROJECTING) else None
