"""Text that the model writes while it is trained: in no step, without a trace in training, the same as generate's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from harness.probes.ledger.recorders import StepRecorder
from trainer import telemetry
from trainer.compute.base import Compute
from trainer.compute.build import build_compute
from trainer.config import TrainerConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.errors import InputError
from trainer.evaluate import Sample, TextSampler
from trainer.generate import TokenChoice, generate
from trainer.loop import train
from trainer.model_files import objective_of
from trainer.trained_model import TrainedModel

STEPS = 6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "texts.parquet"
    pq.write_table(pa.table({"text": [f"def f_{number}(x): return x * {number}" for number in range(60)]}), path)
    return path


def configured(corpus: Path, **sections: Any) -> TrainerConfig:
    data = {
        "corpus": {"path": str(corpus)},
        "tokenizer": {"train": {"vocab_size": 300}},
        "sequence_length": 32,
        "batch_size": 4,
    }
    defaults = {
        "model": {"preset": "gpt2-tiny", "layers": 1, "width": 32, "heads": 2},
        "compute": {"device": "cpu", "threads": 1},
        "sample": {"every_steps": 2, "tokens": 5},
        "data": data,
    }
    return TrainerConfig.model_validate(defaults | sections)


class Events(StepRecorder):
    """The ledger's recorder, which also notes what was asked of it, in order."""

    def __init__(self) -> None:
        super().__init__(None)
        self.names: list[str] = []

    def step(self, index: int) -> None:
        self.names.append("step")
        super().step(index)

    def pause(self) -> None:
        self.names.append("pause")
        super().pause()


@contextmanager
def opened(config: TrainerConfig) -> Iterator[tuple[Compute, TextSampler | None, Events, Iterator[int]]]:
    prepared = prepare(config.data).with_objective(objective_of(config.model))
    recorder = Events()
    with open_batches(config.data, prepared, config.seed) as batches:
        compute = build_compute(config, prepared.vocab_size)
        sampler = None if config.sample is None else TextSampler(config.sample, prepared, compute)
        telemetry.attach(recorder)
        try:
            yield compute, sampler, recorder, train(config, compute, batches)
        finally:
            telemetry.attach(None)


def trained(config: TrainerConfig) -> tuple[list[Sample], dict[int, float]]:
    with opened(config) as (_, sampler, recorder, steps):
        found = []
        for _ in range(STEPS):
            step = next(steps)
            if sampler is not None and sampler.is_due(step):
                found.append(sampler.after(step))
        steps.close()  # type: ignore[attr-defined]
        return found, recorder.losses


def test_training_is_bit_identical_with_and_without_texts(corpus: Path) -> None:
    samples, losses = trained(configured(corpus))
    nothing, plain = trained(configured(corpus, sample=None))
    assert [one.step for one in samples] == [1, 3, 5]
    assert not nothing
    assert losses == plain
    again, _ = trained(configured(corpus))
    assert [one.ids for one in again] == [one.ids for one in samples]


def test_the_text_is_that_of_generate_and_written_while_no_step_is_open(corpus, monkeypatch) -> None:
    config = configured(corpus, sample={"every_steps": 1, "tokens": 7, "temperature": 0, "prompt": "def f"})
    with opened(config) as (compute, sampler, recorder, steps):
        inner = compute.generated

        def generated(*words: Any) -> Any:
            recorder.names.append("generated")
            return inner(*words)

        monkeypatch.setattr(compute, "generated", generated)
        step = next(steps)
        found = sampler.after(step)
        next(steps)
        model: Any = compute.parts()["model"]
        assert model.training
        steps.close()  # type: ignore[attr-defined]
        assert recorder.names[:4] == ["step", "pause", "generated", "step"]
    assert found.text.startswith("def f")
    # The model of another training that stopped there says the same.
    with opened(config) as (compute, sampler, _, steps):
        next(steps)
        model = compute.parts()["model"]
        tokenizer = sampler._tokenizer
        other = generate(
            TrainedModel("here", model.eval(), None), sampler._prompt, TokenChoice(), 7, tokenizer.vocab_size,
            tokenizer.eos_id,
        )  # fmt: skip
        assert other.ids == found.ids
        steps.close()  # type: ignore[attr-defined]


def test_what_cannot_write_is_refused(corpus: Path) -> None:
    for sections in (
        {"compute": {"device": {"emulated": "h200", "matmul_efficiency": 0.5}}},
        {"model": {"factory": "mine:model"}},
        {"data": {"source": "mine:source"}},
    ):
        with pytest.raises(ValidationError, match="sample: text needs a computed causal model"):
            configured(corpus, **sections)
    with (
        pytest.raises(InputError, match=r"^sample\.prompt: "),
        opened(configured(corpus, sample={"every_steps": 1, "prompt": "x = " * 40})),
    ):
        pass
    with (
        pytest.raises(InputError, match="sample: text needs a computed causal model"),
        opened(configured(corpus, model={"preset": "distilbert", "layers": 1, "width": 32, "heads": 2})),
    ):
        pass
