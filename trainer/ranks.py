"""Joins the ranks of a run to a group of torch's own engine (torch.distributed): gloo on CPUs, nccl on CUDA.

The ranks of one machine find each other at 127.0.0.1, those of several at a numeric address of the first one: no name
is resolved, as one that cannot be would hang them. Rank 0 listens before the others exist, so nobody needs to agree on
a free port first.
"""

from __future__ import annotations

import os
import socket
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
    """One process among those that train together. ``listening``: rank 0's descriptor of the port where they meet.

    ``address``: where rank 0 listens. ``local``, ``here``: its number and how many there are on its own machine, and
    ``interface``, over which it reaches the others; "" leaves that to gloo and nccl.
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
        """Whether this is the rank that speaks for all."""
        return self.number == 0


ALONE = Rank()


class RanksDifferError(Exception):
    """Ranks that should hold the same parameters do not."""


def meeting_place(address: str = LOCAL) -> socket.socket:
    """A socket that listens on a free port, for rank 0; the others are told its port."""
    listening = socket.create_server((address, 0), backlog=1024)
    listening.set_inheritable(True)
    return listening


def device_of(rank: Rank, device: torch.device) -> torch.device:
    """The device of this rank: on CUDA a card of its own. Raises InputError where there are not enough."""
    import torch

    if rank.of == 1 or device.type != "cuda":
        return device
    cards = torch.cuda.device_count()
    here = rank.of if rank.here is None else rank.here
    local = rank.number if rank.local is None else rank.local
    if here > cards:
        raise InputError(f"launch.torchrun.nproc: {here} ranks, but this torch sees {cards} CUDA devices")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def join(rank: Rank, device: torch.device) -> None:
    """Wait until all ranks are there. Raises torch's DistError where one does not come in ``timeout_s``."""
    import torch.distributed as dist

    # gloo and nccl would look for the address of this machine's name.
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if rank.interface else ():
        os.environ.setdefault(name, rank.interface)
    # It takes a process that stood suspended for minutes for one that hangs.
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
    """A group of the same ranks over gloo, so that what they exchange in it never meets the gradients.

    Every rank must call it at the same place. Two threads need two such groups.
    """
    import torch.distributed as dist

    return dist.new_group(backend="gloo", timeout=timedelta(seconds=rank.timeout_s))


def of_first(value: float, group: Any) -> float:
    """Rank 0's ``value``. Every rank of ``group`` calls it, at the same place."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor(value, dtype=torch.float64)
    dist.broadcast(shared, src=0, group=group)
    return shared.item()


def least(value: float, group: Any) -> float:
    """The least ``value`` of all ranks. Every rank of ``group`` calls it, at the same place."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MIN, group=group)
    return shared.item()


def total(value: float, group: Any) -> float:
    """The sum of the values of all ranks. Every rank of ``group`` calls it, at the same place."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.SUM, group=group)
    return shared.item()


def failing(failed: bool, group: Any) -> list[int]:
    """The numbers of the ranks that say they ``failed``. Every rank of ``group`` calls it, at the same place."""
    import torch
    import torch.distributed as dist

    flags = torch.zeros(dist.get_world_size(group), dtype=torch.int64)
    flags[dist.get_rank(group)] = int(failed)
    dist.all_reduce(flags, group=group)
    return [number for number, one in enumerate(flags.tolist()) if one]


def leave() -> None:
    """Leave the group, once all ranks are done with it; nothing where there is none."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def is_of_the_exchange(error: BaseException) -> bool:
    """Whether ``error`` is what an exchange with other ranks raises where one of them is late or gone.

    Of gloo it is a RuntimeError like any other: only its text tells.
    """
    import torch.distributed as dist

    if dist.is_available() and isinstance(error, dist.DistError):
        return True
    signs = ("gloo/", "Connection closed by peer", "ProcessGroup", "c10d", "NCCL", "TCPStore")
    return isinstance(error, RuntimeError) and any(one in str(error) for one in signs)
