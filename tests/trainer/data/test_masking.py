"""Masks of the masked-LM objective: BERT's shares, the same in every path, anew in each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.data.recorder import StageRecorder
from trainer import telemetry
from trainer.config import DataConfig
from trainer.data.batch import IGNORED, Batch
from trainer.data.dataset import make_pipeline
from trainer.data.masking import Masker, Masking, mask_id, masking_of
from trainer.data.prepare import Prepared, prepare
from trainer.data.user_source import as_batch
from trainer.errors import InputError

MASK, VOCABULARY, END = 99, 90, 7


def plain(rows: int = 64, length: int = 256) -> Batch:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (rows, length)))
    mask = torch.ones_like(ids)
    mask[:, length // 2 :] = 0
    return Batch(ids, ids.clone(), mask, ids.numel(), 0, rows)


def test_shares_are_those_of_bert_and_the_rest_is_left_alone() -> None:
    before, batch = plain(), Masker(Masking(MASK, VOCABULARY, (END,)), 1, 0).mask(plain())
    ids, labels, real = batch.input_ids, batch.labels, before.attention_mask == 1
    predicted = labels != IGNORED
    candidates = real & (before.input_ids != END)
    assert not (predicted & ~candidates).any()  # no padding, no end of a document
    assert torch.equal(labels[predicted], before.input_ids[predicted])  # not shifted: the token that stood there
    assert torch.equal(ids[~predicted], before.input_ids[~predicted])
    assert batch.trained_tokens == int(predicted.sum())
    assert (batch.shifted, batch.masked) == (False, True)
    # 8,102 candidates: three standard deviations are 1.2 points of 15, and 3.5 of the others.
    count = int(predicted.sum())
    assert count / int(candidates.sum()) == pytest.approx(0.15, abs=0.012)
    assert int((ids[predicted] == MASK).sum()) / count == pytest.approx(0.8, abs=0.035)
    assert int((ids[predicted] == before.input_ids[predicted]).sum()) / count == pytest.approx(0.1, abs=0.028)


def test_the_same_seed_worker_and_number_draw_the_same_and_each_other_ones_draw_others() -> None:
    masking = Masking(MASK, VOCABULARY, ())
    first = Masker(masking, 1, 0)
    found = [first.mask(plain()).input_ids for _ in range(2)]
    resumed = Masker(masking, 1, 0, batches=1)
    assert torch.equal(found[1], resumed.mask(plain()).input_ids)
    others = [Masker(masking, seed, worker).mask(plain()).input_ids for seed, worker in ((2, 0), (1, 1))]
    assert all(not torch.equal(found[0], other) for other in [found[1], *others])


def prepared_for(config: DataConfig) -> Prepared:
    return prepare(config).with_objective("masked")


@pytest.mark.parametrize("kind", ["padded", "stream"])
def test_every_path_and_access_masks_alike(make_config: Callable[..., DataConfig], kind: str) -> None:
    found = []
    for path in (f"text-{kind}", f"tokens-{kind}"):
        for access in ("scalar", "zero-copy"):
            config = make_config(path=path, access=access)
            pipeline = make_pipeline(config, prepared_for(config), 3, 0, 1)
            batches = [pipeline.next_batch() for _ in range(4)]
            found.append([(one.input_ids, one.labels) for one in batches if one is not None])
            assert len({one.input_ids.numpy().tobytes() for one in batches if one is not None}) == 4
            assert any(one.trained_tokens for one in batches if one is not None)
            assert {one.shifted for one in batches if one is not None} == {False}
    for other in found[1:]:
        assert all(map(torch.equal, sum(found[0], ()), sum(other, ())))


def test_masking_is_a_part_of_packing(make_config: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    config, recorder, within = make_config(), StageRecorder("main"), []
    pipeline = make_pipeline(config, prepared_for(config), 3, 0, 1)
    mask = Masker.mask

    def noticed(masker: Masker, batch: Batch) -> Batch:
        within.extend(name for name, _ in recorder._open)
        return mask(masker, batch)

    monkeypatch.setattr(Masker, "mask", noticed)
    telemetry.attach(recorder)
    try:
        pipeline.next_batch()
    finally:
        telemetry.attach(None)
    assert within == ["pack"]


def test_a_tokenizer_without_a_mask_token_gets_one_more_id(make_config: Callable[..., DataConfig]) -> None:
    prepared = prepare(make_config())
    assert prepared.with_objective("causal").masking is None
    masked = prepared.with_objective("masked")
    assert masked.masking == Masking(prepared.vocab_size, prepared.vocab_size, (prepared.tokenizer.eos_id,))
    assert masked.vocab_size == prepared.vocab_size + 1


def test_a_tokenizers_own_mask_token_is_used(make_config: Callable[..., DataConfig], tmp_path: Path) -> None:
    import tokenizers

    info = prepare(make_config()).tokenizer
    tokenizer = tokenizers.Tokenizer.from_file(info.location)
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.save(str(file := tmp_path / "tokenizer.json"))
    own = replace(info, location=str(file), vocab_size=info.vocab_size + 1)
    assert mask_id(info) is None
    assert mask_id(own) == info.vocab_size
    assert masking_of(own).kept_ids == (info.eos_id, info.vocab_size)


def test_a_sentencepiece_model_without_one(bare_sentencepiece: str, make_config: Callable[..., DataConfig]) -> None:
    info = prepare(make_config(tokenizer={"sentencepiece": bare_sentencepiece})).tokenizer
    assert mask_id(info) is None
    assert masking_of(info).mask_id == info.vocab_size


def test_a_source_of_ones_own_masks_its_batches_itself() -> None:
    ids = torch.ones((2, 8), dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    labels[:, 0] = 5  # the first position counts too: nothing is shifted
    batch = as_batch({"input_ids": ids, "labels": labels, "attention_mask": ids}, "a:b", 8, shifted=False)
    assert (batch.trained_tokens, batch.shifted, batch.masked) == (2, False, True)
    for made in (ids, {"input_ids": ids}, [ids, labels]):
        with pytest.raises(InputError, match=r"^data.source: a:b masks no tokens: with model.objective masked"):
            as_batch(made, "a:b", 8, shifted=False)
