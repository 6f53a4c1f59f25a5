"""The ring hands over the very batches that DataLoader does, and nothing that a program keeps is written again."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.data.recorder import attach_in_worker
from tests.trainer.data.test_loader import expected_batches
from tests.trainer.data.test_packing import assert_all_same, assert_same
from trainer.config import DataConfig, DataInject
from trainer.data.batch import Batch
from trainer.data.buffers import BatchBuffers
from trainer.data.loader import open_batches
from trainer.data.position import DataPosition
from trainer.data.prepare import prepare
from trainer.data.ring import FIELDS, Slots, _Assigned, _batch_in, _copied, _Filled, _Whole, _with_tensors
from trainer.errors import EndedWorkerError, InputError, LostBatchError

Make = Callable[..., DataConfig]


def batch_of(rows: int = 2, length: int = 4, **changes: Any) -> Batch:
    ids = torch.arange(rows * length).reshape(rows, length)
    return Batch(ids, ids + 100, **({"attention_mask": None, "tokens": 8, "trained_tokens": 6, "samples": 2} | changes))


def shared(count: int = 2, shape: tuple[int, int] = (2, 4), fields: tuple[str, ...] = FIELDS) -> tuple[Any, Any]:
    """The buffers of both sides over the same memory."""
    slots = Slots(count, shape, fields)
    other = Slots(count, shape, fields, os.dup(slots._descriptor))
    found = _Assigned(slots), other.take_buffers()
    slots.close()
    other.close()
    return found


@pytest.mark.parametrize("slot", [0, 1])
def test_what_has_room_in_a_slot_is_sent_without_its_tensors(slot: int) -> None:
    ours, theirs = shared()
    ours.slot = slot
    for sent in (
        batch_of(),
        batch_of(1, 3),
        batch_of(4, 2, attention_mask=torch.ones(4, 2, dtype=torch.int64), masked=True, shifted=False),
        batch_of(position_ids=torch.zeros(2, 4, dtype=torch.int64)),
    ):
        answer = ours.fill(sent)
        assert isinstance(answer, _Filled)
        received = _batch_in(theirs[answer.slot], answer)
        assert_same(received, sent)
        assert (received.masked, received.shifted) == (sent.masked, sent.shifted)
        assert (received.position_ids is None) == (sent.position_ids is None)
        assert not theirs[slot].is_free
        assert theirs[1 - slot].is_free
        del received
        assert theirs[slot].is_free


def test_what_was_built_in_a_slot_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = shared()
    buffer = ours.take()
    ids, labels, _ = buffer.tensors(1)
    ids[...], labels[...] = 7, 8
    monkeypatch.setattr(np, "copyto", None)
    answer = ours.fill(Batch(ids, labels, None, 4, 3, 1))
    assert _batch_in(theirs[0], answer).labels.tolist() == [[8] * 4]


@pytest.mark.parametrize("sent", [
    batch_of(3, 4),
    batch_of(attention_mask=torch.ones(2, 4, dtype=torch.bool)),
    batch_of(position_ids=torch.zeros(2, 4, dtype=torch.int64)),
])  # fmt: skip
def test_what_has_no_room_travels_whole(sent: Batch) -> None:
    ours, _ = shared(fields=FIELDS[:3])
    answer = ours.fill(sent)
    assert isinstance(answer, _Whole)
    assert isinstance(answer.batch.input_ids, np.ndarray)
    received = _with_tensors(answer.batch)
    for field in FIELDS:
        left, right = getattr(received, field), getattr(sent, field)
        assert left is right is None or torch.equal(left, right)


def test_a_copy_holds_its_own_memory_alone() -> None:
    ours, theirs = shared()
    sent = batch_of(1, 3, position_ids=torch.tensor([[0, 1, 0]]))
    answer = ours.fill(sent)
    received = _copied(_batch_in(theirs[0], answer), BatchBuffers(2, 4))
    assert theirs[0].is_free
    theirs[0].flat_ids[...] = -1
    assert_same(received, sent)
    assert received.position_ids.tolist() == [[0, 1, 0]]


def test_memory_that_cannot_be_had_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InputError, match=r"^data\.transport: ring needs 1 MiB .* is not available \(No space"):
        Slots(4, (8, 1024), FIELDS)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def rows() -> Any:
    """Items of different lengths, drawn from the worker's random states."""

    class Drawn(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 21

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.cat([torch.tensor([index]), torch.randint(0, 99, (5,)), torch.tensor([np.random.randint(99)])])

    return Drawn()


def fails() -> Any:
    class Broken(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> torch.Tensor:
            raise ZeroDivisionError

    return Broken()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [
    {"path": "tokens-mmap"},
    pytest.param({"path": "text-padded", "workers": 1, "prefetch": 1}, marks=pytest.mark.nightly),
    pytest.param(
        {"path": "text-stream", "access": "zero-copy", "documents": "separated", "inject": DataInject(read_ms=1)},
        marks=pytest.mark.nightly,
    ),
    pytest.param({"path": "tokens-padded", "access": "zero-copy", "replay": True}, marks=pytest.mark.nightly),
    pytest.param({"source": f"{__name__}:rows"}, marks=pytest.mark.nightly),
])  # fmt: skip
def test_batches_and_traces_are_those_of_dataloader(make_config: Make, changes: dict[str, Any]) -> None:
    found = {}
    for transport in ("ring", "dataloader"):
        config = make_config(transport=transport, **{"workers": 2, "sequence_length": 8} | changes)
        with open_batches(config, prepare(config), seed=5, worker_init=attach_in_worker) as batches:
            found[transport] = [deepcopy(batch) for batch in islice(batches, 14)]
            state = batches.position.state_dict()
        assert not multiprocessing.active_children()
        if transport == "ring":
            with open_batches(
                config, prepare(config), 5, start=DataPosition.from_state(state, config.workers)
            ) as batches:
                found["resumed"] = list(islice(batches, 3))
    for left, right in zip(found["ring"], found["dataloader"], strict=True):
        assert_same(left, right)
        assert left.position == right.position
        assert (left.trace.role, left.trace.batch) == (right.trace.role, right.trace.batch)
        assert [span.name for span in left.trace.spans] == [span.name for span in right.trace.spans]
    if "source" not in changes:
        expected = expected_batches(config, 17, 5)
        assert_all_same([*found["ring"], *found["resumed"]], expected)


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_a_program_may_keep_every_batch(make_config: Make, start_method: str) -> None:
    config = make_config(path="tokens-mmap", workers=1, transport="ring", start_method=start_method)
    with open_batches(config, prepare(config), seed=5) as batches:
        found = list(islice(batches, 40))
    assert_all_same(found, expected_batches(config, 40, 5))


@pytest.mark.slow
def test_ends_and_errors_of_workers(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.loader._LOOK_S", 0.1)
    config = make_config(path="tokens-mmap", workers=2, transport="ring", timeout_s=240)
    with open_batches(config, prepare(config), 0) as batches:
        next(batches)
        stopped, killed = batches._iterator._workers  # type: ignore[union-attr]
        batches._late._timeout_s = 0.3  # type: ignore[union-attr]  # a busy machine delays the first batch
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            with pytest.raises(LostBatchError, match=r"^no batch came from 2 loader workers within 0.3 s"):
                list(islice(batches, 40))
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        batches._late._timeout_s = 240  # type: ignore[union-attr]
        assert next(batches).samples == config.batch_size  # it goes on
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
        with pytest.raises(EndedWorkerError, match=rf"^loader-1 \(process {killed.pid}\) was killed by SIGKILL$"):
            list(islice(batches, 40))
    assert not multiprocessing.active_children()
    config = make_config(source=f"{__name__}:fails", workers=1, transport="ring")
    with open_batches(config, prepare(config), 0) as batches, pytest.raises(InputError, match=r"ZeroDivisionError"):
        next(batches)


@pytest.mark.slow
def test_another_error_of_a_worker_is_raised_here(make_config: Make) -> None:
    config = make_config(path="tokens-mmap", workers=1, transport="ring")

    def broken(_: int) -> None:
        raise RuntimeError("a hook that fails")

    with (
        open_batches(config, prepare(config), 0, worker_init=broken) as batches,
        pytest.raises(RuntimeError, match="in loader worker process 0"),
    ):
        next(batches)
