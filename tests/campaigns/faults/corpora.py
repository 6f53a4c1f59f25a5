"""Corpora and tokenizers that nobody means well with, in pairs: ``harness data verify`` over each.

``python -m tests.campaigns faults.corpora --count 223``. Asked: exit code 0 or, where corpus or tokenizer cannot be
used, 2 with one line; no traceback, no hang. Of what is accepted, every stored document must be what the library itself
makes of it.
"""

from __future__ import annotations

import itertools
import json
import random
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from tests.campaigns.faults.common import Counts, forked, parser, workplace
from tests.campaigns.faults.hostile_data import CORPORA, TOKENIZERS, Hostile

LIMIT_S = 120.0
LIMIT_BYTES = 8 * 2**30  # of address space: what needs more was not bounded


def pairs(count: int, chance: random.Random) -> list[tuple[Hostile, Hostile]]:
    """First every corpus and every tokenizer with an ordinary other, then pairs at random, no pair twice."""
    first = [*((one, TOKENIZERS[0]) for one in CORPORA), *((CORPORA[0], one) for one in TOKENIZERS[1:])]
    rest = [pair for pair in itertools.product(CORPORA, TOKENIZERS) if pair not in first]
    return [*first, *chance.sample(rest, max(0, min(count - len(first), len(rest))))][:count]


def wrong_documents(corpus: dict[str, Any], tokenizer: dict[str, Any]) -> str | None:
    """What is wrong with the stored tokens of a pair that was accepted, by the libraries themselves; None: nothing."""
    from trainer.config import CorpusConfig, TokenizerConfig
    from trainer.data.corpus import prepare_corpus
    from trainer.data.pretokenize import pretokenize
    from trainer.data.tokenizers import prepare_tokenizer

    found = prepare_corpus(CorpusConfig(**corpus))
    info = prepare_tokenizer(TokenizerConfig(**tokenizer), found)
    encode, decode = _library(info.location)
    stored = pq.read_table(pretokenize(found, info, "token-list", 16).data)["tokens"].to_pylist()
    documents = list(_documents(corpus))
    if len(stored) != len(documents):
        return f"{len(stored)} of {len(documents)} documents"
    for number, (tokens, text) in enumerate(zip(stored, documents, strict=True)):
        body = tokens
        if tokens and info.eos_id is not None:
            if tokens[-1] != info.eos_id:
                return f"document {number} does not end with the end-of-document id"
            body = tokens[:-1]
        if body != encode(text):
            return f"document {number}: other tokens than the library's"
        if info.kind in ("bpe", "unigram") and decode(body) != text:  # of bytes: nothing may be lost
            return f"document {number} cannot be read back"
        if tokens and max(tokens) >= info.vocab_size:
            return f"document {number}: an id above the vocabulary"
    return None


def _library(location: str) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    if not location.endswith(".json"):
        import sentencepiece as library

        model = library.SentencePieceProcessor(model_file=location)
        return model.encode, model.decode
    import tokenizers

    content = json.loads(Path(location).read_text())  # padding and truncation belong to whoever calls it
    one = tokenizers.Tokenizer.from_str(json.dumps(content | {"padding": None, "truncation": None}))
    return (
        lambda text: one.encode(text, add_special_tokens=False).ids,
        lambda ids: one.decode(ids, skip_special_tokens=False),
    )


def _documents(corpus: dict[str, Any]) -> Iterator[str]:
    pattern = Path(corpus["parquet"])
    matched = [pattern] if pattern.is_file() else sorted(pattern.parent.glob(pattern.name))
    files = sorted({file.resolve() for file in matched if file.is_file()})
    column, left = corpus.get("column", "text"), corpus.get("documents")
    found = itertools.chain.from_iterable(pq.read_table(file, columns=[column])[column].to_pylist() for file in files)
    yield from itertools.islice(found, left)


def scenario(corpus: dict[str, Any], tokenizer: dict[str, Any]) -> str:
    data = {"corpus": corpus, "tokenizer": tokenizer, "sequence_length": 16, "batch_size": 3}
    content = {"name": "corpora", "question": "Does it hold?", "base": {"data": data, "steps": 2}, "arms": {"one": {}}}
    return yaml.safe_dump(content, allow_unicode=True)


def main() -> int:
    arguments = parser(__doc__, 223).parse_args()
    import tokenizers  # noqa: F401 (here once, not in each fork)
    import torch  # noqa: F401
    import transformers  # noqa: F401

    counts, chance = Counts("corpora and tokenizers"), random.Random(arguments.seed)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))

    with workplace() as folder:
        for corpus, tokenizer in pairs(arguments.count, chance):
            what = f"corpus: {corpus.name}; tokenizer: {tokenizer.name}"
            here = folder / "pair"
            (here / "corpus").mkdir(parents=True)
            (here / "tokenizer").mkdir()
            keys = corpus.make(here / "corpus"), tokenizer.make(here / "tokenizer")
            (here / "scenario.yaml").write_text(scenario(*keys))
            ended = forked(["data", "verify", str(here / "scenario.yaml")], LIMIT_S, limited)
            if "\x1b" in ended.out + ended.err:
                counts.bad("a terminal escape", what)
            if counts.of(ended, {0, 2}, what) and ended.code == 0:
                wrong = wrong_documents(*keys)
                counts.good("its documents are the library's") if wrong is None else counts.bad(
                    "other data", f"{what}: {wrong}"
                )
            if ended.code == 2:
                print(f"{what}: {ended.last_line}", flush=True)
            shutil.rmtree(here)
            shutil.rmtree(folder / "cache", ignore_errors=True)
    return counts.finish()


if __name__ == "__main__":
    sys.exit(main())
