"""Padding on either side of the text in a user's source: losses are those of a plain loop that gives the mask."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from trainer.compute.build import build_compute
from trainer.config import TrainerConfig
from trainer.data.dataset import make_pipeline
from trainer.data.prepare import prepare
from trainer.errors import InputError
from trainer.model import build_model, resolve_shape

CODE = """
import torch

class Padded:
    def __init__(self, side): self.side = side
    def __len__(self): return 16
    def __getitem__(self, index):
        ids = torch.randint(1, 64, (6 + index % 9,), generator=torch.Generator().manual_seed(index))
        none = torch.zeros(16 - len(ids), dtype=torch.long)
        parts = {"input_ids": (ids, none), "attention_mask": (ids * 0 + 1, none), "labels": (ids, none - 100)}
        return {key: torch.cat(pair if self.side == "right" else pair[::-1]) for key, pair in parts.items()}

class Plain(torch.nn.Module):
    def __init__(self): super().__init__(); self.table = torch.nn.Embedding(64, 64)
    def forward(self, input_ids, labels): return self.table(input_ids)[..., 0].sum()

def make(side): return Padded(side)
def without_mask(): return Plain()
"""
STEPS = 4


@pytest.fixture(autouse=True)
def own_code(own_module) -> None:
    own_module("own_padding", CODE)


def config(side: str, **model: object) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "model": {"layers": 2, "width": 32, "vocab_size": 64} | model,
            "data": {
                "source": "own_padding:make", "arguments": {"side": side},
                "sequence_length": 16, "batch_size": 4, "shuffle": False,
            },
            "compute": {"device": "cpu", "threads": 1},
        }
    )  # fmt: skip


def losses(asked: TrainerConfig) -> list[float]:
    compute = build_compute(asked, 0)
    pipeline = make_pipeline(asked.data, prepare(asked.data), 0, 0, 1)
    found = []
    for step in range(STEPS):
        batch = pipeline.next_batch()
        assert batch is not None
        loss = compute.forward(compute.to_device(batch))
        compute.backward(loss)
        compute.check_finite(compute.clip_gradients(), step)
        compute.optimizer_step()
        found.append(loss.item())
    return found


def losses_of_a_plain_loop(asked: TrainerConfig) -> list[float]:
    import own_padding

    torch.manual_seed(asked.seed)
    model = build_model(resolve_shape(asked.model, 0, 16)).train()
    groups = [
        {"params": [one for one in model.parameters() if (one.dim() >= 2) is decayed], "weight_decay": decay}
        for decayed, decay in ((True, 0.1), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 10))
    found = []
    for batch in islice(DataLoader(own_padding.make(asked.data.arguments["side"]), batch_size=4), STEPS):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("preset", ["gpt2-tiny", "llama-tiny"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_losses_are_those_of_a_plain_loop(side: str, preset: str) -> None:
    asked = config(side, preset=preset)
    assert losses(asked) == pytest.approx(losses_of_a_plain_loop(asked), rel=1e-5)


def test_a_model_of_ones_own_that_takes_no_mask_is_told_in_one_line() -> None:
    assert len(losses(config("right", factory="own_padding:without_mask"))) == STEPS
    with pytest.raises(InputError, match=r"^data.source: own_padding:make gives padding before text, but the module"):
        losses(config("left", factory="own_padding:without_mask"))
