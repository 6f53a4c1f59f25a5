"""harness data formats: prints the cost of each format for one corpus: bytes, and seconds to write and to read."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.data_needs import add_inputs, needs_of, only, prepared
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainer.data.formats.costs import FormatCost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data, the number of repetitions and the output folder."""
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
    from trainer.data.formats.costs import costs
    from trainer.data.formats.export import Vocabulary
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
        kept = f"{new:,} documents, behind {progress.kept:,} that an earlier process had written: "
        say(f"{kept if progress.kept else ''}{read} and written as flat tokens in {tokenized_s:.2f} s")
    measurements = costs(
        pretokenized.flat(), Vocabulary(info.vocab_size, info.eos_id), need.sequence_length, padding_id(info), folder,
        arguments.repeats,
    )  # fmt: skip
    say()
    for line in _table(list(measurements), facts.tokens, need.sequence_length):
        say(line)
    return 0


def _table(found: Sequence[FormatCost], tokens: int, sequence_length: int) -> list[str]:
    heads = ("format", "bytes", "bytes/token", "write s", "write Mtok/s", "read s", "read Mtok/s")
    rows = [
        (
            measurement.format,
            f"{measurement.size_bytes:,}",
            f"{measurement.size_bytes / tokens:.2f}",
            f"{measurement.write_s:.3f}",
            f"{tokens / 1e6 / max(measurement.write_s, 1e-9):,.1f}",
            f"{measurement.read_s:.3f}",
            f"{measurement.tokens / 1e6 / max(measurement.read_s, 1e-9):,.1f}",
        )
        for measurement in found
        if not measurement.reason
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (heads, *rows)
    ]
    lines += [
        f"{measurement.format}: not possible: {measurement.reason}" for measurement in found if measurement.reason
    ]
    cut = next((tokens - measurement.tokens for measurement in found if measurement.format == "padded"), 0)
    lines.append(f"bytes/token: of all {tokens:,} tokens; padded rows of {sequence_length} cut {cut:,} of them off")
    return lines
