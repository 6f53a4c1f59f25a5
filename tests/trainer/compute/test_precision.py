"""Precisions: which device allows which, what fp16's loss scaling does when gradients overflow, and emulated times."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from trainer.compute.build import build_compute
from trainer.compute.modes import (
    MOST_SKIPPED_IN_A_ROW,
    LossScaling,
    NormCheck,
    Precision,
    allowed_precisions,
    check_precision,
)
from trainer.compute.torch_compute import TorchCompute
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.devices.calibrate import facts_of
from trainer.devices.estimates import footprint, kernels
from trainer.devices.profiles import DeviceProfile, load_profile
from trainer.errors import InputError
from trainer.model import resolve_shape

MODEL = {"layers": 1, "width": 32, "heads": 2, "ffn_width": 64, "vocab_size": 64}


def config(precision: str, **compute: object) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "model": MODEL,
            "data": {"sequence_length": 16, "batch_size": 2},
            "optimizer": {"learning_rate": 1e-2, "lr_warmup_steps": 0},
            "compute": {"device": "cpu", "precision": precision, "threads": 1, **compute},
        }
    )


def batch() -> Batch:
    ids = torch.arange(32).reshape(2, 16)
    return Batch(ids, ids, None, 32, 30, 2)


def step(compute: TorchCompute, number: int) -> float:
    loss = compute.forward(batch())
    compute.backward(loss)
    compute.check_finite(compute.clip_gradients(), number)
    compute.optimizer_step()
    return float(loss.detach())


def built(settings: TrainerConfig) -> TorchCompute:
    compute = build_compute(settings, 64)
    assert isinstance(compute, TorchCompute)
    return compute


def test_fp16_trains_as_fp32_does() -> None:
    losses = {}
    for precision in ("fp32", "fp16"):
        compute = built(config(precision))
        losses[precision] = [step(compute, number) for number in range(20)]
        assert compute.skipped_steps() == (0 if precision == "fp16" else None)
    assert losses["fp16"][-1] < losses["fp16"][0] - 1
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.02)
    assert losses["fp16"] != losses["fp32"]  # it did compute in 16 bits


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_whose_gradients_overflow_is_skipped_and_counted(fused: bool) -> None:
    settings = config("fp16")
    settings = settings.model_copy(update={"optimizer": settings.optimizer.model_copy(update={"fused": fused})})
    compute = built(settings)
    step(compute, 0)
    before = [one.detach().clone() for one in compute._model.parameters()]
    compute._scaling._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)  # nothing of fp16 is below that
    step(compute, 1)  # check_finite does not end the run
    assert compute.skipped_steps() == 1
    assert all(torch.equal(a, b) for a, b in zip(before, compute._model.parameters(), strict=True))
    assert compute._scaling._scaler.get_scale() == 2.0**119
    compute._scaling._scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    step(compute, 2)
    assert compute.skipped_steps() == 1
    assert not all(torch.equal(a, b) for a, b in zip(before, compute._model.parameters(), strict=True))


@pytest.mark.parametrize("check_finite", [True, False])
def test_a_skipped_step_leaves_the_learning_rate_where_it_was(check_finite: bool) -> None:
    settings = config("fp16", check_finite=check_finite)
    settings = settings.model_copy(update={"optimizer": settings.optimizer.model_copy(update={"lr_warmup_steps": 10})})
    compute = built(settings)

    def rate_of_step(number: int, scale: float) -> float:
        compute._scaling._scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        compute.backward(compute.forward(batch()))
        norm = compute.clip_gradients()
        if check_finite:
            compute.check_finite(norm, number)
        used = compute.learning_rate()
        compute.optimizer_step()
        assert used is not None
        return used

    rates = [rate_of_step(number, 2.0**120 if number in (1, 2, 4) else 1024.0) for number in range(7)]
    assert compute.skipped_steps() == 3
    assert rates == pytest.approx([1e-3, 2e-3, 2e-3, 2e-3, 3e-3, 3e-3, 4e-3])


def test_a_host_that_reads_the_norm_late_makes_up_for_skipped_steps_once() -> None:
    """As on CUDA with sync: late, where the norm of a step is read after the next one's schedule has moved on."""
    scaling = LossScaling(torch.device("cpu"))
    scaling._known_at_once = False
    scaling.count(torch.tensor(math.inf))
    assert not scaling.keeps_rate()
    NormCheck(scaling)(math.inf, 0)
    other = LossScaling(torch.device("cpu"))
    other.load_state_dict(scaling.state_dict())
    for one in (scaling, other):
        assert [one.keeps_rate() for _ in range(3)] == [True, False, False]
        assert one.skipped_steps == 1


