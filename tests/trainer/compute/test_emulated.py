"""The emulated device: the arithmetic of its queue, when it blocks, how long its kernels take, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer import telemetry
from trainer.compute.build import build_compute
from trainer.compute.emulated import DeviceQueue, EmulatedCompute, RepeatedRows, assumptions, last_end_ns
from trainer.config import TrainerConfig
from trainer.data.batch import Batch
from trainer.data.position import Position
from trainer.devices.estimates import flops_per_token, kernels, parameters
from trainer.devices.profiles import load_profile
from trainer.errors import InputError
from trainer.loop import train
from trainer.model import resolve_shape
from trainer.telemetry import Blocked, Kernel, Recorder

MS = 1_000_000


class Log(Recorder):
    """Keeps what the device tells."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.calls: list[Blocked] = []

    def device(self, kernel: Kernel) -> None:
        self.kernels.append(kernel)

    def blocked(self, call: Blocked) -> None:
        self.calls.append(call)


@pytest.fixture
def log() -> Iterator[Log]:
    recorder = Log()
    telemetry.attach(recorder)
    yield recorder
    telemetry.attach(None)


def config(device: object, **changes: object) -> TrainerConfig:
    compute = {"device": device, "precision": "pure-bf16", "sync": "norm", **changes.pop("compute", {})}
    return TrainerConfig.model_validate({"compute": compute, **changes})


def build(settings: TrainerConfig) -> EmulatedCompute:
    compute = build_compute(settings, tokenizer_vocab_size=1000)
    assert isinstance(compute, EmulatedCompute)
    return compute


def batch(samples: int = 1, length: int = 8) -> Batch:
    ids = torch.zeros((samples, length), dtype=torch.int64)
    return Batch(ids, ids, None, samples * length, samples * length, samples)


def test_work_is_done_in_order_and_queueing_does_not_wait(log: Log) -> None:
    queue = DeviceQueue(depth=100)
    for duration_ms in (3, 1, 2):
        queue.submit("forward", duration_ms * MS)
    assert not log.calls
    previous = 0
    for kernel, duration_ms in zip(log.kernels, (3, 1, 2), strict=True):
        assert kernel.start_ns == max(kernel.launch_start_ns, previous)
        assert kernel.end_ns - kernel.start_ns == duration_ms * MS
        previous = kernel.end_ns
    queue.drain("a value")
    (call,) = log.calls
    assert call.end_ns >= previous
    assert call.site.endswith(": a value")
    assert "test_emulated.py" in call.site


def test_a_full_queue_blocks_until_there_is_a_place(log: Log) -> None:
    queue = DeviceQueue(depth=2)
    for _ in range(3):
        queue.submit("forward", 2 * MS)
    (call,) = log.calls
    assert call.site.endswith("full queue")
    assert log.kernels[0].end_ns <= call.end_ns
    assert log.kernels[2].launch_start_ns >= log.kernels[0].end_ns


def test_the_loop_blocks_where_cuda_would(log: Log) -> None:
    """Each step on the gradient norm, and on the losses every second step; the copy of a small batch does not block."""
    fixed = {"h2d_ms": 0.1, "forward_ms": 0.2, "backward_ms": 0.4, "norm_ms": 0.1, "optimizer_ms": 0.3}
    settings = config({"emulated": "gh200", "kernels": fixed}, log_every=2, optimizer={"accumulation": 2})
    compute = build(settings)
    steps = train(settings, compute, iter(lambda: batch(), None))
    for _ in range(2):
        next(steps)
    one = ["h2d", "forward", "backward"] * 2 + ["norm", "optimizer"]
    assert [kernel.name for kernel in log.kernels] == [*one, *one, "read"]
    assert [call.site.partition(": ")[2] for call in log.calls] == [
        "value of the gradient norm",
        "value of the gradient norm",
        "values of the losses",
    ]
    assert all(call.site.startswith("trainer/loop.py:") for call in log.calls)
    for kernel in log.kernels:
        assert kernel.end_ns - kernel.start_ns == pytest.approx(fixed.get(f"{kernel.name}_ms", 0) * MS)


