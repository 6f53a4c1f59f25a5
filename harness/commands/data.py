"""harness data: one action per kind of work on data. The two largest, pretokenize and dedup, have their own files."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.actions import Command, add_actions, run_action
from harness.commands.arguments import PATHS_NOTE, SCENARIO_HELP, add_overrides
from harness.commands.data_needs import (
    add_inputs,
    add_tokenizer,
    distinct_needs,
    given_tokenizer,
    needs_of,
    only,
    prepared,
)
from harness.commands.output import say
from trainer.errors import InputError, visible
from trainer.files import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.data.formats.export import FormatCost


def add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    parser.add_argument(
        "--sequence-length",
        dest="lengths",
        type=int,
        action="append",
        metavar="N",
        help="padding and packing at this length; may be repeated (default: powers of 2, and the scenario's own)",
    )
    parser.add_argument("--out", metavar="DIR", help="write stats.md, stats.json and the picture there")
    parser.add_argument("--json", action="store_true", help="print JSON, one line per corpus")


def stats(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Print statistics of each corpus, as a page or (--json) as JSON. Returns 0. Statistics: numbers of documents and
    tokens, document lengths, padding and packing at some row lengths, duplicates.
    """
    from harness.launch.progress import announced
    from harness.show import corpus as report
    from harness.show.drawing import write_picture
    from harness.show.tables import record_json
    from trainer.data.corpus.statistics import SEQUENCE_LENGTHS, statistics_of

    lengths: list[int] | None = arguments.lengths
    if odd := next((length for length in lengths or [] if not 2 <= length <= 2**20), None):
        raise InputError(f"--sequence-length {odd}: allowed: 2 to 1,048,576")
    arguments.sequence_length = None  # data_needs takes one length for all.
    needs = needs_of(arguments, "corpus", "tokenizer")
    if arguments.out is not None:
        only(needs, f"--out {arguments.out}")
        from harness.launch.preparation import check_writable

        check_writable(Path(arguments.out))
    for place, need in enumerate(needs):
        scenario_lengths = () if arguments.scenario is None else (need.sequence_length,)
        corpus, tokenizer = prepared(need)
        with announced(f"counting {corpus.name}: {corpus.documents:,} documents"):
            statistics = statistics_of(corpus, tokenizer, lengths or (*SEQUENCE_LENGTHS, *scenario_lengths))
        plain = json.dumps(record_json(statistics))
        if arguments.json:
            print(plain)
        else:
            say(("\n" if place else "") + report.page(statistics))
        if arguments.out is not None:
            folder = Path(arguments.out)
            write_picture(folder / report.PICTURE, report.picture(statistics))
            write_text(folder / "stats.json", plain + "\n")
            write_text(folder / "stats.md", report.page(statistics, report.PICTURE))
            if not arguments.json:
                say(f"written to {folder}: stats.md, stats.json, {report.PICTURE}")
    return 0


def add_formats_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    parser.add_argument("--sequence-length", type=int, metavar="N", help="length of padded rows, without a scenario")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="seconds are medians (default: %(default)s)"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder to write to for the measurement (default: for temporary files)"
    )


