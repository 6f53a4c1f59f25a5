"""Generates text token by token: the most likely token, or one drawn with a seed; the same without the cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from trainer.errors import InputError

if TYPE_CHECKING:
    import torch

    from trainer.data.engines.libraries import TextCodec
    from trainer.data.tokenizers import TokenizerInfo
    from trainer.trained_model import TrainedModel

Ending = Literal["end of text", "max tokens", "context"]


@dataclass(frozen=True)
class TokenChoice:
    """Rule for the next token: ``temperature`` 0 takes the most likely; else ``top_k``, then ``top_p`` limit draws."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Generated:
    """Generated text: ``ids`` without the end-of-text id, and why it ended."""

    ids: tuple[int, ...]
    ending: Ending
    computed: int  # number of computed tokens, including the end-of-text id
    seconds: float  # time for all tokens, including the prompt

    @property
    def tokens_per_s(self) -> float:
        """Number of generated tokens per second, including the end-of-text id. The time includes the prompt's."""
        return self.computed / self.seconds


def generate(
    trained: TrainedModel,
    prompt: Sequence[int],
    choice: TokenChoice,
    most: int,
    vocab_size: int,
    eos_id: int | None,
    *,
    cache: bool = True,
) -> Generated:
    """Generate up to ``most`` ids below ``vocab_size``, until ``eos_id`` or the last position. Raises InputError."""
    import torch

    positions = trained.positions
    if len(prompt) > positions:
        raise InputError(
            f"--prompt: {len(prompt):,} tokens, but {trained.name} has {positions:,} positions; allowed: at most that"
        )
    if vocab_size > trained.vocab_size:
        raise InputError(
            f"{trained.name} has {trained.vocab_size:,} token ids, fewer than the tokenizer ({vocab_size:,}); give its "
            "own (--tokenizer)"
        )
    wrong = next((token for token in prompt if not 0 <= token < trained.vocab_size), None)
    if wrong is not None:
        raise InputError(f"--prompt: holds the id {wrong:,}, and {trained.name} has {trained.vocab_size:,}")
    model: Any = trained.model
    device = next(model.parameters()).device
    draws = torch.Generator().manual_seed(choice.seed)
    ids = list(prompt)
    ending: Ending = "max tokens"
    past: Any = None
    computed = 0
    begun_s = perf_counter()
    # Only the last logits of the prompt are needed. A model that cannot skip the others returns all of them.
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    with torch.no_grad():  # Tensors made in inference_mode could not be used by a surrounding training.
        fed = torch.tensor([ids], device=device)
        while computed < most:
            output = model(input_ids=fed, past_key_values=past, use_cache=cache, **last_only)
            past = output.past_key_values if cache else None
            logits = output.logits[0, -1, :vocab_size].float().cpu()
            if bool(logits.isnan().any()):
                raise InputError(
                    f"{trained.name}: a logit is NaN after {len(ids):,} tokens: its weights are not finite"
                )
            chosen = next_token(logits, choice, draws)
            computed += 1
            if chosen == eos_id:
                ending = "end of text"
                break
            ids.append(chosen)
            if len(ids) > positions:
                ending = "context" if computed < most else "max tokens"
                break
            fed = torch.tensor([[chosen] if cache else ids], device=device)
    return Generated(tuple(ids[len(prompt) :]), ending, computed, perf_counter() - begun_s)


def prompt_ids(codec: TextCodec, tokenizer: TokenizerInfo, prompt: str, key: str) -> list[int]:
    """Return the ids of ``prompt``; without any, the end-of-text id, else begin-of-text; InputError, naming ``key``."""
    if any("\ud800" <= letter <= "\udfff" for letter in prompt):
        raise InputError(f"{key}: contains bytes that are not UTF-8 text")
    if ids := codec.encode(prompt):
        return ids
    begin = tokenizer.bos_id if tokenizer.eos_id is None else tokenizer.eos_id
    if begin is None:
        reason = "''" if not prompt else "text without a token"
        raise InputError(f"{key}: {reason}, and the tokenizer has no token that begins or ends a document; give text")
    return [begin]


def next_token(logits: torch.Tensor, choice: TokenChoice, draws: torch.Generator) -> int:
    """Return the next token id, chosen by its logits, which have no NaN. Each draw takes one number of ``draws``."""
    import torch

    if choice.temperature == 0:
        return int(logits.argmax())
    below = logits.double()
    # Subtract the maximum before dividing. A tiny temperature would make all positive logits infinite, and thus equally
    # likely. An infinite logit must stay the only likely one, because infinity minus infinity would be NaN.
    below = torch.where(below == below.max(), torch.zeros_like(below), below - below.max())
    scaled = below / choice.temperature
    values, ids = scaled.sort(descending=True, stable=True)
    if choice.top_k is not None:
        values, ids = values[: choice.top_k], ids[: choice.top_k]
    shares = values.softmax(-1)
    if choice.top_p is not None:  # Keeps at least the first token, which has nothing before it.
        count = int(((shares.cumsum(-1) - shares) < choice.top_p).sum())
        shares, ids = shares[:count] / shares[:count].sum(), ids[:count]
    draw = torch.rand((), generator=draws, dtype=torch.float64)
    place = int(torch.searchsorted(shares.cumsum(-1), draw, right=True))
    return int(ids[min(place, len(ids) - 1)])
