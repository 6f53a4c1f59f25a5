"""A forward pass asks the device nothing, and trains what it trained when it did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._inductor import cpp_builder
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.compute.attention import known, several_documents
from trainer.compute.build import build_compute
from trainer.compute.modes import compilations
from trainer.config import TrainerConfig
from trainer.data.batch import Batch

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


def test_rows_of_one_token_hold_one_document() -> None:
    assert not several_documents(torch.zeros(3, 1, dtype=torch.int64))
