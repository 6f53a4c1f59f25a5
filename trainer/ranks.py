"""Joins the ranks to a group of torch.distributed (gloo, nccl), at a numeric address where rank 0 listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from trainer.errors import InputError

if TYPE_CHECKING:
    import torch

LOCAL = "127.0.0.1"
_LOOPBACK = "lo"  # the interface of LOCAL on Linux


@dataclass(frozen=True)
class Rank:
    """One of the processes that train together: ``number``, from 0, of ``of``.

    ``address``, ``port``: where rank 0 listens for the others. ``listening``: descriptor of its socket; None in other
    ranks. ``timeout_s``: limit of a meeting or an exchange. ``local``: number of this rank on its machine; ``here``:
    number of ranks on that machine; None if there is one machine. ``interface``: network interface to the others; ""
    leaves the choice to gloo and nccl.
    """

    number: int = 0
    of: int = 1
    port: int = 0
    listening: int | None = None
    timeout_s: float = 120.0
    address: str = LOCAL
    local: int | None = None
    here: int | None = None
    interface: str = _LOOPBACK

    @property
    def is_first(self) -> bool:
        """True for rank 0, which prints, saves and decides for all."""
        return self.number == 0


ALONE = Rank()


class RanksDifferError(Exception):
    """Raised if ranks that should have the same parameters do not."""


def meeting_place(address: str = LOCAL) -> socket.socket:
    """Return a socket that listens on a free port of ``address``, for rank 0. The other ranks receive its port."""
    listening = socket.create_server((address, 0), backlog=1024)
    listening.set_inheritable(True)
    return listening


def device_of(rank: Rank, device: torch.device) -> torch.device:
    """Return the device of this rank: on CUDA a GPU of its own. Raises InputError if there are not enough."""
    import torch

    if rank.of == 1 or device.type != "cuda":
        return device
    cards = torch.cuda.device_count()
    local_ranks = rank.of if rank.here is None else rank.here
    local = rank.number if rank.local is None else rank.local
    if local_ranks > cards:
        raise InputError(f"launch.torchrun.nproc: {local_ranks} ranks, but this torch sees {cards} CUDA devices")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def join(rank: Rank, device: torch.device) -> None:
    """Join the process group: nccl on CUDA, else gloo. Raises DistError if a rank is missing in time."""
    import torch.distributed as dist

    # gloo and nccl would otherwise resolve this machine's name.
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if rank.interface else ():
        os.environ.setdefault(name, rank.interface)
    # The monitor takes a process that was suspended for minutes for a hanging one.
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    limit = timedelta(seconds=rank.timeout_s)
    options: dict[str, Any] = {"is_master": rank.is_first, "timeout": limit, "wait_for_workers": False}
    if rank.listening is not None:
        options["master_listen_fd"] = rank.listening
    store = dist.TCPStore(rank.address, rank.port, rank.of, **options)  # type: ignore[attr-defined]
    cuda = device.type == "cuda"
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=rank.number,
        world_size=rank.of,
        timeout=limit,
        device_id=device if cuda else None,
    )


def gloo_group(rank: Rank) -> Any:
    """Return a gloo group of all ranks, of which a thread needs its own. Every rank calls it."""
    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=timedelta(seconds=rank.timeout_s))


def of_first(value: float, group: Any) -> float:
    """Return the ``value`` of rank 0 in all ranks. Every rank of ``group`` calls it, at the same place."""
    import torch.distributed as dist

    return _exchanged(value, lambda shared: dist.broadcast(shared, src=0, group=group))


def least(value: float, group: Any) -> float:
    """Return the minimum of the ranks' values, in all ranks. Every rank of ``group`` calls it, at the same place."""
    import torch.distributed as dist

    return _exchanged(value, lambda shared: dist.all_reduce(shared, op=dist.ReduceOp.MIN, group=group))


def total(value: float, group: Any) -> float:
    """Return the sum of the ranks' values, in all ranks. Every rank of ``group`` calls it, at the same place."""
    import torch.distributed as dist

    return _exchanged(value, lambda shared: dist.all_reduce(shared, op=dist.ReduceOp.SUM, group=group))


def _exchanged(value: float, exchange: Callable[[torch.Tensor], object]) -> float:
    import torch

    shared = torch.tensor(value, dtype=torch.float64)
    exchange(shared)
    return shared.item()


def failing(failed: bool, group: Any) -> list[int]:
    """Return the numbers of the ranks where ``failed`` is True. Every rank of ``group`` calls it, at the same place."""
    import torch
    import torch.distributed as dist

    flags = torch.zeros(dist.get_world_size(group), dtype=torch.int64)
    flags[dist.get_rank(group)] = int(failed)
    dist.all_reduce(flags, group=group)
    return [number for number, flag in enumerate(flags.tolist()) if flag]


def leave() -> None:
    """Leave the group, once all ranks are done with it. Does nothing without a group."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def is_of_the_exchange(error: BaseException) -> bool:
    """Return True if ``error`` is of communication: another rank is late or has ended."""
    import torch.distributed as dist

    if dist.is_available() and isinstance(error, dist.DistError):
        return True
    signs = ("gloo/", "Connection closed by peer", "ProcessGroup", "c10d", "NCCL", "TCPStore")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
