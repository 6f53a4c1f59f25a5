"""A batch whose copy is on its way is held, and let go of once that is done."""

from __future__ import annotations

from time import monotonic_ns

import pytest
import torch

from trainer.compute.emulated import EmulatedCompute
from trainer.config import TrainerConfig
from trainer.data.batch import Batch, InFlight
from trainer.data.buffers import BatchBuffer, BatchBuffers
from trainer.devices.profiles import load_profile
from trainer.inject import wait_until
from trainer.model import resolve_shape


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

    class Event:
        reached = False

        def record(self) -> None: ...

        def query(self) -> bool:
            return self.reached

    class Cuda:
        events: list[Event] = []  # noqa: RUF012

        def Event(self) -> Event:  # noqa: N802
            self.events.append(Event())
            return self.events[-1]

    class Fake:
        cuda = Cuda()

    compute = TorchCompute.__new__(TorchCompute)
    compute._torch, compute._device = Fake(), torch.device("cuda")  # type: ignore[assignment]
    compute._source = compute._own = None
    compute._pinned, compute._in_flight = True, InFlight()
    buffers = BatchBuffers(2, 8)
    batch, buffer = batch_in(buffers)
    moved = Moved(batch.input_ids)
    batch.input_ids = moved  # type: ignore[assignment]
    batch.labels = Moved(batch.labels)  # type: ignore[assignment]
    copied = compute.to_device(batch)
    assert copied.input_ids == "on the device"  # type: ignore[comparison-overlap]
    del batch, moved, copied
    assert not buffer.is_free
    Cuda.events[0].reached = True
    compute._in_flight.hold(batch_in(buffers)[0], lambda: False)
    assert buffer.is_free


class Moved:
    """A tensor that can be copied where no device is."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device, non_blocking: bool) -> str:
        assert device.type == "cuda"
        assert non_blocking
        return "on the device"
