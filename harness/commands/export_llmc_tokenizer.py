"""harness export llmc-tokenizer: writes a tokenizer as llm.c's tokenizer.bin, which llm.c uses to print samples."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the tokenizer to export and the output file."""
    parser.add_argument(
        "tokenizer", metavar="TOKENIZER", help="a training's folder or a checkpoint, pretokenized files, a "
        "tokenizer.json, a folder or name for AutoTokenizer, or a SentencePiece .model",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", required=True, help="a new file, such as gpt2_tokenizer.bin")


def export(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write the tokenizer as an llm.c file, and print a summary. Raises InputError if ``--out`` exists."""
    from harness.commands.data_needs import given_tokenizer
    from trainer.data.formats.llmc_tokenizer import write_tokenizer
    from trainer.data.kept_tokenizer import kept

    out = Path(arguments.out)
    if expanded(out).exists():
        raise InputError(f"--out {out}: there is something already; choose a new file")
    info = kept(expanded(arguments.tokenizer)) or given_tokenizer(arguments.tokenizer)
    if info is None:
        raise InputError(f"{arguments.tokenizer}: none can be trained here; give one that was")
    written = write_tokenizer(info, out)
    unused = f"; {written.unused:,} of them have no token" if written.unused else ""
    say(
        f"{out}: {written.vocab_size:,} ids, end of text {written.eos_id}, {expanded(out).stat().st_size:,} bytes"
        f"{unused}"
    )
    return 0
