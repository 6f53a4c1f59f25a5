"""Lets ranks train one model together, by DistributedDataParallel (ddp) or FSDP2's fully_shard (fsdp).

Gradients are averaged over ranks with equal weights: the mean over all labels if ranks have equally many.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trainer import telemetry
from trainer.checkpoint_folder import of_the_disk
from trainer.compute.base import Stateful
from trainer.config import LaunchConfig
from trainer.errors import InputError
from trainer.ranks import Rank, RanksDifferError, join, leave

if TYPE_CHECKING:
    import torch


class Parallel:
    """One rank's side of a training with several ranks: exchanges gradients (ddp) or shards the model (fsdp)."""

    def __init__(self, launch: LaunchConfig, rank: Rank, device: torch.device, micro_batches: int) -> None:
        """Join the group of ranks. Every rank waits here for the last one. ``micro_batches``: number per step."""
        self._sharded = launch.parallel == "fsdp"
        self._rank, self._device, self._micro_batches = rank, device, micro_batches
        self._model: Any = None
        self._begun = 0  # micro-batches of the open step
        self._ready_ns = 0  # time when the last gradients of this rank were ready
        self._checked = False  # True after the check that all parameters have gradients
        self.within_step = False
        join(rank, device)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Wrap ``model`` so that the ranks train it together (fsdp: each rank holds a share), and return it."""
        import torch

        if self._sharded:
            self._model = self._shard(model)
        else:
            from torch.nn.parallel import DistributedDataParallel

            # Buffers are constants of these models, so sending them in every forward pass would be useless.
            cards = [self._device.index] if self._device.type == "cuda" else None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # torch before 2.13 does not know the new name.
                self._model = DistributedDataParallel(
                    model, device_ids=cards, broadcast_buffers=False, gradient_as_bucket_view=True
                )
            self._model.register_comm_hook(None, lambda _, bucket: self._average(bucket))
        # Later draws are the rank's own (dropout of a user's own model). The initial weights were the same.
        if not self._rank.is_first:
            torch.manual_seed(torch.initial_seed() + 1_000_003 * self._rank.number)
        wrapped: torch.nn.Module = self._model
        return wrapped

    def _shard(self, model: torch.nn.Module) -> torch.nn.Module:
        """Shard ``model`` by FSDP2. A layer's parameters are gathered when it runs, others with the whole model."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self._device.type, (self._rank.of,))
        for layers in reversed([module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]):
            for layer in layers:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def parts(self, optimizer: torch.optim.Optimizer) -> dict[str, Stateful]:
        """Return the checkpoint parts: ddp as without ranks; fsdp one part with this rank's share of both."""
        if not self._sharded:
            return {"model": self._model.module, "optimizer": optimizer}
        return {SHARDED: ShardedPart(self._model, optimizer)}

    def begin_step(self) -> None:
        """Prepare the first micro-batch of a step."""
        self._begun, self.within_step = 0, True

    def begin_forward(self) -> None:
        """Prepare a forward pass of training. Gradients are exchanged once a step, with the last micro-batch."""
        self._begun += 1
        is_last = self._begun == self._micro_batches
        if self._sharded:
            self._model.set_requires_gradient_sync(is_last)
        else:
            self._model.require_backward_grad_sync = is_last

    def end_backward(self) -> None:
        """Report the time from this rank's last ready gradients to the end of their exchange. Nothing without ddp on a
        CPU.

        Call it after each backward pass. Raises InputError in the first step if a parameter got no gradient, for which
        ddp would wait forever.
        """
        if not self._checked and not self._sharded and self._begun == self._micro_batches:
            self._checked = True
            trained = ((name, one) for name, one in self._model.module.named_parameters() if one.requires_grad)
            if unused := [name for name, parameter in trained if parameter.grad is None]:
                raise InputError(
                    f"launch.parallel: ddp waits for the gradients of all parameters, and {len(unused)} take no part "
                    f"in the loss ({', '.join(unused[:3])}{', ...' * (len(unused) > 3)}); allowed: fsdp, or such "
                    "parameters with requires_grad False"
                )
        if self._ready_ns and self._device.type == "cpu":  # Only for a CPU: the host's clock does not measure a device.
            telemetry.exchanged("gradients", self._ready_ns, monotonic_ns())
            self._ready_ns = 0

    def _average(self, bucket: Any) -> Any:
        """Average a bucket of gradients over the ranks, as DDP's hook, and store the time of the call."""
        import torch.distributed as dist

        self._ready_ns = monotonic_ns()
        gradients = bucket.buffer().div_(self._rank.of)
        return dist.all_reduce(gradients, async_op=True).get_future().then(lambda done: done.value()[0])

    def mean_of(self, values: torch.Tensor, *, in_each_step: bool = False) -> torch.Tensor:
        """Return the mean over all ranks; within a step, where ranks may be missing, only if ``in_each_step``."""
        import torch.distributed as dist

        if self.within_step and not in_each_step:
            return values
        values = values / self._rank.of
        dist.all_reduce(values)
        return values

    @contextmanager
    def in_a_pass(self) -> Iterator[None]:
        """Context of one evaluation, which no rank leaves before all have finished: no step includes that wait."""
        import torch.distributed as dist

        self.within_step = True
        yield
        dist.barrier()
        self.within_step = False

    def same_parameters(self) -> str:
        """Return the SHA-256 of all parameters. Raises RanksDifferError if a rank has a different one than rank 0."""
        import torch
        import torch.distributed as dist

        digest = hashlib.sha256()
        for _, parameter in sorted(self._model.named_parameters()):
            tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        digests: list[Any] = [None] * self._rank.of
        dist.all_gather_object(digests, digest.hexdigest())
        for number, rank_digest in enumerate(digests):
            if rank_digest != digests[0]:
                raise RanksDifferError(
                    f"rank {number} has different parameters than rank 0 at the end of the run (SHA-256 "
                    f"{rank_digest[:12]}, rank 0 {digests[0][:12]}): the ranks have not trained one model"
                )
        return str(digests[0])

    def leave(self) -> None:
        """Leave the group. Call it only if nothing failed, because it waits for the other ranks."""
        leave()


SHARDED = "sharded"  # name of this part in a checkpoint


class ShardedPart:
    """Checkpoint part with this rank's share of an FSDP2 model and its optimizer."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> Any:
        """Return this rank's share of weights and moments. Every rank must call it."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state_dict: Any) -> None:
        """Load this rank's share of weights and moments. ``state_dict``: the path of the checkpoint's folder."""
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        state = self.state_dict()
        load(state, storage_reader=FileSystemReader(state_dict))
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def save_shares(state: Any, folder: Path, group: Any) -> None:
    """Write this rank's share of ``state``. Every rank of ``group`` calls it, and one's error is raised in all."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    class Writer(FileSystemWriter):
        def write_data(self, *what: Any) -> Any:
            try:
                return super().write_data(*what)
            except Exception as error:  # The system's error is not sent to the other ranks with it.
                if (failed := of_the_disk(error)) is None:
                    raise
                raise failed from error

    try:
        save(state, storage_writer=Writer(folder), process_group=group)
    except CheckpointException as error:  # CheckpointException is not an Exception, so it would not be reported.
        raise error.failures[min(error.failures)][0] from error
