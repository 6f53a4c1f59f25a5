"""Two real processes train one model over gloo: the same losses as one process with the same global batch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest
import torch

from tests.trainer.data.conftest import WORDS, write_parquet
from tests.trainer.rank_processes import rank_context
from trainer import telemetry
from trainer.compute.build import build_compute
from trainer.compute.parallel import Parallel
from trainer.config import LaunchConfig, TrainerConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.errors import InputError
from trainer.loop import train
from trainer.ranks import ALONE, Rank, RanksDifferError, leave, meeting_place

pytestmark = pytest.mark.slow

STEPS = 4
# Every row is full, so that the mean of the ranks' means is the mean over all labels.
TEXTS = [" ".join(WORDS[(one * 5 + at * (one + 3)) % len(WORDS)] for at in range(60)) for one in range(64)]
ARMS = {
    "ddp": {"parallel": "ddp"},
    "ddp, accumulation 2": {"parallel": "ddp"},
    "fsdp": {"parallel": "fsdp"},
    "fsdp, accumulation 2": {"parallel": "fsdp"},
}


class Recorder(telemetry.Recorder):
    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.exchanges: list[tuple[str, int, int]] = []
        self.samples = 0

    def loss(self, step: int, value: float) -> None:
        self.losses[step] = value

    def exchanged(self, name: str, start_ns: int, end_ns: int) -> None:
        self.exchanges.append((name, start_ns, end_ns))

    def received(self, trace: Any, tokens: int, trained_tokens: int, samples: int) -> None:
        self.samples += samples


def config(corpus: str, rows: int, accumulation: int = 1, **launch: object) -> TrainerConfig:
    data = {
        "corpus": {"parquet": corpus},
        "tokenizer": {"train": {"vocab_size": 300}},
        "sequence_length": 16,
        "batch_size": rows,
    }
    return TrainerConfig.model_validate(
        {
            "model": {"layers": 2, "width": 32},
            "data": data,
            "optimizer": {"lr_warmup_steps": 0, "accumulation": accumulation},
            "compute": {"device": "cpu", "threads": 1},
            "log_every": 3,  # the last step is read when the loop is closed
            "launch": {"torchrun": {"nproc": 2}, **launch} if launch else None,
        }
    )


def trained(asked: TrainerConfig, rank: Rank) -> tuple[Recorder, str | None, float | None]:
    """``STEPS`` steps; then, within one more, the loss as a device copies it, where each rank's own is its number."""
    prepared = prepare(asked.data)
    recorder = Recorder()
    telemetry.attach(recorder)
    try:
        with open_batches(asked.data, prepared, asked.seed, rank=rank) as batches:
            compute = build_compute(asked, prepared.tokenizer.vocab_size, rank)
            steps = train(asked, compute, batches)
            for _ in range(STEPS):
                next(steps)
            steps.close()  # type: ignore[attr-defined]
            digest = compute.end_together()
            compute.begin_step(STEPS)
            copied = compute.read_copy(compute.copy_to_host([torch.tensor(float(rank.number))], None), STEPS)
            leave()
    finally:
        telemetry.attach(None)
    return recorder, digest, copied


def serve(number, corpus, ports, places, answers, go) -> None:
    """Rank ``number``: each arm in turn, parameters that differ, then passes; rank 1 waits in its own for ``go``.

    ``places``: the sockets at ``ports``, of rank 0.
    """

    def at(name: str) -> Rank:
        listening = places.pop(name).detach() if places else None
        return Rank(number, 2, timeout_s=240, port=ports[name], listening=listening)

    for arm, launch in ARMS.items():
        asked = config(corpus, 2, 2 if "accumulation" in arm else 1, **launch)
        recorder, digest, copied = trained(asked, at(arm))
        waits = [end - start for _, start, end in recorder.exchanges]
        answers.send((recorder.losses, recorder.samples, digest, waits, copied))
    launched = config(corpus, 2, parallel="ddp").launch
    assert launched is not None
    parallel = Parallel(launched, at("differ"), torch.device("cpu"), 1)
    model = torch.nn.Linear(2, 2)
    parallel.wrap(model)
    torch.nn.init.constant_(model.weight, float(number))
    try:
        parallel.same_parameters()
    except RanksDifferError as error:
        answers.send(str(error))
    with parallel.in_a_pass():
        if number == 0:
            answers.send("within")
        else:
            go.wait(240)
        own_ns = monotonic_ns()
    answers.send((own_ns, monotonic_ns()))
    with suppress(ValueError), parallel.in_a_pass():
        raise ValueError
    answers.send(float(parallel.mean_of(torch.tensor(float(number)))))
    parallel.leave()


def test_two_ranks_train_what_one_process_trains(tmp_path: Path) -> None:
    corpus = str(write_parquet(tmp_path / "texts.parquet", TEXTS))
    alone = {rows: trained(config(corpus, rows), ALONE)[0] for rows in (4, 8)}
    assert alone[4].losses[0] > alone[4].losses[STEPS - 1]  # it trains
    places = {arm: meeting_place() for arm in [*ARMS, "differ"]}
    ports = {arm: place.getsockname()[1] for arm, place in places.items()}
    context = rank_context()
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    go = context.Event()
    ranks = [
        context.Process(
            target=serve, args=(number, corpus, ports, {} if number else places, pipes[number][1], go), daemon=True
        )
        for number in range(2)
    ]
    for process, (_, theirs) in zip(ranks, pipes, strict=True):
        process.start()
        theirs.close()
    for place in places.values():  # rank 0 holds them now
        place.close()

    def answer(number: int) -> Any:
        assert pipes[number][0].poll(120), f"rank {number} says nothing"
        return pipes[number][0].recv()

    for arm in ARMS:
        rows = 8 if "accumulation" in arm else 4
        (losses, samples, digest, waits, copied), other = answer(0), answer(1)
        assert losses == pytest.approx(alone[rows].losses, rel=2e-6), arm
        assert other[0] == losses
        assert samples == other[1] == alone[rows].samples // 2
        assert digest == other[2] is not None
        assert copied == other[4] == 0.5  # of the ranks' 0.0 and 1.0, within a step
        assert len(waits) == (STEPS if "ddp" in arm else 0)  # once a step, under accumulation too
        assert all(wait > 0 for wait in waits)
    for number in range(2):
        line = answer(number)
        assert line.startswith("rank 1 has different parameters than rank 0 at the end of the run (SHA-256 ")
        assert "\n" not in line
    assert answer(0) == "within"
    go.set()
    (_, through_ns), (slow_ns, _) = answer(0), answer(1)
    assert through_ns >= slow_ns  # no rank's step begins in another one's pass
    assert [answer(number) for number in range(2)] == [0.0, 1.0]  # a pass broke off: nothing is exchanged any more
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0


def test_parameters_without_a_gradient_are_a_line_under_ddp() -> None:
    """One rank alone: torch's own line comes a step later, and names no key."""

    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.never = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.used(values).sum()
            return result

    place = meeting_place()
    rank = Rank(0, 1, place.getsockname()[1], place.detach(), 60)
    parallel = Parallel(LaunchConfig(), rank, torch.device("cpu"), 1)
    try:
        model = parallel.wrap(Half())
        parallel.begin_step()
        parallel.begin_forward()
        model(torch.ones(1, 2)).backward()
        with pytest.raises(
            InputError, match=r"^launch.parallel: ddp .* 2 take no part in the loss \(never.weight, neve"
        ):
            parallel.end_backward()
    finally:
        parallel.leave()
