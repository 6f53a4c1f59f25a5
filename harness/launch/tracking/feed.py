"""Feeds the process of a tracker from a bounded queue, so that measurements never wait for it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

from trainer.json_types import JsonObject

MAX_WAITING_MESSAGES = 1024  # messages in the queue, each with up to 500 steps
# Variables that switch off telemetry and network requests of these libraries.
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB__DISABLE_STATS": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
}


# Variables that would make Trackio and MLflow write outside their folder.
ELSEWHERE = {
    "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID",
    "TRACKIO_DATASET_ID",
}  # fmt: skip


class TrackerFeed:
    """One tracker in its own process, with the queue of messages to it.

    Only :meth:`wait`, :meth:`lost` and :meth:`end` block, each with a time limit; :meth:`send` blocks only if asked to.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """Start the process. ``name``: of the tracker in the scenario.

        ``folder``: for the tracker's files and its log.
        """
        self.name, self.folder = name, folder
        self._messages: queue.Queue[JsonObject | None] = queue.Queue(MAX_WAITING_MESSAGES)
        self._given = 0  # number of messages to record
        self._done = self._failed = 0
        self._error: str | None = None  # first error
        self._changed = threading.Condition()
        self._over = False  # True once the process has closed its output
        folder.mkdir(parents=True, exist_ok=True)
        own = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
        with (folder / "tracker.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.launch.tracking.worker", name, str(folder), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**own, **QUIET, "WANDB_DIR": str(folder), "TRACKIO_DIR": str(folder)},
                start_new_session=True,  # so that its child processes end with it
            )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def send(self, message: JsonObject, until_s: float | None = None) -> None:
        """Queue a message.

        If the queue is full, wait for room until ``until_s`` (monotonic seconds; None: do not wait).
        Without room then, the message is dropped and counts as lost.
        """
        number = self._given
        self._given += 1
        with suppress(queue.Full):
            wait_s = 0.0 if until_s is None else max(0.0, until_s - monotonic())
            self._messages.put({**message, "number": number}, wait_s > 0, wait_s or None)

    def wait(self, until_s: float) -> None:
        """Wait until the tracker has answered all messages or its process has ended.

        ``until_s``: limit (monotonic seconds).
        """
        with self._changed:
            while not self._over and self._answered < self._given and (remaining_s := until_s - monotonic()) > 0:
                self._changed.wait(remaining_s)

    def lost(self, until_s: float) -> str | None:
        """Return one line with the number of unrecorded messages and the reason; None if all are recorded.

        It waits for answers until ``until_s`` (monotonic seconds).
        """
        self.wait(until_s)
        with self._changed:
            if self._done == self._given:
                return None
            reason = self._error or ("its process ended" if self._over else "no answer in time")
            return f"{self.name}: {self._done} of {self._given} messages recorded: {reason}"

    def end(self, until_s: float) -> str | None:
        """Close the tracker, by force at ``until_s`` (monotonic seconds).

        Return one line with the number of unrecorded messages and the reason; None if all are recorded.
        """
        self.send({"do": "close"}, until_s)
        with suppress(queue.Full):
            self._messages.put_nowait(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until_s - monotonic()))
        lost = self.lost(until_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # includes its child processes
        self._process.wait()
        for thread in self._threads:
            thread.join(5)
        return lost

    @property
    def _answered(self) -> int:
        return self._done + self._failed

    def _write(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as stream:  # The process has ended or was killed.
            while (message := self._messages.get()) is not None:
                stream.write(json.dumps(message).encode() + b"\n")
                stream.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                answer = json.loads(line)
                with self._changed:
                    if "failed" in answer:
                        self._failed += answer["failed"] >= 0
                        self._error = self._error or answer["error"]
                    else:
                        self._done += answer["done"] >= 0
                    self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()
