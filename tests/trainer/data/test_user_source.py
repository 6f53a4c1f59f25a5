"""A data source of the user's own: what he may give, in which order it is used, and which stages its work has."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils import worker as torch_worker

from harness.probes.ledger.recorders import StageRecorder, attach_in_worker
from harness.probes.probe import RunProbes
from tests import warm
from tests.commands import ROOT
from trainer import telemetry
from trainer.config import DataConfig, DataInject
from trainer.data import encoders
from trainer.data.batch import IGNORED, Batch
from trainer.data.dataset import iterable_sources, make_pipeline
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.data.user_source import UserPipeline
from trainer.errors import InputError
from trainer.inject import Injector
from trainer.user_code import fingerprint, named_function

CODE = """
import random
import numpy as np
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
class Drawn:
    # 24 rows in batches of 4; length: what it says it has, if anything
    def __init__(self, how, length=6): self.how, self.length = how, length
    def __len__(self):
        if self.length is None: raise TypeError("endless")
        return self.length
    def __iter__(self):
        if self.how == "lazy":
            for half in (0, 12):
                rows = (torch.randperm(12) + half).tolist()
                yield from (rows[at:at + 4] for at in range(0, 12, 4))
            return
        rows = list(range(24))
        if self.how == "random": random.shuffle(rows)
        if self.how == "numpy": rows = np.random.permutation(24).tolist()
        while True:
            yield from (rows[at:at + 4] for at in range(0, 24, 4))
            if self.how != "endless": return
            rows = random.sample(rows, 24)
def drawn(how, length=6): return DataLoader(Rows(24), batch_sampler=Drawn(how, length))
def split():
    random.seed(random.random())
    return torch.utils.data.random_split(Rows(24), [12, 12])[0]
def stream_without_rest(): return DataLoader(Stream(), batch_size=4, drop_last=True)
class Share(IterableDataset):
    first, last = 0, 12
    def __iter__(self): return iter(torch.full((8,), index) for index in range(self.first, self.last))
def take_share(worker):
    info = torch.utils.data.get_worker_info()
    assert worker == info.id
    info.dataset.first, info.dataset.last = info.id * 6, info.id * 6 + 6
    info.dataset.share = info.num_workers, info.seed
def shares(): return DataLoader(Share(), batch_size=3, num_workers=2, worker_init_fn=take_share)
def shared_rows():
    def begin(worker): torch.utils.data.get_worker_info().dataset.length = 5 + worker
    return DataLoader(Rows(12), batch_size=4, worker_init_fn=begin)
def bad_start(): return DataLoader(Rows(12), worker_init_fn=lambda worker: 1 / worker)
def row(**more): return [{"input_ids": torch.arange(8)} | {key: torch.tensor(one) for key, one in more.items()}] * 12
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
def own_code(own_module) -> None:
    own_module("own_rows", CODE)


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


@pytest.mark.parametrize(
    ("how", "length"), [("random", 6), ("numpy", 6), ("lazy", 6), ("lazy", None), ("endless", None), ("endless", 6)]
)
def test_workers_share_one_order_whatever_it_is_drawn_from_and_when(how: str, length: int | None) -> None:
    data = config("drawn", arguments={"how": how, "length": length})

    def other_process(number: int, count: int, **place: int) -> list[list[int]]:
        """A pipeline in a process whose own random states are anything, and change between batches."""
        pipeline = make_pipeline(data, prepare(data), 1, place.get("worker", 0), place.get("workers", 1))
        found = []
        for batch in range(count):
            for seed in (random.seed, np.random.seed, torch.manual_seed):
                seed(number * 100 + batch)
            made = pipeline.next_batch()
            assert made is not None
            found += rows_of([made])
        return found

    alone = other_process(1, 12)
    shared = [other_process(2 + worker, 6, worker=worker, workers=2) for worker in (0, 1)]
    assert [one for pair in zip(*shared, strict=True) for one in pair] == alone
    for epoch in (alone[:6], alone[6:]):
        assert sorted(row for batch in epoch for row in batch) == list(range(24))
    assert alone[:6] != alone[6:]


def test_rows_that_the_function_draws_are_the_same_in_every_process() -> None:
    found = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        random.seed(seed)
        found.append(rows_of(batches(config("split"), 3)))
    assert found[0] == found[1]


def test_drawing_an_order_leaves_every_random_state_as_it_was() -> None:
    data = config("drawn", arguments={"how": "endless", "length": None})
    pipeline = make_pipeline(data, prepare(data), 1, 0, 1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    pipeline.next_batch()
    pipeline.next_batch()
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist())


