"""One contestant of ``tests.benchmarks.training_peers``, in a process of its own.

    python -m tests.benchmarks.peer_loops KIND DESCRIPTOR PARENT FOLDER

It speaks the harness's own protocol between launcher and run (``harness/launch/protocol.py``) over the socket
DESCRIPTOR: the same warm-up and the same orders for all. KIND is one of

    ours          the loop of trainer/loop.py, with no recorder attached
    ours+gelu     the same with model.fused_gelu, which rounds otherwise
    ours+ledger   a run of the harness as any study has it: ledger, run-queue delay, sampler (harness/launch/child.py)
    nanogpt       a loop in the manner of nanoGPT's train.py (Karpathy 2022), in our own words
    transformers  the Trainer of transformers

All build the same model from the same seed. FOLDER holds inputs.bin and labels.bin: the rows of the batches that our
own data path yields, which the last two read through numpy.memmap. What they need of the others is given to them: fused
AdamW, which nanoGPT's own choice would not take on a CPU, and no progress bar.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from harness.launch.channel import Channel
from trainer import telemetry
from trainer.compute.build import build_compute
from trainer.config import TrainerConfig, recorded_config
from trainer.data.prepare import prepare
from trainer.lifetime import die_with_parent
from trainer.model import build_model, resolve_shape

OURS, LEDGER, FUSED, NANOGPT, TRANSFORMERS = "ours", "ours+ledger", "ours+gelu", "nanogpt", "transformers"
LOG_EVERY = 10  # steps, as nanoGPT's log_interval; the Trainer keeps its own 500


class Slices:
    """Counts steps: the warm-up, then as many as each order asks for. Measures the time of those that count."""

    def __init__(self, channel: Channel, warmup: int) -> None:
        self._channel = channel
        self._left, self._counted, self._steps = warmup, False, 0
        self._begin_ns = 0
        self._event: dict[str, Any] = {"event": "ready"}
        self.losses: list[float] = []  # of the warm-up, for the first answer

    @property
    def warm(self) -> bool:
        """Whether the warm-up before the first order is over."""
        return self._event["event"] != "ready"

    def step_ended(self) -> bool:
        """Call it after each step; False where no other is asked for. Waits for the next order at the end of one."""
        self._left -= 1
        while not self._left:
            now = perf_counter_ns()
            if self._event["event"] == "turn" and not self._counted:  # the warm-up of this order is over
                self._left, self._counted, self._begin_ns = self._steps, True, now
                continue
            if self._counted:
                self._event["ns"] = now - self._begin_ns
            self._channel.send(self._event | {"losses": self.losses})  # type: ignore[arg-type]
            self.losses = []
            order = self._channel.receive_order()
            if order["do"] != "turn":
                self._channel.send({"event": "done"})
                return False
            self._event = {"event": "turn"}
            self._left, self._steps, self._counted = order["settle"], order["steps"], False
        return True


class Rows:
    """The rows of the batches, one after the other: torch's map-style dataset, as the Trainer takes it."""

    def __init__(self, folder: Path, length: int) -> None:
        self.inputs = np.memmap(folder / "inputs.bin", dtype=np.uint16, mode="r").reshape(-1, length)
        self.labels = np.memmap(folder / "labels.bin", dtype=np.int32, mode="r").reshape(-1, length)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.from_numpy(self.inputs[row].astype(np.int64)),
            "labels": torch.from_numpy(self.labels[row].astype(np.int64)),
        }


def model_of(config: TrainerConfig) -> Any:
    """The model that our trainer would train, from its seed, with its threads, and nothing else of ours."""
    assert config.compute.threads is not None
    torch.set_num_threads(config.compute.threads)
    torch.manual_seed(config.seed)
    return build_model(
        resolve_shape(config.model, prepare(config.data).vocab_size, config.data.sequence_length)
    ).train()


