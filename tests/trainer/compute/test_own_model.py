"""A model of the user's own (model.factory): what it may give and return, and what cannot work in a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.commands import harness
from trainer.compute.build import build_compute
from trainer.compute.torch_compute import loss_of
from trainer.config import TrainerConfig
from trainer.data.batch import IGNORED, Batch
from trainer.errors import InputError

CODE = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self, vocab_size, width=8):
        super().__init__()
        self.table, self.out = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)
    def forward(self, input_ids, labels):
        logits = self.out(self.table(input_ids))
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

class Other(Tiny):
    def forward(self, input_ids, labels):
        return self.out(self.table(input_ids))

def make(vocab_size=32, width=8, rows=None): return Tiny(rows or vocab_size, width)
def logits(): return Other(32)
def number(): return 3
def empty(): return nn.Module()
def broken(): raise RuntimeError("no weights\\nthere")
"""


@pytest.fixture(autouse=True)
def own_code(own_module) -> None:
    own_module("own_model", CODE)


def config(function: str, **keys: Any) -> TrainerConfig:
    model = {"factory": f"own_model:{function}"} | keys
    return TrainerConfig.model_validate({"model": model, "compute": {"device": "cpu", "threads": 1}})


def batch() -> Batch:
    ids = torch.arange(16).reshape(2, 8)
    labels = ids.clone()
    labels[:, :3] = IGNORED
    return Batch(ids, labels, None, 16, 10, 2)


def test_it_is_trained_like_a_preset() -> None:
    compute = build_compute(config("make", vocab_size=20, arguments={"width": 4}), 0)
    assert compute.parameters == 20 * 4 + 4 * 20 + 20
    losses = []
    for step in range(30):
        compute.begin_step(step)
        loss = compute.forward(batch())
        compute.backward(loss)
        compute.check_finite(compute.clip_gradients(), step)
        compute.optimizer_step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01


def test_its_weights_are_drawn_from_the_seed_of_the_run() -> None:
    first, again = (build_compute(config("make"), 0).forward(batch()).item() for _ in range(2))
    other = build_compute(config("make").model_copy(update={"seed": 1}), 0).forward(batch()).item()
    assert first == again != other


@pytest.mark.parametrize("model", [{"factory": "own_model:make"}, {"preset": "gpt2-tiny", "layers": 1, "width": 16}])
def test_a_batch_without_labels_trains_nothing(model: dict[str, object]) -> None:
    asked = {"model": model | {"vocab_size": 32}, "compute": {"device": "cpu", "threads": 1}}
    compute = build_compute(TrainerConfig.model_validate(asked), 0)
    nothing = replace(batch(), labels=torch.full((2, 8), IGNORED), trained_tokens=0)
    loss = compute.forward(nothing)
    compute.backward(loss)
    assert loss.item() == 0
    assert {float(one.grad.abs().max()) for one in compute._model.parameters() if one.grad is not None} == {0.0}
    assert all(one.grad is not None for one in compute._model.parameters())
    compute.check_finite(compute.clip_gradients(), 0)


@pytest.mark.parametrize(("model", "first", "problem"), [
    ({"factory": "own_model:make", "vocab_size": 32}, 32, "gives the id 32, but model.vocab_size is 32"),
    ({"preset": "gpt2-tiny", "layers": 1, "vocab_size": 32}, -1, "gives the id -1, but model.vocab_size is 32"),
    ({"factory": "own_model:make"}, 77, "gives ids from 2 to 77, of which own_model:make may not have all: an"),
])  # fmt: skip
def test_an_id_of_the_users_source_that_the_model_does_not_have_is_one_line(model, first, problem) -> None:
    asked = {"model": model, "data": {"source": "own_model:data"}, "compute": {"device": "cpu", "threads": 1}}
    compute = build_compute(TrainerConfig.model_validate(asked), 0)
    ids = batch().input_ids + 1
    compute.forward(replace(batch(), input_ids=ids))
    wrong = ids.clone()
    wrong[0, 0] = first
    with pytest.raises(InputError, match=f"^data.source: own_model:data {problem}"):
        compute.forward(replace(batch(), input_ids=wrong))
    labels = ids.clone()
    labels[1, 4] = 99
    with pytest.raises(InputError, match=r"^data.source: own_model:data gives .* 99"):
        compute.forward(replace(batch(), input_ids=ids, labels=labels))


def test_an_index_error_of_something_else_stays_one() -> None:
    asked = {
        "model": {"factory": "own_model:make", "vocab_size": 64, "arguments": {"rows": 8}},
        "data": {"source": "own_model:data"},
        "compute": {"device": "cpu", "threads": 1},
    }
    compute = build_compute(TrainerConfig.model_validate(asked), 0)
    with pytest.raises(IndexError):
        compute.forward(batch())


LOSS = torch.tensor(1.5)


@pytest.mark.parametrize(
    "output", [LOSS, SimpleNamespace(loss=LOSS, logits=torch.ones(2, 3)), {"loss": LOSS}, (LOSS, torch.ones(2)), [LOSS]]
)
def test_what_a_module_may_return(output: object) -> None:
    assert loss_of(output, "own_model:make") is LOSS


@pytest.mark.parametrize(
    "output", [torch.ones(2), (), None, {"logits": LOSS}, SimpleNamespace(), 1.5, (torch.ones(1),)]
)
def test_what_holds_no_loss(output: object) -> None:
    with pytest.raises(
        InputError, match=r"^model.factory: the module of own_model:make returns .* instead of a loss; c"
    ):
        loss_of(output, "own_model:make")


@pytest.mark.parametrize(("function", "problem"), [
    ("number", "gave a int; a torch module that can be trained is due"),
    ("empty", "gave a Module; a torch module that can be trained is due"),
    ("broken", "own_model:broken failed: RuntimeError: no weights there"),
    ("absent", "own_model has no function absent"),
])  # fmt: skip
def test_what_cannot_work_is_one_line(function: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        build_compute(config(function), 0)
    assert str(error.value).startswith("model.factory: ")
    assert "\n" not in str(error.value)


SCENARIO = """
name: own-model
question: Does it train?
base:
  model: {factory: "own_model:make", vocab_size: 512, arguments: {width: 16}}
  data: {corpus: {builtin: python-docs, documents: 60}, tokenizer: {train: {vocab_size: 512}}, sequence_length: 16}
  compute: {device: cpu, threads: 1}
  steps: 4
  warmup_steps: 1
arms: {text: {}, tokens: {data.path: tokens-padded}}
repeats: 2
"""


def test_an_emulated_device_has_no_times_for_it(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(SCENARIO.replace("device: cpu", "device: {emulated: gh200}"))
    done = harness("run", "own.yaml", "--plan", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "model.factory: an emulated device takes its times from the shape of a preset" in line
