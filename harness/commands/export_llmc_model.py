"""harness export llmc-model: writes a trained GPT-2 as a model file of llm.c."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the output file and its number format."""
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


def export(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write the GPT-2 checkpoint as an llm.c model file, and print a summary. Raises InputError if ``--out`` exists."""
    out = Path(arguments.out)
    if expanded(out).exists():
        raise InputError(f"--out {out}: there is something already; choose a new file")
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
