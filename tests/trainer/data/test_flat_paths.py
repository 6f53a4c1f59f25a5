"""Packed rows of flat tokens: in any order, from any place on, for any number of workers and ranks.

That ``tokens-mmap`` gives the batches of ``tokens-stream`` is in test_paths and test_verify, that it goes on after any
batch in test_position.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.examples import examples
from tests.trainer.data.conftest import write_parquet
from tests.trainer.data.recorder import StageRecorder
from tests.trainer.data.test_packing import assert_all_same, assert_same
from tests.trainer.data.test_position import batches_of
from trainer import telemetry
from trainer.config import CorpusConfig, DataConfig, DataInject, EvaluationConfig, TokenizerConfig, TrainerConfig
from trainer.data.batch import IGNORED, Batch
from trainer.data.dataset import Epoch, make_pipeline, pipeline_of
from trainer.data.flat_pipeline import MAX_PIECES_OF_A_ROW, FlatPipeline
from trainer.data.flat_plan import DocumentPlan
from trainer.data.formats.flat import FlatTokens
from trainer.data.loader import open_batches
from trainer.data.order import ShardedSampler, dealt_to
from trainer.data.prepare import Prepared, prepare
from trainer.data.pretokenize import pretokenize
from trainer.errors import InputError
from trainer.inject import Injector

Make = Callable[..., DataConfig]
FLAT = [("tokens-mmap", "scalar"), ("tokens-stream", "zero-copy")]


def flat_of(config: DataConfig) -> FlatTokens:
    prepared = prepare(config)
    return pretokenize(prepared.corpus, prepared.tokenizer, "flat", config.sequence_length).flat()


def rows_of(batches: list[Batch], field: str = "input_ids") -> list[list[int]]:
    return [row for batch in batches for row in getattr(batch, field).tolist()]


@examples(10)
@given(length=st.sampled_from([2, 7, 16, 64]), batch_size=st.integers(1, 5), seed=st.integers(0, 3))
def test_windows_come_once_in_every_epoch(make_config: Make, length: int, batch_size: int, seed: int) -> None:
    config = make_config(path="tokens-mmap", shuffle="windows", sequence_length=length, batch_size=batch_size)
    flat = flat_of(config)
    count = len(flat.tokens) // length
    labels = flat.tokens.astype(np.int64)
    labels[flat.places[:-1][np.diff(flat.places) > 0]] = IGNORED
    windows = flat.tokens[: count * length].reshape(count, length).tolist()
    targets = labels[: count * length].reshape(count, length).tolist()
    found = batches_of(make_pipeline(config, prepare(config), seed, 0, 1), 2 * count // batch_size)
    for batch in found:
        assert batch.trained_tokens == int((batch.labels[:, 1:] != IGNORED).sum())
    rows = list(zip(rows_of(found), rows_of(found, "labels"), strict=True))
    known = list(zip(windows, targets, strict=True))
    assert sorted(rows[:count]) == sorted(known)
    if 2 * count % batch_size == 0:
        assert sorted(rows[count:]) == sorted(known)
        assert rows[:count] != rows[count:] or count < 4
    assert found[-1].position.document == len(rows)
    assert found[-1].position.per_epoch == count


@pytest.mark.parametrize(
    ("shuffle", "workers", "together"),
    [
        *((one, workers, False) for one in ("windows", "documents") for workers in (1, 3)),
        (True, 3, True),
        ("windows", 3, True),
    ],
)
def test_other_orders_go_on_after_every_batch(make_config: Make, shuffle: object, workers: int, together: bool) -> None:
    config = make_config(path="tokens-mmap", shuffle=shuffle, global_order=together)
    prepared = prepare(config)
    whole = batches_of(make_pipeline(config, prepared, 3, workers - 1, workers), 150 // workers)
    assert together or whole[-1].position.epochs > 1
    for number in range(0, len(whole) - 3, 5):
        resumed = make_pipeline(config, prepared, 3, workers - 1, workers, whole[number].position)
        assert_all_same(batches_of(resumed, 3), whole[number + 1 :], strict=False, positions=True)


@pytest.mark.parametrize("path", ["tokens-mmap", "tokens-padded", "text-padded"])
@pytest.mark.parametrize("access", ["scalar", "zero-copy"])
def test_a_computed_order_of_documents_is_the_same_on_every_path(make_config: Make, path: str, access: str) -> None:
    config = make_config(path=path, access=access, shuffle="documents")
    packed = "padded" not in path
    plain = make_config(path="text-stream" if packed else "tokens-padded", shuffle="documents")
    found = batches_of(make_pipeline(config, prepare(config), 1, 0, 1), 40)
    expected = batches_of(make_pipeline(plain, prepare(plain), 1, 0, 1), 40)
    assert_all_same(found, expected)
    other = config.model_copy(update={"shuffle": True})
    assert rows_of(found) != rows_of(batches_of(make_pipeline(other, prepare(other), 1, 0, 1), 40))


@pytest.mark.parametrize(
    ("path", "access", "shuffle"),
    [*((*one, shuffle) for one in FLAT for shuffle in (True, False, "documents")), (*FLAT[0], "windows")],
)
@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_a_global_order_is_that_of_one_process(make_config, path, access, shuffle, objective) -> None:
    config = make_config(path=path, access=access, shuffle=shuffle, global_order=True)
    prepared = prepare(config).with_objective(objective)  # type: ignore[arg-type]
    alone = batches_of(make_pipeline(config, prepared, 2, 0, 1), 60)
    plain = config.model_copy(update={"global_order": False})
    assert_all_same(alone, batches_of(make_pipeline(plain, prepared, 2, 0, 1), 60))
    for workers, ranks in ((2, 1), (1, 2), (3, 2)):
        for rank in range(ranks):
            turns = [dealt_to(worker, workers, rank, ranks) for worker in range(workers)]
            pipelines = [make_pipeline(config, prepared, 2, *turn) for turn in turns]
            for number in range(60 // ranks):
                batch = pipelines[number % workers].next_batch()
                assert batch is not None
                assert_same(batch, alone[number * ranks + rank])


@examples(60)
@example(lengths=[1, 1, 1, 1], worker=0, shuffle=False, length=2)
@given(
    # A share may miss the few documents with tokens for 16 epochs, which is an error: half of them have some.
    lengths=st.lists(st.integers(0, 4), min_size=4, max_size=9).filter(lambda drawn: 2 * drawn.count(0) <= len(drawn)),
    worker=st.integers(0, 2),
    shuffle=st.booleans(),
    length=st.integers(1, 6),
)
def test_rows_are_the_documents_of_the_share_end_to_end(lengths, worker, shuffle, length) -> None:
    """Where a share's epoch ends, the next documents lie elsewhere, however many tokens lie between."""
    places = np.concatenate([[0], np.cumsum(lengths)])
    flat = FlatTokens(np.arange(places[-1], dtype=np.uint16), places)
    share = ShardedSampler(len(lengths), 1, shuffle, worker, 3, endless=False).take(99)
    if not sum(lengths[number] for number in share):
        return
    order = ShardedSampler(len(lengths), 1, shuffle, worker, 3)
    plan = DocumentPlan(flat, ShardedSampler(len(lengths), 1, shuffle, worker, 3), length)
    rows: list[int] = []
    for _ in range(6):
        stretch = plan.next(2)
        pieces = [range(*one) for one in zip(stretch.sources, stretch.ends, strict=True)]
        tokens = [token for piece in pieces for token in piece]
        tokens = tokens[stretch.cut : len(tokens) - stretch.overhang]
        assert len(tokens) == stretch.tokens == 2 * length
        if stretch.adjacent:
            assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        rows += tokens
    expected: list[int] = []
    while len(expected) < len(rows):
        expected += [token for number in order.take(1) for token in flat.document(number).tolist()]
    assert rows == expected[: len(rows)]


