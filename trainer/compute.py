"""Where a batch is computed: one interface, several residents.

``TorchCompute`` is the real thing; ``trainer.emulated.EmulatedCompute`` is a device on paper; ``NoCompute`` drops every
batch (the data-only control); ``InjectedCompute`` adds declared costs to another.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from trainer.config import ComputeInject, TrainerConfig
from trainer.cuda_timeline import CudaTimeline
from trainer.data.batch import Batch
from trainer.emulated import build_emulated
from trainer.errors import InputError
from trainer.inject import Injector
from trainer.model import Shape

if TYPE_CHECKING:
    import torch

Loss = Any  # what forward returns: a device scalar for torch, None where nothing is computed


class Compute(Protocol):
    """What the loop asks of a device. Only ``check_finite``, ``read_losses`` and ``synchronize`` may block the host."""

    device: str
    asynchronous: bool  # whether the host runs ahead of the device
    emulated: bool  # whether the device exists on paper only

    def begin_step(self, step: int) -> None:
        """Called once per step, before its first batch is asked for."""

    def to_device(self, batch: Batch) -> Batch: ...

    def forward(self, batch: Batch) -> Loss: ...

    def backward(self, loss: Loss) -> None:
        """Accumulate the gradients of ``loss`` divided by the number of micro-batches."""

    def clip_gradients(self) -> Any:
        """Clip to the configured norm; the global norm as a device scalar (None where there is none)."""

    def check_finite(self, norm: Any, step: int) -> None:
        """Block until ``norm`` is known; FloatingPointError where it is NaN or infinite."""

    def optimizer_step(self) -> None: ...

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        """Block until known: for each step the mean loss over its micro-batches."""

    def catch_up(self) -> None:
        """Block until the device is at most one step behind: all is done that was queued before this step began."""

    def synchronize(self) -> None:
        """Block until the device has nothing left to do."""


class TorchCompute:
    """A transformers model with AdamW on a torch device."""

    emulated = False

    def __init__(self, config: TrainerConfig, model: torch.nn.Module, device: torch.device) -> None:
        import torch

        self._torch = torch
        self.device = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        self.asynchronous = device.type != "cpu"
        self._device = device
        dtype = torch.bfloat16 if config.compute.precision == "pure-bf16" else None
        self._model = model.to(device, dtype).train()
        self._config = config.optimizer
        self._autocast = config.compute.precision == "bf16"
        self._extra_forwards = config.compute.extra_forwards
        decayed = [p for p in model.parameters() if p.dim() >= 2]
        others = [p for p in model.parameters() if p.dim() < 2]  # biases and norms: no weight decay, by custom
        optimizer = config.optimizer
        self._optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": optimizer.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            fused=True if optimizer.fused is None else optimizer.fused,
        )
        warmup = optimizer.lr_warmup_steps
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: min(1.0, (step + 1) / warmup) if warmup else 1.0
        )

    def begin_step(self, step: int) -> None:
        pass

    def to_device(self, batch: Batch) -> Batch:
        if self._device.type == "cpu":
            return batch
        mask = batch.attention_mask
        return Batch(
            batch.input_ids.to(self._device, non_blocking=True),
            batch.labels.to(self._device, non_blocking=True),
            None if mask is None else mask.to(self._device, non_blocking=True),
            batch.tokens,
            batch.trained_tokens,
            batch.samples,
            batch.trace,
        )

    def forward(self, batch: Batch) -> Loss:
        for _ in range(self._extra_forwards):
            # Leaving autocast empties its cache: weights cast to bf16 under no_grad would get no gradient.
            with self._torch.no_grad():
                self._run_model(batch)
        output = self._run_model(batch)
        # The mean over no label at all is NaN; such a batch (documents of one token) trains nothing instead.
        return output.loss if batch.trained_tokens else output.logits.sum() * 0.0

    def _run_model(self, batch: Batch) -> Any:
        with self._torch.autocast(self._device.type, self._torch.bfloat16, enabled=self._autocast):
            return self._model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels)

    def backward(self, loss: Loss) -> None:
        (loss / self._config.accumulation).backward()

    def clip_gradients(self) -> Any:
        limit = self._config.clip_norm if self._config.clip_norm is not None else math.inf
        return self._torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit)

    def check_finite(self, norm: Any, step: int) -> None:
        if not math.isfinite(value := norm.item()):
            raise FloatingPointError(f"step {step}: the gradient norm is {value}: is optimizer.learning_rate too high?")

    def optimizer_step(self) -> None:
        self._optimizer.step()
        self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        means = self._torch.stack([self._torch.stack(step).mean() for step in losses])
        return [float(value) for value in means.tolist()]  # one transfer for all of them

    def catch_up(self) -> None:
        pass  # a CPU is never behind; CudaTimeline knows where a CUDA device is

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)


class NoCompute:
    """Drops every batch: what remains of a step is its input side."""

    device = "none"
    asynchronous = False
    emulated = False

    def begin_step(self, step: int) -> None:
        pass

    def to_device(self, batch: Batch) -> Batch:
        return batch

    def forward(self, batch: Batch) -> Loss:
        return None

    def backward(self, loss: Loss) -> None:
        pass

    def clip_gradients(self) -> Any:
        return None

    def check_finite(self, norm: Any, step: int) -> None:
        pass

    def optimizer_step(self) -> None:
        pass

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        return [None] * len(losses)

    def catch_up(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


class InjectedCompute:
    """Another compute, with declared costs on the host's main thread on top."""

    def __init__(self, inner: Compute, inject: ComputeInject, seed: int, micro_batches: int = 1) -> None:
        self._inner = inner
        self._cost = Injector(inject, seed, parts={"forward": micro_batches, "backward": micro_batches})
        self.device = inner.device
        self.asynchronous = inner.asynchronous
        self.emulated = inner.emulated

    def begin_step(self, step: int) -> None:
        self._inner.begin_step(step)
        self._cost.spend("other")

    def to_device(self, batch: Batch) -> Batch:
        return self._inner.to_device(batch)

    def forward(self, batch: Batch) -> Loss:
        self._cost.spend("forward")
        return self._inner.forward(batch)

    def backward(self, loss: Loss) -> None:
        self._cost.spend("backward")
        self._inner.backward(loss)

    def clip_gradients(self) -> Any:
        return self._inner.clip_gradients()

    def check_finite(self, norm: Any, step: int) -> None:
        self._cost.spend("sync")
        self._inner.check_finite(norm, step)

    def optimizer_step(self) -> None:
        self._cost.spend("optimizer")
        self._inner.optimizer_step()

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        return self._inner.read_losses(losses)

    def catch_up(self) -> None:
        self._inner.catch_up()

    def synchronize(self) -> None:
        self._inner.synchronize()


