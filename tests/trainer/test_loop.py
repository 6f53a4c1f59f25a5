from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.distributions import Categorical

from tests.trainer.data.conftest import write_parquet
from trainer import telemetry
from trainer.compute.build import build_compute
from trainer.config import CorpusConfig, TrainerConfig
from trainer.data.batch import IGNORED
from trainer.data.corpus import iter_texts, prepare_corpus
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.errors import InputError
from trainer.loop import train

pytestmark = pytest.mark.slow  # they train, on the built-in corpus, which takes seconds to collect

SMALL = {"corpus": {"builtin": "python-docs", "documents": 400}, "tokenizer": {"train": {"vocab_size": 1024}}}


class Losses(telemetry.Recorder):
    """A recorder that keeps the losses and what the batches held."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        self.names: list[str] = []
        self.tokens = 0

    def enter(self, name: str) -> None:
        self.names.append(name)

    def step(self, index: int) -> None:
        self.names.append(f"step {index}")

    def received(self, trace, tokens: int, trained_tokens: int, samples: int) -> None:
        self.tokens += tokens

    def loss(self, step: int, value: float) -> None:
        self.losses[step] = value

    def learning_rate(self, step: int, value: float) -> None:
        self.rates[step] = value


def run(config: TrainerConfig, steps: int) -> Losses:
    prepared = prepare(config.data)
    recorder = Losses()
    telemetry.attach(recorder)
    try:
        with open_batches(config.data, prepared, config.seed) as batches:
            loop = train(config, build_compute(config, prepared.vocab_size), batches)
            for _ in range(steps):
                next(loop)
            loop.close()
    finally:
        telemetry.attach(None)
    return recorder


def small(**sections: dict) -> TrainerConfig:
    data = {**SMALL, "path": "tokens-stream", "batch_size": 8, "sequence_length": 64, **sections.pop("data", {})}
    return TrainerConfig.model_validate({"data": data, **sections})


STEPS = 120  # no document is seen twice


def test_it_trains_well_below_the_unigram_entropy(tmp_path: Path) -> None:
    """A model that only knows how frequent each token is cannot get below the unigram entropy."""
    corpus = prepare_corpus(CorpusConfig(builtin="python-docs", documents=STEPS * 16))
    texts = [text[:200] for part in iter_texts(corpus) for text in part]
    config = small(
        model={"preset": "llama-tiny", "layers": 1, "width": 64},
        data={
            "corpus": {"parquet": str(write_parquet(tmp_path / "begins.parquet", texts))},
            "tokenizer": {"train": {"vocab_size": 512}},
            "path": "tokens-padded",
            "batch_size": 16,
            "sequence_length": 32,
        },
        compute={"threads": 1},
        optimizer={"learning_rate": 1e-2, "lr_warmup_steps": 5},
    )
    prepared = prepare(config.data)
    counts = torch.zeros(prepared.tokenizer.vocab_size)
    with open_batches(config.data, prepared, seed=0) as batches:
        for _ in range(STEPS):
            labels = next(batches).labels
            counts += torch.bincount(labels[labels != IGNORED], minlength=len(counts))
    losses = run(config, STEPS).losses
    assert len(losses) == STEPS
    assert sum(losses[step] for step in range(STEPS - 20, STEPS)) / 20 < 0.8 * Categorical(counts).entropy().item()


@pytest.mark.parametrize(("preset", "precision"), [("gpt2-tiny", "fp32"), ("llama-tiny", "bf16")])
def test_both_families_and_precisions_learn_a_replayed_batch(preset: str, precision: str) -> None:
    config = small(
        model={"preset": preset, "layers": 1, "width": 32},
        data={"replay": True, "batch_size": 2},
        optimizer={"learning_rate": 1e-2, "lr_warmup_steps": 2},
        compute={"precision": precision},
    )
    losses = run(config, 25).losses
    assert losses[24] < losses[0] - 1.0
    assert all(math.isfinite(loss) for loss in losses.values())


def test_the_same_seed_gives_the_same_losses_and_another_seed_others() -> None:
    one = run(small(model={"layers": 1}, compute={"threads": 1}), 4).losses
    same = run(small(model={"layers": 1}, compute={"threads": 1}), 4).losses
    other = run(small(model={"layers": 1}, compute={"threads": 1}, seed=1), 4).losses
    assert one == same
    assert one != other


def test_accumulation_fetches_that_many_batches_and_averages_their_gradients() -> None:
    """Two micro-batches of one replayed batch are the same step as that batch alone."""
    data = {"replay": True, "batch_size": 2}
    single = run(small(model={"layers": 1}, data=data), 4)
    double = run(small(model={"layers": 1}, data=data, optimizer={"accumulation": 2}), 4)
    assert double.tokens == 2 * single.tokens
    assert double.names.count("fetch") == 2 * single.names.count("fetch")
    assert double.losses[3] == pytest.approx(single.losses[3], rel=1e-3)


def test_phases_come_in_the_order_of_a_step() -> None:
    config = small(model={"layers": 1}, log_every=1)
    names = run(config, 1).names
    assert [name for name in names if name not in telemetry.STAGES] == [
        *("step 0", "fetch", "h2d", "forward", "backward", "optimizer", "sync", "optimizer", "log")
    ]


def test_data_only_computes_nothing_and_says_no_loss() -> None:
    recorder = run(small(compute={"work": "none"}), 3)
    assert recorder.losses == {}
    assert recorder.tokens == 3 * 8 * 64


def test_a_diverging_run_stops_with_the_step() -> None:
    config = small(model={"layers": 1}, optimizer={"learning_rate": 1e30, "clip_norm": None, "lr_warmup_steps": 0})
    with pytest.raises(FloatingPointError, match=r"^step \d+: the gradient norm is (nan|inf)"):
        run(config, 20)


def test_cuda_is_refused_where_there_is_none() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(InputError, match=r"compute\.device: cuda"):
        run(small(compute={"device": "cuda"}), 1)
