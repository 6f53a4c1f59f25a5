"""Records a training that a framework drives: what its callbacks have in common.

A framework's callbacks alone never see the wait for a batch, so these begin and end a recording with all the seams of
``harness exec``. Each framework has a module of its own beside this one, which imports it.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from pathlib import Path

from harness.attach.hooks import RecordedBlock, record


class TrainingRecording:
    """Begun and ended once each. A training that fails in between is recorded up to there, when the process ends."""

    def __init__(self, out: str | Path, warmup: int) -> None:
        self._out, self._warmup = out, warmup
        self._stack = ExitStack()
        self._block: RecordedBlock | None = None
        atexit.register(self.end)

    @property
    def study(self) -> Path | None:
        """The study's folder, once the training has ended; None where no step was seen, or under ``harness exec``."""
        return None if self._block is None else self._block.study

    def begin(self) -> None:
        if self._block is None:
            self._block = self._stack.enter_context(record(self._out, warmup=self._warmup))

    def end(self) -> None:
        self._stack.close()
