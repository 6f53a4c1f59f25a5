"""A tokenizer without an unknown token is not said to know everything."""

from __future__ import annotations

from pathlib import Path

from harness.show.corpus import page
from tests.trainer.data.corpus.corpora import jsonl
from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import prepare_corpus
from trainer.data.corpus.statistics import statistics_of
from trainer.data.tokenizers import load_tokenizer, prepare_tokenizer


def test_what_a_tokenizer_drops_in_silence_is_not_called_known(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(["the cat sat on the mat"] * 9, trainers.BpeTrainer(vocab_size=40))
    made.save(str(tmp_path / "tokenizer.json"))
    corpus = prepare_corpus(CorpusConfig(path=str(jsonl(tmp_path, ["the cat ωψχφ", "the cat"]))))
    info = prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path / "tokenizer.json")), corpus)
    dropped, known = load_tokenizer(info).encode_batch(["the cat ωψχφ", "the cat"])
    assert dropped == known
    found = page(statistics_of(corpus, info, (16,)))
    assert "| unknown tokens | not counted: the tokenizer has none (it encodes every byte, or drops" in found
