"""Real DataLoader workers: the same batches, with their traces, and an end when they are told to."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.data.conftest import write_parquet
from tests.trainer.data.recorder import attach_in_worker
from tests.trainer.data.test_packing import assert_all_same, assert_same
from trainer.config import CorpusConfig, DataConfig, DataInject, TokenizerConfig
from trainer.data.batch import Batch
from trainer.data.dataset import make_pipeline
from trainer.data.loader import Batches, LateBatch, open_batches
from trainer.data.prepare import prepare
from trainer.errors import EndedWorkerError, InputError, LostBatchError

pytestmark = pytest.mark.slow

Make = Callable[..., DataConfig]


def expected_batches(config: DataConfig, count: int, seed: int) -> list[Batch]:
    """Batches of the workers in turn, built in this process."""
    workers = max(1, config.workers)
    sources = [make_pipeline(config, prepare(config), seed, worker, workers) for worker in range(workers)]
    found = [sources[number % workers].next_batch() for number in range(count)]
    assert None not in found
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("workers", "path", "access"),
    [(0, "text-padded", "scalar"), (1, "tokens-stream", "zero-copy"), (2, "text-padded", "scalar")],
)
def test_workers_yield_their_shards_in_turn(make_config: Make, workers: int, path: str, access: str) -> None:
    config = make_config(path=path, access=access, workers=workers)
    with open_batches(config, prepare(config), seed=5, worker_init=attach_in_worker) as batches:
        found = list(islice(batches, 12))
    assert_all_same(found, expected_batches(config, 12, 5))
    for number, batch in enumerate(found):
        if not workers:
            assert batch.trace is None  # nobody attached a recorder to this process
            continue
        assert batch.trace.role == f"loader-{number % workers}"
        assert batch.trace.batch == number // workers
        assert batch.trace.pid != os.getpid()
        assert batch.trace.spans[-1].name == "pack"


@pytest.mark.parametrize("workers", [2])
def test_replay_and_declared_costs_through_workers(make_config: Make, workers: int) -> None:
    inject = DataInject(read_ms=1, tokenize_ms=1, transfer_ms=0.5, how="sleep", jitter=0.1)
    config = make_config(path="tokens-padded", workers=workers, replay=True, inject=inject)
    with open_batches(config, prepare(config), seed=5, worker_init=attach_in_worker) as batches:
        found = list(islice(batches, 6))
    for batch in found:
        assert_same(batch, found[0])  # also from different workers
        assert [span.name for span in batch.trace.spans] == ["read", "tokenize"]
        assert all(span.end_ns - span.start_ns >= 0.9e6 for span in batch.trace.spans)


@pytest.mark.parametrize("start_method", [pytest.param("spawn", marks=pytest.mark.nightly), "forkserver"])
def test_other_start_methods(make_config: Make, start_method: str) -> None:
    config = make_config(path="text-stream", workers=1, start_method=start_method)
    with open_batches(config, prepare(config), seed=5, worker_init=attach_in_worker) as batches:
        found = list(islice(batches, 3))
    for left, right in zip(found, expected_batches(config, 3, 5), strict=True):
        assert_same(left, right)
        assert left.trace is not None


def test_forked_workers_start_after_this_process_tokenized(make_config: Make) -> None:
    config = make_config(path="text-padded", workers=1)
    prepared = prepare(config)
    expected = expected_batches(config, 2, 0)  # tokenizes here, before the fork
    with open_batches(config, prepared, seed=0) as batches:
        assert_all_same(islice(batches, 2), expected)


def test_pinning_without_cuda_is_left_out(make_config: Make) -> None:
    config = make_config(pin_memory=True)
    with open_batches(config, prepare(config), seed=0) as batches:
        assert next(batches).input_ids.is_pinned() == torch.cuda.is_available()


def test_closing_ends_the_workers(make_config: Make) -> None:
    config = make_config(workers=2)
    before = set(multiprocessing.active_children())
    batches = open_batches(config, prepare(config), seed=0)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2  # at once, not at the first batch
    next(batches)
    batches.close()
    assert not any(worker.is_alive() for worker in started)
    with pytest.raises(StopIteration):
        next(batches)
    batches.close()


def test_a_worker_that_was_killed_is_named_with_its_signal(make_config: Make) -> None:
    config = make_config(workers=2)
    before = set(multiprocessing.active_children())
    with open_batches(config, prepare(config), seed=0) as batches:
        started = sorted(set(multiprocessing.active_children()) - before, key=lambda one: one.pid or 0)
        assert started[1].pid is not None
        os.kill(started[1].pid, signal.SIGKILL)
        started[1].join()
        with pytest.raises(LostBatchError) as error:
            list(islice(batches, 20))  # what it had made by then still comes
    assert str(error.value) == f"loader-1 (process {started[1].pid}) was killed by SIGKILL"


class Ended:
    """An iterator whose second worker has ended in some way."""

    def __init__(self, code: int, error: Exception) -> None:
        living = SimpleNamespace(exitcode=None, pid=1)
        self._workers = [living, SimpleNamespace(exitcode=code, pid=2)]
        self._error = error

    def __next__(self) -> Batch:
        raise self._error


@pytest.mark.parametrize(("code", "error", "how"), [
    (-signal.SIGTERM, RuntimeError("DataLoader worker (pid 2) is killed by signal: Terminated."), "killed by SIGTERM"),
    (1, RuntimeError("DataLoader worker (pid 2) exited unexpectedly with exit code 1."), "exit code 1"),
    (0, FileNotFoundError(2, "No such file or directory"), "exit code 0"),
    (0, ConnectionRefusedError(111, "Connection refused"), "exit code 0"),
    (3, EOFError(), "exit code 3"),
])  # fmt: skip
def test_every_end_of_a_worker_is_named(code: int, error: Exception, how: str) -> None:
    iterator: Any = Ended(code, error)
    late = LateBatch(workers=2, timeout_s=15)
    with pytest.raises(EndedWorkerError, match=rf"^loader-1 \(process 2\) (was|ended with) {how}$") as found:
        late.wait(iterator)
    assert found.value.codes == (code,)
    batches = Batches(iterator, pin=False, late=late)
    batches._late = None  # the timer is not tested here
    if isinstance(error, RuntimeError):  # torch raises it wherever the main thread is
        assert str(batches.ended(error)) == str(found.value)
    else:
        assert batches.ended(error) is None
    late.disarm()


def test_an_error_that_is_no_worker_s_stays_what_it_is() -> None:
    iterator: Any = Ended(0, InputError("data.source: broken"))
    for error in (InputError("data.source: broken"), LostBatchError("no batch came")):
        iterator._error = error
        with pytest.raises(type(error)) as found:
            LateBatch(workers=2, timeout_s=15).wait(iterator)
        assert found.value is error


def test_an_input_error_in_a_worker_stays_one_line(make_config: Make, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "blank.parquet", ["  ", "\n\n"])
    config = make_config(
        corpus=CorpusConfig(parquet=str(path)),
        tokenizer=TokenizerConfig.model_validate({"train": {"kind": "wordpiece", "vocab_size": 300}}),
        workers=1,
    )
    with open_batches(config, prepare(config), 0) as batches, pytest.raises(InputError) as error:
        next(batches)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("data.corpus: no document with a token")


@pytest.mark.parametrize("workers", [0, 1])
def test_opening_leaves_the_random_state_of_the_model_alone(make_config: Make, workers: int) -> None:
    config = make_config(workers=workers)
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    with open_batches(config, prepare(config), seed=0) as batches:
        next(batches)
        assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize(("in_vain", "comes"), [(2, True), (3, False)])
def test_a_batch_is_lost_after_so_many_looks_in_vain_whatever_the_clock_says(in_vain: int, comes: bool) -> None:
    """A run that stands suspended during one of them (SIGSTOP) is charged for that look alone."""

    def looks() -> Iterator[str]:
        yield from ["late"] * in_vain
        yield "a batch"

    class Loader:
        def __init__(self) -> None:
            self.looks = looks()

        def __next__(self) -> str:
            if (found := next(self.looks)) == "late":
                raise RuntimeError("DataLoader timed out after 5.0 seconds")
            return found

    late = LateBatch(workers=2, timeout_s=15)
    assert late.look_s == 5
    if comes:
        assert late.wait(Loader()) == "a batch"  # type: ignore[arg-type, comparison-overlap]
        return
    with pytest.raises(LostBatchError, match=r"^no batch came from 2 loader workers within 15 s \(data\.timeout_s\)$"):
        late.wait(Loader())  # type: ignore[arg-type]


def test_a_loader_is_used_again_after_a_look_in_vain(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch takes longer than one look: DataLoader times out, and delivers it all the same."""
    monkeypatch.setattr("trainer.data.loader._LOOK_S", 0.05)
    config = make_config(workers=1, inject=DataInject(read_ms=400, how="sleep"))
    with open_batches(config, prepare(config), 0) as batches:
        assert [next(batches).samples for _ in range(2)] == [config.batch_size] * 2


