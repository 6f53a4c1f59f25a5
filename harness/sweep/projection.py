"""Strategies that search small models or short trainings, whose optima ``harness.sweep.power_law`` projects.

A model's size excludes embeddings and output projection (Kaplan et al. 2020), unlike ``steps: compute-optimal``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from harness.sweep.searches import Draw, brackets, hyperband, rates_of, shortened
from harness.sweep.trials import SearchSpace, TrialPlan, Trials, TrialStage
from trainer.config import Config, ModelConfig
from trainer.devices.estimates import flops_per_token
from trainer.errors import InputError, one_line
from trainer.json_types import Json, JsonObject
from trainer.model import Shape, resolve_shape

Unit = Literal["parameters", "tokens", "width"]
LEAST = 3  # minimum number of sizes of a projection, because any two optima lie on a line


class ModelSize(Config):
    """Depth, channels and heads of a smaller model. Everything else is that of the sweep's model."""

    layers: int = Field(ge=1)
    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int | None = Field(None, ge=1)
    """null: as many as heads."""
    ffn_width: int | None = Field(None, ge=1)
    """null: four times the width."""


SIZES = [
    ModelSize(layers=1, width=64, heads=1),
    ModelSize(layers=2, width=128, heads=2),
    ModelSize(layers=3, width=192, heads=3),
]
TOKENS = [26_000_000, 52_000_000, 105_000_000]


@dataclass(frozen=True)
class SizeOfTrials:
    """One searched size (parameters, tokens or width), and the dotted keys that change the trainer to it."""

    group: str
    size: float
    steps: int
    overrides: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class ProjectionPlan:
    """Sizes that a strategy searches, and the size ``target`` for which the sweep wants a rate. All are in ``unit``."""

    unit: Unit
    sizes: tuple[SizeOfTrials, ...]
    target: float
    mup: JsonObject | None = None  # The section model.mup of all of them, and of the model that the rate is for


def model_sizes(space: SearchSpace, sizes: Sequence[ModelSize]) -> ProjectionPlan:
    """Plan trials of smaller models. Raises InputError if one is not possible, or if two have the same size."""
    full_shape = shape_of_preset(space, "model-scaling")
    planned = []
    for place, size in enumerate(sizes):
        over: dict[str, Json] = {f"model.{key}": value for key, value in size.model_dump().items()}
        shape = _shape(space, {key.removeprefix("model."): value for key, value in over.items()}, f"sizes[{place}]")
        group = f"{size.layers}/{size.width}/{size.heads}"
        planned.append(SizeOfTrials(group, parameters_of_body(shape), space.steps_of(over), over))
    return ProjectionPlan("parameters", _distinct(planned, "sizes"), parameters_of_body(full_shape))


def data_sizes(space: SearchSpace, lengths: Sequence[int], key: str) -> ProjectionPlan:
    """Plan shorter trainings, ``lengths`` in optimizer steps. Raises InputError (with ``key``) if two are equal."""
    planned = [
        SizeOfTrials(f"{steps * space.step_tokens:,} tokens", steps * space.step_tokens, steps) for steps in lengths
    ]
    return ProjectionPlan("tokens", _distinct(planned, key), float(space.steps * space.step_tokens))


def widths_under_mup(space: SearchSpace, widths: Sequence[int], steps: int) -> ProjectionPlan:
    """Plan narrower models under mup with the sweep's depth and head width. The first of ``widths`` is the base."""
    full_shape = shape_of_preset(space, "mup")
    head_width = full_shape.width // full_shape.heads
    mup: dict[str, Json] = {"base_width": widths[0], "base_heads": widths[0] // head_width}
    planned = []
    for place, width in enumerate(widths):
        if width % head_width:
            raise InputError(
                f"strategy.widths[{place}]: {width} is not a multiple of the width of the model's heads "
                f"({head_width}), which stays the same"
            )
        over: dict[str, Json] = {
            "model.width": width, "model.heads": width // head_width,
            "model.kv_heads": max(1, full_shape.kv_heads * width // full_shape.width),
            "model.ffn_width": max(1, full_shape.ffn_width * width // full_shape.width), "model.mup": mup,
        }  # fmt: skip
        _shape(space, {key.removeprefix("model."): value for key, value in over.items()}, f"widths[{place}]")
        planned.append(SizeOfTrials(f"width {width}", width, steps, over))
    return ProjectionPlan("width", _distinct(planned, "widths"), full_shape.width, mup)


def shape_of_preset(space: SearchSpace, strategy: str) -> Shape:
    """Return the model's shape with vocabulary 0. Raises InputError, naming ``strategy``, without a preset."""
    model = space.config.model
    if model.is_of_files or model.factory is not None:
        raise InputError(f"strategy: {strategy} makes smaller models of a preset; give model.preset")
    return resolve_shape(model, 0, space.config.data.sequence_length)


def parameters_of_body(shape: Shape) -> int:
    """Return the number of parameters of a model without embeddings and output projection."""
    return round(flops_per_token(shape, 0, "non-embedding") / 6)


def _shape(space: SearchSpace, over: JsonObject, where: str) -> Shape:
    try:
        model = ModelConfig.model_validate({**space.config.model.model_dump(mode="json"), **over})
        return resolve_shape(model, 0, space.config.data.sequence_length)
    except ValidationError as error:
        raise InputError(f"strategy.{where}: {one_line(error.errors()[0]['msg'])}") from error
    except InputError as error:
        raise InputError(f"strategy.{where}: {error}") from error


def _distinct(found: Sequence[SizeOfTrials], key: str) -> tuple[SizeOfTrials, ...]:
    sizes = [planned.size for planned in found]
    if duplicate := next((planned for place, planned in enumerate(found) if planned.size in sizes[:place]), None):
        raise InputError(f"strategy.{key}: two sizes are equal ({duplicate.group}); give distinct sizes")
    return tuple(found)


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
