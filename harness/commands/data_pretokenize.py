"""harness data pretokenize: writes the pretokenized files that a scenario's arms need."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import PATHS_NOTE, add_overrides
from harness.commands.data_needs import distinct_needs
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.data.corpus import Corpus
    from trainer.data.pretokenize import Format
    from trainer.data.spark import SparkTokens
    from trainer.data.tokenizers import TokenizerInfo

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
    parser.add_argument("--engine", choices=("local", "spark"), default="local", help="who tokenizes (default: local)")
    parser.add_argument("--master", metavar="URL", help="Spark's master (default: local[*], all cores of this machine)")
    parser.add_argument(
        "--timeout", type=float, metavar="S", help="how long Spark may take to start, or to end a share (default: 600)"
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="scenario file (scenarios/*.yaml)")
    add_overrides(parser)


def pretokenize(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write (or find) the pretokenized files, and print where each lies."""
    from trainer.data import pretokenize as module
    from trainer.data.corpus import prepare_corpus
    from trainer.data.tokenizers import prepare_tokenizer

    _check_engine(arguments)
    formats = FORMATS[arguments.format]
    needs = distinct_needs(arguments, "corpus", "tokenizer", *(("sequence_length",) if "padded" in formats else ()))
    if arguments.out is not None and len(needs) > 1:
        raise InputError(
            f"--out {arguments.out}: the arms need {len(needs)} different sets; select with --arm or --set"
        )
    for need in needs:
        corpus = prepare_corpus(need.corpus)
        tokenizer = prepare_tokenizer(need.tokenizer, corpus)
        with _tokens(arguments, corpus, tokenizer) as tokens:
            for format in formats:
                out = Path(arguments.out) / format if arguments.out is not None else None
                made = module.pretokenize(corpus, tokenizer, format, need.sequence_length, out, tokens=tokens)
                facts = made.manifest
                length = f", sequence length {facts.sequence_length}" if facts.sequence_length else ""
                say(f"{made.folder}: {format}, {facts.documents} documents, {facts.rows_tokens} tokens{length}")
    return 0


def _check_engine(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go with the engine, and Spark where it is not installed, before any work."""
    if arguments.engine == "spark":
        from trainer.data.spark_driver import check_installed

        if arguments.timeout is not None and not 0 < arguments.timeout <= 86_400:
            raise InputError(f"--timeout {arguments.timeout:g}: allowed: more than 0, at most 86400 s")
        check_installed()
        return
    for name in ("master", "timeout"):
        if getattr(arguments, name) is not None:
            raise InputError(f"--{name}: goes with --engine spark")


@contextmanager
def _tokens(arguments: argparse.Namespace, corpus: Corpus, tokenizer: TokenizerInfo) -> Iterator[SparkTokens | None]:
    """What tokenizes in place of this process, for all formats; None where nothing does."""
    if arguments.engine == "local":
        yield None
        return
    from trainer.data import cache
    from trainer.data.spark import DEFAULT_MASTER, DEFAULT_TIMEOUT_S, SparkTokens

    shared = Path(arguments.out) if arguments.out is not None else cache.cache_root() / "spark"
    master, timeout_s = arguments.master or DEFAULT_MASTER, arguments.timeout or DEFAULT_TIMEOUT_S
    tokens = SparkTokens(corpus, tokenizer, shared, master, timeout_s)
    done = False
    try:
        yield tokens
        done = True
    finally:
        tokens.close(keep=not done)  # what is finished is not done again
