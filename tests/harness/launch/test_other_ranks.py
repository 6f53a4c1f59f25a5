"""What rank 0 makes of what the other ranks report: no torch, no trainer."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from harness.launch import ranks
from harness.launch.channel import Channel
from harness.launch.diagnosis import RANK_NAME
from harness.launch.protocol import StartMessage
from harness.launch.ranks import OtherRanks, RankFailedError, _Other
from trainer.ranks import Rank


def heard(monkeypatch: pytest.MonkeyPatch, *events: Any) -> OtherRanks:
    """Rank 0 once it has heard all that rank 1 says, which has ended meanwhile."""
    monkeypatch.setattr(ranks, "STUCK_S", 0.0)
    ours, theirs = socket.socketpair()
    for event in events:
        Channel(theirs).send(event)
    theirs.close()
    others = OtherRanks({}, 1, 5.0, lambda *_: 0, -1)  # type: ignore[typeddict-item]
    others._others.append(_Other(1, os.getpid(), Channel(ours), ours))  # no child of this process: it is gone
    others._read(others._others[0])
    ours.close()
    return others


def test_a_rank_that_was_done_before_it_was_asked_for_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard(monkeypatch, {"event": "ready"}, {"event": "done"}).wait("done")


@pytest.mark.slow  # forks
def test_each_rank_says_in_its_process_which_it_is() -> None:
    def serve(_start: StartMessage, channel: Channel, _rank: Rank) -> int:
        channel.send({"event": "failed", "error": Path("/proc/self/comm").read_text().strip()})
        return 0

    others = OtherRanks({}, 2, 5.0, serve, os.open("/dev/null", os.O_RDONLY))  # type: ignore[typeddict-item]
    (other,) = others._others
    assert other.channel.receive_event(30)["error"] == f"{RANK_NAME}1"
    assert os.waitpid(other.pid, 0)[1] == 0


def test_a_rank_that_ends_without_a_word_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RankFailedError, match=r"^rank 1: its process is gone$"):
        heard(monkeypatch, {"event": "ready"}).wait("done")