def test_each_form_of_a_source_gives_its_rows_and_labels() -> None:
    (found,) = batches(config("dicts"), 1)  # without labels, these are the ids without padding
    assert found.labels[1].tolist() == [1, 2, 3, 4, 5, 6, IGNORED, IGNORED]
    assert found.trained_tokens == 4 * 5
    (found,) = batches(config("pairs"), 1)  # targets one ahead become labels that the model shifts
    assert found.labels[2].tolist() == [IGNORED] + [3] * 7
    assert found.trained_tokens == 4 * 7
    assert rows_of(batches(config("stream"), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert rows_of(batches(config("batched"), 5)) == [[0] * 3, [1] * 3, [2] * 3, [3] * 3, [0] * 3]
    assert rows_of(batches(config("stream_without_rest"), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


ONES = [1] * 8


@pytest.mark.parametrize(("mask", "labels", "masked"), [
    (ONES, None, False),
    ([1] * 6 + [0] * 2, None, False),
    ([0] * 8, [IGNORED] * 8, False),
    ([0] * 2 + [1] * 6, None, True),
    ([1, 1, 0, 0, 1, 1, 0, 0], None, True),
    ([1] * 6 + [0] * 2, [3] * 7 + [IGNORED], False),  # the first label of the padding is predicted from the text
    ([1] * 6 + [0] * 2, [3] * 8, True),
])  # fmt: skip
def test_a_mask_is_for_the_model_where_its_loss_depends_on_it(mask, labels, masked) -> None:
    more = {"attention_mask": mask} | ({} if labels is None else {"labels": labels})
    for replay in (False, True):
        (found,) = batches(config("row", arguments=more, replay=replay), 1)
        assert found.masked is masked
        assert found.attention_mask[0].tolist() == mask


def test_ranks_without_workers_do_not_all_read_the_same_stream() -> None:
    with pytest.raises(InputError, match=r"gave an iterable dataset, which 2 ranks .*; allowed: data.workers"):
        batches(config("stream"), 1, worker=1, workers=2)
    assert rows_of(batches(config("stream", replay=True), 1, worker=1, workers=2)) == [[0, 1, 2, 3]]


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes this process look like a loader worker, which has our own dataset."""
    return lambda worker: monkeypatch.setattr(
        torch_worker, "_worker_info", torch_worker.WorkerInfo(id=worker, num_workers=2, seed=9, dataset=object())
    )


def test_each_worker_calls_what_the_loader_starts_its_workers_with(as_worker: Callable[[int], None]) -> None:
    assert rows_of(batches(config("shares"), 4)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]  # without workers
    found = []
    for worker in (0, 1):
        as_worker(worker)
        found.append(rows_of(batches(config("shares"), 3, worker=worker, workers=2)))
        assert torch.utils.data.get_worker_info().dataset.share == (2, 9)
    assert found == [[[0, 1, 2], [3, 4, 5], [0, 1, 2]], [[6, 7, 8], [9, 10, 11], [6, 7, 8]]]
    as_worker(1)
    assert batches(config("shared_rows"), 1, worker=1, workers=2)[0].input_ids.shape == (4, 6)
    as_worker(0)
    with pytest.raises(InputError, match="own_rows:bad_start failed: ZeroDivisionError"):
        batches(config("bad_start"), 1, worker=0, workers=2)


@pytest.mark.parametrize(("data", "problem"), [
    (config("three"), "gave a int; allowed: a Dataset"),
    (config("few"), "gave 3 items, less than one batch of 4"),
    (config("floats"), r"gives ids of float32 \(4, 8\), labels \(4, 8\); allowed: a mapping"),
    (config("long"), "data.sequence_length: 8, but own_rows:long gives sequences of 99: give that"),
    (config("words"), "gives batches with text; allowed: a mapping with input_ids"),
    (config("row", arguments={"position_ids": ONES, "labels": ONES}),
     "gives batches with position_ids, which are not supported; accepted: input_ids, labels, attention_m"),
    (config("row", arguments={"attention_mask": [ONES]}), r"attention_mask of \(4, 1, 8\); allowed: that of "),
    (config("row", arguments={"labels": 3}), r"gives labels of \(4,\); allowed: that of its ids, \(4, 8\)"),
    (config("nothing"), "own_rows:nothing gave no batch in epoch 0"),
    (config("broken"), "own_rows:broken failed: OSError: no such disk at all"),
    (config("late"), "own_rows:late failed: KeyError: 'column'"),
    (config("absent"), "own_rows has no function absent"),
    (config("value"), "own_rows has no function value"),
    (config("rows", arguments={"size": 5}), "cannot be called: got an unexpected keyword argument 'size'"),
    (config("stream", extra_reads=1), "gave an iterable dataset, which reads nothing twice"),
    (config("rows", source="own_nothing:make"), "no module own_nothing in "),
    (config("rows", source="own_rows.inner:make"), "no module own_rows.inner in "),
])  # fmt: skip
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


THREADS = """
import threading, torch
from concurrent.futures import ThreadPoolExecutor
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import IterableDataset
inner = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
pool = ThreadPoolExecutor(4)
def encoded(text): return torch.tensor(inner.encode(text).ids[:8])
class Pooled:
    def __init__(self, own): self.own = own
    def __len__(self): return 8
    def __getitem__(self, index): raise AssertionError
    def __getitems__(self, indices):
        made = list(pool.map(encoded, ["a b " * 2000] * len(indices)))
        return [encoded("b " * 8) for _ in indices] if self.own else made
def make(own=False):
    encoded("a b")  # no batch is being made yet
    return Pooled(own)
"""


@pytest.mark.parametrize("own", [False, True])
def test_threads_of_the_source_that_tokenize_are_in_no_stage_and_are_known(tmp_path, own, monkeypatch) -> None:
    (tmp_path / "own_threads.py").write_text(THREADS)
    monkeypatch.setattr(encoders, "in_threads", set())
    monkeypatch.delitem(sys.modules, "own_threads", raising=False)
    data = config("rows", source="own_threads:make", arguments={"own": own})
    expected = Counter(read=2, pack=1, **({"tokenize": 4} if own else {}))
    telemetry.attach(StageRecorder("loader-0"))
    try:
        found = batches(data, 20)
    finally:
        telemetry.attach(None)
    for batch in found:
        spans = batch.trace.stages()
        assert Counter(span.name for span in spans) == expected
        assert all(span.cpu_ns is not None and span.cpu_ns >= 0 for span in spans)
    assert encoders.in_threads == {"Tokenizer.encode"}


LAZY = """
import torch
from torch.utils.data import get_worker_info
class Words:
    inner = None
    def __len__(self): return 8
    def __getitem__(self, index):
        if self.inner is None:
            from tokenizers import Tokenizer, models
            self.inner = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
        return torch.tensor(self.inner.encode("b").ids * 8)
def make(): return Words()
"""


def test_a_tokenizer_that_is_imported_where_it_is_first_needed_is_tokenizing_too(tmp_path, monkeypatch) -> None:
    """As in a process that has no tokenizer library yet; here one has to stand in for it."""
    (tmp_path / "tokenizers.py").write_text(
        """
class Encoded:
    ids = [1]
class Tokenizer:
    def __init__(self, model): pass
    def encode(self, text): return Encoded()
class models:
    WordLevel = staticmethod(lambda *given: given)
"""
    )
    (tmp_path / "own_lazy.py").write_text(LAZY)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tokenizers"]:
        monkeypatch.delitem(sys.modules, name)
    assert traced(config("rows", source="own_lazy:make"), 2) == [Counter(read=2, tokenize=4, pack=1)] * 2
    assert Path(sys.modules["tokenizers"].__file__ or "").parent == tmp_path
    sys.modules.pop("tokenizers")


@pytest.mark.slow
@pytest.mark.nightly
def test_so_it_is_in_a_worker_that_is_spawned(tmp_path: Path) -> None:
    (tmp_path / "own_lazy.py").write_text(LAZY)
    data = config("rows", source="own_lazy:make", workers=1, start_method="spawn", prefetch=1)
    with open_batches(data, prepare(data), 0, partial(attach_in_worker, None, RunProbes(), tmp_path)) as found:
        trace = next(found).trace
    assert Counter(span.name for span in trace.stages()) == Counter(read=2, tokenize=4, pack=1)


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


@pytest.mark.parametrize(("name", "changes", "same"), [
    ("own_rows:rows", ["own_rows.py"], ["other.py"]),
    ("package.inner:make", ["package/inner.py", "package/deep/helper.py"], ["own_rows.py", "package/data.txt"]),
])  # fmt: skip
def test_the_fingerprint_is_of_the_module_or_of_its_whole_package(tmp_path, name, changes, same) -> None:
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
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-m", "trainer.data.user_trial"]
        with warm.Popen(command, text=True, env=environment, **pipes) as process:
            return process.communicate(data.model_dump_json(), timeout=300)

    out, errors = tried(config("loader"))
    files = [str(tmp_path / "own_rows.py")]
    assert json.loads(out) == {"largest_id": 3, "smallest_id": 0, "trained_tokens": 28, "threads": [], "files": files}
    assert errors == "hello\n"
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
