"""Two real processes save together over gloo."""

from __future__ import annotations

import errno
import resource
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.trainer.rank_processes import rank_context
from trainer import telemetry
from trainer.checkpoint import in_host_memory
from trainer.checkpoint_ranks import RanksSaver, make_saver
from trainer.compute.parallel import SHARDED
from trainer.config import CheckpointConfig
from trainer.ranks import Rank, join, leave, meeting_place

pytestmark = pytest.mark.slow

MINUTES = 1000.0  # none pass by themselves within the test


class Phases(telemetry.Recorder):
    """Notes which phases there were."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def enter(self, name: str) -> None:
        self.names.append(name)


def serve(number: int, port: int, place: socket | None, folder: str, answers: Connection) -> None:
    rank = Rank(number, 2, timeout_s=240, port=port, listening=None if place is None else place.detach())
    join(rank, torch.device("cpu"))
    phases = Phases()
    telemetry.attach(phases)
    settings = CheckpointConfig(every_minutes=MINUTES)
    saver = make_saver(settings, Path(folder), {"random": _Number(number)}, dict, rank)
    assert isinstance(saver, RanksSaver)
    due: list[bool] = []
    if number == 1:
        saver._saved_s -= 60 * MINUTES
    due.append(saver.is_due(1))  # rank 1 alone would say so
    if number == 0:
        saver._saved_s -= 60 * MINUTES
    due.append(saver.is_due(2))
    saver.save(2)
    saver.wait()
    due.append(saver.is_due(3))  # the minutes begin again
    answers.send((due, phases.names))
    mesh = init_device_mesh("cpu", (2,))
    shares = {name: distribute_tensor(torch.zeros(4), mesh, [Shard(0)]) for name in ("weight", "bias")}
    copied = in_host_memory(shares, copies=True)
    for value, share in enumerate(shares.values(), start=1):
        share.to_local().fill_(value)
    copied["bias"].to_local().fill_(3)
    answers.send([one.to_local().tolist() for one in (*shares.values(), *copied.values())])
    large = _Shares(distribute_tensor(torch.zeros(100_000), mesh, [Shard(0)]))
    saver = make_saver(CheckpointConfig(every_steps=1), Path(folder), {SHARDED: large}, dict, rank)
    if number == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    saver.save(4)
    try:
        saver.wait()
    except OSError as error:
        answers.send(error.errno)
    # One rank's own file: nobody waits for who failed, and all say it once the thread has ended.
    own = make_saver(CheckpointConfig(every_steps=1), Path(folder), {"random": _Tensor()}, dict, rank)
    own.save(6)
    try:
        own.wait()
    except OSError as error:
        answers.send((error.errno, str(error)))
    leave()


class _Number:
    def __init__(self, number: int) -> None:
        self._number = number

    def state_dict(self) -> Any:
        return {"number": self._number}

    def load_state_dict(self, state_dict: Any) -> None:
        pass


class _Tensor:
    def state_dict(self) -> Any:
        return {"zeros": torch.zeros(100_000)}

    def load_state_dict(self, state_dict: Any) -> None:
        pass


class _Shares:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def state_dict(self) -> Any:
        return {"model": {"weight": self._tensor}}

    def load_state_dict(self, state_dict: Any) -> None:
        pass


def test_two_ranks_agree_on_minutes_copy_their_shares_and_fail_together(tmp_path: Path) -> None:
    place = meeting_place()
    port = place.getsockname()[1]
    context = rank_context()
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [
        context.Process(
            target=serve, args=(number, port, None if number else place, str(tmp_path), pipes[number][1]), daemon=True
        )
        for number in range(2)
    ]
    for process, (_, theirs) in zip(ranks, pipes, strict=True):
        process.start()
        theirs.close()
    place.close()
    for ours, _ in pipes:
        assert ours.poll(120)
        due, phases = ours.recv()
        assert due == [False, True, False]
        assert phases == ["checkpoint"] * 3  # what agreeing takes is in the ledger
        assert ours.poll(120)
        # A copy of a share is its own: neither the next step nor another copy changes it.
        assert ours.recv() == [[1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [3.0, 3.0]]
        assert ours.poll(120)
        assert ours.recv() == errno.EFBIG  # rank 1 alone could not write; both say so when the thread has ended
    for number, (ours, _) in enumerate(pipes):
        assert ours.poll(30)  # half of the time that an exchange may last
        found_errno, text = ours.recv()
        assert found_errno == (errno.EFBIG if number else errno.EIO)
        assert number or "rank 1 could not write its part of the checkpoint" in text
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]  # the other one is not there in part
    saved = tmp_path / "step-00000002"
    for number in range(2):
        found = torch.load(saved / f"rank-{number}.pt", weights_only=True)
        assert found == {"random": {"number": number}}
