"""A dose repeats the real work inside its stage and changes nothing that is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.trainer.data.recorder import StageRecorder, attach_in_worker
from tests.trainer.data.test_packing import assert_all_same, assert_same
from trainer import telemetry
from trainer.compute.torch_compute import TorchCompute
from trainer.config import DataConfig, DataInject, TrainerConfig
from trainer.data.batch import Batch, RepeatedBatches
from trainer.data.dataset import DataPipeline, Epoch, make_pipeline
from trainer.data.loader import open_batches
from trainer.data.order import ShardedSampler
from trainer.data.prepare import prepare
from trainer.inject import Injector
from trainer.model import build_model, resolve_shape

Make = Callable[..., DataConfig]
PATHS = ("text-padded", "text-stream", "tokens-padded", "tokens-stream")


class Counted:
    """A real reader or tokenizer, and how often each of its methods was called with what."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        def call(argument: Any) -> Any:
            self.calls.append(list(argument))
            return getattr(self._real, name)(argument)

        return call


@contextmanager
def recording(recorder: StageRecorder) -> Iterator[None]:
    telemetry.attach(recorder)
    try:
        yield
    finally:
        telemetry.attach(None)


def batches_of(config: DataConfig, count: int) -> list[Batch]:
    source = make_pipeline(config, prepare(config), 0, 0, 1)
    found = [source.next_batch() for _ in range(count)]
    assert None not in found
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("access", ["scalar", "zero-copy"])
@pytest.mark.parametrize("dose", [{"extra_reads": 2}, {"extra_tokenizations": 3}])
def test_batches_are_the_same_with_and_without(make_config: Make, path: str, access: str, dose: dict[str, int]) -> None:
    plain = make_config(path=path, access=access)
    assert_all_same(batches_of(plain, 20), batches_of(plain.model_copy(update=dose), 20))


@pytest.mark.slow
@pytest.mark.nightly
def test_batches_are_the_same_from_workers(make_config: Make) -> None:
    plain = make_config(workers=2)
    dosed = plain.model_copy(update={"extra_reads": 1, "extra_tokenizations": 2})
    with open_batches(plain, prepare(plain), 0) as first, open_batches(dosed, prepare(dosed), 0) as second:
        for _ in range(30):
            assert_same(next(first), next(second))


@pytest.mark.parametrize("path", ["text-padded", "text-stream"])
def test_the_same_rows_and_texts_again_so_many_times(make_config: Make, path: str) -> None:
    config = make_config(path=path, extra_reads=2, extra_tokenizations=3)
    source = make_pipeline(config, prepare(config), 0, 0, 1)
    reader, tokenizer = Counted(source._source), Counted(source._tokenizer)
    source._source, source._tokenizer = reader, tokenizer
    for _ in range(60):
        source.next_batch()
    for calls, times in ((reader.calls, 3), (tokenizer.calls, 4)):
        assert len(calls) >= 10 * times
        groups = [calls[at : at + times] for at in range(0, len(calls), times)]
        assert all(group == [group[0]] * times for group in groups)
        assert groups[0][0] != groups[1][0]


def test_a_batch_that_nobody_measures_has_no_dose(make_config: Make) -> None:
    """One epoch for verification, and the batch that is replayed."""
    plain, dosed = make_config(), make_config(extra_reads=64, extra_tokenizations=64)
    assert_all_same(Epoch(plain, prepare(plain), 0), Epoch(dosed, prepare(dosed), 0))
    order = ShardedSampler(60, 0, shuffle=True)
    source = DataPipeline(dosed, prepare(dosed), order, Injector(None, 0), marked=False)
    reader, tokenizer = Counted(source._source), Counted(source._tokenizer)
    source._source, source._tokenizer = reader, tokenizer
    source.next_batch()
    assert len(reader.calls) == len(tokenizer.calls) == 1


INJECT = DataInject(read_ms=1, tokenize_ms=2, pack_ms=3, transfer_ms=4, jitter=0.5)


