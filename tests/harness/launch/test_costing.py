"""What a short run of an arm says about its cost."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from harness.launch.costing import arm_measurement
from harness.study.records import RunFacts
from tests.harness.regress.tables import MS, run, steps_table
from trainer.config import TrainerConfig


@pytest.mark.parametrize("workers", [0, 2])
def test_waits_for_a_core_are_a_doubt_whoever_has_it(workers: int) -> None:
    """Each step of 100 ms waits 20 ms for one of 2 cores. Which process had it is not recorded."""
    table = steps_table(np.full((1, 24), 100.0))
    place = table.schema.get_field_index("contended_ns")
    table = table.set_column(place, "contended_ns", pa.array([20 * MS] * 24, table.schema.field(place).type))
    config = TrainerConfig.model_validate({"data": {"workers": workers}}).model_dump(mode="json")
    measured = arm_measurement(run("a", 0, table, config=config, facts=RunFacts(threads=2, cores=2)))
    assert measured.waiting_share == pytest.approx(0.2)
    assert [found.kind for found in measured.doubts] == ["no core"]
