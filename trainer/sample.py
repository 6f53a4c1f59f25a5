"""Writes text with the model between training steps, like llm.c's -s. Its time is in no step.

It does not change training. The draws are the same each time, so texts after different steps are comparable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trainer import telemetry
from trainer.compute.base import Compute
from trainer.data.tokenizers import load_codec
from trainer.errors import InputError
from trainer.generate import TokenChoice, prompt_ids

if TYPE_CHECKING:
    from trainer.config import SampleConfig
    from trainer.data.prepare import Prepared


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
