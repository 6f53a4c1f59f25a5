"""harness import: converts model files and logs of another trainer (llm.c), one format per action."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.commands.actions import Command, add_actions, run_action
from harness.commands.output import say
from trainer.errors import InputError
from trainer.files import expanded

if TYPE_CHECKING:
    from trainer.llmc_log import LlmcLog


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="model_*.bin of llm.c, version 3 (fp32) or 5 (bf16)")
    parser.add_argument(
        "--out", metavar="DIR", required=True,
        help="a new folder with config.json and model.safetensors: for model.pretrained, AutoModel, harness generate",
    )  # fmt: skip

    parser.add_argument(
        "--tokenizer", metavar="NAME", help="write it beside the model, for AutoTokenizer and harness generate: a "
        "tokenizer.json, a folder or name for AutoTokenizer, or a SentencePiece .model",
    )  # fmt: skip


def read_model(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Convert the llm.c model file to a Hugging Face folder, and return 0. Raises InputError for unusable files."""
    from harness.commands.data_needs import model_tokenizer
    from trainer.llmc_model import as_folder, not_finite

    tokenizer = model_tokenizer(arguments.tokenizer)
    header, weights = as_folder(expanded(arguments.file), Path(arguments.out), tokenizer)
    say(f"{arguments.out}: {header.title}, {header.dtype}; the file has no optimizer's moments")
    if tokenizer is None:
        say("the folder has no tokenizer, so AutoTokenizer makes an empty one; --tokenizer NAME writes one there")
    if wrong := not_finite(weights):
        say(f"{wrong:,} of its weights are NaN or infinite")
    return 0


TOKENS = 524_288  # tokens of a step in llm.c's script for GPT-2 124M (scripts/run_gpt2_124M.sh)
OUT = "results/imported"


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="main.log of llm.c")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help=f"a new folder for losses.csv, evaluations.csv and loss.png (default: {OUT}/NAME, of the log's folder)",
    )
    parser.add_argument(
        "--tokens-per-step", type=int, default=TOKENS, metavar="N",
        help="tokens per step, which the log does not record (default: %(default)s, of llm.c's GPT-2 124M)",
    )  # fmt: skip


def read_llmc_log(arguments: argparse.Namespace, _command: list[str]) -> int:
    """Write losses.csv, evaluations.csv and loss.png from llm.c's main.log, and print a summary."""
    from harness.show.plotted_runs import draw_losses
    from trainer.llmc_log import read_log

    file = expanded(arguments.file)
    if not 1 <= arguments.tokens_per_step <= 10**12:
        raise InputError(f"--tokens-per-step {arguments.tokens_per_step}; allowed: 1 to 10**12")
    log = read_log(file)
    out = expanded(arguments.out) if arguments.out else Path(OUT) / (file.parent.resolve().name or file.stem)
    import_log(log, arguments.tokens_per_step, out)
    draw_losses(out, out.name)
    say(f"{out}: {len(log.training):,} training losses, {len(log.validation):,} validation losses")
    if log.training:
        first, last = log.training[0], log.training[-1]
        say(f"training loss {first.loss:.4f} at step {first.step:,}, {last.loss:.4f} at step {last.step:,}")
    if log.validation:
        last_score = log.validation[-1]
        say(f"validation loss {last_score.value:.4f} after {last_score.updates:,} steps")
    if log.hellaswag:
        scored = log.hellaswag[-1]
        say(f"HellaSwag {scored.value:.4f} after {scored.updates:,} steps; {len(log.hellaswag):,} in evaluations.csv")
    say(f"assumed {arguments.tokens_per_step:,} tokens per step, which the log does not record (--tokens-per-step)")
    if log.other_lines:
        say(f"{log.other_lines:,} lines of other kinds are ignored")
    if log.cut:
        say("the last line has no end, so it may be cut, and is ignored")
    return 0


def import_log(log: LlmcLog, tokens_per_step: int, out: Path) -> None:
    """Write losses.csv and evaluations.csv of an llm.c log into the new folder ``out``. Raises InputError if it exists.

    Steps count from 0. An evaluation has the number of the last step before it (-1: before training). A step without a
    loss in the log gets no row. HellaSwag scores become ``acc_tokens``.
    """
    from harness.launch.training_files import EVALUATIONS, LOSSES, EvaluationRow, EvaluationTable, LossRow, LossTable
    from trainer.data import cache

    target = expanded(out).absolute()
    if target.exists():
        raise InputError(f"{out}: already exists; choose a new folder (--out)")

    def build(to: Path) -> None:
        losses = LossTable(to / LOSSES, 0)
        for step in log.training:
            losses.add(LossRow(step.step, (step.step + 1) * tokens_per_step, step.loss))
        losses.close()
        if log.validation or log.hellaswag:
            passes = EvaluationTable(to / EVALUATIONS, 0)
            for score in log.validation:
                passes.add(EvaluationRow(score.updates - 1, score.value, None, None))
            for score in log.hellaswag:
                passes.add(EvaluationRow(score.updates - 1, None, None, None, acc_tokens=score.value))

    cache.create_folder(target, build)


ACTIONS = {
    "llmc-model": Command(
        "import_:read_model", "make a folder for transformers of a model file of llm.c", "add_model_arguments"
    ),
    "llmc-log": Command(
        "import_:read_llmc_log", "make tables of the losses in a main.log of llm.c", "add_log_arguments"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Tokens: harness data import."
    add_actions(parser, ACTIONS)


read = partial(run_action, ACTIONS)