@pytest.mark.parametrize("replay", [False, True])
def test_declared_costs_are_dosed_too_by_the_same_draws(make_config: Make, replay: bool) -> None:
    def draws(**changes: int) -> dict[str, list[float]]:
        config = make_config(replay=replay, inject=INJECT, **changes)
        source = make_pipeline(config, prepare(config), 7, 0, 1)
        assert isinstance(source, RepeatedBatches if replay else DataPipeline)
        stages = ("read", "tokenize", "pack", "transfer")
        rounds = [[source._injector.draw_ms(stage) for stage in stages] for _ in range(20)]
        return dict(zip(stages, map(list, zip(*rounds, strict=True)), strict=True))

    plain, dosed = draws(), draws(extra_reads=1, extra_tokenizations=4)
    assert dosed["read"] == pytest.approx([2 * cost for cost in plain["read"]])
    assert dosed["tokenize"] == pytest.approx([5 * cost for cost in plain["tokenize"]])
    assert (dosed["pack"], dosed["transfer"]) == (plain["pack"], plain["transfer"])
    assert len(set(plain["tokenize"])) == 20


@pytest.mark.parametrize("replay", [False, True])
def test_the_dose_is_spent_inside_the_span_of_its_stage(make_config: Make, replay: bool) -> None:
    inject = DataInject(read_ms=2, tokenize_ms=3, how="sleep")
    config = make_config(replay=replay, inject=inject, extra_reads=2, extra_tokenizations=1)
    source = make_pipeline(config, prepare(config), 0, 0, 1)
    with recording(StageRecorder("main")):
        batch = source.next_batch()
    spent = {"read": 0, "tokenize": 0}
    for span in batch.trace.spans:
        if span.name in spent:
            spent[span.name] += span.end_ns - span.start_ns
    assert spent["read"] >= 3 * 2_000_000  # a sleep is never shorter than declared
    assert spent["tokenize"] >= 2 * 3_000_000


@pytest.mark.slow
def test_in_a_worker_too(make_config: Make) -> None:
    inject = DataInject(tokenize_ms=2, how="sleep")
    config = make_config(workers=1, replay=True, inject=inject, extra_tokenizations=2)
    with open_batches(config, prepare(config), 0, attach_in_worker) as batches:
        trace = next(batches).trace
    assert [span.name for span in trace.spans] == ["tokenize"]
    assert trace.spans[0].end_ns - trace.spans[0].start_ns >= 3 * 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "trained"), [("fp32", 0), ("bf16", 8)])
def test_more_forward_passes_leave_loss_and_gradients_alone(precision: str, trained: int) -> None:
    """In bf16 the casts of an extra pass must not be reused: they know no gradient."""

    def train(extra: int) -> tuple[float, list[torch.Tensor], list[bool]]:
        config = TrainerConfig.model_validate(
            {
                "model": {"preset": "llama-tiny", "layers": 1, "width": 16, "heads": 2, "ffn_width": 32},
                "compute": {"precision": precision, "extra_forwards": extra},
            }
        )
        torch.manual_seed(0)
        model = build_model(resolve_shape(config.model, tokenizer_vocab_size=32, sequence_length=8))
        passes: list[bool] = []
        model.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
        compute = TorchCompute(config, model, torch.device("cpu"))
        ids = torch.arange(16).reshape(2, 8)
        labels = ids if trained else torch.full_like(ids, -100)
        loss = compute.forward(Batch(ids, labels, None, 16, trained, 2, None))
        compute.backward(loss)
        gradients = [p.grad for p in model.parameters()]
        assert all(gradient is not None for gradient in gradients)
        return loss.item(), gradients, passes  # type: ignore[return-value]

    plain, dosed = train(0), train(2)
    assert plain[2] == [True]
    assert dosed[2] == [False, False, True]
    assert dosed[0] == plain[0]
    for left, right in zip(plain[1], dosed[1], strict=True):
        assert torch.equal(left, right)
