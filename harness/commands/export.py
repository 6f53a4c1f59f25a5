"""harness export: converts models and tokenizers to formats of another trainer (llm.c), one format per action."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from harness.commands.actions import Command, add_actions, run_action
from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import expanded


def add_tokenizer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tokenizer", metavar="TOKENIZER", help="a training's folder or a checkpoint, pretokenized files, a "
        "tokenizer.json, a folder or name for AutoTokenizer, or a SentencePiece .model",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", required=True, help="a new file, such as gpt2_tokenizer.bin")


def export_tokenizer(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write the tokenizer as an llm.c file, and print a summary. Raises InputError if ``--out`` exists."""
    from harness.commands.data_needs import given_tokenizer
    from trainer.data.kept_tokenizer import kept, write_tokenizer

    out = Path(arguments.out)
    if expanded(out).exists():
        raise InputError(f"--out {out}: already exists; choose a new file")
    info = kept(expanded(arguments.tokenizer)) or given_tokenizer(arguments.tokenizer)
    if info is None:
        raise InputError(f"{arguments.tokenizer}: cannot train one here; give a trained one")
    written = write_tokenizer(info, out)
    unused = f"; {written.unused:,} of them have no token" if written.unused else ""
    say(
        f"{out}: {written.vocab_size:,} ids, end of text {written.eos_id}, {expanded(out).stat().st_size:,} bytes"
        f"{unused}"
    )
    return 0


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="CHECKPOINT", help="a training's folder (its newest checkpoint), a checkpoint, or a folder of "
        "transformers",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", required=True, help="a new file, such as model_00002365.bin")
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16"), default="fp32",
        help="fp32: version 3, for llm.c built with PRECISION=FP32; bf16: version 5 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--vocab-size", type=int, metavar="N",
        help="leave out the rows of the embedding beyond N, which stand for no token (llm.c's tokenizer has 50257)",
    )  # fmt: skip


def export_model(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write the GPT-2 checkpoint as an llm.c model file, and print a summary. Raises InputError if ``--out`` exists."""
    out = Path(arguments.out)
    if expanded(out).exists():
        raise InputError(f"--out {out}: already exists; choose a new file")
    from trainer.llmc_model import not_finite, write_model
    from trainer.trained_model import load_trained

    trained = load_trained(arguments.model, "CHECKPOINT")
    try:
        header = write_model(trained.model, out, arguments.dtype, arguments.vocab_size)
    except InputError as error:
        raise InputError(f"{trained.name}: {error}") from error
    after = "" if trained.steps is None else f" after {trained.steps:,} steps"
    say(
        f"{out}: {header.title}{after}, {header.dtype}, {header.size_bytes:,} bytes; "
        "weights alone, no optimizer's moments"
    )
    if wrong := not_finite(trained.model.state_dict()):
        say(f"{wrong:,} of its weights are NaN or infinite")
    return 0


ACTIONS = {
    "llmc-tokenizer": Command(
        "export:export_tokenizer", "write a tokenizer as a file of llm.c", "add_tokenizer_arguments"
    ),
    "llmc-model": Command("export:export_model", "write a GPT-2 as a model file of llm.c", "add_model_arguments"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Tokens: harness data export."
    add_actions(parser, ACTIONS)


export = partial(run_action, ACTIONS)
