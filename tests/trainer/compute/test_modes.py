"""Attention, activation checkpointing and torch.compile: the same losses, and what cannot work in a line."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._inductor import cpp_builder, exc

from trainer.compute import attention, modes
from trainer.compute.build import build_compute
from trainer.config import TrainerConfig
from trainer.data.batch import IGNORED, Batch
from trainer.errors import InputError

TINY = {"preset": "gpt2-tiny", "layers": 3, "width": 32, "vocab_size": 64}
QWEN = {
    "config": {"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 64},
}  # fmt: skip
MASKED = {**TINY, "preset": "distilbert", "heads": 4}
AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)


def config(model: dict[str, Any], **compute: Any) -> TrainerConfig:
    compute = {"device": "cpu", "threads": 1} | compute
    return TrainerConfig.model_validate({"model": model, "data": {"sequence_length": 16}, "compute": compute})


def batch(shifted: bool = True) -> Batch:
    ids = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))
    labels, mask = ids.clone(), torch.ones_like(ids)
    labels[:, 12:], mask[:, 12:] = IGNORED, 0
    return Batch(ids, labels, mask, 64, 44, 4, masked=not shifted, shifted=shifted)


def losses(model: dict[str, Any], steps: int = 3, **compute: Any) -> list[float]:
    built = build_compute(config(model, **compute), 64)
    found = []
    for step in range(steps):
        loss = built.forward(batch(shifted=model.get("preset") != "distilbert"))
        built.backward(loss)
        built.check_finite(built.clip_gradients(), step)
        built.optimizer_step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("model", [TINY, MASKED, {**TINY, "preset": "llama-tiny"}])
def test_every_attention_trains_alike(model: dict[str, Any]) -> None:
    expected = pytest.approx(losses(model), rel=1e-5)
    for kind in ("eager", "sdpa", "flash"):
        assert losses(model | {"attention": kind}) == expected


def test_the_attention_is_the_one_that_is_asked_for() -> None:
    for asked, expected in (("auto", "sdpa"), ("sdpa", "sdpa"), ("eager", "eager"), ("flash", "sdpa")):
        compute = build_compute(config(TINY | {"attention": asked}), 64)
        assert compute.attention == expected


def test_flash_computes_with_the_flash_kernel_alone() -> None:
    with torch.profiler.profile() as profile:
        losses(TINY | {"attention": "flash"}, steps=1)
    names = {event.name for event in profile.events()}
    assert any("flash_attention_for_cpu" in name for name in names)
    assert "aten::bmm" not in names  # of the math kernel


def test_a_device_without_a_flash_kernel_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "T4")
    asked, card = config(TINY | {"attention": "flash"}, precision="bf16"), torch.device("cuda")
    with pytest.raises(InputError, match=r"^model.attention: flash needs compute capability 8.0, and T4 has 7.5; allo"):
        attention.implementation(asked, card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert attention.implementation(asked, card) == "sdpa"
    with pytest.raises(InputError, match=r"^model.attention: flash needs half precision on CUDA, not fp32; allow"):
        attention.implementation(config(TINY | {"attention": "flash"}), card)


def test_attention_that_the_flash_kernel_does_not_take_is_one_line() -> None:
    asked = config(TINY | {"attention": "flash"})
    query = torch.zeros((1, 1, 4, 8), requires_grad=True)
    bias = torch.zeros((4, 4), requires_grad=True)  # which the CPU's flash kernel has no gradient for
    line = r"^model.attention: flash, but torch has no flash kernel"
    with (
        pytest.warns(UserWarning, match="Flash attention kernel not used"),
        pytest.raises(InputError, match=line),
        attention.kernels(asked),
    ):
        torch.nn.functional.scaled_dot_product_attention(query, query, query, bias)
    with pytest.raises(RuntimeError, match="something else"), attention.kernels(asked):
        raise RuntimeError("something else")


def test_a_model_that_has_no_such_attention_is_one_line() -> None:
    mamba = {"config": {"model_type": "mamba", "num_hidden_layers": 1, "hidden_size": 16, "vocab_size": 64}}
    with pytest.raises(InputError, match=r"^model.config: a mamba: transformers cannot build this model: [^\n]*$"):
        build_compute(config(mamba | {"attention": "sdpa"}), 64)
    with pytest.raises(ValueError, match=r"model.attention: a model.factory chooses its attention itself"):
        config({"factory": "a:b", "attention": "sdpa"})


@pytest.mark.parametrize(("model", "layers"), [(TINY, 3), (MASKED, 3), (QWEN, 2)])
def test_checkpointed_activations_change_no_loss_and_compute_each_layer_twice(model, layers) -> None:
    assert losses(model | {"activation_checkpointing": True}) == losses(model)
    calls: Counter[bool] = Counter()
    for on in (False, True):
        compute = build_compute(config(model | {"activation_checkpointing": on}), 64)
        for module in compute._model.modules():
            if isinstance(module, torch.nn.LayerNorm) or type(module).__name__.endswith("RMSNorm"):
                module.register_forward_hook(lambda *_, on=on: calls.update([on]))
        compute.backward(compute.forward(batch(shifted=model is not MASKED)))
    # Each layer has two norms. Computing it again stops where all is there that its backward pass needs: in DistilBERT
    # before the second norm, which is its last operation.
    assert calls[True] == calls[False] + layers * (1 if model is MASKED else 2)


def test_a_model_without_checkpointing_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^model.activation_checkpointing: a Linear cannot"):
        modes.keep_layer_inputs_alone(torch.nn.Linear(1, 1))


def test_a_machine_without_a_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(InputError, match=r"^model.compile: torch.compile needs a C\+\+ compiler \(g\+\+ or clang"):
        build_compute(config(TINY | {"compile": True}), 64)


@pytest.mark.slow
@pytest.mark.nightly
def test_compile_compiles_in_the_first_step_and_again_for_another_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """By dynamo's eager backend, which compiles no C++: what is compiled, and when, is dynamo's work."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend="eager", dynamic=False))
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: "g++")
    compute = build_compute(config(TINY | {"layers": 1, "compile": True}), 64)
    before, found = modes.compilations(), []
    for length in (16, 16, 8):
        one = batch()
        one.input_ids, one.labels = one.input_ids[:, :length], one.labels[:, :length]
        compute.backward(compute.forward(one))
        found.append(modes.compilations() - before)
    assert 0 < found[0] == found[1] < found[2]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.Graph]:
    """Graphs that are compiled; they are traced and run by dynamo, without a compiler."""
    found: list[torch.fx.Graph] = []

    def run_as_traced(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        found.append(module.graph)
        return module.forward

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend=run_as_traced))
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: "g++")
    return found


