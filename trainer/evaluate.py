"""Evaluates the model between training steps: on held-out documents, on multiple-choice questions, and by its text.

A pass changes nothing of the training, and the device finishes all queued work before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainer import telemetry
from trainer.compute.base import Compute
from trainer.compute.modes import compilations
from trainer.compute.scores import Beat, untouched_randomness
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.data.position import EpochInterval, Epochs
from trainer.data.tokenizers import load_codec
from trainer.errors import InputError
from trainer.generate import TokenChoice, prompt_ids
from trainer.inject import Injector
from trainer.multiple_choice import Choices, check_causal, load_choices
from trainer.ranks import ALONE, Rank, gloo_group, of_first
from trainer.telemetry import Validation

if TYPE_CHECKING:
    from trainer.config import SampleConfig
    from trainer.data.prepare import Prepared

Kind = Literal["loss", "choices"]
KINDS: frozenset[Kind] = frozenset({"loss", "choices"})  # kinds of passes


class Evaluator:
    """Decides after which steps a pass over held-out data is due, and runs it. ``beat`` is called after each batch."""

    def __init__(
        self,
        compute: Compute,
        batches: Sequence[Batch],
        every_steps: int | None,
        beat: Beat = lambda: None,
        *,
        prints: bool = True,
        choices: Choices | None = None,
        choices_every_steps: int | None = None,
        interval: EpochInterval | None = None,
        agreed: Callable[[bool], bool] = bool,
    ) -> None:
        """Prepare the passes. ``batches``: held-out batches of each pass.

        ``every_steps``: steps between passes over them. ``prints``: True to print a log line for each pass, as one rank
        does for all. ``choices``: questions, which have an interval of their own. ``interval``: epochs between passes
        over documents, in place of steps. ``agreed``: makes this rank's decision the same in all ranks.
        """
        self._interval, self._agreed = interval, agreed
        self._prints = prints
        self._compute, self._batches, self._beat = compute, batches, beat
        self._choices = choices
        self._every: dict[Kind, int | None] = {"loss": every_steps}
        if choices is not None:
            self._every["choices"] = choices_every_steps
        self._last: int | None = None  # the last step that ended
        self._evaluated: dict[Kind, int] = {}
        self.compilations = 0
        """Graphs that torch.compile compiled in passes: no step holds that."""

    @property
    def epochs_are_over(self) -> bool:
        """True if an interval of ``evaluation.every_epochs`` has ended and :meth:`after` has not run its pass yet."""
        return self._interval is not None and self._interval.is_over()

    def after(self, step: int, kinds: frozenset[Kind] = KINDS, *, epochs_are_over: bool = False) -> None:
        """Record the end of a step, and run passes of ``kinds`` that are due, or were by the step's checkpoint."""
        self._last = step
        if self._interval is not None:
            epochs_are_over = self._agreed(self._interval.ends() or epochs_are_over)
        for kind, every_steps in self._every.items():
            due = epochs_are_over and kind == "loss" if every_steps is None else (step + 1) % every_steps == 0
            if kind in kinds and due:
                self._pass(kind, step)

    def finish(self) -> None:
        """Run each kind of pass once more when training ends, unless nothing was trained since its last one."""
        if self._last is not None:
            for kind in self._every:
                if self._last != self._evaluated.get(kind):
                    self._pass(kind, self._last)

    def _pass(self, kind: Kind, step: int) -> None:
        self._compute.synchronize()  # Queued work counts in its own step, and the next step begins on an idle device.
        telemetry.pause()
        compiled = compilations()
        if kind == "loss":
            self._evaluate(step)
        else:
            self._answer(step)
        self._evaluated[kind] = step
        self.compilations += compilations() - compiled

    def _evaluate(self, step: int) -> None:
        start = monotonic_ns()
        with telemetry.span("evaluate"):
            scores = self._compute.validate(self._batches, self._beat)
            self._compute.synchronize()
        telemetry.validated(
            Validation(step, start, monotonic_ns(), scores.loss, scores.accuracy, scores.tokens, len(self._batches))
        )
        accuracy = "" if scores.accuracy is None else f", masked-token accuracy {scores.accuracy:.4f}"
        self._print(step, f"validation loss {scores.loss:.4f}{accuracy}")

    def _answer(self, step: int) -> None:
        choices = self._choices
        assert choices is not None
        start = monotonic_ns()
        with telemetry.span("evaluate"):
            likelihoods = self._compute.log_likelihoods(choices.rows, self._beat)
            self._compute.synchronize()
        scores = choices.scores(likelihoods)
        telemetry.validated(Validation(step, start, monotonic_ns(), None, None, None, None, *scores))
        norm = "" if scores.acc_norm is None else f", acc_norm {scores.acc_norm:.4f}"
        self._print(
            step,
            f"multiple choice acc {scores.acc:.4f}{norm}, per token {scores.acc_tokens:.4f} "
            f"({scores.questions:,} question{'' if scores.questions == 1 else 's'})",
        )

    def _print(self, step: int, line: str) -> None:
        if self._prints:
            print(f"step {step + 1}: {line}", flush=True)