def build_compute(config: TrainerConfig, tokenizer_vocab_size: int) -> Compute:
    """The compute that ``config`` declares, seeded; InputError where this machine cannot give it."""
    compute: Compute
    if config.compute.work == "none":
        compute = NoCompute()
    else:
        from trainer.model import resolve_shape

        shape = resolve_shape(config.model, tokenizer_vocab_size, config.data.sequence_length)
        compute = _torch_compute(config, shape) if config.compute.emulated is None else build_emulated(config, shape)
        if isinstance(compute, TorchCompute) and compute.asynchronous:
            compute = CudaTimeline(compute, pinned=config.data.pin_memory)
    if config.compute.inject is not None:
        compute = InjectedCompute(compute, config.compute.inject, config.seed, config.optimizer.accumulation)
    return compute


def _torch_compute(config: TrainerConfig, shape: Shape) -> TorchCompute:
    import torch

    from trainer.model import build_model

    assert isinstance(config.compute.device, str)
    device = _device(config.compute.device)
    if config.compute.threads is not None:
        torch.set_num_threads(config.compute.threads)
    torch.manual_seed(config.seed)
    return TorchCompute(config, build_model(shape), device)


def _device(name: str) -> torch.device:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("compute.device: cuda, but this torch sees no CUDA device; allowed here: auto, cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