def test_the_repeated_batch_of_a_global_order_is_the_first_one(make_config: Make) -> None:
    config = make_config(path="tokens-mmap", global_order=True, replay=True, shuffle="windows", batch_size=3)
    prepared = prepare(config)
    (first,) = batches_of(make_pipeline(config.model_copy(update={"replay": False}), prepared, 2, 0, 1), 1)
    for worker in range(3):
        assert_same(batches_of(make_pipeline(config, prepared, 2, worker, 3), 1)[0], first)


@pytest.mark.parametrize(("path", "access"), [*FLAT, ("text-stream", "zero-copy")])
@examples(10)
@given(length=st.sampled_from([2, 5, 16, 64]), batch_size=st.integers(1, 5))
def test_positions_begin_anew_with_each_document_and_row(make_config, path, access, length, batch_size) -> None:
    config = make_config(path=path, access=access, documents="separated", sequence_length=length, batch_size=batch_size)
    for batch in batches_of(make_pipeline(config, prepare(config), 0, 0, 1), 12):
        for labels, found in zip(batch.labels.tolist(), batch.position_ids.tolist(), strict=True):
            expected: list[int] = []
            for label in labels:
                expected.append(0 if not expected or label == IGNORED else expected[-1] + 1)
            assert found == expected


def test_one_epoch_ends_with_fewer_rows_and_a_remainder(make_config: Make) -> None:
    for shuffle in (False, "windows"):
        config = make_config(path="tokens-mmap", shuffle=shuffle, batch_size=4)
        tokens = len(flat_of(config).tokens)
        epoch = Epoch(config, prepare(config), 0)
        batches = list(epoch)
        assert sum(batch.tokens for batch in batches) == tokens // 16 * 16
        assert epoch.remainder == tokens % 16
        assert {batch.samples for batch in batches[:-1]} == {4}