def ours(config: TrainerConfig, slices: Slices) -> None:
    """Without any recorder once it is warm: until then one notes the losses."""
    from harness.probes.ledger.recorders import BareRecorder
    from trainer.data.loader import open_batches
    from trainer.loop import train

    prepared = prepare(config.data)
    noted = BareRecorder()
    telemetry.attach(noted)
    with open_batches(config.data, prepared, config.seed) as batches:
        steps = train(config, build_compute(config, prepared.vocab_size), batches, prints=False)
        for _ in steps:
            if not slices.warm:
                slices.losses = list(noted.losses.values())
                if len(slices.losses) == config.warmup_steps:
                    telemetry.attach(None)
            if not slices.step_ended():
                break
        steps.close()  # type: ignore[attr-defined]


def nanogpt(config: TrainerConfig, slices: Slices, folder: Path) -> None:
    """In the manner of nanoGPT's train.py: the next batch is read behind the forward pass, and set from one array."""
    for loss in _nanogpt_steps(config, folder):
        if not slices.warm:
            slices.losses.append(loss.item())
        if not slices.step_ended():
            break


def _nanogpt_steps(config: TrainerConfig, folder: Path) -> Iterator[torch.Tensor]:
    data, settings = config.data, config.optimizer
    model = model_of(config)
    rows = Rows(folder, data.sequence_length)
    half = {"bf16": torch.bfloat16}.get(config.compute.precision)
    context: Any = nullcontext() if half is None else torch.autocast("cpu", half)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (settings.beta1, settings.beta2)
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=betas, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    accumulation = settings.accumulation

    def get_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        places = range(number * data.batch_size, (number + 1) * data.batch_size)
        x = torch.stack([torch.from_numpy(rows.inputs[i].astype(np.int64)) for i in places])
        y = torch.stack([torch.from_numpy(rows.labels[i].astype(np.int64)) for i in places])
        return x, y

    number = 0
    x, y = get_batch(number)
    for step in range(10**9):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate  # its schedule, which here is constant for all
        for _ in range(accumulation):
            with context:
                loss = model(input_ids=x, labels=y).loss / accumulation
            number += 1
            x, y = get_batch(number)
            scaler.scale(loss).backward()
        if settings.clip_norm is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            print(f"iter {step}: loss {loss.item() * accumulation:.4f}", flush=True)
        yield loss


def transformers(config: TrainerConfig, slices: Slices, folder: Path) -> None:
    """The Trainer with what makes it fast here, and the same order of rows."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

    data, settings = config.data, config.optimizer
    rows = Rows(folder, data.sequence_length)

    class Counting(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = not slices.step_ended()

    class Noting(Trainer):
        def training_step(self, *words: Any, **named: Any) -> torch.Tensor:
            loss = super().training_step(*words, **named)
            if not slices.warm:
                slices.losses.append(loss.item())
            return loss

    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=data.batch_size,
        gradient_accumulation_steps=settings.accumulation,
        max_steps=len(rows) // (data.batch_size * settings.accumulation),
        train_sampling_strategy="sequential",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=settings.weight_decay,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        max_grad_norm=0.0 if settings.clip_norm is None else settings.clip_norm,
        optim="adamw_torch_fused",
        bf16=config.compute.precision == "bf16",
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        seed=config.seed,
    )
    Noting(
        model=model_of(config),
        args=arguments,
        train_dataset=rows,  # type: ignore[arg-type]
        data_collator=default_data_collator,
        callbacks=[Counting()],
    ).train()


def serve(kind: str, channel: Channel, folder: Path) -> None:
    """Train as the orders say that come over ``channel``."""
    config = recorded_config(channel.receive_start()["record"]["config"])  # type: ignore[arg-type]
    slices = Slices(channel, config.warmup_steps)
    if kind in (OURS, FUSED):
        ours(config, slices)
    elif kind == NANOGPT:
        nanogpt(config, slices, folder)
    else:
        transformers(config, slices, folder)


def main() -> int:
    kind, descriptor, parent, folder = sys.argv[1:]
    if kind == LEDGER:
        from harness.launch import child

        return child.main(int(descriptor), int(parent))
    die_with_parent(int(parent))
    warnings.simplefilter("ignore")
    serve(kind, Channel(socket.socket(fileno=int(descriptor))), Path(folder))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # nothing is left to end: the Trainer's and torch's own threads take a second
