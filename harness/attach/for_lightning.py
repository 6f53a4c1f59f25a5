"""Callback for Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from harness.attach.hooks import TrainingRecording


class LightningCallback(TrainingRecording, Callback):  # type: ignore[misc]  # as with transformers
    """Callback that records ``fit`` in rank 0: ``Trainer(..., callbacks=[LightningCallback()])``.

    ``out``: folder of the study. ``warmup``: unmeasured steps at the start, at least 4.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            self.begin()  # before its loader starts workers

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.end()
