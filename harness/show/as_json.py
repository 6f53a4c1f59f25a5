"""Converts records to plain data for JSON: what was not measured is null, never NaN and never 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.explain.statistics import Estimate
from harness.judge.doubts import RULE_OF, Doubt
from harness.show.text.doubts import doubt_text, remedy_text
from trainer.json_types import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def estimate_json(estimate: Estimate | None) -> dict[str, Json] | None:
    if estimate is None:
        return None
    return {
        "median": finite(estimate.median),
        "ci_low": finite(estimate.ci_low),
        "ci_high": finite(estimate.ci_high),
        "n": estimate.n,
    }


def record_json(record: DataclassInstance) -> dict[str, Json]:
    """A dataclass as plain data, field by field; a number that is not finite is null."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def _plain(one: Json) -> Json:
    if isinstance(one, Mapping):
        return {str(key): _plain(value) for key, value in one.items()}
    if isinstance(one, list | tuple):
        return [_plain(value) for value in one]
    return finite(one) if isinstance(one, float) else one


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def doubt_json(one: Doubt) -> dict[str, Json]:
    """Return a doubt with its words and what it bars. ``unit``: of ``share``."""
    rule = RULE_OF[one.kind]
    return {
        "kind": one.kind,
        "text": doubt_text(one),
        "bars": rule.bars,
        "arms": list(one.arms),
        "share": finite(one.share),
        "unit": rule.unit or None,
        "where": one.where or None,
        "cores": None if one.cores is None else list(one.cores),
        "remedy": None
        if one.remedy is None
        else {
            "kind": one.remedy.kind,
            "text": remedy_text(one.remedy),
            "blocks": one.remedy.blocks,
        },
    }