def formats(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write and read the corpus in every format, and print bytes and seconds. It is tokenized first if necessary."""
    from harness.launch.progress import TextProgress
    from trainer.data.formats.export import Vocabulary, costs
    from trainer.data.pretokenize import padding_id, pretokenize

    if arguments.repeats < 1:
        raise InputError(f"--repeats {arguments.repeats}: at least 1")
    need = only(needs_of(arguments, "corpus", "tokenizer", "sequence_length"), "data formats")
    folder = Path(arguments.out or tempfile.gettempdir())
    if not folder.is_dir():
        raise InputError(f"--out {folder}: no such folder")
    corpus, info = prepared(need)
    with TextProgress(f"{corpus.name} to flat", corpus.documents) as progress:
        begun_s = time.perf_counter()
        pretokenized = pretokenize(corpus, info, "flat", need.sequence_length, progress=progress)
        tokenized_s = time.perf_counter() - begun_s
    facts = pretokenized.manifest
    say(f"{corpus.name}: {facts.documents:,} documents, {facts.tokens:,} tokens, vocabulary {info.vocab_size:,}")
    if new := progress.documents - progress.kept:
        read = "read" if corpus.content == "tokens" else f"tokenized with {info.engine}"
        kept = f"{new:,} documents, after {progress.kept:,} of an earlier process: "
        say(f"{kept if progress.kept else ''}{read} and written as flat tokens in {tokenized_s:.2f} s")
    measurements = costs(
        pretokenized.flat(), Vocabulary(info.vocab_size, info.eos_id), need.sequence_length, padding_id(info), folder,
        arguments.repeats,
    )  # fmt: skip
    say()
    for line in _costs_table(list(measurements), facts.tokens, need.sequence_length):
        say(line)
    return 0


def _costs_table(found: Sequence[FormatCost], tokens: int, sequence_length: int) -> list[str]:
    from harness.show.tables import aligned

    rows = [("format", "bytes", "bytes/token", "write s", "write Mtok/s", "read s", "read Mtok/s")]
    rows += [
        (
            measured.format,
            f"{measured.size_bytes:,}",
            f"{measured.size_bytes / tokens:.2f}",
            f"{measured.write_s:.3f}",
            f"{tokens / 1e6 / max(measured.write_s, 1e-9):,.1f}",
            f"{measured.read_s:.3f}",
            f"{measured.tokens / 1e6 / max(measured.read_s, 1e-9):,.1f}",
        )
        for measured in found
        if not measured.reason
    ]
    lines = aligned(rows)
    lines += [f"{measured.format}: not possible: {measured.reason}" for measured in found if measured.reason]
    cut = next((tokens - measurement.tokens for measurement in found if measurement.format == "padded"), 0)
    lines.append(f"bytes/token: of all {tokens:,} tokens; padded rows of {sequence_length} drop {cut:,} of them")
    return lines


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = PATHS_NOTE
    parser.add_argument("scenario", metavar="SCENARIO", help=SCENARIO_HELP)
    add_overrides(parser)


def verify(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Compare the batches that each data path (way from documents to batches) makes. Return 0 if all are identical,
    else 1.
    """
    from harness.launch.progress import TextProgress, is_terminal
    from trainer.data.verify import verify as compare

    def shown(stage: str, documents: int) -> TextProgress:
        if not is_terminal():
            print(visible(stage), file=sys.stderr)
        return TextProgress(stage, documents)

    status = 0
    for need in distinct_needs(arguments, "corpus", "tokenizer", "sequence_length", "batch_size"):
        report = compare(need, shown)
        batching = f"sequence length {need.sequence_length}, batch size {need.batch_size}"
        if report.identical:
            print(
                f"identical ({batching}): {report.documents} documents, {report.tokens} tokens, {report.batches} "
                f"batches of {', '.join(report.paths)}; {report.empty} documents without a token, "
                f"{report.truncated_tokens} tokens truncated by padded rows"
            )
        else:
            say(f"different ({batching}): {report.difference}")
            status = 1
    return status


FORMATS = ("llmc", "nanogpt")


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
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
    """Write the corpus's tokens as .bin files of llm.c or nanoGPT (--format). Returns 0. The corpus is tokenized first,
    unless its tokens are cached.
    """
    from trainer.data.formats.exchange import SHARD_TOKENS, VALIDATION_SHARE
    from trainer.data.formats.export import Division, Vocabulary
    from trainer.data.formats.export import export as write
    from trainer.data.kept_tokenizer import keep
    from trainer.data.pretokenize import no_separator, pretokenize

    _check_export(arguments)
    corpus, tokenizer = prepared(only(needs_of(arguments, "corpus", "tokenizer"), "data export"))
    flat = pretokenize(corpus, tokenizer, "flat", 2).flat()
    share = VALIDATION_SHARE if arguments.validation_share is None else arguments.validation_share
    division = Division(arguments.name, arguments.shard_tokens or SHARD_TOKENS, share)
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.eos_id)
    exported = write(flat, arguments.format, vocabulary, tokenizer.fingerprint, Path(arguments.out), division)
    keep(tokenizer, Path(arguments.out))
    for name in exported.files:
        say(str(Path(arguments.out) / name))
    say(f"{exported.tokens} tokens of {exported.documents} documents; {exported.empty} without a token are lost")
    if (line := no_separator(tokenizer)) is not None:
        print(line, file=sys.stderr)
    if arguments.format == "llmc" and len(exported.files) == 1:
        say("all tokens are in shard 0, which llm.c uses for validation; make smaller shards with --shard-tokens N")
    return 0


def _check_export(arguments: argparse.Namespace) -> None:
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


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help=".bin files, in the order of their tokens")
    parser.add_argument("--format", choices=FORMATS, required=True, help="format of the files")
    parser.add_argument("--out", metavar="FILE", required=True, help="the corpus: a parquet file with a column tokens")
    add_tokenizer(parser)


def read(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write a corpus from .bin files of llm.c or nanoGPT (--format), and print what these files do not record. Returns
    0.
    """
    from trainer.data.formats.export import Vocabulary, import_tokens

    if (tokenizer := given_tokenizer(arguments.tokenizer)) is None:
        raise InputError("data import: --tokenizer: cannot train one on token ids; give the one that made the files")
    out = Path(arguments.out)
    if out.exists():
        raise InputError(f"--out {out}: already exists; choose a new file")
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.eos_id)
    imported = import_tokens(arguments.format, [Path(file) for file in arguments.files], vocabulary, out)
    ends = "" if tokenizer.eos_id is None else " with the end-of-text id that each ends in"
    say(f"{out}: {imported.documents} documents, {imported.tokens} tokens{ends}")
    if imported.cut:
        say("the first or the last document is cut: it begins before or ends after these files")
    say(f"lost: {'; '.join(imported.lost)}")
    return 0


ACTIONS = {
    "pretokenize": Command(
        "data_pretokenize:pretokenize", "write pretokenized files, of a corpus or for a scenario's arms"
    ),
    "export": Command("data:export", "write tokens as the files of llm.c or nanoGPT", "add_export_arguments"),
    "import": Command("data:read", "make a corpus of the files of llm.c or nanoGPT", "add_import_arguments"),
    "formats": Command("data:formats", "measure size, read and write time of each format", "add_formats_arguments"),
    "stats": Command(
        "data:stats", "print statistics of a corpus: lengths, padding, packing, duplicates", "add_stats_arguments"
    ),
    "dedup": Command("data_dedup:dedup", "remove near-duplicates from a corpus, here or on Spark"),
    "verify": Command("data:verify", "check that all data paths yield the same batches", "add_verify_arguments"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_actions(parser, ACTIONS)


data = partial(run_action, ACTIONS)
