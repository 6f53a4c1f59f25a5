"""Two real processes save together over gloo."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import torch

from trainer import telemetry
from trainer.checkpoint_ranks import RanksSaver, make_saver
from trainer.config import CheckpointConfig
from trainer.ranks import Rank, join, leave, meeting_place

pytestmark = pytest.mark.slow

MINUTES = 1000.0  # none pass by themselves within the test


class Phases:
    """Notes which phases there were."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def enter(self, name: str) -> None:
        self.names.append(name)

    def __getattr__(self, name: str) -> Any:  # all else is of no interest here
        return lambda *_: None


def serve(number: int, port: int, place: socket | None, folder: str, answers: Connection) -> None:
    rank = Rank(number, 2, timeout_s=60, port=port, listening=None if place is None else place.detach())
    join(rank, torch.device("cpu"))
    phases = Phases()
    telemetry.attach(phases)  # type: ignore[arg-type]
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
    leave()


class _Number:
    def __init__(self, number: int) -> None:
        self._number = number

    def state_dict(self) -> Any:
        return {"number": self._number}

    def load_state_dict(self, state_dict: Any) -> None:
        pass


def test_the_clock_of_rank_0_says_for_all_whether_minutes_are_over(tmp_path: Path) -> None:
    place = meeting_place()
    port = place.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe(duplex=False) for _ in range(2)]
    ranks = [
        spawn.Process(
            target=serve,
            args=(number, port, None if number else place, str(tmp_path), pipes[number][1]),
            daemon=True,
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
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    saved = tmp_path / "step-00000002"
    for number in range(2):
        found = torch.load(saved / f"rank-{number}.pt", weights_only=True)
        assert found == {"random": {"number": number}}