@pytest.mark.parametrize(("pinned", "length", "blocks"), [(False, 2048, True), (True, 2048, False), (False, 8, False)])
def test_a_large_copy_from_pageable_memory_blocks(log: Log, pinned: bool, length: int, blocks: bool) -> None:
    data = {"pin_memory": pinned, "sequence_length": length, "batch_size": 8}
    compute = build(config({"emulated": "gh200", "matmul_efficiency": 0.5}, data=data))
    compute.to_device(batch(8, length))
    assert [call.site.partition(": ")[2] for call in log.calls] == ["copy from pageable memory"] * blocks


def test_kernels_take_the_roofline_times() -> None:
    """Compute: FLOPs / (peak x efficiency); memory: passes over all parameters / (bandwidth x efficiency)."""
    settings = config(
        {"emulated": "gh200", "matmul_efficiency": 0.5, "memory_efficiency": 0.8},
        model={"preset": "llama-8b"},
        data={"sequence_length": 2048, "batch_size": 2},
        optimizer={"fused": False},
    )
    shape, profile = resolve_shape(settings.model, 1000, 2048), load_profile("gh200")
    found = kernels(settings, shape, profile)
    flops = 2 * 2048 * flops_per_token(shape, 2048)
    assert found.forward_ms + found.backward_ms == pytest.approx(flops / (0.5 * profile.peak_flops_per_s("bf16")) * 1e3)
    assert found.backward_ms == pytest.approx(2 * found.forward_ms)
    bandwidth = 0.8 * profile.memory_bandwidth_bytes_per_s
    assert found.optimizer_ms == pytest.approx(20 * 2 * parameters(shape) / bandwidth * 1e3)
    assert found.norm_ms == pytest.approx(3 * 2 * parameters(shape) / bandwidth * 1e3)
    fused = settings.model_copy(update={"optimizer": settings.optimizer.model_copy(update={"fused": True})})
    assert kernels(fused, shape, profile).optimizer_ms == pytest.approx(found.optimizer_ms * 7 / 20)


def test_speed_and_fixed_times() -> None:
    device = {"emulated": "gh200", "matmul_efficiency": 0.5, "speed": 4, "kernels": {"forward_ms": 10}}
    settings = config(device)
    shape = resolve_shape(settings.model, 1000, settings.data.sequence_length)
    slow = config({**device, "speed": 1})
    ours, theirs = kernels(settings, shape, load_profile("gh200")), kernels(slow, shape, load_profile("gh200"))
    assert ours.forward_ms == 2.5
    assert ours == pytest.approx([value / 4 for value in theirs])


def test_jitter_is_seeded_and_keeps_its_bounds(log: Log) -> None:
    device = {"emulated": "gh200", "kernels": {"forward_ms": 1, "backward_ms": 1}, "jitter": 0.2}
    for _ in range(2):
        compute = build(config(device, seed=7))
        for _ in range(20):
            compute.forward(batch())
    durations = [kernel.end_ns - kernel.start_ns for kernel in log.kernels]
    assert durations[:20] == durations[20:]
    assert len(set(durations)) > 10
    assert all(0.8 * MS <= duration <= 1.2 * MS for duration in durations)


def test_recorded_durations_are_replayed_in_order(log: Log, tmp_path: Path) -> None:
    (tmp_path / "kernels.json").write_text(json.dumps({"forward_ms": [1, 2, 3]}))
    device = {"emulated": "gh200", "matmul_efficiency": 0.5, "recorded": str(tmp_path / "kernels.json"), "speed": 2}
    compute = build(config(device))
    for step in range(4):
        compute.begin_step(step)
        compute.forward(batch())
    assert [kernel.end_ns - kernel.start_ns for kernel in log.kernels] == [0.5 * MS, MS, 1.5 * MS, 0.5 * MS]


