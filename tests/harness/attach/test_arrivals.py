"""The agent's notes of when batches arrived: only what it saw."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch.multiprocessing

from tests.harness.attach.running import agent_module
from tests.trainer.data.own_queue import own_queue


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "_harness_agent", SimpleNamespace(guard=agent_module("guard")))
    return agent_module("arrivals")


def test_what_comes_through_a_queue_of_torch_is_noted(arrivals: ModuleType) -> None:
    pipe: Any = torch.multiprocessing.get_context("fork").Queue()
    iterator = SimpleNamespace(_data_queue=pipe, _rcvd_idx=1)
    arrivals.watch(iterator)
    pipe.put((0, "a batch"))
    assert pipe.get(timeout=240) == (0, "a batch")
    arrived_ns, unpacked_ns, _ = arrivals.taken(iterator)
    assert 0 < arrived_ns <= unpacked_ns
    pipe.close()


@pytest.mark.parametrize("way", ["reads before there is a message", "reads by itself"])
def test_of_a_queue_that_reads_otherwise_no_arrival_is_claimed(arrivals: ModuleType, way: str) -> None:
    pipe = own_queue(way)
    iterator = SimpleNamespace(_data_queue=pipe, _rcvd_idx=1)
    arrivals.watch(iterator)
    assert pipe.get(timeout=240) == (0, "a batch")
    assert arrivals.taken(iterator) is None
    pipe.close()
