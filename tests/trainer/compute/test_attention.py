"""Packed documents that are kept apart are predicted as if each were alone; a model that cannot do that is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._inductor import cpp_builder
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.compute.attention import known, several_documents
from trainer.compute.build import build_compute
from trainer.compute.modes import compilations
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


@pytest.mark.parametrize(
    ("preset", "attention"),
    [
        *(("gpt2-tiny", "eager"), ("llama-tiny", "sdpa")),
        *(
            pytest.param(*one, marks=(pytest.mark.slow, pytest.mark.nightly))
            for one in (("gpt2-tiny", "sdpa"), ("llama-tiny", "eager"))
        ),
    ],
)
def test_each_document_is_predicted_as_if_it_were_alone(preset: str, attention: str) -> None:
    compute = build_compute(config(preset=preset, attention=attention), 64)
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
def test_what_does_not_keep_documents_apart_is_refused(tmp_path, monkeypatch, name, reason) -> None:
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


LENGTH = 16
MODELS = [
    {"preset": "gpt2-tiny"},
    {"preset": "llama-tiny"},
    {"config": {"model_type": "mistral", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "intermediate_size": 64, "sliding_window": 8}},
]  # fmt: skip


class Values(TorchDispatchMode):
    """Counts the values that the host reads of tensors: on a device it waits for each."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def compute_of(model: dict[str, Any], **data: Any) -> Any:
    own = {} if "config" in model else {"layers": 2, "width": 32}
    content = {
        "model": model | own | {"vocab_size": 64},
        "data": {"path": "tokens-mmap", "sequence_length": LENGTH} | data,
        "compute": {"device": "cpu", "threads": 1},
    }
    return build_compute(TrainerConfig.model_validate(content), 64)


def rows(*starts: int) -> Batch:
    """Two rows, each with documents that begin at 0 and at ``starts``."""
    ids = torch.randint(0, 64, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    places = torch.arange(LENGTH).expand(2, -1).clone()
    for start in starts:
        places[:, start:] = torch.arange(LENGTH - start)
    return Batch(ids, ids.clone(), None, ids.numel(), 2 * (LENGTH - 1), 2, position_ids=places)


@pytest.mark.parametrize("model", MODELS, ids=["gpt2", "llama", "sliding"])
@pytest.mark.parametrize("starts", [None, (), (5,), (1, 9)])
def test_a_forward_pass_reads_no_value_of_the_device(model: dict[str, Any], starts: tuple[int, ...] | None) -> None:
    compute = compute_of(model, documents="joined" if starts is None else "separated")
    batch = rows(*(starts or ()))
    batch = replace(batch, position_ids=None) if starts is None else batch
    told = batch
    if batch.position_ids is not None:  # as a copy to a device has it
        told = replace(batch, several_documents=several_documents(batch.position_ids))
    with known(None):
        looked = compute._model(input_ids=batch.input_ids, labels=batch.labels, position_ids=batch.position_ids).loss
    with Values() as values:
        loss = compute.forward(told)
    assert values.read == 0
    assert torch.equal(loss, looked)


def test_nobody_knows_of_positions_on_a_cpu_so_that_transformers_looks() -> None:
    compute = compute_of(MODELS[0], documents="separated")
    with Values() as values:
        compute.forward(rows(5))
    assert values.read == 1


def test_a_model_of_the_users_own_is_looked_at_as_ever(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold one of transformers', whose positions are its own."""
    compute_of(MODELS[0])  # transformers is taught
    (tmp_path / "packs_itself.py").write_text(
        """
import torch
from transformers import GPT2Config, GPT2LMHeadModel


class Packs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, use_cache=False))

    def forward(self, input_ids, labels):
        places = torch.arange(8).repeat(2).expand(len(input_ids), -1)
        return self.inner(input_ids=input_ids, labels=labels, position_ids=places)


def make(): return Packs()
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    compute = compute_of({"factory": "packs_itself:make"})
    with Values() as values:
        compute.forward(replace(rows(), position_ids=None))
    assert values.read == 1


@pytest.mark.slow
@pytest.mark.nightly
def test_a_compiled_model_is_not_compiled_again_for_rows_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """By dynamo's eager backend, which compiles no C++."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend="eager", dynamic=False))
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: "g++")
    compute = compute_of({"preset": "llama-tiny", "compile": True}, documents="separated")
    found = []
    for several in (True, False, True):
        compute.forward(replace(rows(*([5] if several else [])), several_documents=several))
        found.append(compilations())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("starts", "several"), [((), False), ((1,), True), ((15,), True), ((3, 8), True)])
def test_the_host_finds_rows_of_several_documents(starts: tuple[int, ...], several: bool) -> None:
    assert several_documents(rows(*starts).position_ids) is several  # type: ignore[arg-type]
