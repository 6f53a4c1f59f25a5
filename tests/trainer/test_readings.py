"""When the host reads loss and norm: nothing within the step (late), the norm (norm), or both (every-step)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.trainer.compute.test_emulated import Log
from trainer import telemetry
from trainer.checkpoint import Saver
from trainer.compute.build import build_compute
from trainer.compute.torch_compute import TorchCompute
from trainer.config import TrainerConfig, recorded_config
from trainer.data.batch import Batch
from trainer.loop import train

MODEL = {"layers": 1, "width": 32, "heads": 2, "ffn_width": 64, "vocab_size": 64}
KERNELS = {"h2d_ms": 0.1, "forward_ms": 0.2, "backward_ms": 0.4, "norm_ms": 0.1, "optimizer_ms": 0.3}


class Events(Log):
    """Keeps steps, phases and losses in their order, too."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[object] = []

    def step(self, index: int) -> None:
        self.events.append(("step", index))

    def enter(self, name: str) -> None:
        self.events.append(name)

    def loss(self, step: int, value: float) -> None:
        self.events.append(("loss", step, value))

    @property
    def losses(self) -> dict[int, float]:
        return {one[1]: one[2] for one in self.events if isinstance(one, tuple) and one[0] == "loss"}


@pytest.fixture
def seen() -> Iterator[Events]:
    recorder = Events()
    telemetry.attach(recorder)
    yield recorder
    telemetry.attach(None)


def config(sync: str, *, log_every: int = 3, accumulation: int = 2, **compute: Any) -> TrainerConfig:
    return TrainerConfig.model_validate(
        {
            "model": MODEL,
            "data": {"sequence_length": 16, "batch_size": 2},
            "optimizer": {"learning_rate": 1e-2, "lr_warmup_steps": 0, "accumulation": accumulation},
            "compute": {"device": "cpu", "threads": 1, "sync": sync, **compute},
            "log_every": log_every,
        }
    )


def batches() -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(1)
    while True:
        ids = torch.randint(0, 64, (2, 16), generator=generator)
        yield Batch(ids, ids, None, 32, 30, 2)


def on_cpu(settings: TrainerConfig, *, asynchronous: bool) -> TorchCompute:
    """A CPU that the loop takes for a device which runs behind: the values are real, and read when the loop says."""
    compute = build_compute(settings, 64)
    compute.asynchronous = asynchronous
    return compute


def run(settings: TrainerConfig, steps: int, seen: Events, *, asynchronous: bool) -> dict[int, float]:
    loop = train(settings, on_cpu(settings, asynchronous=asynchronous), batches())
    for _ in itertools.islice(loop, steps):
        pass
    loop.close()
    return seen.losses


def test_every_way_of_reading_reports_the_same_losses(capsys: pytest.CaptureFixture[str]) -> None:
    found, said = {}, {}
    for sync, asynchronous in (("norm", True), ("late", True), ("late", False), ("every-step", True)):
        seen = Events()
        telemetry.attach(seen)
        found[sync, asynchronous] = run(config(sync), 6, seen, asynchronous=asynchronous)
        telemetry.attach(None)
        said[sync, asynchronous] = capsys.readouterr().out
    expected = found["norm", True]
    assert sorted(expected) == [0, 1, 2, 3, 4, 5]
    assert all(losses == expected for losses in found.values())
    assert all(text == said["norm", True] for text in said.values())
    assert said["norm", True].count("step ") == 2


def test_late_reads_a_step_when_the_next_one_is_launched(seen: Events) -> None:
    run(config("late", log_every=2), 3, seen, asynchronous=True)
    events = [one[:2] if isinstance(one, tuple) else one for one in seen.events]
    step = ["fetch", "h2d", "forward", "backward"] * 2 + ["optimizer", "sync", "optimizer"]
    assert events == [
        *(("step", 0), *step),
        *(("step", 1), *step, "sync", ("loss", 0)),
        *(("step", 2), *step, "sync", ("loss", 1), "log"),
        *("sync", ("loss", 2)),
    ]


def test_every_step_reads_the_loss_behind_the_optimizer(seen: Events) -> None:
    run(config("every-step"), 1, seen, asynchronous=True)
    names = [one[0] if isinstance(one, tuple) else one for one in seen.events][9:]
    assert names == ["optimizer", "sync", "optimizer", "sync", "loss"]


