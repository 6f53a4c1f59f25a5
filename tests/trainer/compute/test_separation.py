"""Packed documents that are kept apart are predicted as if each were alone; a model that cannot do that is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.compute.build import build_compute
from trainer.compute.torch_compute import TorchCompute
from trainer.config import TrainerConfig
from trainer.data.batch import IGNORED, Batch
from trainer.errors import InputError

LENGTHS = ((5, 11), (16,), (1, 2, 13))  # of the documents in each row
OWN = """
import torch


class Ignores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(64, 64)

    def forward(self, input_ids, labels=None, position_ids=None):
        logits = self.table(input_ids).cumsum(1)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()) if (
            labels is not None) else None
        return type("Output", (), {"loss": loss, "logits": logits})()


class Without(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(64, 64)

    def forward(self, input_ids, labels):
        raise NotImplementedError


class Fails(Ignores):
    def forward(self, input_ids, labels=None, position_ids=None):
        raise RuntimeError("on\\ntwo lines")


class Silent(Ignores):
    def forward(self, input_ids, labels=None, position_ids=None):
        return self.table(input_ids).sum()


def ignores(): return Ignores()
def without(): return Without()
def fails(): return Fails()
def silent(): return Silent()
"""


def config(documents: str = "separated", **model: Any) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "model": {"layers": 2, "width": 32, "vocab_size": 64} | model,
            "data": {"path": "tokens-mmap", "sequence_length": 16, "documents": documents},
            "compute": {"device": "cpu", "threads": 1},
        }
    )


def packed() -> Batch:
    ids = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(0))
    labels, places = ids.clone(), torch.zeros_like(ids)
    for row, lengths in enumerate(LENGTHS):
        at = 0
        for length in lengths:
            labels[row, at] = IGNORED
            places[row, at : at + length] = torch.arange(length)
            at += length
    trained = int((labels[:, 1:] != IGNORED).sum())
    return Batch(ids, labels, None, 48, trained, 3, position_ids=places)


def losses_alone(compute: TorchCompute, batch: Batch) -> float:
    """The mean loss of all documents, each in a row of its own, without any position."""
    total = 0.0
    for row, lengths in enumerate(LENGTHS):
        at = 0
        for length in lengths:
            ids = batch.input_ids[row : row + 1, at : at + length]
            if length > 1:
                total += compute.forward(Batch(ids, ids, None, length, length - 1, 1)).item() * (length - 1)
            at += length
    return total / batch.trained_tokens


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
def test_each_document_is_predicted_as_if_it_were_alone(preset: str, attention: str) -> None:
    compute = build_compute(config(preset=preset, attention=attention), 64)
    assert isinstance(compute, TorchCompute)
    assert compute._model.training
    batch = packed()
    alone = losses_alone(compute, batch)
    assert compute.forward(compute.to_device(batch)).item() == pytest.approx(alone, rel=1e-5)
    joined = Batch(batch.input_ids, batch.labels, None, 48, batch.trained_tokens, 3)
    assert compute.forward(joined).item() != pytest.approx(alone, rel=1e-5)


def test_trying_a_model_draws_nothing() -> None:
    states = []
    for documents in ("separated", "joined"):
        build_compute(config(documents, preset="llama-tiny"), 64)
        states.append(torch.random.get_rng_state())
    assert torch.equal(*states)


def test_a_model_of_masked_tokens_is_refused() -> None:
    with pytest.raises(InputError, match=r"^data\.documents: separated, but distilbert lets a document att"):
        build_compute(config(preset="distilbert", heads=4), 64)


@pytest.mark.parametrize(("name", "reason"), [
    ("ignores", "lets a document attend to earlier documents, for any position_ids"),
    ("without", "has no parameter position_ids"),
    ("fails", r"fails with position_ids that restart \(RuntimeError\)"),
    ("silent", "returns no logits, so document separation cannot be checked"),
])  # fmt: skip
def test_what_does_not_keep_documents_apart_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    (tmp_path / "own_separation.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_separation", raising=False)
    asked = TrainerConfig.model_validate(
        {
            "model": {"factory": f"own_separation:{name}"},
            "data": {"path": "tokens-mmap", "sequence_length": 16, "documents": "separated"},
            "compute": {"device": "cpu", "threads": 1},
        }
    )
    with pytest.raises(InputError, match=rf"separated, but own_separation:{name} {reason}; allowed with it: joined$"):
        build_compute(asked, 64)
