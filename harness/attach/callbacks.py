"""Recording of a training run, shared by the callbacks for transformers, Lightning and accelerate.

A framework's callbacks alone never see the wait for a batch. So these start and end a recording with all the hooks of
``harness exec``. Each framework has its own module beside this one, because it imports the framework.
"""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from pathlib import Path

from harness.attach.hooks import RecordedBlock, record


class TrainingRecording:
    """Recording of one training run, held by a framework's callback between :meth:`begin` and :meth:`end`.

    If the training fails, the steps up to the failure are written when the process ends.
    """

    def __init__(self, out: str | Path, warmup: int) -> None:
        self._out, self._warmup = out, warmup
        self._stack = ExitStack()
        self._block: RecordedBlock | None = None
        atexit.register(self.end)

    @property
    def study(self) -> Path | None:
        """Folder of the study after the training. None before, if no step was seen, or under ``harness exec``."""
        return None if self._block is None else self._block.study

    def begin(self) -> None:
        if self._block is None:
            self._block = self._stack.enter_context(record(self._out, warmup=self._warmup))

    def end(self) -> None:
        self._stack.close()
