"""What rank 0 makes of what the other ranks report: no torch, no trainer."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from harness.launch import ranks
from harness.launch.channel import Channel
from harness.launch.ranks import OtherRanks, RankFailedError, _Other


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


def test_a_rank_that_ends_without_a_word_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RankFailedError, match=r"^rank 1: its process is gone$"):
        heard(monkeypatch, {"event": "ready"}).wait("done")
