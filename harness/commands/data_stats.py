"""harness data stats: prints the composition of a corpus, and the effect of padding and packing on it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness.commands.data_needs import add_inputs, needs_of, only, prepared
from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data, the lengths and the output."""
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
    parser.add_argument("--json", action="store_true", help="print JSON, a line for each corpus")


def stats(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Count the tokens, lengths and duplicates of each corpus, and print a page or JSON for each."""
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
