"""Step tables of two sides with a known change between them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from harness.study.contract import PHASES, STEP_COLUMNS, arrow_schema
from harness.study.records import ArmRecord, CodeRecord, ComparisonRecord, RunRecord, StudyRecord
from harness.study.run_data import RunData

MS = 1_000_000
BASE, TWIN, HEAD = "x@base", "x@base+a-a", "x@head"


def steps_table(
    step_ms: np.ndarray, warmup_ms: float = 0.0, warmups: int = 0, tokenize_ms: float = 1.0, hidden: bool = False
) -> pa.Table:
    """``step_ms``: (repetitions, steps) wall times. Each repetition begins with ``warmups`` steps of ``warmup_ms``."""
    rows: dict[str, list[Any]] = {name: [] for name, _ in STEP_COLUMNS}
    clock = 0
    for repetition, times in enumerate(step_ms):
        for place, wall in enumerate([*[warmup_ms] * warmups, *times]):
            wall_ns = round(wall * MS)
            spent = dict.fromkeys(PHASES, 0)
            tokenize_ns = round(tokenize_ms * MS)
            spent["fetch"] = 0 if hidden else min(tokenize_ns, wall_ns)
            spent["forward"] = wall_ns - spent["fetch"]
            values = {
                "step": len(rows["step"]), "turn": repetition, "warmup": place < warmups, "start_ns": clock,
                "wall_ns": wall_ns, **{f"{phase}_ns": value for phase, value in spent.items()},
                "exposed_tokenize_ns": 0 if hidden else tokenize_ns, "hidden_tokenize_ns": tokenize_ns if hidden else 0,
                "tokens": 256, "trained_tokens": 200, "samples": 2,
            }  # fmt: skip
            for name in rows:
                rows[name].append(values.get(name))
            clock += wall_ns
    return pa.table(rows, schema=arrow_schema(STEP_COLUMNS))


def run(arm: str, block: int, steps: pa.Table | None, **record: Any) -> RunData:
    control = "a-a" if arm.endswith("+a-a") else None
    made = RunRecord(
        arm, block, "done", control=control, of=arm.removesuffix("+a-a") if control else None,
        session=str(block), interleave="slices",
    )  # fmt: skip
    return RunData(replace(made, **record), steps, None, None)


def recorded(one: RunData, **changes: Any) -> RunData:
    """The same run with another record."""
    return replace(one, record=replace(one.record, **changes))


def study(change: float = 0.0, **settings: Any) -> tuple[StudyRecord, list[RunData]]:
    """A comparison in which the head takes ``change`` longer; as :func:`_study`, made and measured once."""
    record, runs = _study(change, **settings)
    return record, [*runs]


@lru_cache(8)
def _study(
    change: float, blocks: int = 9, repetitions: int = 8, seed: int = 0, spread: float = 0.002, **head: Any
) -> tuple[StudyRecord, tuple[RunData, ...]]:
    """``head``: further settings of its tables."""
    generator = np.random.default_rng(seed)
    runs = []
    for block in range(blocks):
        documents = 10 * np.exp(generator.normal(0, 0.2, (repetitions, 4)))  # the same for every side
        for arm in (BASE, TWIN, HEAD):
            noise = np.exp(generator.normal(0, spread) + generator.normal(0, 0.01, documents.shape))
            longer = 1 + change if arm == HEAD else 1.0
            extra = head if arm == HEAD else {}
            table = steps_table(documents * noise * longer, **extra)
            runs.append(run(arm, block, table, startup_ns=2 * 10**9, peak_memory_bytes=300 * 2**20))
    arms = [
        ArmRecord(BASE, contest="x", code=CodeRecord("", "", "aaa")),
        ArmRecord(TWIN, "a-a", BASE, contest="x", code=CodeRecord("", "", "aaa")),
        ArmRecord(HEAD, contest="x", code=CodeRecord("", "", "bbb")),
    ]
    pairs = [ComparisonRecord(BASE, HEAD)]
    return StudyRecord("tiny", "?", "done", blocks=blocks, arms=arms, comparisons=pairs), tuple(runs)
