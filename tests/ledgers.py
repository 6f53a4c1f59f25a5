"""Ledgers of runs of which next to nothing was measured."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from harness.explain.ledger import RunLedger
from harness.study.records import RunRecord


def ledger(record: RunRecord, **measured: Any) -> RunLedger:
    """The ledger of ``record`` with what was ``measured``; all else was not: None, or empty."""
    absent: dict[str, Any] = {
        field.name: {} if str(field.type).startswith("dict") else None
        for field in fields(RunLedger)
        if field.default is MISSING and field.default_factory is MISSING
    }
    return RunLedger(**{**absent, "record": record, "step_ms": np.zeros(1), **measured})
