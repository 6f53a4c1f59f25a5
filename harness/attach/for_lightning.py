"""A callback for the Trainer of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from harness.attach.callbacks import TrainingRecording


class LightningCallback(Callback):  # type: ignore[misc]  # as with transformers
    """Records ``fit`` in rank 0: ``Trainer(..., callbacks=[LightningCallback()])``.

    ``out``: where the study goes; ``warmup``: steps at the beginning that are not measured, at least 4.
    """

    def __init__(self, out: str | Path = "results", *, warmup: int = 5) -> None:
        self._recording = TrainingRecording(out, warmup)

    @property
    def study(self) -> Path | None:
        """The study's folder, once ``fit`` has ended."""
        return self._recording.study

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            self._recording.begin()  # before its loader starts workers

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._recording.end()
