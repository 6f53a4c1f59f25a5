"""A data path that is resumed after any of its batches goes on with the very batches that would have followed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from tests.trainer.data.test_packing import assert_all_same, assert_same
from trainer.config import CheckpointConfig, DataConfig, DataInject, EvaluationConfig
from trainer.data.batch import Batch, BatchPipeline
from trainer.data.dataset import make_pipeline
from trainer.data.loader import open_batches
from trainer.data.position import Bookmark, DataPosition, EpochInterval, Position
from trainer.data.prepare import prepare
from trainer.errors import InputError
from trainer.inject import Injector

Make = Callable[..., DataConfig]
PATHS = ("text-padded", "text-stream", "tokens-padded", "tokens-stream", "tokens-mmap")


def batches_of(pipeline: BatchPipeline, count: int) -> list[Batch]:
    found = [pipeline.next_batch() for _ in range(count)]
    assert None not in found
    return found  # type: ignore[return-value]


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)


@pytest.mark.parametrize(
    ("access", "shuffle"),
    [
        ("scalar", True), ("zero-copy", False),
        pytest.param("scalar", False, marks=AT_NIGHT), pytest.param("zero-copy", True, marks=AT_NIGHT),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", PATHS)
def test_every_path_goes_on_after_every_batch(make_config: Make, path: str, access: str, shuffle: bool) -> None:
    config = make_config(path=path, access=access, shuffle=shuffle)
    prepared = prepare(config)
    whole = batches_of(make_pipeline(config, prepared, 3, 1, 2), 45)
    last = whole[-1].position
    assert last.epochs > 2 or not path.endswith("padded")  # over the end of epochs
    if not path.endswith("padded"):
        assert any(batch.position.used for batch in whole if batch.position)  # in the middle of documents
    for number, before in list(enumerate(whole[:-3]))[::2]:
        assert before.position is not None
        resumed = make_pipeline(config, prepared, 3, 1, 2, before.position)
        assert_all_same(batches_of(resumed, 3), whole[number + 1 :], strict=False, positions=True)


def test_masks_are_drawn_on_from_where_they_were(make_config: Make) -> None:
    config = make_config(path="text-padded")
    prepared = prepare(config).with_objective("masked")
    whole = batches_of(make_pipeline(config, prepared, 3, 0, 1), 9)
    resumed = batches_of(make_pipeline(config, prepared, 3, 0, 1, whole[4].position), 4)
    for left, right in zip(resumed, whole[5:], strict=True):
        assert_same(left, right)
        assert not left.shifted


def test_repeated_batches_and_their_draws_go_on(make_config: Make) -> None:
    config = make_config(replay=True, inject=DataInject(pack_ms=1e-6, jitter=0.5))
    prepared = prepare(config)
    whole = make_pipeline(config, prepared, 0, 0, 1)
    before = batches_of(whole, 5)[-1].position
    assert before is not None
    resumed = make_pipeline(config, prepared, 0, 0, 1, before)
    assert_same(batches_of(resumed, 1)[0], batches_of(whole, 1)[0])
    assert resumed._injector.draw_ms("pack") == whole._injector.draw_ms("pack")  # type: ignore[attr-defined]


@pytest.mark.parametrize("more", [1, 3])
def test_skipped_draws_are_those_that_were_drawn(more: int) -> None:
    inject = DataInject(read_ms=2, transfer_ms=3, jitter=0.4)
    first, second = Injector(inject, 7), Injector(inject, 7)
    for _ in range(4):
        for _ in range(more):
            first.draw_ms("read")
        first.draw_ms("transfer")
    second.skip(4, more)
    assert [first.draw_ms(name) for name in ("read", "transfer")] == [
        second.draw_ms(name) for name in ("read", "transfer")
    ]


def test_a_bookmark_counts_documents_and_tokens() -> None:
    mark = Bookmark(Position(document=10, used=3))
    mark.add(np.array([5, 0, 7]))
    mark.pack(2)
    assert (mark.document, mark.used) == (12, 0)
    mark.pack(4)
    assert (mark.document, mark.used) == (12, 4)
    mark.add(np.array([], dtype=np.int64))
    mark.add(np.array([1, 1]))
    mark.pack(4)
    assert (mark.document, mark.used) == (14, 0)


def test_another_number_of_workers_is_refused() -> None:
    state = DataPosition(2, 5, {0: Position(0, 4), 1: Position(1, 3)}).state_dict()
    assert DataPosition.from_state(state, 2).of(1) == Position(1, 3)
    with pytest.raises(InputError, match=r"data\.workers: 3, but the checkpoint was made with 2"):
        DataPosition.from_state(state, 3)
    with pytest.raises(InputError, match="cannot be read"):
        DataPosition.from_state({"workers": 2}, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "received", [5, pytest.param(8, marks=pytest.mark.nightly)]
)  # the next batch is loader-1's of the first run, and loader-0's
def test_workers_go_on_in_their_turns(make_config: Make, received: int) -> None:
    config = make_config(path="text-stream", workers=2)
    prepared = prepare(config)
    with open_batches(config, prepared, seed=5) as batches:
        list(islice(batches, received))
        state = batches.position.state_dict()
        whole = list(islice(batches, 10))
    start = DataPosition.from_state(state, 2)
    with open_batches(config, prepared, seed=5, start=start) as batches:
        resumed = list(islice(batches, 10))
        assert batches.position.received == received + 10
    assert_all_same(resumed, whole, positions=True)


class Drawn(torch.utils.data.Dataset[torch.Tensor]):
    """Draws part of each item from the worker's random state."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat([torch.tensor([index]), torch.randint(0, 99, (7,))])


