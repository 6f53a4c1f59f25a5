"""harness generate: continues a text with a trained model, token by token."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING

from harness.commands.arguments import add_its_tokenizer, add_trained_model
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.data.tokenizers import TokenizerInfo
    from trainer.generate import TokenChoice
    from trainer.trained_model import TrainedModel

MOST_TOKENS = 1_000_000
_DRAWN = "--temperature, --top-k or --top-p"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Without {_DRAWN} the most likely token is taken; else tokens are drawn with --seed."
    add_trained_model(parser)
    parser.add_argument(
        "--prompt", metavar="TEXT", required=True, help="the text to continue; '' begins a new document"
    )
    add_its_tokenizer(parser)
    parser.add_argument(
        "--max-tokens", type=int, default=128, metavar="N", help="most tokens to generate (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="logits are divided by it; 0: the most likely")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K most likely tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the smallest set of tokens with total probability P"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the draws (default: 0)")
    parser.add_argument("--no-cache", action="store_true", help="compute all positions again for each token")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device to compute on (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print text, ids and speed as JSON")


def generate(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print the prompt with its continuation. Speed and reason for the end go to standard error."""
    choice = _choice(arguments)
    from harness.commands.data_needs import model_tokenizer
    from trainer.compute.build import torch_device
    from trainer.data.tokenizers import load_codec
    from trainer.generate import generate as continue_text
    from trainer.generate import prompt_ids
    from trainer.trained_model import load_trained

    device = torch_device(arguments.device, "--device")
    override = model_tokenizer(arguments.tokenizer)
    trained = load_trained(arguments.model, "--model")
    tokenizer = _tokenizer(trained, override)
    codec = load_codec(tokenizer)
    prompt = prompt_ids(codec, tokenizer, arguments.prompt, "--prompt")
    trained.model.to(device)
    continuation = continue_text(
        trained, prompt, choice, arguments.max_tokens, tokenizer.vocab_size, tokenizer.eos_id,
        cache=not arguments.no_cache,
    )  # fmt: skip
    text = codec.decode([*(prompt if arguments.prompt else ()), *continuation.ids])
    if arguments.json:
        content = {
            "schema": 1, "text": text, "prompt_ids": prompt, "ids": list(continuation.ids),
            "ending": continuation.ending, "seconds": continuation.seconds, "tokens_per_s": continuation.tokens_per_s,
        }  # fmt: skip
        say(json.dumps(content))
    else:
        say(text)
    print(
        f"{continuation.computed:,} tokens in {continuation.seconds:.2f} s, {continuation.tokens_per_s:,.1f} tokens/s, "
        f"after a prompt of {len(prompt):,}; ended: {_ENDINGS[continuation.ending]}",
        file=sys.stderr,
    )
    return 0


_ENDINGS = {"end of text": "end of text", "max tokens": "--max-tokens", "context": "the model has no more positions"}


def _choice(arguments: argparse.Namespace) -> TokenChoice:
    """Return how tokens are chosen, from the options. Raises InputError for impossible or useless values."""
    temperature, top_k, top_p = arguments.temperature, arguments.top_k, arguments.top_p
    if not 1 <= arguments.max_tokens <= MOST_TOKENS:
        raise InputError(f"--max-tokens {arguments.max_tokens}; allowed: 1 to {MOST_TOKENS:,}")
    if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"--temperature {temperature}; allowed: 0 (the most likely token) or more")
    if top_k is not None and top_k < 1:
        raise InputError(f"--top-k {top_k}; allowed: 1 or more")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"--top-p {top_p}; allowed: above 0, up to 1")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        raise InputError(f"--seed {arguments.seed}; allowed: 0 to {2**63 - 1}")
    is_sampled = temperature is not None or top_k is not None or top_p is not None
    without_effect = [
        name for name, value in (("--top-k", top_k), ("--top-p", top_p), ("--seed", arguments.seed))
        if value is not None and (temperature == 0 or not is_sampled)
    ]  # fmt: skip
    if without_effect:
        reason = "with --temperature 0" if temperature == 0 else f"without {_DRAWN}"
        raise InputError(f"{without_effect[0]}: no effect {reason}: the most likely token is taken")
    from trainer.generate import TokenChoice

    default = 1.0 if is_sampled else 0.0
    return TokenChoice(default if temperature is None else temperature, top_k, top_p, arguments.seed or 0)


def _tokenizer(trained: TrainedModel, given: TokenizerInfo | None) -> TokenizerInfo:
    tokenizer = trained.tokenizer if given is None else given
    if tokenizer is None:
        raise InputError(f"{trained.name}: it has no tokenizer; give the one that it was trained with (--tokenizer)")
    return tokenizer
