"""Checks the numbers of a recorded configuration that analyses count with; all else in it is shown and compared only.

A configuration of another version lacks some of them, or has others. What is there must be possible: a batch size of -1
or of "8" would be taken for a default, or end an analysis.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainer.json_types import Json, JsonObject

# Dotted key: least, most. Wider than what a scenario may ask for (trainer.config): that may change.
LIMITS: Mapping[str, tuple[float, float]] = {
    "data.batch_size": (1, 2**24),
    "data.workers": (0, 2**16),
    "data.prefetch": (1, 2**16),
    "data.extra_reads": (0, 2**16),
    "data.extra_tokenizations": (0, 2**16),
    "data.inject.transfer_ms": (0, 1e9),
    "optimizer.accumulation": (1, 2**24),
    "compute.extra_forwards": (0, 2**16),
    "compute.device.speed": (1e-6, 1e9),
    "compute.device.queue_depth": (1, 2**31),
}


def possible(config: JsonObject) -> JsonObject:
    """``config`` itself; ValueError where one of its numbers is none, or out of its limits."""
    for key, (least, most) in LIMITS.items():
        value = _at(config, key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{key}: expected a number from {least:g} to {most:g}")
    return config


def _at(config: JsonObject, key: str) -> Json:
    found: Json = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
