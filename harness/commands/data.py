"""harness data pretokenize, harness data verify: write pretokenized files, and prove that all data paths agree."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from harness.commands.arguments import PATHS_NOTE, add_overrides, load_plan
from harness.commands.output import say
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.config import DataConfig
    from trainer.data.pretokenize import Format


ACTIONS = {
    "pretokenize": "write the pretokenized files that a scenario's arms need",
    "verify": "prove that all data paths yield the same batches",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Pretokenize and verify, each over a scenario."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, text in ACTIONS.items():
        action = actions.add_parser(name, help=text, epilog=PATHS_NOTE)
        if name == "pretokenize":
            action.add_argument("--format", choices=("padded", "token-list", "both"), default="both")
            action.add_argument("--out", metavar="DIR", help="write to DIR/<format> (default: the cache)")
        action.add_argument("scenario", metavar="SCENARIO", help="scenario file (scenarios/*.yaml)")
        add_overrides(action)


def data(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Pretokenize or verify."""
    return _pretokenize(arguments) if arguments.action == "pretokenize" else _verify(arguments)


def _pretokenize(arguments: argparse.Namespace) -> int:
    """Write (or find) the pretokenized files, and print where each lies."""
    from trainer.data import pretokenize as module
    from trainer.data.corpus import prepare_corpus
    from trainer.data.tokenizers import prepare_tokenizer

    formats: list[Format] = [name for name in get_args(module.Format) if arguments.format in (name, "both")]
    needs = _needs(arguments, "corpus", "tokenizer", *(("sequence_length",) if "padded" in formats else ()))
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


def _verify(arguments: argparse.Namespace) -> int:
    """Compare all data paths batch by batch; 1 where any batch differs."""
    from trainer.data.verify import verify as compare

    status = 0
    for need in _needs(arguments, "corpus", "tokenizer", "sequence_length", "batch_size"):
        found = compare(need, lambda what: print(f"comparing {what}", file=sys.stderr))
        what = f"sequence length {need.sequence_length}, batch size {need.batch_size}"
        if found.identical:
            print(
                f"identical ({what}): {found.documents} documents, {found.tokens} tokens, {found.batches} batches of "
                f"{', '.join(found.paths)}; {found.empty} documents without a token, "
                f"{found.truncated_tokens} tokens truncated by padded rows"
            )
        else:
            say(f"different ({what}): {found.difference}")
            status = 1
    return status


def _needs(arguments: argparse.Namespace, *keys: str) -> list[DataConfig]:
    """The data configurations of the selected arms that differ in ``keys``; InputError where one has no data path."""
    needs: dict[str, DataConfig] = {}
    for arm in load_plan(arguments).arms:
        data = arm.config.data
        if data.source is not None:
            raise InputError(
                f"arm {arm.name}: data.source: {data.source} makes its batches by itself, without a corpus, a "
                f"tokenizer or pretokenized files: there is nothing to {arguments.action}; select other arms with --arm"
            )
        needs.setdefault(json.dumps(data.model_dump(include=set(keys)), sort_keys=True), data)
    return list(needs.values())
