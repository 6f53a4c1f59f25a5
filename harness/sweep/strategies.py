"""Lists the strategies. A new one is a class with its settings as fields and the methods of ``trials.Strategy``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag

from harness.scenario.errors import did_you_mean, shown
from harness.sweep.greedy import GreedyStrategy
from harness.sweep.grid import EarlyStoppingStrategy, GridStrategy
from harness.sweep.hyperband import HyperbandStrategy
from harness.sweep.own_strategy import OwnStrategy
from harness.sweep.projection import DataScalingStrategy, HybridStrategy, ModelScalingStrategy, MupStrategy
from trainer.config import Config

SETTINGS: Mapping[str, type[Config]] = {
    "grid": GridStrategy,
    "greedy": GreedyStrategy,
    "early-stopping": EarlyStoppingStrategy,
    "hyperband": HyperbandStrategy,
    "model-scaling": ModelScalingStrategy,
    "data-scaling": DataScalingStrategy,
    "hybrid": HybridStrategy,
    "mup": MupStrategy,
}
NAMES = tuple(SETTINGS)
OWN = "own"  # the tag of a strategy whose name is MODULE:FUNCTION
TAGGED: Mapping[str, type[Config]] = {**SETTINGS, OWN: OwnStrategy}


def _named(value: Any) -> Any:
    """Return the mapping for the setting ``strategy``; a name alone stands for the strategy with its defaults.

    Raises ValueError for an unknown name.
    """
    mapping = {"name": value} if isinstance(value, str) else value
    allowed = f"allowed: {', '.join(NAMES)}, or MODULE:FUNCTION of your own"
    if not isinstance(mapping, dict):
        raise ValueError(f"must be a name, or a mapping with one; got {shown(value)}; {allowed}")
    name = mapping.get("name")
    if name is None:
        raise ValueError(f"name: this key is required; {allowed}")
    if name not in NAMES and not _is_own(name):
        raise ValueError(f"no such strategy: {shown(name)}{did_you_mean(str(name), NAMES) or ';'} {allowed}")
    return mapping


def _name_of(value: Any) -> Any:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return OWN if _is_own(name) else name


def _is_own(name: Any) -> bool:
    return isinstance(name, str) and ":" in name


StrategySettings = Annotated[
    Annotated[
        Annotated[GridStrategy, Tag("grid")]
        | Annotated[GreedyStrategy, Tag("greedy")]
        | Annotated[EarlyStoppingStrategy, Tag("early-stopping")]
        | Annotated[HyperbandStrategy, Tag("hyperband")]
        | Annotated[ModelScalingStrategy, Tag("model-scaling")]
        | Annotated[DataScalingStrategy, Tag("data-scaling")]
        | Annotated[HybridStrategy, Tag("hybrid")]
        | Annotated[MupStrategy, Tag("mup")]
        | Annotated[OwnStrategy, Tag(OWN)],
        Discriminator(_name_of),
    ],
    BeforeValidator(_named),
]
