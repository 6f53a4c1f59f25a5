"""Lets ranks train one model together: DistributedDataParallel (ddp) or FSDP2's fully_shard (fsdp), torch's own.

Each rank computes the loss and gradients of its own rows. Gradients are averaged over ranks, each rank's counting
alike, as micro-batches do under accumulation. That is the mean over all labels of the global batch where every rank has
as many of them (packed rows, or rows of full length).
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from trainer import telemetry
from trainer.compute.base import Stateful
from trainer.compute.sharded_state import SHARDED, ShardedPart
from trainer.config import LaunchConfig
from trainer.errors import InputError
from trainer.ranks import Rank, RanksDifferError, join, leave

if TYPE_CHECKING:
    import torch


class Parallel:
    """What several ranks do beyond what one does."""

    def __init__(self, launch: LaunchConfig, rank: Rank, device: torch.device, micro_batches: int) -> None:
        """Join the group: every rank waits here for the last one."""
        self._sharded = launch.parallel == "fsdp"
        self._rank, self._device, self._micro_batches = rank, device, micro_batches
        self._model: Any = None
        self._begun = 0  # micro-batches of the open step
        self._ready_ns = 0  # when the last gradients of this rank were ready
        self._checked = False  # whether all parameters have gradients
        self.within_step = False
        join(rank, device)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model that the ranks train together; its parameters are shares of them under fsdp."""
        import torch

        if self._sharded:
            self._model = self._shard(model)
        else:
            from torch.nn.parallel import DistributedDataParallel

            # Buffers are constants of these models: to send them in every forward pass would cost for nothing.
            cards = [self._device.index] if self._device.type == "cuda" else None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # its new name is unknown to torch before 2.13
                self._model = DistributedDataParallel(
                    model, device_ids=cards, broadcast_buffers=False, gradient_as_bucket_view=True
                )
            self._model.register_comm_hook(None, lambda _, bucket: self._average(bucket))
        # From here on draws are the rank's own (dropout of a model of the user's own); the weights were the same.
        if not self._rank.is_first:
            torch.manual_seed(torch.initial_seed() + 1_000_003 * self._rank.number)
        wrapped: torch.nn.Module = self._model
        return wrapped

    def _shard(self, model: torch.nn.Module) -> torch.nn.Module:
        """Each block of the model is gathered when it is needed, and the rest with the whole (FSDP2's usual cut)."""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self._device.type, (self._rank.of,))
        for layers in reversed([one for one in model.modules() if isinstance(one, torch.nn.ModuleList)]):
            for layer in layers:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def parts(self, optimizer: torch.optim.Optimizer) -> dict[str, Stateful]:
        """What a checkpoint holds of model and ``optimizer``: under ddp the same as of one process."""
        if not self._sharded:
            return {"model": self._model.module, "optimizer": optimizer}
        return {SHARDED: ShardedPart(self._model, optimizer)}

    def begin_step(self) -> None:
        """Before the first micro-batch of a step."""
        self._begun, self.within_step = 0, True

    def begin_forward(self) -> None:
        """Before each forward pass that is trained on: gradients are exchanged once a step, with the last of them."""
        self._begun += 1
        last = self._begun == self._micro_batches
        if self._sharded:
            self._model.set_requires_gradient_sync(last)
        else:
            self._model.require_backward_grad_sync = last

    def end_backward(self) -> None:
        """After each backward pass: say how long this rank's own part of it was over before the exchange was.

        Raises InputError after the first step where ddp would wait for gradients that never come.
        """
        if not self._checked and not self._sharded and self._begun == self._micro_batches:
            self._checked = True
            if unused := [name for name, one in self._model.module.named_parameters() if _lacks_gradient(one)]:
                raise InputError(
                    f"launch.parallel: ddp waits for the gradients of all parameters, and {len(unused)} take no part "
                    f"in the loss ({', '.join(unused[:3])}{', ...' * (len(unused) > 3)}); allowed: fsdp, or such "
                    "parameters with requires_grad False"
                )
        if self._ready_ns and self._device.type == "cpu":  # of a device the host's clock says nothing
            telemetry.exchanged("gradients", self._ready_ns, monotonic_ns())
            self._ready_ns = 0

    def _average(self, bucket: Any) -> Any:
        """DDP's hook: average a bucket of gradients over the ranks, as DDP does, and note when it was ready."""
        import torch.distributed as dist

        self._ready_ns = monotonic_ns()
        whole = bucket.buffer().div_(self._rank.of)
        return dist.all_reduce(whole, async_op=True).get_future().then(lambda done: done.value()[0])

    def mean_of(self, values: torch.Tensor, *, in_each_step: bool = False) -> torch.Tensor:
        """The mean over ranks. Where a step broke off, the rank's own: the others may not come to this place.

        ``in_each_step``: every rank calls it within every step, at the same place.
        """
        import torch.distributed as dist

        if self.within_step and not in_each_step:
            return values
        values = values / self._rank.of
        dist.all_reduce(values)
        return values

    @contextmanager
    def in_a_pass(self) -> Iterator[None]:
        """Of an evaluation: nobody goes on before all are through, so that no step waits for another rank's pass.

        A rank whose pass broke off exchanges nothing more: the others may not come to the same place.
        """
        import torch.distributed as dist

        self.within_step = True
        yield
        dist.barrier()
        self.within_step = False

    def same_parameters(self) -> str:
        """The SHA-256 of all parameters; RanksDifferError where a rank holds others than rank 0."""
        import torch
        import torch.distributed as dist

        digest = hashlib.sha256()
        for _, one in sorted(self._model.named_parameters()):
            whole = one.full_tensor() if hasattr(one, "full_tensor") else one
            digest.update(whole.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        found: list[Any] = [None] * self._rank.of
        dist.all_gather_object(found, digest.hexdigest())
        for number, other in enumerate(found):
            if other != found[0]:
                raise RanksDifferError(
                    f"rank {number} holds other parameters than rank 0 at the end of the run (SHA-256 {other[:12]}, "
                    f"rank 0 {found[0][:12]}): the ranks have not trained one model"
                )
        return str(found[0])

    def leave(self) -> None:
        """Leave the group; call it only where nothing failed, as it waits for the other ranks."""
        leave()


def _lacks_gradient(parameter: torch.nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.grad is None