def make_evaluator(
    config: TrainerConfig,
    prepared: Prepared,
    compute: Compute,
    beat: Beat = lambda: None,
    *,
    rank: Rank = ALONE,
    epochs: Epochs = lambda: None,
) -> Evaluator:
    """Return the evaluator, in every rank, after workers started. ``epochs``: completed ones; None: unknown."""
    evaluation, prints = config.evaluation, rank.is_first
    assert evaluation is not None
    batches = validation_batches(config, prepared)
    interval: EpochInterval | None = None
    agreed: Callable[[bool], bool] = bool
    if evaluation.every_epochs is not None:
        interval = EpochInterval(evaluation.every_epochs, epochs, "evaluation.every_epochs")
        if rank.of > 1:
            group = gloo_group(rank)
            agreed = lambda due: bool(of_first(due, group))  # noqa: E731
    choices: Choices | None = None
    choices_every_steps: int | None = None
    if (questions := evaluation.multiple_choice) is not None:
        check_causal(prepared.objective)
        choices = load_choices(questions, prepared.tokenizer, compute.longest_row)
        choices_every_steps = questions.every_steps
        if choices.shortened and prints:
            print(f"evaluation.multiple_choice: {choices.what_was_left_out}", flush=True)
    return Evaluator(
        compute, batches, evaluation.every_steps, beat, prints=prints, choices=choices,
        choices_every_steps=choices_every_steps, interval=interval, agreed=agreed,
    )  # fmt: skip


def validation_batches(config: TrainerConfig, prepared: Prepared) -> list[Batch]:
    """Return the held-out batches of each pass. Raises InputError if none has a token to predict."""
    from trainer.data.dataset import held_out_batches

    evaluation = config.evaluation
    assert evaluation is not None
    plain = {"inject": None, "replay": False, "extra_reads": 0, "extra_tokenizations": 0}
    data = config.data.model_copy(update=plain)
    if evaluation.source is None:
        return held_out_batches(data, prepared, evaluation.batches)
    from trainer.data.user_source import KEY, UserPipeline

    data = data.model_copy(update={"source": evaluation.source, "arguments": evaluation.arguments, "shuffle": False})
    with untouched_randomness():
        try:
            shifted = prepared.objective == "causal"
            source = UserPipeline(data, config.seed, 0, 1, Injector(None, 0), marked=False, shifted=shifted)
            batches = source.of_first_epoch(evaluation.batches)
        except InputError as error:
            raise InputError(str(error).replace(KEY, "evaluation.source", 1)) from error
    if not any(batch.trained_tokens for batch in batches):
        raise InputError(f"evaluation.source: {evaluation.source} gave no batch with a token to predict")
    return batches


class Sample(NamedTuple):
    """Text that the model wrote after step ``step``. ``text`` includes the prompt, ``ids`` does not."""

    step: int
    text: str
    ids: tuple[int, ...]
    ending: str
    seconds: float


class TextSampler:
    """Decides after which steps the model writes text, and writes it. `harness train` makes one."""

    def __init__(self, config: SampleConfig, prepared: Prepared, compute: Compute) -> None:
        """Encode the prompt. Raises InputError if the model is not causal, or the prompt is too long."""
        if prepared.objective != "causal" or compute.longest_row is None:
            raise InputError("sample: text needs a computed causal model; allowed: no sample")
        self._config, self._compute, self._tokenizer = config, compute, prepared.tokenizer
        self._codec = load_codec(prepared.tokenizer)
        self._prompt = prompt_ids(self._codec, prepared.tokenizer, config.prompt, "sample.prompt")
        if len(self._prompt) >= compute.longest_row:
            raise InputError(
                f"sample.prompt: {len(self._prompt):,} tokens; allowed: at most {compute.longest_row - 1:,}"
            )
        self._choice = TokenChoice(config.temperature, config.top_k, seed=config.seed)

    def is_due(self, step: int) -> bool:
        """Return True if text is due after step ``step``."""
        return (step + 1) % self._config.every_steps == 0

    def after(self, step: int) -> Sample:
        """Return the text that the model writes after ``step``. Raises InputError for weights that are not finite."""
        self._compute.synchronize()  # Queued work counts as part of its own step: see trainer.evaluate.
        telemetry.pause()
        with telemetry.span("evaluate"):
            tokenizer = self._tokenizer
            continuation = self._compute.generated(
                self._prompt, self._choice, self._config.tokens, tokenizer.vocab_size, tokenizer.eos_id
            )
            self._compute.synchronize()
        begin = self._prompt if self._config.prompt else ()
        text = self._codec.decode([*begin, *continuation.ids])
        return Sample(step, text, continuation.ids, continuation.ending, continuation.seconds)
