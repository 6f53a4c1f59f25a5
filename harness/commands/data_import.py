"""harness data import: makes a corpus of token ids from another trainer's files."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.commands.data_export import FORMATS
from harness.commands.data_needs import add_tokenizer, given_tokenizer
from harness.commands.output import say
from trainer.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files, their format and tokenizer, and the output file."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=".bin files, in the order of their tokens")
    parser.add_argument("--format", choices=FORMATS, required=True, help="format of the files")
    parser.add_argument("--out", metavar="FILE", required=True, help="the corpus: a parquet file with a column tokens")
    add_tokenizer(parser)


def read(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write a corpus from the other trainer's files, and print which information those files lack."""
    from trainer.data.formats.export import Vocabulary, import_tokens

    if (tokenizer := given_tokenizer(arguments.tokenizer)) is None:
        raise InputError("data import: --tokenizer names the one that made the files; none can be trained on token ids")
    out = Path(arguments.out)
    if out.exists():
        raise InputError(f"--out {out}: there is something already; choose a new file")
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.eos_id)
    imported = import_tokens(arguments.format, [Path(file) for file in arguments.files], vocabulary, out)
    ends = "" if tokenizer.eos_id is None else " with the end-of-text id that each ends in"
    say(f"{out}: {imported.documents} documents, {imported.tokens} tokens{ends}")
    if imported.cut:
        say("the first or the last document is cut: it begins before these files, or goes on behind them")
    say(f"lost: {'; '.join(imported.lost)}")
    return 0
