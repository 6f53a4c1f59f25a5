"""harness evaluate: asks a trained model multiple-choice questions, without training it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from harness.commands.arguments import add_its_tokenizer, add_trained_model
from harness.commands.output import say
from trainer.errors import InputError, visible

if TYPE_CHECKING:
    from trainer.multiple_choice import ChoiceScores

OPTION = "--multiple-choice"
POSITIONS = 8_192  # positions of a batch of rows, unless one row has more; larger batches are no faster on a CPU
SHARES = {
    "acc": "by log-likelihood of the ending",
    "acc_norm": "by character, as acc_norm of lm-evaluation-harness",
    "acc_bytes": "by byte, as acc_bytes of lm-evaluation-harness",
    "acc_tokens": "by token, as llm.c's acc_norm",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trained_model(parser)
    parser.add_argument(
        OPTION, metavar="FILE", required=True,
        help="jsonl with ctx (or ctx_a, ctx_b and activity_label), endings and label in each line, or llm.c's "
        "hellaswag_val.bin",
    )  # fmt: skip
    add_its_tokenizer(parser)
    parser.add_argument("--most", type=int, metavar="N", help="the first N questions (default: all)")
    parser.add_argument(
        "--prompt", choices=("auto", "ctx", "lm-eval"), default="auto",
        help="text before the endings, as evaluation.multiple_choice.prompt (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device to compute on (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the shares as JSON")


def evaluate(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Ask a trained model the multiple-choice questions of a file; print its shares of right answers. Returns 0. Each
    share has its 95 % interval.
    """
    if arguments.most is not None and arguments.most < 1:
        raise InputError(f"--most: {arguments.most}; allowed: 1 or more")
    from harness.commands.data_needs import model_tokenizer
    from trainer.compute.build import torch_device
    from trainer.compute.scores import evaluating, log_likelihoods
    from trainer.config import MultipleChoiceConfig
    from trainer.data.questions import is_bin
    from trainer.multiple_choice import load_choices
    from trainer.trained_model import load_trained

    device = torch_device(arguments.device, "--device")
    override = model_tokenizer(arguments.tokenizer)
    trained = load_trained(arguments.model, "--model")
    tokenizer = trained.tokenizer if override is None else override
    if tokenizer is None and not is_bin(arguments.multiple_choice):
        raise InputError(
            f"{trained.name}: it has no tokenizer; give the one that it was trained with (--tokenizer), or "
            f"questions as token ids ({OPTION} FILE.bin)"
        )
    config = MultipleChoiceConfig(path=arguments.multiple_choice, most=arguments.most, prompt=arguments.prompt)
    choices = load_choices(config, tokenizer, trained.positions + 1, OPTION)
    largest = max(int(row.ids.max()) for row in choices.rows)
    if largest >= trained.vocab_size:
        if is_bin(arguments.multiple_choice):
            raise InputError(
                f"{OPTION}: {arguments.multiple_choice} has another vocabulary: its largest token id is {largest:,}, "
                f"and {trained.name} has {trained.vocab_size:,} ids (0 to {trained.vocab_size - 1:,}); give a file of "
                "the model's vocabulary, or questions as text (jsonl)"
            )
        raise InputError(
            f"{OPTION}: the largest token id is {largest:,}, and {trained.name} has {trained.vocab_size:,} ids; "
            "give the tokenizer that it was trained with (--tokenizer)"
        )
    if choices.shortened:
        print(visible(choices.what_was_left_out), file=sys.stderr)
    model: Any = trained.model.to(device)
    with evaluating(model):
        likelihoods = log_likelihoods(
            choices.rows, lambda ids: model(input_ids=ids).logits, device, POSITIONS, lambda: None
        )
    scores = choices.scores(likelihoods)
    say(json.dumps(as_json(scores)) if arguments.json else "\n".join(lines(scores)))
    return 0


def as_json(scores: ChoiceScores) -> dict[str, object]:
    """Return the shares of right answers with their intervals. A share is null if it is unknown or NaN."""
    return {"schema": 1, "questions": scores.questions, **{name: _share(scores, name) for name in SHARES}}


def _share(scores: ChoiceScores, name: str) -> dict[str, float] | None:
    from harness.explain.statistics import wilson

    share = getattr(scores, name)
    if share is None or not math.isfinite(share):
        return None
    low, high = wilson(round(share * scores.questions), scores.questions)
    return {"share": share, "ci_low": low, "ci_high": high}


def lines(scores: ChoiceScores) -> list[str]:
    """Return a heading and a line per share of right answers, each with its 95 % interval over questions."""
    from trainer.data.questions import ENDINGS

    counted = f"{scores.questions:,} question{'' if scores.questions == 1 else 's'}"
    heading = [f"{counted}, [95 % intervals over questions]; a guess is right in {100 / ENDINGS:.1f} %"]
    texts = []
    for name in SHARES:
        share = _share(scores, name)
        if share is not None:
            text = f"{share['share']:.2%} [{share['ci_low']:.2%}–{share['ci_high']:.2%}]".replace("%", " %")
        else:
            text = "unknown without the tokenizer" if getattr(scores, name) is None else "NaN: a likelihood is NaN"
        texts.append(text)
    width = max(map(len, texts))
    rows = zip(SHARES.items(), texts, strict=True)
    return [*heading, *(f"{name:<10} {text:<{width}} {description}" for (name, description), text in rows)]
