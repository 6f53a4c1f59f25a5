"""Converts records to plain data for JSON: what was not measured is null, never NaN and never 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from harness.analysis.statistics import Estimate

Json = dict[str, Any]


def estimate_json(estimate: Estimate | None) -> Json | None:
    if estimate is None:
        return None
    return {
        "median": finite(estimate.median),
        "ci_low": finite(estimate.ci_low),
        "ci_high": finite(estimate.ci_high),
        "n": estimate.n,
    }


def plain(one: Any) -> Any:
    """A dataclass as plain data; a number that is not finite is null."""
    if is_dataclass(one) and not isinstance(one, type):
        one = asdict(one)
    if isinstance(one, Mapping):
        return {str(key): plain(value) for key, value in one.items()}
    if isinstance(one, list | tuple):
        return [plain(value) for value in one]
    return finite(one) if isinstance(one, float) else one


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
