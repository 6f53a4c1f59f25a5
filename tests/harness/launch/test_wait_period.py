"""Repetitions of a host that waits for its device in few steps count as many of the device's steps as there were."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from harness.launch.channel import Heartbeat
from harness.launch.child import Run
from harness.launch.more_warmup import MOST_PERIOD, wait_period
from harness.launch.opener import OpenTraining
from harness.launch.tables import RunTables
from harness.probes.ledger.recorders import BareRecorder
from harness.probes.probe import RunProbes
from harness.study.records import RunRecord
from harness.study.store import StudyFolder
from trainer.compute.emulated import EmulatedCompute
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.devices.profiles import load_profile
from trainer.loop import train
from trainer.model import resolve_shape

if TYPE_CHECKING:
    from trainer.data.loader import Batches


def config_of(log_every: int, **compute: Any) -> TrainerConfig:
    kernels = {"h2d_ms": 0.1, "forward_ms": 1, "backward_ms": 1, "optimizer_ms": 1}
    device = {"emulated": "gh200", "kernels": kernels}
    compute = {"precision": "bf16", "sync": "norm", "check_finite": False, "device": device, **compute}
    data = {"pin_memory": True, "batch_size": 1, "sequence_length": 8}
    return TrainerConfig.model_validate({"data": data, "compute": compute, "log_every": log_every})


@pytest.mark.parametrize(("config", "asynchronous", "period"), [
    (config_of(10), True, 10),
    (config_of(10), False, 1),
    (config_of(1), True, 1),
    (config_of(MOST_PERIOD + 1), True, 1),  # so many steps are not taken for that
    (config_of(10, check_finite=True), True, 1),
    (config_of(10, sync="late"), True, 1),
    (config_of(10, sync="every-step"), True, 1),
])  # fmt: skip
def test_only_a_host_that_waits_at_log_lines_alone_has_a_period(
    config: TrainerConfig, asynchronous: bool, period: int
) -> None:
    assert wait_period(config, asynchronous=asynchronous) == period


@pytest.mark.parametrize(("warmup", "count", "measured"), [(1, 4, 4), (2, 3, 4), (4, 5, 8), (3, 8, 8)])
def test_measured_steps_begin_and_end_behind_a_log_line(tmp_path: Path, warmup: int, count: int, measured: int) -> None:
    """So the device is idle at both ends: without that 3 ms of 4 steps' 12 were counted too few, or too many."""
    config = config_of(4)
    record = RunRecord("arm", 0, "done", config=config.model_dump(mode="json"))
    run = Run(record, StudyFolder(tmp_path), RunProbes(), Heartbeat(None, None), None)  # type: ignore[arg-type]
    recorder = BareRecorder()
    compute = EmulatedCompute(config, resolve_shape(config.model, 100, 8), load_profile("gh200"))
    ids = torch.zeros(1, 8, dtype=torch.long)
    taken: list[tuple[int, bool, bool]] = []  # step, warm-up, whether the device still has work when it has ended

    def noted() -> Iterator[int]:
        for step in train(config, compute, repeat(Batch(ids, ids, None, 8, 7, 1)), prints=False):
            taken.append((step, recorder.warmup, compute._queue.free_ns > monotonic_ns()))
            yield step

    tables = RunTables(recorder, tmp_path, os.getpid(), threading.get_native_id(), 0)
    run._training = OpenTraining(cast("Batches", None), compute, recorder, tables)
    begun: list[int] = []  # steps that had been taken when probes began to measure
    run.probe_set.begin_steps = lambda: begun.append(len(taken))  # type: ignore[method-assign]
    steps = noted()
    for repetition in range(2):
        run._repeat(steps, repetition, warmup, count, 0)
        assert begun[-1] == len(taken) - measured, "probes look at measured steps alone"
        before = taken[-measured - 1]
        assert [one[1] for one in taken[-measured - 1 :]] == [True, *[False] * measured]
        for step, _, is_behind in (before, taken[-1]):
            assert (step + 1) % 4 == 0
            assert not is_behind