@pytest.mark.parametrize("words", [3, 400])
def test_few_long_and_many_short_documents_are_copied_alike(make_config, tmp_path, monkeypatch, words) -> None:
    texts = [" ".join(f"w{at * number % 11}" for at in range(words)) for number in range(200)]
    corpus = CorpusConfig(parquet=str(write_parquet(tmp_path / "a.parquet", texts)))
    config = make_config(path="tokens-mmap", corpus=corpus, sequence_length=128, batch_size=4)
    found = {}
    for most in (0, MAX_PIECES_OF_A_ROW, 10**9):
        monkeypatch.setattr("trainer.data.flat_pipeline.MAX_PIECES_OF_A_ROW", most)
        found[most] = batches_of(make_pipeline(config, prepare(config), 0, 0, 1), 10)
    for others in (found[MAX_PIECES_OF_A_ROW], found[10**9]):
        assert_all_same(found[0], others)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
def test_ids_of_a_large_vocabulary_are_widened_unsigned(make_config, monkeypatch, kind) -> None:
    tokens = np.array([np.iinfo(kind).max, 1, 2, np.iinfo(kind).max - 1, 3, 4], dtype=kind)
    flat = FlatTokens(tokens, np.array([0, 2, 2, 6]))
    monkeypatch.setattr("trainer.data.flat_pipeline.open_tokens", lambda *_: flat)
    config = make_config(path="tokens-mmap", sequence_length=3, batch_size=2)
    batch = pipeline_of(config, prepare(config), ShardedSampler(3, 0, False), Injector(None, 0)).next_batch()
    assert batch.input_ids.tolist() == tokens.reshape(2, 3).tolist()
    assert batch.labels.tolist() == [[IGNORED, 1, IGNORED], tokens[3:].tolist()]
    assert batch.trained_tokens == 3


def test_stages_and_declared_costs(make_config: Make) -> None:
    inject = DataInject(read_ms=1, tokenize_ms=1, pack_ms=1, transfer_ms=1, how="sleep")
    config = make_config(path="tokens-mmap", inject=inject)
    telemetry.attach(StageRecorder("main"))
    try:
        (batch,) = batches_of(make_pipeline(config, prepare(config), 0, 0, 1), 1)
    finally:
        telemetry.attach(None)
    assert [span.name for span in batch.trace.stages()] == ["read", "tokenize", "pack"]
    assert all(span.end_ns - span.start_ns >= 0.9e6 for span in batch.trace.stages())


