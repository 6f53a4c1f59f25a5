"""harness data pretokenize: writes the pretokenized files that a scenario's arms need."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import PATHS_NOTE, add_overrides
from harness.commands.data_needs import distinct_needs
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.data.pretokenize import Format

FORMATS: dict[str, tuple[Format, ...]] = {
    "padded": ("padded",),
    "token-list": ("token-list",),
    "flat": ("flat",),
    "both": ("padded", "token-list"),
    "all": ("padded", "token-list", "flat"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A scenario, and which of its arms; formats and where they go."""
    parser.epilog = PATHS_NOTE
    parser.add_argument("--format", choices=tuple(FORMATS), default="both", help="both: padded and token-list")
    parser.add_argument("--out", metavar="DIR", help="write to DIR/<format> (default: the cache)")
    parser.add_argument("scenario", metavar="SCENARIO", help="scenario file (scenarios/*.yaml)")
    add_overrides(parser)


def pretokenize(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write (or find) the pretokenized files, and print where each lies."""
    from trainer.data import pretokenize as module
    from trainer.data.corpus import prepare_corpus
    from trainer.data.tokenizers import prepare_tokenizer

    formats = FORMATS[arguments.format]
    needs = distinct_needs(arguments, "corpus", "tokenizer", *(("sequence_length",) if "padded" in formats else ()))
    if arguments.out is not None and len(needs) > 1:
        raise InputError(
            f"--out {arguments.out}: the arms need {len(needs)} different sets; select with --arm or --set"
        )
    for need in needs:
        corpus = prepare_corpus(need.corpus)
        tokenizer = prepare_tokenizer(need.tokenizer, corpus)
        for format in formats:
            out = Path(arguments.out) / format if arguments.out is not None else None
            made = module.pretokenize(corpus, tokenizer, format, need.sequence_length, out)
            facts = made.manifest
            length = f", sequence length {facts.sequence_length}" if facts.sequence_length else ""
            say(f"{made.folder}: {format}, {facts.documents} documents, {facts.rows_tokens} tokens{length}")
    return 0
