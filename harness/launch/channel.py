"""Sends and receives the messages between the launcher and a run: JSON objects, one a line, over a socket."""

from __future__ import annotations

import json
import socket
from typing import cast

from harness.launch.protocol import RunEvent, RunOrder, StartMessage


class Channel:
    """JSON objects, one a line, over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rw", encoding="utf-8", buffering=1)

    def send(self, message: StartMessage | RunOrder | RunEvent) -> None:
        self._file.write(json.dumps(message) + "\n")

    def receive_start(self) -> StartMessage:
        """In the run: the first message; EOFError where the launcher is gone."""
        return cast("StartMessage", self._receive())

    def receive_order(self) -> RunOrder:
        """In the run: every message after the first; EOFError where the launcher is gone."""
        return cast("RunOrder", self._receive())

    def receive_event(self) -> RunEvent:
        """In the launcher: the next message of the run; EOFError where the run is gone."""
        return cast("RunEvent", self._receive())

    def _receive(self) -> object:
        line = self._file.readline()
        if not line:
            raise EOFError("the other side closed the channel")
        return json.loads(line)