def test_a_run_that_skips_every_step_ends() -> None:
    compute = built(config("fp16"))
    with torch.no_grad():
        next(compute._model.parameters()).fill_(math.nan)
    for number in range(MOST_SKIPPED_IN_A_ROW - 1):
        step(compute, number)
    with pytest.raises(FloatingPointError, match=rf"^step 31: .* {MOST_SKIPPED_IN_A_ROW} steps in a row were skipped"):
        step(compute, MOST_SKIPPED_IN_A_ROW - 1)
    assert compute.skipped_steps() == MOST_SKIPPED_IN_A_ROW


def test_a_finite_step_in_between_begins_the_count_anew() -> None:
    check = NormCheck(LossScaling(torch.device("cpu")))
    for number in range(3 * MOST_SKIPPED_IN_A_ROW):
        check(1.0 if number % 10 == 0 else math.inf, number)
    with pytest.raises(FloatingPointError, match=r"^step 7: the gradient norm is nan"):
        NormCheck(None)(math.nan, 7)


@pytest.mark.parametrize(("capability", "allowed"), [
    (None, ["fp32", "bf16", "pure-bf16", "fp16"]),
    ((5, 2), ["fp32"]),
    ((7, 5), ["fp32", "fp16"]),
    ((8, 0), ["fp32", "tf32", "bf16", "pure-bf16", "fp16"]),
    ((12, 0), ["fp32", "tf32", "bf16", "pure-bf16", "fp16"]),
])  # fmt: skip
def test_what_a_device_allows(capability: tuple[int, int] | None, allowed: list[str]) -> None:
    assert allowed_precisions(capability) == allowed
    for precision in ("fp32", "tf32", "bf16", "pure-bf16", "fp16"):
        if precision in allowed:
            check_precision(precision, "Tesla T4", capability)
            continue
        with pytest.raises(InputError) as caught:
            check_precision(precision, "Tesla T4", capability)
        said = str(caught.value)
        assert said.startswith(f"compute.precision: {precision} needs")
        assert "Tesla T4" in said
        assert said.endswith(f"allowed here: {', '.join(allowed)}")


def test_tf32_is_refused_on_a_cpu() -> None:
    with pytest.raises(ValidationError, match=r"tf32 needs a CUDA device .* allowed there: fp32, bf16"):
        config("tf32")
    with pytest.raises(InputError, match=r"^compute\.precision: tf32 .* cpu is a CPU; allowed here: fp32"):
        Precision("tf32", torch.device("cpu"))


def emulated(precision: str, profile: str = "h100-sxm", **device: object) -> tuple[TrainerConfig, DeviceProfile]:
    settings = {"emulated": profile, **device}
    return TrainerConfig.model_validate(
        {"model": {"preset": "gpt2-small"}, "compute": {"device": settings, "precision": precision}}
    ), load_profile(profile)


def test_an_emulated_device_takes_the_time_of_its_peak_in_that_precision() -> None:
    """H100: 989.4 TFLOP/s in fp16 as in bf16, half of it in tf32; gradients of fp16 are unscaled, 2 more passes."""
    found = {}
    for precision in ("tf32", "bf16", "fp16"):
        settings, profile = emulated(precision)
        found[precision] = kernels(settings, resolve_shape(settings.model, 50257, 256), profile)
        facts = facts_of(profile, precision)
        assert (facts.dtype, facts.peak_flops_per_s) == (precision, {"tf32": 494.7e12}.get(precision, 989.4e12))
    assert found["fp16"].forward_ms == pytest.approx(found["bf16"].forward_ms)
    assert found["tf32"].forward_ms == pytest.approx(2 * found["bf16"].forward_ms)
    assert found["fp16"].norm_ms == pytest.approx(5 / 3 * found["bf16"].norm_ms)
    assert found["tf32"].norm_ms == found["bf16"].norm_ms
    built = build_compute(emulated("fp16")[0], 50257)
    assert built.skipped_steps() is None


def test_a_profile_without_that_peak_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import yaml

    from trainer.devices.profiles import FOLDER

    content = yaml.safe_load((FOLDER / "l4.yaml").read_text())
    del content["peak_flops_per_s"]["tf32"]
    path = tmp_path / "old.yaml"
    path.write_text(yaml.safe_dump(content))
    settings, _ = emulated("tf32", str(path))
    with pytest.raises(InputError, match=r"^compute\.precision: tf32: device profile l4: no peak for tf32; allowed: "):
        build_compute(settings, 50257)


def test_memory_by_precision() -> None:
    shape = resolve_shape(config("fp32").model, 64, 16)
    found = {one: footprint(config(one), shape) for one in ("fp32", "bf16", "pure-bf16", "fp16")}
    tf32 = footprint(emulated("tf32")[0].model_copy(update={"data": config("fp32").data}), shape)
    assert found["fp16"] == found["bf16"]  # fp32 master weights, activations and cast weights of 16 bits
    assert tf32 == found["fp32"]
    assert found["pure-bf16"].bytes_per_value == 2
