"""Sends and receives the messages between the launcher and a run: JSON objects, one a line, over a socket."""

from __future__ import annotations

import json
import socket
from typing import Any


class Channel:
    """JSON objects, one a line, over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rw", encoding="utf-8", buffering=1)

    def send(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message) + "\n")

    def receive(self) -> dict[str, Any]:
        """The next message; EOFError where the other side is gone."""
        line = self._file.readline()
        if not line:
            raise EOFError("the other side closed the channel")
        return json.loads(line)  # type: ignore[no-any-return]
