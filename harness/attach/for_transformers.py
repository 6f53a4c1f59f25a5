"""Callback for the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from harness.attach.hooks import TrainingRecording


class HarnessCallback(TrainingRecording, TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Callback for transformers' Trainer (Hugging Face) that records in rank 0: ``callbacks=[HarnessCallback()]``.

    ``out``: folder of the study. ``warmup``: unmeasured steps at the start, at least 4.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end()
