"""Memory is used again once nothing holds it, and never before: whatever a program keeps of a batch stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.data.test_packing import assert_all_same, assert_same
from trainer.compute.emulated import EmulatedCompute
from trainer.config import DataConfig, TrainerConfig
from trainer.data.batch import Batch, InFlight
from trainer.data.buffers import MOST_KEPT, BatchBuffer, BatchBuffers
from trainer.data.dataset import make_pipeline
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.devices.profiles import load_profile
from trainer.inject import wait_until
from trainer.model import resolve_shape

Make = Callable[..., DataConfig]
KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda one: one,
    "view": lambda one: one[1:, 2:4],
    "row": lambda one: one.unbind(0)[1],
    "detached": lambda one: one.detach(),
    "storage": lambda one: one.untyped_storage(),
    "numpy": lambda one: one.numpy(),
    "numpy view": lambda one: one.numpy()[1:],
    "dlpack": lambda one: torch.from_dlpack(one),
    "graph": lambda one: torch.nn.functional.embedding(one, torch.ones(10, 2, requires_grad=True)),
}


@pytest.mark.parametrize("how", KEPT)
def test_whatever_is_kept_of_a_batch_holds_its_memory(how: str) -> None:
    buffers = BatchBuffers(3, 8)
    first = buffers.take()
    first.ids[...] = 7
    ids, labels, mask = first.tensors(3)
    assert mask is None
    assert not first.is_free
    kept = KEPT[how](ids)
    del ids, labels
    assert not first.is_free
    assert buffers.take() is not first
    del kept  # of a graph, what autograd saved
    assert first.is_free


def test_memory_is_used_again_once_nothing_holds_it() -> None:
    buffers = BatchBuffers(2, 4, mask=True)
    pointers = set()
    for _ in range(20):
        tensors = buffers.take().tensors(1)
        pointers |= {one.data_ptr() for one in tensors if one is not None}
    assert len(pointers) == 6  # while the last one is still there, the next one is made


def test_a_buffer_of_fewer_rows_is_held_as_well() -> None:
    buffers = BatchBuffers(4, 4)
    ids, labels, _ = (first := buffers.take()).tensors(2)
    assert ids.shape == labels.shape == (2, 4)
    del ids
    assert not first.is_free


def test_what_is_kept_for_long_is_forgotten_and_not_written_again() -> None:
    buffers = BatchBuffers(1, 4)
    kept = []
    for number in range(5 * MOST_KEPT):
        buffer = buffers.take()
        buffer.ids[...] = number
        kept.append(buffer.tensors(1)[0])
    assert [int(one[0, 0]) for one in kept] == list(range(5 * MOST_KEPT))
    assert len(buffers._kept) == MOST_KEPT


def test_memory_of_a_pinned_buffer_is_asked_for_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    empty = torch.empty

    def without_cuda(*shape: Any, pin_memory: bool = False, **settings: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*shape, **settings)

    monkeypatch.setattr(torch, "empty", without_cuda)
    buffer = BatchBuffers(2, 3, pinned=True).take()
    assert asked == [True, True]
    ids, _, _ = buffer.tensors(2)
    assert not buffer.is_free
    del ids
    assert buffer.is_free


@pytest.mark.parametrize(("path", "access"), [
    ("tokens-mmap", "scalar"),
    ("tokens-stream", "zero-copy"),
    ("tokens-padded", "zero-copy"),
    ("text-padded", "zero-copy"),
    ("text-stream", "zero-copy"),
])  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_batches_that_are_kept_stay_what_they_were(make_config: Make, path: str, access: str, masked: bool) -> None:
    config = make_config(path=path, access=access)
    prepared = prepare(config).with_objective("masked" if masked else "causal")
    kept: list[Batch] = []
    copies: list[Batch] = []
    with open_batches(config, prepared, 3) as batches:
        for number, batch in zip(range(40), batches, strict=False):
            copies.append(copy.deepcopy(batch))
            if number % 3:
                kept.append(batch)
    assert_all_same(kept, [one for number, one in enumerate(copies) if number % 3])
    fresh = make_pipeline(config, prepared, 3, 0, 1)
    for one in copies:
        again = fresh.next_batch()
        assert again is not None
        assert_same(one, again)


def test_the_steps_of_an_accumulation_and_a_replay_hold_their_batches(make_config: Make) -> None:
    config = make_config(path="tokens-mmap", replay=True)
    with open_batches(config, prepare(config), 0) as batches:
        first, second = next(batches), next(batches)
        assert first.input_ids.data_ptr() == second.input_ids.data_ptr()  # one batch, repeated
        before = first.input_ids.clone()
        other = make_pipeline(config.model_copy(update={"replay": False}), prepare(config), 0, 0, 1)
        for _ in range(5):
            other.next_batch()
        assert torch.equal(next(batches).input_ids, before)


def batch_in(buffers: BatchBuffers) -> tuple[Batch, BatchBuffer]:
    buffer = buffers.take()
    ids, labels, _ = buffer.tensors(2)
    return Batch(ids, labels, None, 16, 14, 2), buffer


def test_memory_is_free_once_the_copies_up_to_then_are_done() -> None:
    buffers, held = BatchBuffers(2, 8), InFlight()
    done = [False] * 3
    found = []
    for number in range(3):
        batch, buffer = batch_in(buffers)
        held.hold(batch, lambda number=number: done[number])  # type: ignore[misc]
        found.append(buffer)
        del batch
    assert len(set(map(id, found))) == 3
    assert not any(buffer.is_free for buffer in found)
    done[:2] = [True, True]
    batch, last = batch_in(buffers)
    assert last not in found
    held.hold(batch, lambda: False)
    assert [buffer.is_free for buffer in found] == [True, True, False]
    assert len(held) == 2


@pytest.mark.parametrize("pinned", [True, False])
def test_an_emulated_copy_reads_until_the_device_is_there(pinned: bool) -> None:
    """From pageable memory the copy is over when the call returns, from pinned memory when the queue has done it."""
    config = TrainerConfig.model_validate(
        {
            "data": {"pin_memory": pinned, "batch_size": 64, "sequence_length": 1024},
            "compute": {"precision": "bf16", "device": {"emulated": "gh200", "kernels": {"h2d_ms": 30}}},
        }
    )
    shape = resolve_shape(config.model, 1000, 1024)
    compute = EmulatedCompute(config, shape, load_profile("gh200"))
    buffers = BatchBuffers(2, 8)
    batch, buffer = batch_in(buffers)
    compute.to_device(batch)
    del batch
    if not pinned:
        assert monotonic_ns() >= compute._queue.free_ns
        assert buffer.is_free
        return
    assert not buffer.is_free
    wait_until(compute._queue.free_ns)
    other, second = batch_in(buffers)
    assert second is not buffer  # it is let go of with the next copy
    compute.to_device(other)
    assert buffer.is_free


def test_a_copy_to_cuda_is_held_by_an_event_after_it() -> None:
    """Not run on a GPU: what is kept until the event is reached, with an event that the test reaches."""
    from trainer.compute.torch_compute import TorchCompute

    reached = [False]
    event = SimpleNamespace(record=lambda: None, query=lambda: reached[0])
    compute = TorchCompute.__new__(TorchCompute)
    compute._torch = SimpleNamespace(cuda=SimpleNamespace(Event=lambda: event))
    compute._device, compute._source, compute._own = torch.device("cuda"), None, None
    compute._pinned, compute._in_flight = True, InFlight()
    buffers = BatchBuffers(2, 8)
    batch, buffer = batch_in(buffers)
    # Tensors that can be copied where no device is.
    batch.input_ids, batch.labels = (
        SimpleNamespace(tensor=one, to=lambda *_, **__: "on the device") for one in (batch.input_ids, batch.labels)
    )
    assert compute.to_device(batch).input_ids == "on the device"
    del batch
    assert not buffer.is_free
    reached[0] = True
    compute._in_flight.hold(batch_in(buffers)[0], lambda: False)
    assert buffer.is_free
