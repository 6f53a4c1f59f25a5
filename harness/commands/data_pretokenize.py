"""harness data pretokenize: writes the pretokenized files of a corpus, or those that a scenario's arms need."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.data_needs import add_inputs, needs_of, only, prepared
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.data.corpus import Corpus
    from trainer.data.pretokenize import Format, Pretokenized, TokenSource
    from trainer.data.tokenizers import TokenizerInfo

# Flat tokens come first: whatever else is asked for is made from them.
FORMATS: dict[str, tuple[Format, ...]] = {
    "padded": ("padded",),
    "token-list": ("token-list",),
    "flat": ("flat",),
    "both": ("padded", "token-list"),
    "all": ("flat", "padded", "token-list"),
}
ENGINES = ("local",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is tokenized, into which formats, where to and by what."""
    add_inputs(parser)
    parser.add_argument("--format", choices=tuple(FORMATS), default="both", help="both: padded and token-list")
    parser.add_argument("--out", metavar="DIR", help="write to DIR/<format> (default: the cache)")
    parser.add_argument("--sequence-length", type=int, metavar="N", help="of padded rows, without a scenario")
    parser.add_argument("--workers", type=int, metavar="N", help="threads that tokenize (default: one a core)")
    parser.add_argument("--engine", choices=ENGINES, default="local", help="what tokenizes (default: %(default)s)")


def pretokenize(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write (or find) the pretokenized files, and print where each lies."""
    formats = FORMATS[arguments.format]
    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers}: at least 1")
    if arguments.sequence_length is not None and arguments.scenario is not None:
        raise InputError("--sequence-length: a scenario has its own; use --set data.sequence_length=N")
    needs = needs_of(arguments, "corpus", "tokenizer", *(("sequence_length",) if "padded" in formats else ()))
    if arguments.out is not None:
        only(needs, f"--out {arguments.out}")
    for need in needs:
        corpus, tokenizer = prepared(need)
        tokens: TokenSource | None = None
        for format in formats:
            out = Path(arguments.out) / format if arguments.out is not None else None
            made = _pretokenized(corpus, tokenizer, format, need.sequence_length, out, arguments.workers, tokens)
            facts = made.manifest
            length = f", sequence length {facts.sequence_length}" if facts.sequence_length else ""
            say(f"{made.folder}: {format}, {facts.documents} documents, {facts.rows_tokens} tokens{length}")
            if format == "flat":
                from trainer.data.pretokenize import groups_of

                tokens = groups_of(made.flat())
    return 0


def _pretokenized(
    corpus: Corpus,
    tokenizer: TokenizerInfo,
    format: Format,
    sequence_length: int,
    out: Path | None,
    workers: int | None,
    tokens: TokenSource | None,
) -> Pretokenized:
    from harness.launch.progress import TextProgress
    from trainer.data import pretokenize as module

    with TextProgress(f"{corpus.name} to {format}", corpus.documents) as progress:
        try:
            return module.pretokenize(
                corpus, tokenizer, format, sequence_length, out, workers=workers, tokens=tokens, progress=progress
            )
        except KeyboardInterrupt:
            if progress.documents:
                kept = f"{progress.documents:,} of {corpus.documents:,} documents are kept"
                print(f"harness: {kept}; the same command goes on behind them", file=sys.stderr)
            raise
