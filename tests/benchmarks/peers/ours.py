"""This project's pretokenizer: parquet in, flat tokens out, as `harness data pretokenize --format flat` writes them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from common import Clock, job, report

from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import prepare_corpus
from trainer.data.pretokenize import pretokenize
from trainer.data.tokenizers import prepare_tokenizer


def main() -> None:
    given, clock = job(), Clock()
    config = CorpusConfig(parquet=str(Path(given.texts[0]).parent / "*.parquet"))
    engine = {"engine": given.engine} if given.engine != "tokenizers" else {}
    train = {"train": {"kind": "bpe", "vocab_size": given.vocab_size}}
    begun = time.perf_counter()
    corpus = prepare_corpus(config)
    tokenizer = prepare_tokenizer(TokenizerConfig.model_validate(train | engine), corpus)
    print(f"set-up, with the engine's proof: {time.perf_counter() - begun:.2f} s", file=sys.stderr)
    with clock.work():
        # Also what is hashed and counted of a corpus before it is used: each user waits for that as well.
        made = pretokenize(prepare_corpus(config), tokenizer, "flat", 2, Path(given.out) / "tokens")
    report(clock, [made.flat().tokens], engine=tokenizer.engine, cores=len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    main()
