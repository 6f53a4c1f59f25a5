"""harness data pretokenize: writes the pretokenized files of a corpus, or those that a scenario's arms need."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.arguments import add_upload
from harness.commands.data_needs import add_engine, add_inputs, check_engine, needs_of, only, prepared
from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import write_text

if TYPE_CHECKING:
    from trainer.data.corpus import Corpus
    from trainer.data.manifest import Format, Manifest, Pretokenized
    from trainer.data.pretokenize import TokenSource
    from trainer.data.shares import SparkTokens
    from trainer.data.tokenizers import TokenizerInfo

# Flat tokens come first, because the other formats are made from them.
FORMATS: dict[str, tuple[Format, ...]] = {
    "padded": ("padded",),
    "token-list": ("token-list",),
    "flat": ("flat",),
    "both": ("padded", "token-list"),
    "all": ("flat", "padded", "token-list"),
}
SPARK_FILE = "spark.json"  # file in --out that records Spark's master; format folders do not depend on the engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    parser.add_argument("--format", choices=tuple(FORMATS), default="both", help="both: padded and token-list")
    parser.add_argument("--out", metavar="DIR", help="write to DIR/<format> (default: the cache)")
    add_upload(parser)
    parser.add_argument("--sequence-length", type=int, metavar="N", help="length of padded rows, without a scenario")
    add_engine(parser, "tokenize", "share")


def pretokenize(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write the pretokenized files, unless they exist already, and print the folder of each. Return the exit code."""
    from harness.commands.upload import finish_upload, uploader_of
    from trainer.data.kept_tokenizer import keep
    from trainer.data.pretokenize import groups_of, no_separator

    formats = FORMATS[arguments.format]
    if arguments.workers is not None and arguments.workers < 1:
        raise InputError(f"--workers {arguments.workers}: at least 1")
    if arguments.sequence_length is not None and arguments.scenario is not None:
        raise InputError("--sequence-length: with a scenario use --set data.sequence_length=N")
    check_engine(arguments)
    needs = needs_of(arguments, "corpus", "tokenizer", *(("sequence_length",) if "padded" in formats else ()))
    if arguments.out is not None:
        only(needs, f"--out {arguments.out}")
    elif arguments.upload is not None:
        raise InputError("--upload: also needs --out DIR, which it copies")
    uploader = None
    if arguments.upload is not None:
        uploader = uploader_of(Path(arguments.out), arguments.upload)
    for need in needs:
        corpus, tokenizer = prepared(need)
        if formats != ("padded",) and (line := no_separator(tokenizer)) is not None:
            print(line, file=sys.stderr)
        with _spark(arguments, corpus, tokenizer) as spark:
            tokens: TokenSource | None = spark
            for format in formats:
                out = Path(arguments.out) / format if arguments.out is not None else None
                pretokenized = _pretokenized(
                    corpus, tokenizer, format, need.sequence_length, out, arguments.workers, tokens
                )
                facts = pretokenized.manifest
                length = f", sequence length {facts.sequence_length}" if facts.sequence_length else ""
                say(f"{pretokenized.folder}: {format}, {facts.documents} documents, {facts.rows_tokens} tokens{length}")
                if format == "padded":
                    say(_padded_line(facts))
                if out is not None:
                    keep(tokenizer, out)
                if format == "flat":
                    tokens = groups_of(pretokenized.flat())
            if spark is not None and spark.master is not None and arguments.out is not None:
                write_text(Path(arguments.out) / SPARK_FILE, json.dumps({"master": spark.master}) + "\n")
    return 0 if uploader is None or finish_upload(Path(arguments.out), uploader) else 1


def _padded_line(facts: Manifest) -> str:
    """Return a sentence on padded rows: how many tokens they keep and cut off, and how much padding they add."""
    cut, padding = facts.cut / facts.tokens, facts.padding / (facts.padding + facts.rows_tokens)
    return (
        f"of {facts.tokens:,} tokens {facts.rows_tokens:,} are kept and {facts.cut:,} cut ({cut:.1%}); "
        f"{facts.padding:,} of padding are added ({padding:.1%} of the rows)"
        + ("; a larger --sequence-length cuts fewer, --format token-list or flat none" if facts.cut else "")
    )


@contextmanager
def _spark(arguments: argparse.Namespace, corpus: Corpus, tokenizer: TokenizerInfo) -> Iterator[SparkTokens | None]:
    """Yield, as a context manager, one source of Spark's tokens for all formats; None with --engine local. After a
    failure, the finished parts stay on disk for the next call.
    """
    if arguments.engine == "local":
        yield None
        return
    from trainer.data import cache
    from trainer.data.shares import DEFAULT_TIMEOUT_S, SparkTokens

    shared = Path(arguments.out) if arguments.out is not None else cache.cache_root() / "spark"
    tokens = SparkTokens(corpus, tokenizer, shared, arguments.master, arguments.timeout or DEFAULT_TIMEOUT_S)
    done = False
    try:
        yield tokens
        done = True
    finally:
        tokens.close(keep=not done)  # Keep finished parts, so that they are not done again.


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
                print(f"harness: {kept}; the same command continues after them", file=sys.stderr)
            raise
