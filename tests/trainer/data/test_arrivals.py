"""When a batch had arrived and when it was unpacked: of the very batch, and only the receiver's own work in between."""

from __future__ import annotations

import queue
import threading
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from time import monotonic_ns, sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch.multiprocessing

from harness.launch.tables import RunTables
from harness.probes.ledger.recorders import StepRecorder
from harness.study.contract import RECEIVE, SPAN_COLUMNS
from harness.study.tables import read_table
from tests.trainer.data.own_queue import own_queue
from tests.trainer.data.recorder import attach_in_worker
from trainer import telemetry
from trainer.data.arrivals import Arrivals
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare

LOADED_NS: list[int] = []  # when each message was unpickled


class Sent:
    def __reduce__(self) -> Any:
        return _loaded, ()


def _loaded() -> Sent:
    LOADED_NS.append(monotonic_ns())
    return Sent()


def _put_when_waited_for(pinned: Any) -> None:
    for _ in range(30_000):
        if pinned.not_empty._waiters:
            break
        sleep(0.001)
    pinned.put((1, "another"))


def test_a_batch_that_came_before_its_turn_has_its_own_times() -> None:
    pipe = torch.multiprocessing.get_context("fork").Queue()
    iterator = SimpleNamespace(_data_queue=pipe, _rcvd_idx=0)
    arrivals = Arrivals(iterator)
    LOADED_NS.clear()
    for number in (1, 0):  # as put does it, but for the thread that sends
        pipe._sem.acquire()
        pipe._writer.send_bytes(ForkingPickler.dumps((number, Sent())))
    asked_ns = monotonic_ns()
    assert [pipe.get(timeout=240)[0] for _ in range(2)] == [1, 0]
    got_ns = monotonic_ns()
    pipe.close()
    found = []
    for iterator._rcvd_idx in (1, 2):
        found.append(arrivals())
        assert arrivals() is None, "handed out once"
    (first, second), loaded = found, LOADED_NS
    times = (asked_ns, second.arrived_ns, loaded[0], second.unpacked_ns, first.arrived_ns, loaded[1], first.unpacked_ns)
    assert list(times) == sorted(times)
    assert first.unpacked_ns <= got_ns
    assert not first.waited, "it was behind the other one"


def test_of_a_thread_that_pins_a_batch_arrives_when_it_is_taken_from_it() -> None:
    pinned: Any = queue.Queue()
    iterator = SimpleNamespace(_data_queue=pinned, _rcvd_idx=0)
    arrivals = Arrivals(iterator)
    pinned.put((0, "a batch"))
    put_ns = monotonic_ns()
    assert pinned.get(timeout=240) == (0, "a batch")
    threading.Thread(target=_put_when_waited_for, args=(pinned,)).start()
    assert pinned.get(timeout=240) == (1, "another")
    iterator._rcvd_idx = 2
    another = arrivals()
    assert another.waited
    iterator._rcvd_idx = 1
    found = arrivals()
    assert put_ns <= found.arrived_ns <= found.unpacked_ns <= another.arrived_ns
    assert not found.waited


@pytest.mark.parametrize("way", ["reads before there is a message", "reads by itself"])
def test_of_a_queue_that_reads_otherwise_no_arrival_is_claimed(way: str) -> None:
    """Once a wait within its get passed for unpacking, or a message had arrived at boot time."""
    pipe = own_queue(way)
    iterator = SimpleNamespace(_data_queue=pipe, _rcvd_idx=1)
    arrivals = Arrivals(iterator)
    assert pipe.get(timeout=240) == (0, "a batch")
    assert arrivals() is None
    pipe.close()


def test_a_torch_without_such_queues_is_left_alone() -> None:
    iterator = SimpleNamespace(_data_queue=object(), _rcvd_idx=1)
    assert Arrivals(iterator)() is None
    assert Arrivals(object())() is None


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["dataloader", pytest.param("ring", marks=pytest.mark.nightly)])
def test_every_batch_of_workers_has_a_span_before_the_end_of_its_fetch(make_config, tmp_path, transport) -> None:
    config = make_config(workers=2, transport=transport)
    recorder = StepRecorder()
    with open_batches(config, prepare(config), seed=5, worker_init=attach_in_worker) as batches:
        telemetry.attach(recorder)
        try:
            for step in range(8):
                telemetry.step(step)
                with telemetry.span("fetch"):
                    batch = next(islice(batches, 1))
                telemetry.received(batch.trace, batch.tokens, batch.trained_tokens, batch.samples)
            telemetry.pause()
        finally:
            telemetry.attach(None)
    RunTables(recorder, tmp_path, 1, 1, 0).write()
    table = read_table(tmp_path / "spans.parquet", SPAN_COLUMNS)
    rows = table.to_pylist()
    fetches = {row["batch"]: row for row in rows if row["name"] == "fetch"}
    built = {row["batch"]: row["end_ns"] for row in rows if row["name"] == "pack"}
    received = {row["batch"]: row for row in rows if row["role"] == RECEIVE}
    assert set(received) == set(fetches) == set(range(8))
    for number, row in received.items():
        assert built[number] <= row["start_ns"] <= row["end_ns"] <= fetches[number]["end_ns"]
        inside = [one for one in fetches.values() if one["start_ns"] <= row["start_ns"] <= one["end_ns"]]
        assert len(inside) == 1, "some fetch received it"
