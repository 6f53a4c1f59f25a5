"""What a short run of an arm says about its cost."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from harness.launch.costing import arm_measurement
from harness.study.records import RunFacts
from tests.harness.regress.tables import MS, run, steps_table
from trainer.config import TrainerConfig


@pytest.mark.parametrize(
    ("workers", "threads", "asynchronous", "share"),
    [(0, 2, False, 0.2), (1, 1, False, 0.2), (2, 1, False, 0.0), (1, 2, False, 0.0), (1, 2, True, 0.2)],
)
def test_cores_that_its_own_threads_take_are_not_taken_by_others(
    workers: int, threads: int, asynchronous: bool, share: float
) -> None:
    """Each step of 100 ms waits 20 ms for one of 2 cores. A cost said "other work slowed it" of its own workers."""
    table = steps_table(np.full((1, 24), 100.0))
    place = table.schema.get_field_index("contended_ns")
    table = table.set_column(place, "contended_ns", pa.array([20 * MS] * 24, table.schema.field(place).type))
    config = TrainerConfig.model_validate({"data": {"workers": workers}}).model_dump(mode="json")
    facts = RunFacts(threads=threads, cores=2, asynchronous=asynchronous)
    measured = arm_measurement(run("a", 0, table, config=config, facts=facts))
    assert measured.waiting_share == pytest.approx(share)
    assert [found.kind for found in measured.doubts] == (["no core"] if share else [])
