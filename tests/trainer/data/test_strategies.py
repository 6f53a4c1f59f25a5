"""Every way to tokenize gives the same ids and the same batches; processes end with their pipeline, and say how."""

from __future__ import annotations

import multiprocessing
import os
import signal
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.harness.launch.running import alive, wait_for
from trainer.config import DataConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.data.strategies import InProcesses, InThreads, by_strategy, even_shares
from trainer.data.tokenizers import load_tokenizer
from trainer.errors import InputError, LostBatchError

TEXTS = ["def f(x):", "", "a longer text, of several words\nand lines\t", "¡Olé! 日本語", "x" * 300, "import os"]
BPE = {"kind": "bpe", "vocab_size": 512}
PIECES = {"kind": "sentencepiece", "vocab_size": 600}


def config(tokenize: str, train: dict[str, object] = BPE, **changes: object) -> DataConfig:
    return DataConfig.model_validate(
        {
            "corpus": {"builtin": "python-docs", "documents": 60},
            "tokenizer": {"train": train},
            "path": "text-padded",
            "sequence_length": 32,
            "batch_size": 3,
            "tokenize": tokenize,
            **changes,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("train", [BPE, pytest.param(PIECES, marks=pytest.mark.nightly)], ids=["bpe", "sentencepiece"])
def test_all_give_the_same_ids(train: dict[str, object]) -> None:
    info = prepare(config("batched", train)).tokenizer
    plain = load_tokenizer(info)
    expected = plain.encode_batch(TEXTS)
    assert expected == [plain.encode(text) for text in TEXTS]
    assert all(len(ids) > 0 for text, ids in zip(TEXTS, expected, strict=True) if text)
    assert max(map(max, filter(None, expected))) < info.vocab_size
    for tokenize in ("batched", "per-sample", "threads", "processes", "pool"):
        found = by_strategy(load_tokenizer(info), config(tokenize, tokenize_processes=2, tokenize_threads=3))
        for _ in range(2):
            assert found.encode_batch(TEXTS) == expected
            assert found.encode_batch(TEXTS[:1]) == expected[:1]  # fewer documents than processes
            assert found.encode_batch([]) == []
            flat = found.encode_flat(TEXTS)
            assert [part.tolist() for part in np.split(flat.ids, np.cumsum(flat.lengths)[:-1])] == expected
            assert len(found.encode_flat([]).lengths) == 0
        if isinstance(found, InProcesses | InThreads):
            found.close()


@pytest.mark.slow
def test_batches_are_the_same() -> None:
    batches = {}
    for tokenize in ("batched", "threads", "pool"):
        data = config(tokenize)
        with open_batches(data, prepare(data), seed=3) as opened:
            batches[tokenize] = [torch.cat([one.input_ids, one.labels]) for one in islice(opened, 3)]
    for found in batches.values():
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, batches["batched"], strict=True))


@pytest.mark.slow
def test_a_pool_stays_and_processes_do_not() -> None:
    info = prepare(config("batched")).tokenizer
    for stay in (True, False):
        found = InProcesses(load_tokenizer(info), 2, is_pool=stay, timeout_s=240)
        found.encode_batch(TEXTS)
        first = [one.process.pid for one in found._workers]
        found.encode_batch(TEXTS)
        again = [one.process.pid for one in found._workers]
        assert again == first
        assert len(first) == (2 if stay else 0)
        processes = [one.process for one in found._workers]
        found.close()
        assert not any(process.is_alive() for process in processes)


@pytest.mark.slow
def test_a_process_that_was_killed_is_named() -> None:
    found = InProcesses(load_tokenizer(prepare(config("batched")).tokenizer), 2, is_pool=True, timeout_s=240)
    found.encode_batch(TEXTS)
    victim = found._workers[1].process
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(30)
    with pytest.raises(LostBatchError, match=rf"^process {victim.pid} of data.tokenize ended with exit code -9$"):
        found.encode_batch(TEXTS)
    found.close()


def _begin(tell: Any, info: Any) -> None:
    found = InProcesses(load_tokenizer(info), 2, is_pool=True, timeout_s=240)
    found.encode_batch(TEXTS)
    tell.send([one.process.pid for one in found._workers])
    signal.pause()


@pytest.mark.slow
@pytest.mark.nightly
def test_processes_that_are_suspended_end_with_their_parent() -> None:
    """As a run does that is killed while another one has its turn."""
    context = multiprocessing.get_context("spawn")
    hear, tell = context.Pipe(duplex=False)
    parent = context.Process(target=_begin, args=(tell, prepare(config("batched")).tokenizer))
    parent.start()
    assert hear.poll(120)
    pids = hear.recv()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.join(30)
    wait_for(lambda: not any(alive(pid) for pid in pids), 30)


@pytest.mark.slow
def test_what_cannot_be_encoded_is_the_same_error_in_a_process() -> None:
    class Refuses:
        def encode(self, text: str) -> list[int]:
            raise InputError(f"cannot encode {text}")

        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            return [self.encode(text) for text in texts]

    found = InProcesses(Refuses(), 1, is_pool=True, timeout_s=240)
    with pytest.raises(InputError, match=r"^cannot encode this$"):
        found.encode_batch(["this"])
    found.close()


def test_shares_are_neighbours_of_about_the_same_length() -> None:
    texts = ["ab" * 50, *"abcdefgh", "", "x" * 92]
    assert [len("".join(share)) for share in even_shares(texts, 2)] == [100, 100]
    for count in (1, 2, 3, 7, 200):
        shares = even_shares(texts, count)
        assert [text for share in shares for text in share] == texts
        assert all(shares)
        assert len(shares) <= count
    assert even_shares(["", ""], 3) == [["", ""]]
    assert even_shares([], 3) == []


@pytest.mark.slow
def test_a_forked_process_starts_threads_of_its_own() -> None:
    found = InThreads(load_tokenizer(prepare(config("batched")).tokenizer), 2)
    expected = found.encode_batch(TEXTS)
    hear, tell = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: tell.send(found.encode_batch(TEXTS)))
    child.start()
    assert hear.poll(60)
    assert hear.recv() == expected
    child.join(30)
    assert child.exitcode == 0
    found.close()


def test_an_error_in_a_thread_is_raised_once_all_have_ended() -> None:
    class Refuses:
        ended = 0

        def encode(self, text: str) -> list[int]:
            raise AssertionError

        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            if "bad" in texts:
                raise InputError("cannot encode bad")
            self.ended += 1
            return [[len(text)] for text in texts]

    engine = Refuses()
    found = InThreads(engine, 3)
    with pytest.raises(InputError, match=r"^cannot encode bad$"):
        found.encode_batch(["bad", "one", "two"])
    assert engine.ended == 2
    found.close()


def test_loader_workers_start_no_processes() -> None:
    with pytest.raises(ValidationError, match=r"tokenize: pool starts processes.* allowed with workers 1: batched"):
        config("pool", workers=1)
    assert config("per-sample", workers=1).workers == 1