def poisoned(sync: str, *, asynchronous: bool, at: int = 2) -> tuple[int, str]:
    """How many steps ended, and what was said, of a run whose weights are NaN from step ``at``."""
    settings = config(sync, accumulation=1)
    compute = on_cpu(settings, asynchronous=asynchronous)
    loop, done = train(settings, compute, batches()), 0
    with pytest.raises(FloatingPointError) as caught:  # noqa: PT012
        for step in loop:
            done += 1
            if step + 1 == at:
                with torch.no_grad():
                    next(compute._model.parameters()).fill_(math.nan)
    return done, str(caught.value)


@pytest.mark.parametrize(
    ("sync", "asynchronous", "done"),
    [("norm", True, 2), ("every-step", True, 2), ("late", False, 2), ("late", True, 3)],
)
def test_a_norm_that_is_not_finite_stops_the_run_and_says_its_step(sync: str, asynchronous: bool, done: int) -> None:
    assert poisoned(sync, asynchronous=asynchronous) == (
        done,
        "step 2: the gradient norm is nan: is optimizer.learning_rate too high?",
    )


def test_late_judges_the_last_step_when_the_run_ends() -> None:
    settings = config("late", accumulation=1)
    compute = on_cpu(settings, asynchronous=True)
    loop = train(settings, compute, batches())
    next(loop)
    with torch.no_grad():
        next(compute._model.parameters()).fill_(math.nan)
    next(loop)
    with pytest.raises(FloatingPointError, match=r"^step 1: the gradient norm is nan"):
        loop.close()


def test_no_checkpoint_includes_a_step_whose_norm_is_not_finite() -> None:
    """``late`` reads the norm one step later: a checkpoint that is due earlier waits for it."""
    settings = config("late", accumulation=1)
    compute = on_cpu(settings, asynchronous=True)
    saved: list[int] = []
    saver = cast(Saver, SimpleNamespace(is_due=lambda step: step in (1, 2), save=saved.append))
    loop = train(settings, compute, batches(), saver=saver)
    next(loop)
    with torch.no_grad():
        next(compute._model.parameters()).fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"^step 1: the gradient norm is nan"):
        next(loop)
    assert saved == [1]


def test_without_the_check_late_reports_losses_and_goes_on(seen: Events) -> None:
    losses = run(config("late", check_finite=False), 3, seen, asynchronous=True)
    assert sorted(losses) == [0, 1, 2]


def emulated(sync: str, seen: Events, **compute: Any) -> tuple[list[str], list[int]]:
    """What blocked in three steps, and until when: the device's time at the end of which kernel."""
    settings = config(sync, log_every=1000, accumulation=1, device={"emulated": "gh200", "kernels": KERNELS}, **compute)
    built = build_compute(settings, 64)
    queue, waited = built._queue, []
    wait = queue._wait

    def noted(until_ns: int, what: str, *, ahead: bool = False) -> None:
        waited.append(until_ns)
        wait(until_ns, what, ahead=ahead)

    queue._wait = noted  # type: ignore[method-assign]
    for _ in itertools.islice(train(settings, built, batches()), 3):
        pass
    return [call.site.partition(": ")[2] for call in seen.calls], waited


def test_an_emulated_device_is_read_late_without_running_dry(seen: Events) -> None:
    calls, waited = emulated("late", seen)
    assert [kernel.name for kernel in seen.kernels[:6]] == ["h2d", "forward", "backward", "norm", "read", "optimizer"]
    # The third reading is that of the end of the loop.
    assert calls == ["values of the step before"] * 3
    assert waited == [kernel.end_ns for kernel in seen.kernels if kernel.name == "norm"]
    # What was queued behind the first norm when the host began to wait for it: the rest of its step, and a whole one.
    first = next(index for index, kernel in enumerate(seen.kernels) if kernel.end_ns == waited[0])
    queued = [kernel.name for kernel in seen.kernels[first + 1 :] if kernel.launch_start_ns <= seen.calls[0].start_ns]
    assert queued == ["read", "optimizer", "h2d", "forward", "backward", "norm", "read", "optimizer"]


def test_an_emulated_device_that_is_read_each_step_runs_dry(seen: Events) -> None:
    calls, waited = emulated("every-step", seen)
    assert calls == ["value of the gradient norm", "values of the losses"] * 3
    assert waited[1] == max(kernel.end_ns for kernel in seen.kernels[:6])  # all of the first step is done


def test_a_record_without_the_key_means_what_it_meant() -> None:
    old = config("late").model_dump(mode="json")
    del old["compute"]["sync"]
    assert TrainerConfig.model_validate(old).compute.sync == "late"
    assert recorded_config(old).compute.sync == "norm"
    assert recorded_config({**old, "compute": {"sync": "every-step"}}).compute.sync == "every-step"
    assert recorded_config({}).compute.sync == "norm"
