"""A data source of the user's own: what he may give, in which order it is used, and which stages its work has."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.probes.ledger.stages import StageRecorder
from trainer import telemetry
from trainer.config import DataConfig, DataInject
from trainer.data.batch import IGNORED, Batch
from trainer.data.dataset import iterable_sources, make_pipeline
from trainer.data.prepare import prepare
from trainer.data.user_source import UserPipeline
from trainer.errors import InputError
from trainer.inject import Injector
from trainer.user_code import fingerprint, named_function

CODE = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

made = []

class Rows(Dataset):
    def __init__(self, count, length=8):
        self.count, self.length = count, length
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        made.append(index)
        return torch.full((self.length,), index)

class Dicts(Rows):
    def __getitem__(self, index):
        return {"input_ids": torch.arange(8) + index, "attention_mask": torch.tensor([1] * 6 + [0] * 2)}

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.full((8,), index) for index in range(10))

class Batched(IterableDataset):
    def __iter__(self):
        return iter(torch.full((3, 8), index) for index in range(4))

def rows(batch_size, count=12): return Rows(count)
def loader(batch_size): return DataLoader(Rows(12), batch_size=4, shuffle=False)
def shuffled(seed): return DataLoader(Rows(12), batch_size=2, shuffle=True)
def dicts(): return Dicts(12)
def pairs(): return Rows(12), lambda items: (torch.stack(items), torch.stack(items) + 1)
def stream(): return Stream()
def batched(): return DataLoader(Batched(), batch_size=None)
def listed(): return [torch.full((8,), index) for index in range(12)]
def three(): return 3
def few(): return Rows(3)
def floats(): return [torch.full((8,), 0.5)] * 12
class Padded(Rows):
    def __getitem__(self, index):
        made.append(index)
        return torch.full((2 + index // 4 % 3,), index)
def padded(): return Padded(1000)
def long(): return Rows(12, length=99)
def words(): return [{"text": "a"}] * 12
def nothing():
    class Empty(IterableDataset):
        def __iter__(self): return iter(())
    return Empty()
def broken(): raise OSError("no such disk\\nat all")
class Late(Rows):
    def __getitem__(self, index): raise KeyError("column")
def late(): return Late(12)
value = 1
"""


@pytest.fixture(autouse=True)
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_rows.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_rows", None)


def config(function: str, **keys: Any) -> DataConfig:
    return DataConfig.model_validate(
        {"source": f"own_rows:{function}", "batch_size": 4, "sequence_length": 8, "shuffle": False} | keys
    )


def batches(data: DataConfig, count: int, seed: int = 1, worker: int = 0, workers: int = 1) -> list[Batch]:
    pipeline = make_pipeline(data, prepare(data), seed, worker, workers)
    found = [pipeline.next_batch() for _ in range(count)]
    return [batch for batch in found if batch is not None]


def rows_of(found: list[Batch]) -> list[list[int]]:
    return [batch.input_ids[:, 0].tolist() for batch in found]


@pytest.mark.parametrize("function", ["rows", "loader", "listed"])
def test_a_dataset_and_a_loader_give_their_batches_in_order_without_end(function: str) -> None:
    found = batches(config(function), 4)
    assert rows_of(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [0, 1, 2, 3]]
    assert found[0].input_ids.dtype == torch.int64
    assert (found[0].tokens, found[0].trained_tokens, found[0].samples) == (32, 28, 4)
    assert torch.equal(found[0].labels, found[0].input_ids)


def test_workers_share_one_order_that_changes_from_epoch_to_epoch() -> None:
    data = config("shuffled")
    alone = rows_of(batches(data, 12))
    shared = [rows_of(batches(data, 6, worker=worker, workers=2)) for worker in (0, 1)]
    assert [one for pair in zip(*shared, strict=True) for one in pair] == alone
    first, second = alone[:6], alone[6:]
    for epoch in (first, second):
        assert sorted(index for batch in epoch for index in batch) == list(range(12))
    assert first != second
    assert rows_of(batches(data, 6, seed=2)) != first


