"""Define the smaller models and shorter trainings of a projection, and compute their sizes.

A model's size is its parameters without embeddings and output projection (Kaplan et al. 2020). ``steps:
compute-optimal`` includes them, like Hoffmann et al. 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field, ValidationError

from harness.sweep.trials import SearchSpace
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
    """One searched size of a projection (parameters, tokens or width). ``overrides``: dotted keys."""

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
    mup: JsonObject | None = None
    """The section model.mup of all of them, and of the model that the rate is for."""


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