def returned(graphs: list[torch.fx.Graph]) -> list[tuple[int, ...]]:
    """Shapes of what the graphs return."""
    outputs = [next(node for node in graph.nodes if node.op == "output").args[0] for graph in graphs]
    return [tuple(one.meta["example_value"].shape) for output in outputs for one in output]


@pytest.mark.parametrize(
    "model", [TINY, *(pytest.param(one, marks=AT_NIGHT) for one in (MASKED, {**TINY, "preset": "llama-tiny"}))]
)
def test_a_compiled_model_trains_alike_returns_its_loss_alone_and_takes_no_mask(model, graphs) -> None:
    model = model | {"layers": 1}
    assert losses(model | {"compile": True}) == losses(model)
    assert returned(graphs) == [()]
    if model["preset"] != "distilbert":  # over joined documents, a mask takes twice as long on an H200
        sdpa = torch.nn.functional.scaled_dot_product_attention
        calls = [node.kwargs for graph in graphs for node in graph.nodes if node.target is sdpa]
        assert [(one["attn_mask"], one["is_causal"]) for one in calls] == [(None, True)]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_batch_without_labels_trains_nothing_and_compiles_nothing_more(graphs: list[torch.fx.Graph]) -> None:
    compute = build_compute(config(TINY | {"layers": 1, "compile": True}), 64)
    compute.forward(batch())
    before = modes.compilations()
    loss = compute.forward(replace(batch(), labels=torch.full((4, 16), IGNORED), trained_tokens=0))
    compute.backward(loss)
    assert loss.item() == 0
    assert not any(one.grad is not None and one.grad.any() for one in compute._model.parameters())
    assert modes.compilations() == before
    assert returned(graphs) == [()]


def test_a_fused_gelu_is_the_same_function_in_one_kernel() -> None:
    plain, fused = losses(TINY, steps=6), losses(TINY | {"fused_gelu": True}, steps=6)
    assert fused == pytest.approx(plain, rel=1e-5)
    assert losses(TINY | {"fused_gelu": False}, steps=6) == plain
    built = build_compute(config(TINY | {"fused_gelu": True}), 64)
    kinds = Counter(type(one).__name__ for one in built._model.modules())
    assert kinds["GELU"] == 3
    assert kinds["NewGELUActivation"] == 0


def test_a_model_without_such_a_gelu_is_one_line() -> None:
    llama = {**TINY, "preset": "llama-tiny", "fused_gelu": True}
    with pytest.raises(InputError, match=r"^model\.fused_gelu: a LlamaForCausalLM has no activation gelu_new"):
        build_compute(config(llama), 64)
