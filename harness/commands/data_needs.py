"""Finds the data of a command of ``harness data``: that of a scenario's arms, or a corpus and a tokenizer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from harness.commands.arguments import PATHS_NOTE, SCENARIO_HELP, add_overrides, load_plan
from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.config import DataConfig
    from trainer.data.corpus import Corpus
    from trainer.data.tokenizers import TokenizerInfo

Content = TypeVar("Content")
_TRAINED = ("bpe", "unigram", "wordpiece", "sentencepiece")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add SCENARIO, --corpus and --tokenizer."""
    parser.epilog = PATHS_NOTE
    parser.add_argument("scenario", metavar="SCENARIO", nargs="?", help=SCENARIO_HELP)
    add_corpus(parser)
    add_overrides(parser)


def add_corpus(parser: argparse.ArgumentParser) -> None:
    """Add --corpus, --column, --tokenizer and --tokenizer-engine."""
    add_documents(parser, "instead of a scenario: ")
    add_tokenizer(parser)
    parser.add_argument(
        "--tokenizer-engine", metavar="NAME",
        help="tokenizers, sentencepiece, tiktoken, gigatoken, fastokens or auto; used if it gives the same ids "
        "(default: the tokenizer's own)",
    )  # fmt: skip


def add_documents(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Add --corpus and --column. ``when``: start of the help text, such as "instead of a scenario: "."""
    parser.add_argument(
        "--corpus",
        metavar="PATH",
        help=f"{when}python-docs, or a file, folder, glob or URL (Parquet, JSONL, text, Arrow)",
    )
    parser.add_argument(
        "--column", default="text", metavar="NAME", help="column of the corpus with the text (default: %(default)s)"
    )


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    """Add --tokenizer."""
    parser.add_argument(
        "--tokenizer", metavar="NAME",
        help="a tokenizer.json, a folder or name for AutoTokenizer, a SentencePiece .model, or KIND:SIZE (bpe:4096) to "
        "train one on the corpus",
    )  # fmt: skip


def needs_of(arguments: argparse.Namespace, *keys: str) -> list[DataConfig]:
    """Return the data configurations that the command works on: of the options, or of the scenario's arms. Arms that
    agree in ``keys`` (keys of the section data) give one configuration. Raises InputError for missing or superfluous
    options.
    """
    options = {"--corpus": arguments.corpus, "--tokenizer": arguments.tokenizer}
    if arguments.scenario is not None:
        options["--tokenizer-engine"] = arguments.tokenizer_engine
        if superfluous := [name for name, value in options.items() if value is not None]:
            raise InputError(f"data {arguments.action}: {superfluous[0]} cannot be combined with a scenario")
        return distinct_needs(arguments, *keys)
    if missing := [name for name, value in options.items() if value is None]:
        raise InputError(f"data {arguments.action}: give a scenario, or {' and '.join(missing)}")
    if arguments.set or arguments.arm:
        raise InputError(f"data {arguments.action}: --set and --arm need a scenario")
    return [of_corpus(arguments)]


def of_corpus(arguments: argparse.Namespace) -> DataConfig:
    """Return the data configuration of the options --corpus, --tokenizer and (if there) --sequence-length."""
    from trainer.config import DataConfig

    content: dict[str, object] = {
        "corpus": corpus_setting(arguments),
        "tokenizer": {**tokenizer_setting(arguments.tokenizer), "engine": arguments.tokenizer_engine},
    }
    if getattr(arguments, "sequence_length", None) is not None:
        content["sequence_length"] = arguments.sequence_length
    return validated(DataConfig, content, "data")


def corpus_setting(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the value of the setting ``data.corpus`` for the options --corpus and --column."""
    source = {"builtin": "python-docs"} if arguments.corpus == "python-docs" else {"path": arguments.corpus}
    return {**source, "column": arguments.column}


def tokenizer_setting(name: str) -> dict[str, object]:
    """Return the value of the setting ``data.tokenizer`` for ``name``, the value of --tokenizer."""
    kind, _, size = name.partition(":")
    if kind in _TRAINED and size:
        return {"train": {"kind": kind, "vocab_size": size}}
    return {"sentencepiece" if name.endswith(".model") else "pretrained": name}


def given_tokenizer(name: str | None) -> TokenizerInfo | None:
    """Load the tokenizer named by --tokenizer; None without a name, or for KIND:SIZE, which needs training."""
    setting = tokenizer_setting(name) if name is not None else None
    if setting is None or "train" in setting:
        return None
    from trainer.config import TokenizerConfig
    from trainer.data.corpus import Corpus
    from trainer.data.tokenizers import prepare_tokenizer

    return prepare_tokenizer(validated(TokenizerConfig, setting, "--tokenizer"), Corpus("", (), "", 0, 0, ""))


def model_tokenizer(name: str | None) -> TokenizerInfo | None:
    """Load the tokenizer of a trained model; None without a ``name``. Raises InputError for KIND:SIZE."""
    info = given_tokenizer(name)
    if info is None and name is not None:
        raise InputError(f"--tokenizer {name}: cannot train one here; give the model's tokenizer")
    return info


def add_engine(parser: argparse.ArgumentParser, does: str, part: str) -> None:
    """Add --engine, --workers, --master, --timeout. ``does``: the work (a verb). ``part``: unit of Spark's work."""
    parser.add_argument(
        "--engine", choices=("local", "spark"), default="local", help=f"program that {does}s (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="threads of the local engine (default: one per core)")
    parser.add_argument(
        "--master", metavar="URL", help="Spark's master (default: that of spark-submit or SPARK_CONF_DIR)"
    )
    parser.add_argument(
        "--timeout", type=float, metavar="S", help=f"seconds for Spark to start, or to end a {part} (default: 600)"
    )


def check_engine(arguments: argparse.Namespace) -> None:
    """Raise InputError for options that do not go with --engine, a wrong --timeout, or without PySpark or Java."""
    for name in ("workers",) if arguments.engine == "spark" else ("master", "timeout"):
        if getattr(arguments, name) is not None:
            raise InputError(f"--{name}: cannot be combined with --engine {arguments.engine}")
    if arguments.engine == "spark":
        from trainer.data.spark_process import check_installed

        if arguments.timeout is not None and not 0 < arguments.timeout <= 86_400:
            raise InputError(f"--timeout {arguments.timeout:g}: allowed: more than 0, at most 86400 s")
        check_installed()


def validated(model: type[Content], content: object, place: str) -> Content:
    """Return ``content`` as an instance of ``model``. Raises InputError that names the first wrong key, with ``place``
    in front of it.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(model).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([place, *map(str, first["loc"])])
        raise InputError(f"{key}: {first['msg']}, got {first['input']!r}") from error


def prepared(need: DataConfig) -> tuple[Corpus, TokenizerInfo]:
    """Return the corpus and the tokenizer of a data configuration. They are built if the cache does not have them."""
    from trainer.data.corpus import prepare_corpus
    from trainer.data.tokenizers import prepare_tokenizer

    corpus = prepare_corpus(need.corpus)
    return corpus, prepare_tokenizer(need.tokenizer, corpus)


def only(needs: Sequence[DataConfig], what: str) -> DataConfig:
    """Return the single data configuration. Raises InputError for the command ``what`` if the arms need several."""
    if len(needs) > 1:
        raise InputError(f"{what}: the arms need {len(needs)} different sets; select with --arm or --set")
    return needs[0]


def distinct_needs(arguments: argparse.Namespace, *keys: str) -> list[DataConfig]:
    """Return the arms' data configurations: the first with each combination of values of ``keys``. Raises InputError if
    an arm sets ``data.source``, which makes its own batches.
    """
    needs: dict[str, DataConfig] = {}
    for arm in load_plan(arguments).arms:
        data = arm.config.data
        if data.source is not None:
            raise InputError(
                f"arm {arm.name}: data.source: {data.source} makes its own batches, without a corpus, a "
                f"tokenizer or pretokenized files: nothing to {arguments.action}; select other arms with --arm"
            )
        needs.setdefault(json.dumps(data.model_dump(include=set(keys)), sort_keys=True), data)
    return list(needs.values())
