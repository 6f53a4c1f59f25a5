"""The proof proves, and a single wrong token anywhere breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.trainer.data.conftest import write_parquet
from trainer.config import CorpusConfig, DataConfig, TokenizerConfig, TrainTokenizer
from trainer.data import cache
from trainer.data.corpus import prepare_corpus
from trainer.data.manifest import Pretokenized
from trainer.data.pretokenize import Progress, pretokenize
from trainer.data.tokenizers import prepare_tokenizer
from trainer.data.verify import verify

Make = Callable[..., DataConfig]


@pytest.mark.parametrize(
    ("length", "batch_size"), [(16, 3), pytest.param(2, 1, marks=(pytest.mark.slow, pytest.mark.nightly)), (512, 8)]
)
def test_all_paths_are_identical(make_config: Make, texts: list[str], length: int, batch_size: int) -> None:
    shown: dict[str, int] = {}  # documents that were counted in each stage

    @contextmanager
    def count(stage: str, documents: int) -> Iterator[Progress]:
        assert documents == len(texts)
        shown[stage] = 0
        yield lambda done, _: shown.update({stage: shown[stage] + done})

    report = verify(make_config(sequence_length=length, batch_size=batch_size), count)
    assert report.identical, report.difference
    assert report.documents == len(texts)
    assert report.empty == texts.count("")
    assert len(report.paths) == 9
    assert {done for stage, done in shown.items() if stage.startswith("comparing")} == {len(texts)}
    assert {done for stage, done in shown.items() if stage.startswith("tokenizing")} <= {0, len(texts)}  # 0: was cached
    assert len(shown) == 3 + 1 + len(report.paths)  # files, their comparison, batches
    assert sum("tokenizers " in stage for stage in shown) == 3 + 1 + 4  # every stage that tokenizes names its engine
    assert report.batches > 8
    assert report.remainder_tokens == report.tokens % length
    assert (report.truncated_tokens > 0) == (length < 512)


def test_a_tokenizer_without_special_ids(make_config: Make, bare_sentencepiece: str) -> None:
    report = verify(make_config(tokenizer=TokenizerConfig(sentencepiece=bare_sentencepiece)))
    assert report.identical, report.difference


@examples(25)
@example(words=[3] * 12, length=128, batch_size=4)  # fewer tokens than a row: no batch, and all of them are left over
@example(words=[1, 30, 2, 4, 1, 22], length=16, batch_size=1)  # the last batch comes before the last documents
@given(
    words=st.lists(st.integers(0, 40), min_size=1, max_size=14).filter(any),
    length=st.sampled_from([2, 16, 64, 128]),
    batch_size=st.integers(1, 5),
)
def test_small_corpora_are_identical_too(tmp_path_factory, words, length, batch_size) -> None:
    texts = [" ".join(f"w{at % 7}" for at in range(count)) for count in words]
    path = write_parquet(tmp_path_factory.mktemp("small") / "corpus.parquet", texts)
    report = verify(
        DataConfig(
            corpus=CorpusConfig(parquet=str(path)),
            tokenizer=TokenizerConfig(train=TrainTokenizer(kind="bpe", vocab_size=300)),
            sequence_length=length,
            batch_size=batch_size,
        )
    )
    assert report.identical, report.difference
    assert report.remainder_tokens == report.tokens % length
    assert report.empty == words.count(0)


def forge(made: Pretokenized, column: str, document: int) -> None:
    """Change one token of a document, and all that is said of it, so that only a comparison can find out."""
    rows = pq.read_table(made.data).to_pydict()
    rows[column][document][0] += 1
    pq.write_table(pa.table(rows, schema=pq.read_schema(made.data)), made.data)
    path = Path(made.folder) / "manifest.json"
    changed = {"data_bytes": made.data.stat().st_size, "data_fingerprint": cache.file_fingerprint(made.data)}
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    digests = Path(made.folder) / cache.DIGESTS
    known = {name: cache.file_digest(Path(made.folder) / name) for name in json.loads(digests.read_text())}
    digests.write_text(json.dumps(known))


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