def test_a_dose_reads_every_batch_again(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    widened: list[int] = []
    widen = FlatPipeline._widen

    def counted(self: FlatPipeline, found: object, ids: object) -> None:
        widened.append(1)
        widen(self, found, ids)  # type: ignore[arg-type]

    monkeypatch.setattr(FlatPipeline, "_widen", counted)
    config = make_config(path="tokens-mmap", extra_reads=3)
    dosed = batches_of(make_pipeline(config, prepare(config), 0, 0, 1), 5)
    assert len(widened) == 4 * 5
    plain = config.model_copy(update={"extra_reads": 0})
    assert_all_same(dosed, batches_of(make_pipeline(plain, prepare(config), 0, 0, 1), 5))


@pytest.mark.parametrize(("changes", "line"), [
    ({"path": "tokens-stream", "shuffle": "windows"}, r"shuffle: windows .* path tokens-stream .* tokens-mmap"),
    ({"path": "text-stream", "global_order": True}, r"global_order: with path text-stream and access scalar"),
    ({"path": "tokens-padded", "documents": "separated"}, r"documents: separated needs packed rows of arrays"),
    ({"path": "tokens-stream", "documents": "separated"}, r"allowed: path tokens-mmap, or text-stream, tokens-"),
])  # fmt: skip
def test_what_a_path_cannot_do_is_refused(make_config: Make, changes: dict[str, object], line: str) -> None:
    with pytest.raises(ValidationError, match=line):
        make_config(**changes)


@pytest.mark.parametrize("length", [2, 7, 16, 64])
def test_no_window_that_is_trained_on_holds_a_token_of_a_document_that_is_held_out(make_config, length) -> None:
    config = make_config(path="tokens-mmap", shuffle="windows", sequence_length=length, batch_size=1)
    evaluation = EvaluationConfig(documents=4)
    TrainerConfig.model_validate({"data": config.model_dump(), "evaluation": evaluation.model_dump()})
    prepared, flat = prepare(config, evaluation=evaluation), flat_of(config)
    held = np.zeros(len(flat.tokens), dtype=bool)
    for document in prepared.split.held_out_rows():
        held[flat.places[document] : flat.places[document + 1]] = True
    assert held.any()
    count = len(held) // length
    free = ~held[: count * length].reshape(count, length).any(axis=1)
    expected = flat.tokens[: count * length].reshape(count, length)[free].tolist()
    assert 0 < len(expected) < count
    found = rows_of(batches_of(make_pipeline(config, prepared, 1, 0, 1), 2 * len(expected)))
    assert sorted(found[: len(expected)]) == sorted(found[len(expected) :]) == sorted(expected)


@pytest.mark.parametrize("shuffle", [True, False, "windows"])
def test_what_is_held_out_is_the_same_in_any_order_of_training(make_config: Make, shuffle: bool | str) -> None:
    from trainer.data.dataset import held_out_batches

    evaluation = EvaluationConfig(documents=9)
    first, other = (
        held_out_batches(config, prepare(config, evaluation=evaluation), 5)
        for config in (make_config(path="tokens-mmap", shuffle=one) for one in ("documents", shuffle))
    )
    assert len(first) == len(other) > 1
    assert all(torch.equal(one.input_ids, two.input_ids) for one, two in zip(first, other, strict=True))


def test_a_document_that_is_held_out_may_reach_into_every_window(make_config: Make) -> None:
    config = make_config(path="tokens-mmap", shuffle="windows", sequence_length=1000)
    prepared = prepare(config, evaluation=EvaluationConfig(fraction=0.5))
    with pytest.raises(InputError, match=r"^data\.shuffle: windows of 1000 tokens, and a document that is held out"):
        make_pipeline(config, prepared, 0, 0, 1)


def test_windows_longer_than_the_corpus_and_fewer_than_workers(make_config: Make) -> None:
    config = make_config(path="tokens-mmap", shuffle="windows", sequence_length=100_000)
    with pytest.raises(InputError, match=r"^data\.shuffle: windows of 100000 tokens, but .* a smaller data\.sequence_"):
        make_pipeline(config, prepare(config), 0, 0, 1)
    config = make_config(path="tokens-mmap", shuffle="windows", sequence_length=2000)
    with pytest.raises(InputError, match=r"^data\.shuffle: windows: .* less than the 9 workers and ranks"):
        make_pipeline(config, prepare(config), 0, 8, 9)


def test_a_folder_of_fewer_documents_is_refused(make_config: Make) -> None:
    config = make_config(path="tokens-mmap")
    prepared = prepare(config)
    more = Prepared(
        type(prepared.corpus)(**{**vars(prepared.corpus), "documents": 61}), prepared.tokenizer, prepared.pretokenized
    )
    with pytest.raises(InputError, match=r"60 documents, 61 when it was prepared; run it again$"):
        batches_of(make_pipeline(config, more, 0, 0, 1), 1)


def test_a_corpus_whose_share_has_no_token(make_config: Make, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "blank.parquet", ["some words of text " * 9, "", " ", "\n", " "])
    config = make_config(
        path="tokens-mmap",
        corpus=CorpusConfig(parquet=str(path)),
        tokenizer=TokenizerConfig.model_validate({"train": {"kind": "wordpiece", "vocab_size": 300}}),
        shuffle=False,
    )
    assert batches_of(make_pipeline(config, prepare(config), 0, 0, 5), 3)
    with pytest.raises(
        InputError, match=r"^data\.corpus: no document with a token in 16 epochs of this worker's share"
    ):
        make_pipeline(config, prepare(config), 0, 1, 5).next_batch()


def test_held_out_documents_are_left_out_of_flat_tokens(make_config: Make) -> None:
    from trainer.config import EvaluationConfig
    from trainer.data.dataset import held_out_batches

    found = {}
    for path, access in [*FLAT, ("text-stream", "scalar")]:
        config = make_config(path=path, access=access)
        prepared = prepare(config, evaluation=EvaluationConfig(fraction=0.3))
        with open_batches(config, prepared, 0) as batches:
            found[path, access] = [*islice(batches, 30), *held_out_batches(config, prepared, 20)]
    first, *others = found.values()
    for other in others:
        assert_all_same(first, other)


@pytest.mark.slow
@pytest.mark.nightly
def test_every_path_learns_the_same(make_config: Make) -> None:
    """Equal losses, step by step and bit by bit: the batches are the same, and nothing else draws or waits."""
    from tests.trainer.test_loop import run

    losses = {}
    for path, access in [*FLAT, ("text-stream", "scalar"), ("text-stream", "zero-copy"), ("tokens-stream", "scalar")]:
        config = TrainerConfig.model_validate(
            {
                "data": make_config(path=path, access=access).model_dump(),
                "model": {"preset": "llama-tiny", "layers": 1, "width": 32},
                "optimizer": {"accumulation": 2},
                "seed": 5,
            }
        )
        losses[path, access] = run(config, 8).losses
    first, *others = losses.values()
    assert len(set(first.values())) == 8
    assert others == [first] * 4
    assert torch.initial_seed() == 5
