"""Callback for Lightning's Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from harness.attach.hooks import TrainingRecording


class LightningCallback(Callback):  # type: ignore[misc]  # as with transformers
    """Callback that records ``fit`` in rank 0: ``Trainer(..., callbacks=[LightningCallback()])``.

    ``out``: folder of the study. ``warmup``: unmeasured steps at the start, at least 4.
    """

    def __init__(self, out: str | Path = "results", *, warmup: int = 5) -> None:
        self._recording = TrainingRecording(out, warmup)

    @property
    def study(self) -> Path | None:
        """Folder of the study, once ``fit`` has ended.

        None before, in ranks other than 0, or if no step was recorded.
        """
        return self._recording.study

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            self._recording.begin()  # before its loader starts workers

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._recording.end()
