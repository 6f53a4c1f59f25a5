"""All data paths see the same documents, in the same order, and make the same batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.trainer.data.conftest import write_parquet
from tests.trainer.data.recorder import StageRecorder
from tests.trainer.data.test_packing import assert_all_same, assert_same
from trainer import telemetry
from trainer.config import CorpusConfig, DataConfig, DataInject, TokenizerConfig
from trainer.data.batch import IGNORED, Batch
from trainer.data.dataset import Epoch, make_pipeline
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.data.tokenizers import document_tokens, load_tokenizer
from trainer.errors import InputError

PATHS = ("text-padded", "text-stream", "tokens-padded", "tokens-stream")
ACCESSES = ("scalar", "zero-copy")
Make = Callable[..., DataConfig]


def batches_of(config: DataConfig, count: int, seed: int = 0, worker: int = 0, workers: int = 1) -> list[Batch]:
    source = make_pipeline(config, prepare(config), seed, worker, workers)
    found = [source.next_batch() for _ in range(count)]
    assert None not in found
    return found  # type: ignore[return-value]


def documents_of(config: DataConfig, texts: list[str]) -> list[list[int]]:
    info = prepare(config).tokenizer
    return [t for t in document_tokens([load_tokenizer(info).encode(text) for text in texts], info.eos_id) if t]


@pytest.mark.parametrize("packing", ["padded", "stream"])
@examples(10)
@given(length=st.sampled_from([2, 3, 16, 64]), batch_size=st.integers(1, 9), seed=st.integers(0, 3))
def test_all_paths_and_accesses_agree_over_several_epochs(make_config, packing, length, batch_size, seed) -> None:
    by_path = []
    for source in ("text", "tokens"):
        for access in ACCESSES:
            config = make_config(
                path=f"{source}-{packing}", access=access, sequence_length=length, batch_size=batch_size
            )
            by_path.append(batches_of(config, 3 * 60 // batch_size, seed))
    if packing == "stream":
        config = make_config(path="tokens-mmap", sequence_length=length, batch_size=batch_size)
        by_path.append(batches_of(config, 3 * 60 // batch_size, seed))
    for others in by_path[1:]:
        assert_all_same(by_path[0], others)


@pytest.mark.parametrize("path", PATHS)
def test_the_stream_of_tokens_goes_on_across_epochs(make_config: Make, texts: list[str], path: str) -> None:
    config = make_config(path=path, shuffle=False, sequence_length=16, batch_size=5)
    documents = documents_of(config, texts)
    batches = batches_of(config, 180)
    if path.endswith("stream"):
        tokens = [token for document in documents for token in document] * 3
        found = torch.cat([batch.input_ids.reshape(-1) for batch in batches]).tolist()
        assert len(tokens) // 2 < len(found) < len(tokens)
        assert found == tokens[: len(found)]
    else:
        firsts = [row[0].item() for batch in batches for row in batch.input_ids]
        assert firsts == ([document[0] for document in documents] * 20)[: len(firsts)]


@pytest.mark.parametrize("kind", ["pretrained", "sentencepiece"])
@pytest.mark.parametrize("packing", ["padded", "stream"])
def test_a_tokenizer_without_pad_eos_and_bos_works(
    make_config: Make, bare_pretrained: str, bare_sentencepiece: str, kind: str, packing: str, texts: list[str]
) -> None:
    tokenizer = TokenizerConfig(**{kind: {"pretrained": bare_pretrained, "sentencepiece": bare_sentencepiece}[kind]})
    by_path = []
    for source in ("text", "tokens"):
        config = make_config(path=f"{source}-{packing}", tokenizer=tokenizer, shuffle=False)
        by_path.append(batches_of(config, 12))
    for left, right in zip(*by_path, strict=True):
        assert_same(left, right)
    if packing == "padded":
        padding = torch.cat([batch.attention_mask for batch in by_path[0] if batch.attention_mask is not None]) == 0
        assert padding.any()
        assert (torch.cat([batch.input_ids for batch in by_path[0]])[padding] == 0).all()
        assert (torch.cat([batch.labels for batch in by_path[0]])[padding] == IGNORED).all()
    else:  # documents still begin where they begin, though no id says so
        documents = documents_of(config, texts)
        labels = torch.cat([batch.labels.reshape(-1) for batch in by_path[0]])
        assert labels[0] == labels[len(documents[0])] == IGNORED


@pytest.fixture
def recorder() -> Iterator[None]:
    telemetry.attach(StageRecorder("main"))
    yield
    telemetry.attach(None)


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("access", ACCESSES)
def test_stages_are_marked_in_order(make_config: Make, path: str, access: str) -> None:
    for number, batch in enumerate(batches_of(make_config(path=path, access=access, sequence_length=64), 10)):
        assert (batch.trace.role, batch.trace.batch) == ("main", number)
        names = [span.name for span in batch.trace.spans]
        assert names[-1] == "pack"
        assert set(names) <= ({"read", "tokenize", "pack"} if path.startswith("text") else {"read", "pack"})
        assert all(a.end_ns <= b.start_ns for a, b in zip(batch.trace.spans, batch.trace.spans[1:], strict=False))


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("replay", [False, True])
def test_declared_costs_are_spent_inside_their_stages(make_config: Make, path: str, replay: bool) -> None:
    # Rows of 2 tokens: most stream batches need no read, and still cost what was declared, once.
    inject = DataInject(read_ms=1, tokenize_ms=2, pack_ms=1, how="sleep")
    config = make_config(path=path, sequence_length=2, batch_size=1, inject=inject, replay=replay)
    for batch in batches_of(config, 6):
        spent_ns = dict.fromkeys(telemetry.STAGES, 0)
        for span in batch.trace.spans:
            spent_ns[span.name] += span.end_ns - span.start_ns
        assert spent_ns["read"] >= 1e6
        assert spent_ns["tokenize"] >= 2e6
        assert spent_ns["pack"] >= 1e6


@pytest.mark.usefixtures("recorder")
def test_replay_repeats_the_first_batch_as_fresh_objects(make_config: Make) -> None:
    config = make_config(path="text-stream", replay=True)
    (expected,) = batches_of(make_config(path="text-stream"), 1)
    with open_batches(config, prepare(config), seed=0) as batches:
        found = list(islice(batches, 5))
    assert len({id(batch) for batch in found}) == 5
    for batch in found:
        assert_same(batch, expected)
        assert batch.trace.spans == ()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_huge_document_survives(make_config: Make, tmp_path: Path) -> None:
    sentence = " All work and no play makes a long document."
    huge = sentence * 60_000
    assert len(huge) > 2_500_000
    corpus = CorpusConfig(parquet=str(write_parquet(tmp_path / "huge.parquet", ["short", huge, "", "last"])))
    config = make_config(path="text-stream", corpus=corpus, shuffle=False, sequence_length=4096, batch_size=64)
    # Words are tokenized on their own, so the tokens of a repeated sentence are its tokens repeated.
    short, single, last = map(len, documents_of(config, ["short", sentence, "last"]))
    epoch = Epoch(config, prepare(config), seed=0)
    expected = short + 60_000 * (single - 1) + 1 + last
    assert sum(batch.tokens for batch in epoch) + epoch.remainder == expected


def test_a_corpus_without_a_token_ends_instead_of_spinning(make_config: Make, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "blank.parquet", ["  ", "\n\n"])
    config = make_config(
        corpus=CorpusConfig(parquet=str(path)),
        tokenizer=TokenizerConfig.model_validate({"train": {"kind": "wordpiece", "vocab_size": 300}}),
    )
    with (
        open_batches(config, prepare(config), 0) as batches,
        pytest.raises(InputError, match="no document with a token"),
    ):
        next(batches)


def test_more_workers_than_documents(make_config: Make, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "few.parquet", ["one", "", "two", "three"])
    config = make_config(corpus=CorpusConfig(parquet=str(path)), workers=4)
    with pytest.raises(InputError, match=r"data\.workers: 4 workers but only 3 documents"):
        open_batches(config, prepare(config), 0)


def test_a_corpus_that_shrank_after_it_was_prepared(make_config: Make, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ["one", "two", "three"])
    config = make_config(corpus=CorpusConfig(parquet=str(path)))
    prepared = prepare(config)
    write_parquet(path, ["one"])
    with (
        open_batches(config, prepared, 0) as batches,
        pytest.raises(InputError, match="1 rows, 3 when it was prepared"),
    ):
        next(batches)
