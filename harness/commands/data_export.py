"""harness data export: writes the tokens of a corpus as the files of another trainer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.commands.data_needs import add_inputs, needs_of, only, prepared
from harness.commands.output import say
from trainer.errors import InputError

FORMATS = ("llmc", "nanogpt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data, the format and the output."""
    add_inputs(parser)
    parser.add_argument("--format", choices=FORMATS, required=True, help="llmc: shards of llm.c; nanogpt: two files")
    parser.add_argument("--out", metavar="DIR", required=True, help="a new folder")
    parser.add_argument(
        "--name",
        default="tokens",
        metavar="NAME",
        help="name of the llm.c shards, NAME_train_000001.bin (default: %(default)s)",
    )
    parser.add_argument(
        "--shard-tokens", type=int, metavar="N", help="tokens per llm.c shard; shard 0 is validation (default: 1e8)"
    )
    parser.add_argument(
        "--validation-share",
        type=float,
        metavar="SHARE",
        help="share of the documents in val.bin of nanoGPT (default: 0.0005)",
    )


def export(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write the tokens of the corpus as files of the other trainer.

    It is tokenized first, unless the cache has the tokens.
    """
    from trainer.data.formats.exchange import SHARD_TOKENS, VALIDATION_SHARE
    from trainer.data.formats.export import Division, Vocabulary
    from trainer.data.formats.export import export as write
    from trainer.data.kept_tokenizer import keep
    from trainer.data.pretokenize import no_separator, pretokenize

    _check(arguments)
    corpus, tokenizer = prepared(only(needs_of(arguments, "corpus", "tokenizer"), "data export"))
    flat = pretokenize(corpus, tokenizer, "flat", 2).flat()
    share = VALIDATION_SHARE if arguments.validation_share is None else arguments.validation_share
    division = Division(arguments.name, arguments.shard_tokens or SHARD_TOKENS, share)
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.eos_id)
    exported = write(flat, arguments.format, vocabulary, tokenizer.fingerprint, Path(arguments.out), division)
    keep(tokenizer, Path(arguments.out))
    for name in exported.files:
        say(str(Path(arguments.out) / name))
    say(f"{exported.tokens} tokens of {exported.documents} documents; {exported.empty} without a token leave no trace")
    if (line := no_separator(tokenizer)) is not None:
        print(line, file=sys.stderr)
    if arguments.format == "llmc" and len(exported.files) == 1:
        say("all of it is shard 0, which llm.c validates with: --shard-tokens N makes smaller shards")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.shard_tokens is not None and arguments.shard_tokens < 1:
        raise InputError(f"--shard-tokens {arguments.shard_tokens}: at least 1")
    if arguments.shard_tokens is not None and arguments.shard_tokens >= 2**31:
        raise InputError(
            f"--shard-tokens {arguments.shard_tokens}: the header's number is an int32, at most {2**31 - 1}"
        )
    if arguments.validation_share is not None and not 0 <= arguments.validation_share < 1:
        raise InputError(f"--validation-share {arguments.validation_share}: from 0 to below 1")
    if Path(arguments.name).name != arguments.name or not arguments.name:
        raise InputError(f"--name {arguments.name!r}: a file's name, without a folder")
