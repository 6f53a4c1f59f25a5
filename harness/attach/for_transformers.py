"""Callback for the Trainer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from harness.attach.hooks import TrainingRecording


class HarnessCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Callback for transformers' Trainer (Hugging Face) that records in rank 0: ``callbacks=[HarnessCallback()]``.

    ``out``: folder of the study. ``warmup``: unmeasured steps at the start, at least 4.
    """

    def __init__(self, out: str | Path = "results", *, warmup: int = 5) -> None:
        self._recording = TrainingRecording(out, warmup)

    @property
    def study(self) -> Path | None:
        """Folder of the study after the training. None before, in ranks other than 0, or if no step was recorded."""
        return self._recording.study

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._recording.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._recording.end()
