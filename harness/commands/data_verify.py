"""harness data verify: proves that all data paths agree."""

from __future__ import annotations

import argparse
import sys

from harness.commands.arguments import PATHS_NOTE, SCENARIO_HELP, add_overrides
from harness.commands.data_needs import distinct_needs
from harness.commands.output import say
from trainer.errors import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the scenario, and the selection of its arms."""
    parser.epilog = PATHS_NOTE
    parser.add_argument("scenario", metavar="SCENARIO", help=SCENARIO_HELP)
    add_overrides(parser)


def verify(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Compare the batches of all data paths. Return 0 if all are identical, 1 if any differs."""
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