class Counting(IterableDataset[torch.Tensor]):
    """Says where it is."""

    made = 0

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> object:  # type: ignore[override]
        while True:
            self.at += 1
            type(self).made += 1
            yield torch.full((8,), self.at)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def drawn() -> Drawn:
    return Drawn()


def counting() -> Counting:
    return Counting()


@pytest.mark.parametrize("extra", [0, 1])
def test_a_users_batches_are_made_again_and_dropped(make_config, capsys, extra) -> None:
    config = make_config(source=f"{__name__}:drawn", extra_reads=extra, inject=DataInject(read_ms=1e-6, jitter=0.5))
    prepared = prepare(config)
    torch.manual_seed(1)
    first = make_pipeline(config, prepared, 2, 0, 1)
    before = batches_of(first, 9)[-1].position
    whole, cost = batches_of(first, 5), first._injector.draw_ms("read")  # type: ignore[attr-defined]
    torch.manual_seed(1)
    capsys.readouterr()
    resumed = make_pipeline(config, prepared, 2, 0, 1, before)
    assert "its first 9 batches are made again and dropped" in capsys.readouterr().err
    assert_all_same(batches_of(resumed, 5), whole, positions=True)
    assert resumed._injector.draw_ms("read") == cost  # type: ignore[attr-defined]


def test_a_users_dataset_that_says_where_it_is_makes_nothing_again(make_config, capsys) -> None:
    config = make_config(source=f"{__name__}:counting")
    prepared = prepare(config)
    with open_batches(config, prepared, 0) as batches:  # where nothing is to be kept it is not asked
        assert next(batches).position.state is None  # type: ignore[union-attr]
    with open_batches(config, prepared, 0, start=DataPosition(1, keeps_state=True)) as batches:
        list(islice(batches, 6))
        start = DataPosition.from_state(batches.position.state_dict(), 0)
        whole = list(islice(batches, 3))
    made = sys.modules[__name__].Counting.made
    capsys.readouterr()
    with open_batches(config, prepared, 0, start=start) as batches:
        resumed = list(islice(batches, 3))
    assert_all_same(resumed, whole)
    assert sys.modules[__name__].Counting.made == made + 9
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_users_workers_draw_as_they_would_have(make_config: Make) -> None:
    config = make_config(source=f"{__name__}:drawn", workers=2)
    prepared = prepare(config)
    with open_batches(config, prepared, seed=5) as batches:
        list(islice(batches, 5))
        state = batches.position.state_dict()
        whole = list(islice(batches, 6))
    with open_batches(config, prepared, seed=5, start=DataPosition.from_state(state, 2)) as batches:
        assert_all_same(islice(batches, 6), whole)


def stateful(batch_size: int) -> object:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Drawn(), batch_size=batch_size, shuffle=True, num_workers=1)


def test_a_loader_of_torchdata_goes_on_like_any_other(make_config: Make) -> None:
    pytest.importorskip("torchdata")
    config = make_config(source=f"{__name__}:stateful")
    prepared = prepare(config)
    with open_batches(config, prepared, seed=5, start=DataPosition(1, keeps_state=True)) as batches:
        list(islice(batches, 9))
        start = DataPosition.from_state(batches.position.state_dict(), 0)
        torch.manual_seed(1)
        whole = [batch.input_ids[:, 0].tolist() for batch in islice(batches, 7)]
    with open_batches(config, prepared, seed=5, start=start) as batches:
        assert [batch.input_ids[:, 0].tolist() for batch in islice(batches, 7)] == whole


@given(
    documents=st.integers(1, 400),
    rows=st.integers(1, 30),
    parts=st.integers(1, 6),
    begun=st.integers(0, 50),
    steps=st.integers(1, 200),
)
def test_an_interval_ends_in_the_step_that_reaches_it(documents, rows, parts, begun, steps) -> None:
    """``parts`` intervals in an epoch of ``documents``, of which a step uses ``rows``."""
    used = begun * rows
    interval = EpochInterval(1 / parts, lambda: used / documents, "x.every_epochs")
    for _ in range(steps):
        before, used = used, used + rows
        over = math.floor(Fraction(used * parts, documents)) > math.floor(Fraction(before * parts, documents))
        assert interval.is_over() == over
        assert interval.ends() == over
        assert not interval.is_over()


def test_batches_without_an_epoch_are_refused() -> None:
    with pytest.raises(InputError, match=r"^x\.every_epochs: "):
        EpochInterval(1, lambda: None, "x.every_epochs")


@pytest.mark.parametrize("config", [CheckpointConfig, EvaluationConfig])
def test_one_interval_alone(config: type[CheckpointConfig] | type[EvaluationConfig]) -> None:
    assert config.model_validate({"every_epochs": 0.25}).every_epochs == 0.25
    for wrong in ({"every_epochs": 1, "every_steps": 5}, {"every_epochs": 0}):
        with pytest.raises(ValueError, match="every_epochs"):
            config.model_validate(wrong)
