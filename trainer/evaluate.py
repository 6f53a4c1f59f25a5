"""Evaluates the model on held-out documents between training steps.

A pass changes nothing that training sees: no gradient, no random state, no mode of the model. Its time belongs to no
step: the device has done everything queued before a pass begins, and everything of the pass before the next step does.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING

from trainer import telemetry
from trainer.compute.base import Compute
from trainer.compute.modes import compilations
from trainer.compute.scores import Beat, untouched_randomness
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.errors import InputError
from trainer.telemetry import Validation

if TYPE_CHECKING:
    from trainer.data.prepare import Prepared


class Evaluator:
    """Says when a pass is due, and runs it. ``beat`` is called after each batch: a pass may outlast many steps."""

    def __init__(
        self,
        compute: Compute,
        batches: Sequence[Batch],
        every_steps: int | None,
        beat: Beat = lambda: None,
        *,
        prints: bool = True,
    ) -> None:
        """``prints``: a log line for each pass, which one of several ranks does for all."""
        self._prints = prints
        self._compute, self._batches, self._every, self._beat = compute, batches, every_steps, beat
        self._last: int | None = None  # the last step that ended
        self._evaluated: int | None = None
        self.compilations = 0
        """Graphs that torch.compile compiled in passes: no step holds that."""

    def after(self, step: int) -> None:
        """Take note of a step that ended, and evaluate where a pass is due."""
        self._last = step
        if self._every is not None and (step + 1) % self._every == 0:
            self._evaluate(step)

    def finish(self) -> None:
        """Evaluate once more when training ends, unless nothing was trained since the last pass."""
        if self._last is not None and self._last != self._evaluated:
            self._evaluate(self._last)

    def _evaluate(self, step: int) -> None:
        self._compute.synchronize()  # in the step whose work it is: the next one begins on an idle device
        telemetry.pause()
        compiled = compilations()
        start = monotonic_ns()
        with telemetry.span("evaluate"):
            scores = self._compute.validate(self._batches, self._beat)
            self._compute.synchronize()
        self._evaluated = step
        self.compilations += compilations() - compiled
        telemetry.validated(
            Validation(step, start, monotonic_ns(), scores.loss, scores.accuracy, scores.tokens, len(self._batches))
        )
        if not self._prints:
            return
        accuracy = "" if scores.accuracy is None else f", masked-token accuracy {scores.accuracy:.4f}"
        print(f"step {step + 1}: validation loss {scores.loss:.4f}{accuracy}", flush=True)


def make_evaluator(
    config: TrainerConfig, prepared: Prepared, compute: Compute, beat: Beat = lambda: None, *, prints: bool = True
) -> Evaluator:
    """The evaluator that ``config`` asks for, with its batches made. Start loader workers first: this may tokenize."""
    asked = config.evaluation
    assert asked is not None
    return Evaluator(compute, validation_batches(config, prepared), asked.every_steps, beat, prints=prints)


def validation_batches(config: TrainerConfig, prepared: Prepared) -> list[Batch]:
    """The batches of each pass. Raises InputError where there is none with a token to predict."""
    from trainer.data.dataset import held_out_batches

    asked = config.evaluation
    assert asked is not None
    plain = {"inject": None, "replay": False, "extra_reads": 0, "extra_tokenizations": 0}
    data = config.data.model_copy(update=plain)
    if asked.source is None:
        return held_out_batches(data, prepared, asked.batches)
    from trainer.data.user_batch import KEY
    from trainer.data.user_source import UserPipeline
    from trainer.inject import Injector

    data = data.model_copy(update={"source": asked.source, "arguments": asked.arguments, "shuffle": False})
    with untouched_randomness():
        try:
            shifted = prepared.objective == "causal"
            source = UserPipeline(data, config.seed, 0, 1, Injector(None, 0), marked=False, shifted=shifted)
            found = source.of_first_epoch(asked.batches)
        except InputError as error:
            raise InputError(str(error).replace(KEY, "evaluation.source", 1)) from error
    if not any(batch.trained_tokens for batch in found):
        raise InputError(f"evaluation.source: {asked.source} gave no batch with a token to predict")
    return found
