"""A run that was out of memory says what would fit, whoever found out: Python, torch on a CPU or a card, the kernel."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch

from harness.launch import out_of_memory
from harness.launch.needs import GIB
from harness.launch.out_of_memory import (
    advice,
    advice_for_a_killed_run,
    advice_for_this_run,
    is_out_of_memory,
    memory_of_this_run,
)
from harness.launch.process import _reason
from trainer.config import TrainerConfig


def config(**keys: Any) -> TrainerConfig:
    data = {"batch_size": 512, "sequence_length": 1024}
    return TrainerConfig.model_validate({"model": {"preset": "gpt2-small"}, "data": data} | keys)


def test_what_torch_raises_on_a_cpu_without_memory_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_a_run_that_the_kernel_killed_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory, "free_host_bytes", lambda: 24 * GIB)
    line = _reason(-signal.SIGKILL, config().model_dump(mode="json"))
    assert line.startswith("the process was killed by SIGKILL (out of memory?); by estimate batch_size 512 needs ")
    assert "; data.batch_size " in line
    assert "\n" not in line
    assert _reason(-signal.SIGTERM, config().model_dump(mode="json")) == "the process was killed by SIGTERM"


def test_ranks_share_the_memory_of_their_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits one process of 24 GiB does not fit each of four: together they have 24 GiB."""
    monkeypatch.setattr(out_of_memory, "free_host_bytes", lambda: 24 * GIB)
    contents = (config(launch={"torchrun": {"nproc": ranks}}).model_dump(mode="json") for ranks in (1, 4))
    alone, shared = map(advice_for_a_killed_run, contents)
    assert ", and 24.0 GiB is available;" in alone
    assert shared.startswith("; by estimate batch_size 512 needs of each rank ")
    assert ", and 6.0 GiB is available;" in shared
    own, one_of_four = memory_of_this_run(on_card=False), memory_of_this_run(on_card=False, ranks=4)
    assert own is not None
    assert one_of_four is not None
    assert own - one_of_four == pytest.approx(18 * GIB, rel=0.01)
    assert one_of_four - 6 * GIB > 100 * 2**20  # what a run holds itself counts as its own: torch alone takes more


def test_what_fits_leaves_room_for_the_copy_of_a_checkpoint() -> None:
    data = {"batch_size": 64, "sequence_length": 64}
    without, copied = (
        advice(config(data=data, checkpoint={"asynchronous": one}), None, 4 * GIB) for one in (False, True)
    )
    sizes = [int(line.split("data.batch_size ")[1].split()[0]) for line in (without, copied)]
    assert sizes[0] > sizes[1]


def test_where_the_need_is_not_known_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    factory, none = config(model={"factory": "a:b"}), config(compute={"work": "none"})
    assert advice(factory, 300, 24 * GIB) == advice(none, 300, 24 * GIB) == advice(config(), 300, None) == ""
    hub = config(model={}, data={"tokenizer": {"pretrained": "nowhere"}})  # only its tokenizer knows how large it is
    assert advice(hub, None, 24 * GIB) == ""
    assert "data.batch_size 8 takes" not in advice(hub, 300, 24 * GIB) != ""
    monkeypatch.setattr(out_of_memory, "free_host_bytes", lambda: 24 * GIB)
    assert advice_for_a_killed_run({"model": {"of another": "state"}}) == ""


def test_what_the_host_lacks_says_nothing_of_a_model_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory, "free_host_bytes", lambda: 24 * GIB)
    on_card = config(compute={"device": "cuda"})
    assert advice_for_a_killed_run(on_card.model_dump(mode="json")) == ""
    assert advice_for_this_run(on_card, 50257, MemoryError()) == ""
    assert "data.batch_size " in advice_for_this_run(config(compute={"device": "cpu"}), 50257, MemoryError())
    assert advice_for_this_run(config(), 50257, ValueError("no memory")) == ""