@pytest.mark.parametrize(("content", "said"), [
    ("[]", 'expected {"forward_ms"'),
    ("{", "not readable JSON"),
    ('{"forward": [1]}', "unknown key 'forward'; allowed: h2d_ms"),
    ('{"forward_ms": [1, -1]}', "each from 0 to 60000"),
    ('{"forward_ms": []}', "a list of milliseconds"),
    ('{"forward_ms": [true]}', "a list of milliseconds"),
])  # fmt: skip
def test_a_broken_recording_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "kernels.json").write_text(content)
    with pytest.raises(InputError, match=r"compute\.device\.recorded") as caught:
        build(config({"emulated": "gh200", "matmul_efficiency": 0.5, "recorded": str(tmp_path / "kernels.json")}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    data = {"sequence_length": 2048, "batch_size": 1}
    for precision, fits in (("fp32", False), ("bf16", False), ("pure-bf16", True)):
        settings = config(
            {"emulated": "gh200", "matmul_efficiency": 0.5},
            model={"preset": "llama-8b"}, data=data, compute={"precision": precision},
        )  # fmt: skip
        if fits:
            assert build(settings).device == "emulated gh200"
            continue
        with pytest.raises(InputError) as caught:
            build(settings)
        said = str(caught.value)
        assert "8.05 billion parameters x 16 bytes" in said
        assert "128.9 GB" in said
        assert "pure-bf16" in said


def test_catching_up_leaves_one_step_on_the_device(log: Log) -> None:
    fixed = {"h2d_ms": 0, "forward_ms": 1, "backward_ms": 1, "norm_ms": 0, "optimizer_ms": 1}
    settings = config({"emulated": "gh200", "kernels": fixed}, log_every=1000, compute={"check_finite": False})
    compute = build(settings)
    steps = train(settings, compute, iter(lambda: batch(), None))
    for _ in range(3):
        next(steps)
    assert not log.calls  # nothing in the step blocks
    compute.drain_to_one_step()
    (call,) = log.calls
    before_the_third = max(kernel.end_ns for kernel in log.kernels[:10])
    assert len(log.kernels) == 15
    assert before_the_third <= call.end_ns
    assert call.site.endswith("device one step behind")
    compute.synchronize()
    assert log.calls[-1].end_ns >= log.kernels[-1].end_ns


@given(st.integers(0, 500), st.integers(0, 100), st.integers(0, 30), st.integers(1, 20), st.integers(0, 40))
def test_kernels_start_when_launched_and_the_device_is_free(free, since, between, count, each) -> None:
    """The closed form against the recursion that it stands for."""
    done = free
    for kernel in range(count):
        done = max(done, since + (kernel + 1) * between) + each
    assert last_end_ns(free, (since, since + count * between), count * each, count) == done


def test_a_phase_of_short_kernels_is_one_bracket_that_ends_with_its_launches(log: Log) -> None:
    """As CUDA events tell it: 20 kernels of 0.01 ms, launched over 2 ms; then two of 2.5 ms."""
    device = {
        "emulated": "gh200",
        "kernels": {"forward_ms": 0.2, "backward_ms": 5},
        "launches": {"forward": 20, "backward": 2},
        "launch_us": 100,
    }
    settings = config(device)
    compute = build(settings)
    compute.forward(batch())
    compute.backward(None)
    forward, backward = log.kernels
    assert forward.launch_end_ns - forward.launch_start_ns >= 2 * MS
    assert forward.start_ns == forward.launch_start_ns
    assert forward.end_ns == forward.launch_end_ns + 0.01 * MS
    launched = backward.launch_end_ns - backward.launch_start_ns
    assert backward.end_ns == backward.launch_start_ns + launched // 2 + 5 * MS
    said = assumptions(settings, resolve_shape(settings.model, 1000, settings.data.sequence_length))
    assert "launching costs the host 100 us a kernel (h2d 1, forward 20, backward 2," in said


def test_launching_for_minutes_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"launching norm takes 1000 x 100000 us = 100 s; allowed: at most 60 s"):
        config({"emulated": "gh200", "launches": {"norm": 1000}, "launch_us": 100_000})


@pytest.mark.parametrize(("model", "path", "tensors"), [
    ("distilbert", "text-padded", 3), ("distilbert", "text-stream", 2), ("gpt2-tiny", "text-padded", 2),
])  # fmt: skip
def test_padded_rows_of_a_masked_model_are_copied_with_their_mask(model: str, path: str, tensors: int) -> None:
    config = TrainerConfig.model_validate(
        {
            "model": {"preset": model},
            "data": {"path": path, "batch_size": 4, "sequence_length": 128},
            "compute": {"device": {"emulated": "gh200"}, "precision": "bf16"},
        }
    )
    profile = load_profile("gh200")
    shape = resolve_shape(config.model, 1024, 128)
    copied_bytes = kernels(config, shape, profile).h2d_ms / 1e3 * profile.link_bandwidth_bytes_per_s * 0.9
    assert copied_bytes == pytest.approx(tensors * 4 * 128 * 8)


def numbered(number: int, position: Position | None = None, rows: int = 4) -> Batch:
    ids = torch.randint(0, 50_000, (rows, 32), generator=torch.Generator().manual_seed(number))
    return Batch(ids, ids, None, ids.numel(), ids.numel(), rows, position=position)


def counts(batches: list[Batch], *, by_epoch: bool = False) -> tuple[int, ...]:
    rows = RepeatedRows(by_epoch=by_epoch)
    for one in batches:
        rows.add(one)
    return rows.counts


def test_a_batch_that_comes_four_times_is_new_once() -> None:
    assert counts([numbered(number) for number in range(8)]) == (0,) * 6
    assert counts([numbered(number // 4) for number in range(8)]) == (0, 0, 0, 4, 12, 24)


def test_rows_count_one_by_one_whatever_batch_they_come_in() -> None:
    whole = torch.cat([numbered(number).input_ids for number in (0, 1)])
    other = Batch(whole[torch.randperm(8)], whole, None, whole.numel(), whole.numel(), 8)
    assert counts([numbered(0), numbered(1), other])[-1] == 8


def test_a_corpus_serves_each_document_again_in_the_next_epoch() -> None:
    """8 documents, 4 a batch: the last batch of an epoch belongs to it."""
    batches = [numbered(number % 2, Position(0, 4 * (number + 1), 0, number + 1, per_epoch=8)) for number in range(4)]
    assert counts(batches, by_epoch=True) == (0,) * 5
    assert counts(batches)[-1] == 8


def test_only_a_device_without_losses_counts_them() -> None:
    counted = []
    for device in ({"emulated": "gh200", "matmul_efficiency": 0.5}, "cpu"):
        config = TrainerConfig.model_validate(
            {"compute": {"device": device, "inject": {"forward_ms": 0.01}}, "model": {"layers": 1, "width": 32}}
        )
        compute = build_compute(config, tokenizer_vocab_size=1000)
        compute.begin_step(0)
        for _ in range(2):
            compute.to_device(numbered(0))
        counted.append(compute.repeated_rows())
    assert counted == [(0, 0, 0, 4), None]


def test_what_was_assumed_is_reported() -> None:
    device = {"emulated": "gh200", "matmul_efficiency": 0.48, "kernels": {"h2d_ms": 1}}
    settings = config(device, model={"preset": "llama-1b"})
    said = assumptions(settings, resolve_shape(settings.model, 1000, settings.data.sequence_length))
    assert all(part in said for part in ("48% of the dense peak", "h2d 1 ms (fixed)", "memory at 90% of"))
