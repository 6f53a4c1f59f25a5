"""Equal first batches of a loader's workers: only batches compared as a whole, and not equal by chance, count."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.harness.attach.running import agent_module

Pair = namedtuple("Pair", ["ids", "label"])
Make = Callable[[int, int], Any]  # a batch, by worker and number
Noted = Callable[[Make], list[tuple[str, int]]]


@dataclass
class Own:
    ids: torch.Tensor


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ids(number: int, size: int = 256) -> torch.Tensor:
    """Token ids of the batch with this number."""
    return torch.randint(0, 50_000, (4, size // 4), generator=random(number))


def floats(number: int) -> torch.Tensor:
    return torch.rand(4, 64, generator=random(number))


def put(tensor: torch.Tensor, place: int, value: int) -> torch.Tensor:
    tensor.view(-1)[place] = value
    return tensor


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    notes: list[tuple[str, int]] = []
    agent = SimpleNamespace(record=SimpleNamespace(note=lambda what, value: notes.append((what, value))))
    monkeypatch.setitem(sys.modules, "_harness_agent", agent)
    module = agent_module("copies")

    def run(make: Make) -> list[tuple[str, int]]:
        first = module.FirstBatches()
        for number in range(4):
            for worker in range(2):
                first.add(f"loader-{worker}", make(worker, number))
        return notes

    return run


SAME: dict[str, Make] = {
    "token ids": lambda _, n: ids(n),
    "floats": lambda _, n: floats(n),
    "16 bit": lambda _, n: floats(n).bfloat16(),
    "arrays": lambda _, n: {"ids": ids(n).numpy(), "weight": np.float32(1)},
    "lists": lambda _, n: [ids(n)[0].tolist(), None, 1.5, True],
    "nested": lambda _, n: ({"ids": ids(n), "more": [Pair(floats(n), n)]}, "text", b"bytes"),
    "behind a prompt": lambda _, n: torch.cat([ids(999, 4096), ids(n)], dim=1),
    "texts": lambda _, n: [" ".join(map(str, row)) for row in ids(n).tolist()],
    "bytes": lambda _, n: [row.numpy().tobytes() for row in ids(n)],
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_workers_with_the_same_documents_are_found(make: Make, noted: Noted) -> None:
    assert noted(make) == [("copies", 2)]


OTHER: dict[str, Make] = {
    "token ids": lambda worker, n: ids(2 * n + worker),
    "text beside equal ids": lambda worker, n: (ids(n), [f"shard {worker} line {n}"]),
    "a number beside equal ids": lambda worker, n: {"ids": ids(n), "shard": worker},
    "a name beside equal ids": lambda worker, n: {"ids": ids(n), f"shard {worker}": 0},
    "one id far behind": lambda worker, n: put(ids(n, 1 << 18), 200_001, worker),
    "other types": lambda worker, n: ids(n).to(torch.int64 if worker else torch.int32),
    "other shapes": lambda worker, n: ids(n).reshape((4, 64) if worker else (64, 4)),
    "other borders": lambda worker, n: ([ids(n), 0], 0) if worker else ([ids(n)], 0, 0),
}


@pytest.mark.parametrize("make", OTHER.values(), ids=OTHER)
def test_workers_with_other_documents_are_not_called_copies(make: Make, noted: Noted) -> None:
    assert noted(make) == [("copies", 1)]


NOTHING: dict[str, Make] = {
    "line numbers": lambda _, n: torch.tensor([[n] * 64] * 4),
    "class labels": lambda _, n: torch.full((4, 64), n % 7),
    "labels behind a prompt": lambda _, n: put(ids(0), 255, n % 7),
    "positions and labels": lambda _, n: {"position": torch.arange(256), "label": n % 7},
    "constant": lambda *_: ids(0),
    "every other batch": lambda _, n: ids(0) if n == 1 else torch.zeros(4, 64),
    "own class": lambda _, n: {"ids": ids(n), "more": Own(ids(n))},
    "own dict": lambda _, n: type("Own", (dict,), {})(ids=ids(n)),
    "own named tuple": lambda _, n: type("Own", (Pair,), {})(ids(n), n),
    "parameter": lambda _, n: torch.nn.Parameter(floats(n)),
    "objects": lambda _, n: np.array([ids(n), None], dtype=object),
    "object as a key": lambda _, n: {(1, 2): ids(n)},
    "transposed": lambda _, n: ids(n).T,
    "sparse": lambda _, n: ids(n).to_sparse(),
    "nested tensor": lambda _, n: torch.nested.nested_tensor([floats(n)[0], floats(n)[1, :5]]),
    "no tensor": lambda *_: set(),
    "too large": lambda _, n: [ids(n), torch.zeros((1 << 24) + 1, dtype=torch.uint8)],
    "too many": lambda _, n: [ids(n), [0] * (1 << 19)],
    "empty": lambda *_: torch.zeros(0),
}


@pytest.mark.parametrize("make", NOTHING.values(), ids=NOTHING)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_batches_equal_by_chance_or_not_comparable_show_nothing(make: Make, noted: Noted) -> None:
    assert noted(make) == []


def test_a_list_within_itself_shows_nothing(noted: Noted) -> None:
    endless: list[Any] = [ids(0)]
    endless.append(endless)
    assert noted(lambda *_: endless) == []