def test_a_shuffled_dataset_leaves_the_random_state_as_it_was() -> None:
    torch.manual_seed(5)
    batches(config("rows", shuffle=True), 7)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)


def test_labels_are_the_ids_without_padding_where_there_are_none() -> None:
    (found,) = batches(config("dicts"), 1)
    assert found.labels[1].tolist() == [1, 2, 3, 4, 5, 6, IGNORED, IGNORED]
    assert found.trained_tokens == 4 * 5


def test_targets_one_ahead_become_labels_that_the_model_shifts() -> None:
    (found,) = batches(config("pairs"), 1)
    assert found.labels[2].tolist() == [IGNORED] + [3] * 7
    assert found.trained_tokens == 4 * 7


def test_iterable_datasets_of_items_and_of_batches() -> None:
    assert rows_of(batches(config("stream"), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert rows_of(batches(config("batched"), 5)) == [[0] * 3, [1] * 3, [2] * 3, [3] * 3, [0] * 3]


def test_arguments_are_given_by_name() -> None:
    assert rows_of(batches(config("rows", arguments={"count": 5}), 2)) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (config("three"), "gave a int; allowed: a Dataset"),
        (config("few"), "gave 3 items, less than one batch of 4"),
        (config("floats"), r"gives ids of float32 \(4, 8\), labels \(4, 8\); allowed: a mapping"),
        (config("long"), "data.sequence_length: 8, but own_rows:long gives sequences of 99: give that"),
        (config("words"), "gives batches with text; allowed: a mapping with input_ids"),
        (config("nothing"), "own_rows:nothing gave no batch in epoch 0"),
        (config("broken"), "own_rows:broken failed: OSError: no such disk at all"),
        (config("late"), "own_rows:late failed: KeyError: 'column'"),
        (config("absent"), "own_rows has no function absent"),
        (config("value"), "own_rows has no function value"),
        (config("rows", arguments={"size": 5}), "cannot be called: got an unexpected keyword argument 'size'"),
        (config("stream", extra_reads=1), "gave an iterable dataset, which reads nothing twice"),
        (config("rows", source="own_nothing:make"), "no module own_nothing in "),
        (config("rows", source="own_rows.inner:make"), "no module own_rows.inner in "),
    ],
)
def test_what_cannot_work_is_one_line(data: DataConfig, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        batches(data, 1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["make", "a b:make", "a:", ":make", "a.py:make()", "../a:make", "a:b.c", "1a:b", "a:b\n"]
)
def test_a_name_is_a_module_and_a_function(name: str) -> None:
    with pytest.raises(ValueError, match="give MODULE:FUNCTION"):
        named_function(name)


def traced(data: DataConfig, count: int = 1) -> list[Counter[str]]:
    """How often each stage was entered for each batch."""
    telemetry.attach(StageRecorder("loader-0"))
    try:
        found = batches(data, count)
    finally:
        telemetry.attach(None)
    return [Counter(span.name for span in batch.trace.stages()) for batch in found if batch.trace is not None]


def test_reading_and_packing_are_told_apart_and_a_dose_makes_the_whole_batch_again() -> None:
    import own_rows

    usual = traced(config("rows"), 2)
    assert usual == [Counter(read=2, pack=1)] * 2
    assert own_rows.made == list(range(8))
    assert traced(config("rows", extra_reads=2)) == [Counter(read=4, pack=3)]
    assert own_rows.made[8:] == [0, 1, 2, 3] * 3


def test_a_tokenizer_within_the_dataset_is_tokenizing_once(tmp_path: Path) -> None:
    (tmp_path / "own_words.py").write_text(
        """
import tokenizers, torch
from transformers import PreTrainedTokenizerFast
inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, "a"))
inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
outer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="a")
class Words:
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor(outer("a b")["input_ids"])
def make(): return Words()
"""
    )
    assert traced(config("rows", source="own_words:make")) == [Counter(read=2, tokenize=4, pack=1)]
    assert batches(config("rows", source="own_words:make"), 1)[0].input_ids.tolist() == [[0, 1]] * 4


def test_the_ideal_data_control_repeats_one_batch_and_makes_none_meanwhile() -> None:
    import own_rows

    data = config("loader", replay=True)
    pipeline = make_pipeline(data, prepare(data), 1, 0, 1)
    made = len(own_rows.made)  # of the first 32, which are all as long
    assert [pipeline.next_batch().input_ids[:, 0].tolist() for _ in range(3)] == [[0, 1, 2, 3]] * 3
    assert len(own_rows.made) == made == 32 * 4
    assert traced(config("loader", replay=True), 2) == [Counter(), Counter()]


def test_declared_costs_are_spent_in_their_stages() -> None:
    spent: list[str] = []

    class Spy(Injector):
        def spend(self, name: str) -> None:
            spent.append(name)

    data = config("rows")
    inject = DataInject(read_ms=1, tokenize_ms=1, pack_ms=1, transfer_ms=1)
    UserPipeline(data, 0, 0, 1, Spy(inject, 0)).next_batch()
    assert spent == ["read", "tokenize", "pack", "transfer"]


def change(path: Path) -> None:
    path.write_text(path.read_text() + "\nmore = 1\n")


@pytest.mark.parametrize(
    ("name", "changes", "same"),
    [
        ("own_rows:rows", ["own_rows.py"], ["other.py"]),
        ("package.inner:make", ["package/inner.py", "package/deep/helper.py"], ["own_rows.py", "package/data.txt"]),
    ],
)
def test_the_fingerprint_is_of_the_module_or_of_its_whole_package(
    tmp_path: Path, name: str, changes: list[str], same: list[str]
) -> None:
    for path in ("package/__init__.py", "package/inner.py", "package/deep/helper.py", "other.py", "package/data.txt"):
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_text("raise SystemExit('was imported')\n")
    seen = [fingerprint("data.source", name)]
    for path in same:
        change(tmp_path / path)
    assert fingerprint("data.source", name) == seen[0]
    for path in changes:
        change(tmp_path / path)
        seen.append(fingerprint("data.source", name))
    assert len(set(seen)) == 1 + len(changes)


@pytest.mark.slow
def test_the_trial_answers_with_ids_or_with_one_line_and_keeps_what_the_user_prints_apart(tmp_path: Path) -> None:
    (tmp_path / "own_rows.py").write_text(CODE + "print('hello')\n")

    def tried(data: DataConfig) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "trainer.data.user_trial"],
            input=data.model_dump_json(), capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return done.stdout, done.stderr

    assert tried(config("loader")) == ('{"largest_id": 3, "smallest_id": 0, "trained_tokens": 28}', "hello\n")
    out, errors = tried(config("broken"))
    assert out == '{"error": "data.source: own_rows:broken failed: OSError: no such disk at all"}'
    assert "Traceback" in errors


def test_ideal_data_of_a_source_of_any_length_goes_through_its_first_batches() -> None:
    """Each batch is padded to its own length: the first one alone would stand for none of the others."""
    found = batches(config("padded", replay=True), 40)
    assert [batch.input_ids.shape[1] for batch in found] == [*[2, 3, 4] * 10, 2, 3, *[2, 3, 4] * 2, 2, 3]
    assert rows_of(found[32:34]) == rows_of(found[:2])
    own_rows = sys.modules["own_rows"]
    assert len(own_rows.made) == 32 * 4  # none is made again


@pytest.mark.parametrize(("function", "iterable"), [("rows", False), ("loader", False), ("stream", True)])
@pytest.mark.parametrize("replay", [False, True])
def test_whether_a_source_is_iterable_is_known_once_it_is_open(function: str, iterable: bool, replay: bool) -> None:
    batches(config(function, replay=replay), 1)
    assert iterable_sources[f"own_rows:{function}"] is iterable
