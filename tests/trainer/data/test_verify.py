"""The proof proves, and a single wrong token anywhere breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config import DataConfig, TokenizerConfig
from trainer.data import cache
from trainer.data.corpus import prepare_corpus
from trainer.data.pretokenize import Pretokenized, pretokenize
from trainer.data.tokenizers import prepare_tokenizer
from trainer.data.verify import verify

Make = Callable[..., DataConfig]


@pytest.mark.parametrize(("length", "batch_size"), [(16, 3), (2, 1), (512, 8)])
def test_all_paths_are_identical(make_config: Make, texts: list[str], length: int, batch_size: int) -> None:
    heard: list[str] = []
    report = verify(make_config(sequence_length=length, batch_size=batch_size), heard.append)
    assert report.identical, report.difference
    assert report.documents == len(texts)
    assert report.empty == texts.count("")
    assert len(report.paths) == 8
    assert len(heard) == 9
    assert report.batches > 8
    assert report.remainder_tokens == report.tokens % length
    assert (report.truncated_tokens > 0) == (length < 512)


def test_a_tokenizer_without_special_ids(make_config: Make, bare_sentencepiece: str) -> None:
    report = verify(make_config(tokenizer=TokenizerConfig(sentencepiece=bare_sentencepiece)))
    assert report.identical, report.difference


def forge(made: Pretokenized, column: str, document: int) -> None:
    """Change one token of a document, and the manifest with it, so that only a comparison can find out."""
    rows = pq.read_table(made.data).to_pydict()
    rows[column][document][0] += 1
    pq.write_table(pa.table(rows, schema=pq.read_schema(made.data)), made.data)
    path = Path(made.folder) / "manifest.json"
    changed = {"data_bytes": made.data.stat().st_size, "data_fingerprint": cache.file_fingerprint(made.data)}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize(("format", "column"), [("token-list", "tokens"), ("padded", "input_ids")])
def test_one_wrong_token_is_found(make_config: Make, format: str, column: str) -> None:
    config = make_config()
    corpus = prepare_corpus(config.corpus)
    info = prepare_tokenizer(config.tokenizer, corpus)
    forge(pretokenize(corpus, info, format, 16), column, document=17)  # type: ignore[arg-type]
    report = verify(config)
    assert report.difference == f"document 17: stored {column} differ from tokenizing it afresh"
    assert not report.identical