def test_a_worker_that_stops_after_it_has_announced_a_batch_is_noticed(make_config, monkeypatch) -> None:
    """DataLoader then fetches the batch's memory from the worker, a wait of which its timeout knows nothing."""
    monkeypatch.setattr("trainer.data.loader._LOOK_S", 0.1)
    config = make_config(workers=1, timeout_s=240)
    with open_batches(config, prepare(config), 0) as batches:
        next(batches)
        batches._late._timeout_s = 0.3  # type: ignore[union-attr] # not for the first batch, which a busy machine delays
        (worker,) = batches._iterator._workers  # type: ignore[union-attr]
        assert batches._iterator._worker_result_queue._reader.poll(240)  # type: ignore[union-attr]
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(LostBatchError, match=r"^no batch came from 1 loader worker within 0.3 s"):
                list(islice(batches, config.prefetch + 1))
        finally:
            os.kill(worker.pid, signal.SIGCONT)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def without_shared_memory(_worker: int) -> None:
    """A new file of this process, in shared memory too, has at most 64 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_batch_that_a_worker_cannot_hand_over_is_lost_at_once(make_config: Make) -> None:
    """It was lost after data.timeout_s, 300 s, although the worker had printed the error long before."""
    config = make_config(workers=2)
    lost = r"^loader-0 could not hand over a batch: RuntimeError: .*File too large"
    batches = open_batches(config, prepare(config), 0, worker_init=without_shared_memory)
    with batches, pytest.raises(LostBatchError, match=lost):
        next(batches)
