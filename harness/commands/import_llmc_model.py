"""harness import llmc-model: makes a transformers folder from a model file of llm.c."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file, the output folder and the tokenizer."""
    parser.add_argument("file", metavar="FILE", help="model_*.bin of llm.c, version 3 (fp32) or 5 (bf16)")
    parser.add_argument(
        "--out", metavar="DIR", required=True,
        help="a new folder with config.json and model.safetensors: for model.pretrained, AutoModel, harness generate",
    )  # fmt: skip

    parser.add_argument(
        "--tokenizer", metavar="NAME", help="write it beside the model, for AutoTokenizer and harness generate: a "
        "tokenizer.json, a folder or name for AutoTokenizer, or a SentencePiece .model",
    )  # fmt: skip


def read(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Convert the llm.c model file to a Hugging Face model folder (``--out``) and print a summary. Return exit code 0.

    Raises InputError for an unusable file or tokenizer.
    """
    from harness.commands.data_needs import given_tokenizer
    from trainer.llmc_model import as_folder, not_finite

    tokenizer = given_tokenizer(arguments.tokenizer)
    if tokenizer is None and arguments.tokenizer is not None:
        raise InputError(f"--tokenizer {arguments.tokenizer}: none can be trained here; give the one of the model")
    header, weights = as_folder(expanded(arguments.file), Path(arguments.out), tokenizer)
    say(f"{arguments.out}: {header.title}, {header.dtype}; the file has no optimizer's moments")
    if tokenizer is None:
        say("the folder has no tokenizer, so AutoTokenizer makes an empty one; --tokenizer NAME writes one there")
    if wrong := not_finite(weights):
        say(f"{wrong:,} of its weights are NaN or infinite")
    return 0
