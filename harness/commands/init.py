"""harness init: writes a commented scenario for the user's own text, tokenizer and model, by questions or options."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.commands.output import say
from trainer.errors import InputError


@dataclass(frozen=True)
class Question:
    """One thing to know: ``name`` of the option, what is asked on a terminal, what is taken without an answer."""

    name: str
    text: str
    default: str


QUESTIONS = (
    Question("name", "name of the scenario (and of its folder under results/)", "mine"),
    Question("parquet", "your text: Parquet file or glob; empty for Python's own documentation", ""),
    Question("column", "its column with the text", "text"),
    Question("tokenizer", "your tokenizer: a folder for AutoTokenizer; empty to train one on the text", ""),
    Question("model", "model preset: gpt2-small, llama-1b, ... (a wrong one is answered with all)", "gpt2-tiny"),
    Question("device", "device: auto, cpu or cuda", "auto"),
    Question("sequence-length", "sequence length", "128"),
    Question("batch-size", "batch size", "4"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to write it, and the answers."""
    parser.add_argument("file", metavar="FILE", help="scenario file to write")
    for one in QUESTIONS:
        parser.add_argument(f"--{one.name}", metavar="X", help=f"{one.text} (default: {one.default or 'empty'})")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def init(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Ask for what was not given (on a terminal), write the scenario, check it, say what to do next."""
    path = Path(arguments.file)
    if path.is_dir():
        raise InputError(f"init: {path} is a folder; give a file")
    if path.exists() and not arguments.force:
        raise InputError(f"init: {path} exists; --force overwrites it")
    if not path.parent.is_dir():
        raise InputError(f"init: {path}: no such folder {path.parent}")
    answers = {one.name: _answer(one, arguments) for one in QUESTIONS}
    for name, answer in answers.items():
        if not answer.isprintable() or any("\ud800" <= letter <= "\udfff" for letter in answer):
            raise InputError(f"init: {path}: --{name} {answer!r}: not text that a file can hold")
    text = scenario_text(answers)
    _check(path, text)
    say(f"wrote {path}")
    say(f"  harness run {path} --plan     every run of it, in order")
    say(f"  harness doctor {path}         is this machine fit for it?")
    say(f"  harness run {path}            the study")
    return 0


def _answer(one: Question, arguments: argparse.Namespace) -> str:
    given: str | None = getattr(arguments, one.name.replace("-", "_"))
    if given is None and sys.stdin.isatty() and sys.stdout.isatty():
        print(f"{one.text} [{one.default}]: ", end="", flush=True)
        given = sys.stdin.readline().strip()
    return given or one.default


def _check(path: Path, text: str) -> None:
    """Write ``text`` where it is a scenario that can be run; InputError, and nothing written, where it is not."""
    from harness.scenario.load import load_scenario
    from trainer.files import write_text
    from trainer.leftovers import temporary_path

    draft = temporary_path(path)
    write_text(draft, text)
    try:
        load_scenario(draft)
        draft.replace(path)
    except InputError as error:
        raise InputError(f"init: {str(error).replace(str(draft), str(path))}") from error
    finally:
        draft.unlink(missing_ok=True)


def scenario_text(answers: dict[str, str]) -> str:
    """The scenario: YAML with comments. ``answers``: by the name of the question."""
    corpus = "builtin: python-docs # your text: {parquet: 'mine/*.parquet', column: text}"
    if answers["parquet"]:
        corpus = f"parquet: {quoted(answers['parquet'])}\n      column: {quoted(answers['column'])}"
    tokenizer = "train: {kind: bpe, vocab_size: 4096} # yours: {pretrained: FOLDER}"
    if answers["tokenizer"]:
        tokenizer = f"pretrained: {quoted(answers['tokenizer'])}"
    return f"""\
# Written by harness init. Every key: harness schema, or scenarios/schema.json.
name: {quoted(answers["name"])}
question: Does pretokenizing this text, or a loader worker, make training faster, end to end, on this machine?

base: # what all arms share
  model: {{preset: {quoted(answers["model"])}}} # any dimension of it can be overridden: layers, width, heads ...
  data:
    corpus:
      {corpus}
    tokenizer:
      {tokenizer}
    sequence_length: {number(answers["sequence-length"])}
    batch_size: {number(answers["batch-size"])}
  compute: {{device: {quoted(answers["device"])}}}
  steps: 40 # measured steps of each run
  warmup_steps: 5 # before them, in no figure

arms: # what differs; the first is the baseline of the others
  text: {{data.path: text-stream}} # tokenizes as it goes, documents packed end to end
  tokens: {{data.path: tokens-stream}} # the same tokens, made beforehand
  text-w1: {{data.path: text-stream, data.workers: 1}} # tokenizes in a loader worker

# a-a: the noise floor, without which nothing is decided; ideal-data: what no data work at all would give; data-only:
# the data path alone, which is what benchmarks of loaders show.
controls: [a-a, ideal-data, data-only]
repeats: 5 # blocks: each runs every arm once, over the same documents; more of them narrow the intervals
slice_steps: 10 # arms alternate so often, that a neighbour's load hits all of them
"""


def number(text: str) -> str:
    """``text`` as YAML has a number; what is none is quoted, so that the check names it."""
    return str(int(text)) if text.isascii() and text.isdigit() and len(text) < 20 else quoted(text)


def quoted(text: str) -> str:
    """``text`` as YAML has it between double quotes, which is as JSON has it."""
    return json.dumps(text, ensure_ascii=False)
