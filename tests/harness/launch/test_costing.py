"""What a short run of an arm says about its cost; a call in a forked process: its result, its error, or one line."""

from __future__ import annotations

import os
import signal
import threading
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pytest

from harness.launch.costing import MeasurementFailed, arm_measurement, called_apart
from harness.study.records import RunFacts
from tests.harness.regress.tables import MS, run, steps_table
from trainer.config import TrainerConfig
from trainer.errors import InputError


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


@pytest.mark.slow
def test_it_returns_what_the_call_returns_and_leaves_no_trace() -> None:
    def call() -> tuple[int, int]:
        os.environ["LEFT_BEHIND"] = "yes"
        return os.getpid(), os.getppid()

    pid, parent = called_apart(call, "the call", 60)
    assert parent == os.getpid() != pid
    assert "LEFT_BEHIND" not in os.environ


@pytest.mark.parametrize(
    "error", [InputError("x: wrong"), MeasurementFailed("arm a: no", "interrupted", "log.txt"), ValueError("odd")]
)
@pytest.mark.slow
def test_it_raises_what_the_call_raises(error: Exception) -> None:
    def call() -> NoReturn:
        raise error

    with pytest.raises(type(error), match=str(error)) as raised:
        called_apart(call, "the call", 60)
    assert vars(raised.value) == vars(error)


@pytest.mark.slow
def test_what_cannot_be_sent_is_named_and_an_interrupted_call_interrupts() -> None:
    def call() -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match="lock"):
        called_apart(threading.Lock, "the call", 60)
    with pytest.raises(KeyboardInterrupt):
        called_apart(call, "the call", 60)


@pytest.mark.slow
def test_a_killed_process_and_one_that_never_answers_are_one_line() -> None:
    with pytest.raises(InputError, match="the call ended with status -9 without a message"):
        called_apart(lambda: os.kill(os.getpid(), signal.SIGKILL), "the call", 60)
    with pytest.raises(InputError, match=r"the call did not end within 0 s \(process \d+\)"):
        called_apart(signal.pause, "the call", 0.01)
