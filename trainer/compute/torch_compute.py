"""Trains a transformers model with AdamW on a torch device (CPU or CUDA)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer.compute import attention
from trainer.compute.attention import check_separation, known, several_documents, teach_transformers
from trainer.compute.base import Compute, Loss, Stateful
from trainer.compute.modes import NormCheck, Precision, compiled, fuse_gelu, keep_layer_inputs_alone, loss_function
from trainer.compute.optimizer import GradientClipping, learning_rate_factors, parameter_groups, rate_factor
from trainer.compute.parallel import Parallel
from trainer.compute.scores import EndingRow, Scores, evaluating, log_likelihoods, validate
from trainer.config import TrainerConfig
from trainer.data.batch import IGNORED, Batch, InFlight
from trainer.errors import InputError
from trainer.generate import Generated, TokenChoice, generate
from trainer.model_files import objective_of
from trainer.trained_model import TrainedModel

if TYPE_CHECKING:
    import torch


class _Copy(NamedTuple):
    """Copy of a step's loss and norm to the host. ``event``: reached when it has arrived; None if it is there."""

    values: Any
    event: Any


class TorchCompute(Compute):
    """Compute that trains a transformers model, or a user's own, with AdamW on a torch device."""

    emulated = False

    def __init__(
        self, config: TrainerConfig, model: torch.nn.Module, device: torch.device, parallel: Parallel | None = None
    ) -> None:
        """Set up model, optimizer and schedule. ``parallel``: link to the other ranks; None with one rank."""
        import torch

        self._torch = torch
        self.device = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        self.asynchronous = device.type != "cpu"
        self._device = device
        self._precision = Precision(config.compute.precision, device)
        self._scaling = self._precision.scaling
        self._norm_check = NormCheck(self._scaling)
        self._model = model.to(device, self._precision.weights).train()
        self.parameters: int | None = sum(parameter.numel() for parameter in model.parameters())
        self._own = config.model.factory
        self._source = config.data.source
        self._vocab_size: int | None = getattr(getattr(model, "config", None), "vocab_size", None)
        if self._own is not None:
            self._vocab_size = config.model.vocab_size
        self._takes_mask = _takes(model, "attention_mask")
        positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        # The last id of a row is only a target, so it needs no position. A user's own model gets all ids.
        self.longest_row: int | None = (positions or config.data.sequence_length) + 1
        if self._own is not None:
            self.longest_row = config.data.sequence_length
        self._most_ids = config.data.batch_size * config.data.sequence_length  # positions of a training batch
        self._pinned, self._in_flight = config.data.pin_memory, InFlight()
        if config.data.documents == "separated" and config.data.source is None:
            check_separation(config, self._model)
        self._shifted = objective_of(config.model) == "causal"
        self._attention = partial(attention.kernels, config)
        self.attention: str | None = getattr(getattr(model, "config", None), "_attn_implementation", None)
        if self._own is None:
            teach_transformers()
        if config.model.fused_gelu:
            fuse_gelu(self._model)
        if config.model.activation_checkpointing:
            keep_layer_inputs_alone(self._model)
        self._config = config.optimizer
        self._extra_forwards = config.compute.extra_forwards
        self._parallel = parallel
        rates = learning_rate_factors(self._model, config.model.mup)
        if parallel is not None:  # Before the optimizer, because fsdp replaces the parameters.
            self._model = parallel.wrap(self._model)
            model = self._model
        self._compiled = config.model.compile
        self._run: Callable[..., Any] = compiled(self._model, device) if self._compiled else self._model
        # DistributedDataParallel is compiled as a module: torch splits its graph at the buckets of gradients.
        self._gives_loss_alone = self._compiled and self._own is None and parallel is None
        self._train = compiled(loss_function(self._model), device) if self._gives_loss_alone else self._run
        optimizer = config.optimizer
        self._optimizer = torch.optim.AdamW(
            [dict(group) for group in parameter_groups(model, optimizer, rates)],
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            fused=True if optimizer.fused is None else optimizer.fused,
        )
        self._clip = GradientClipping(model.parameters(), optimizer.clip_norm)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, rate_factor(config))

    def begin_step(self, step: int) -> None:
        if self._parallel is not None:
            self._parallel.begin_step()

    def to_device(self, batch: Batch) -> Batch:
        if self._device.type == "cpu":
            return batch
        # A device reports only "device-side assert", and late. So the tokens are checked in the host's memory.
        if self._source is not None and self._own is None and (wrong := self._beyond(batch)) is not None:
            raise wrong
        mask = None  # see _run_model
        if batch.masked and batch.attention_mask is not None:
            mask = batch.attention_mask.to(self._device, non_blocking=True)
        positions, several = None, None
        if batch.position_ids is not None:
            several = several_documents(batch.position_ids)
            positions = batch.position_ids.to(self._device, non_blocking=True)
        copied = replace(
            batch,
            input_ids=batch.input_ids.to(self._device, non_blocking=True),
            labels=batch.labels.to(self._device, non_blocking=True),
            attention_mask=mask,
            position_ids=positions,
            several_documents=several,
        )
        if self._pinned and self._device.type == "cuda":  # A copy from pageable memory is complete when it returns.
            event: Any = self._torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._in_flight.hold(batch, event.query)
        return copied

    def forward(self, batch: Batch) -> Loss:
        for _ in range(self._extra_forwards):
            # Leaving autocast empties its cache. Otherwise weights cast to bf16 under no_grad would get no gradient.
            with self._torch.no_grad():
                self._run_model(batch, self._train)
        if self._parallel is not None:
            self._parallel.begin_forward()
        # The mean over no labels is NaN, so a batch without labels (documents of one token) must train nothing. A
        # user's own model or a compiled one returns only the loss: it gets one label, and the loss is multiplied by 0.
        if self._own is not None or self._gives_loss_alone:
            if batch.trained_tokens:
                return self._loss(batch)
            return self._loss(_with_one_label(batch)) * 0.0
        output = self._run_model(batch, self._run)
        return output.loss if batch.trained_tokens else output.logits.sum() * 0.0

    def _loss(self, batch: Batch) -> Loss:
        output = self._run_model(batch, self._train)
        return output if self._own is None else loss_of(output, self._own)

    def _run_model(self, batch: Batch, run: Callable[..., Any]) -> Any:
        # Padded rows need no mask: padding follows the text, so no position with a label attends to it. The fastest
        # attention kernels do not support a mask. A user's source may pad before the text.
        mask = {"attention_mask": batch.attention_mask} if batch.masked else {}
        several: bool | None = False
        if batch.position_ids is not None:
            # Always True for a compiled model, which otherwise compiles again for a batch of the other kind.
            several = True if self._compiled else batch.several_documents
            mask["position_ids"] = batch.position_ids
        if batch.masked and not self._takes_mask:
            raise InputError(
                f"data.source: {self._source} gives padding before text, but the module of {self._own} has no "
                "parameter attention_mask; pad after the text, or give its forward that parameter"
            )
        assert batch.shifted == self._shifted, "the batches are of another objective than the model"
        # The positions that a transformers model within a user's own model gets are unknown.
        rows = known(several if self._own is None else None)
        with self._precision.autocast(), self._attention(), rows:
            try:
                return run(input_ids=batch.input_ids, labels=batch.labels, **mask)
            except IndexError as error:  # A CPU raises this for a row that a table lacks.
                if self._source is not None and (wrong := self._beyond(batch)) is not None:
                    raise wrong from error
                raise

    def _beyond(self, batch: Batch) -> InputError | None:
        """Return an error if ids of the user's source lie outside the model's vocabulary, or if its size is unknown."""
        counted = self._torch.where(batch.labels == IGNORED, batch.input_ids, batch.labels)
        smallest, largest = (int(bound) for bound in self._torch.aminmax(self._torch.cat([batch.input_ids, counted])))
        source = f"data.source: {self._source}"
        if self._vocab_size is None:
            return InputError(
                f"{source} gives ids from {smallest} to {largest}, of which {self._own} may not have all: an index is "
                "out of range in it, and model.vocab_size is not given"
            )
        if smallest >= 0 and largest < self._vocab_size:
            return None
        wrong = smallest if smallest < 0 else largest
        return InputError(f"{source} gives the id {wrong}, but model.vocab_size is {self._vocab_size}")

    def backward(self, loss: Loss) -> None:
        loss = loss / self._config.accumulation
        (loss if self._scaling is None else self._scaling.scaled(loss)).backward()
        if self._parallel is not None:
            self._parallel.end_backward()

    def clip_gradients(self) -> Any:
        if self._scaling is not None:
            self._scaling.unscale(self._optimizer)
        norm: Any = self._clip()
        if hasattr(norm, "full_tensor"):  # norm of the whole from the norms of the shares
            norm = norm.full_tensor()
        if self._scaling is not None:
            self._scaling.count(norm)
        return norm

    def check_finite(self, norm: Any, step: int) -> None:
        self._norm_check(norm.item(), step)

    def optimizer_step(self) -> None:
        if self._scaling is not None:
            self._scaling.step(self._optimizer)
        else:
            self._optimizer.step()
        if self._scaling is None or not self._scaling.keeps_rate():
            self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._parallel is not None:
            self._parallel.within_step = False

    def kept(self, loss: Loss) -> Loss:
        return loss.detach() if self.asynchronous else loss.item()

    def read_losses(self, losses: list[list[Loss]]) -> list[float | None]:
        if self.asynchronous:
            means = self._torch.stack([self._torch.stack(step).mean() for step in losses])
        else:
            means = self._torch.tensor(losses).mean(dim=1)
        if self._parallel is not None:
            means = self._parallel.mean_of(means)
        return [float(value) for value in means.tolist()]  # a single transfer for all of them

    def copy_to_host(self, losses: list[Loss], norm: Any) -> _Copy:
        mean = self._torch.stack(losses).mean().float()
        values = [mean if self._parallel is None else self._parallel.mean_of(mean, in_each_step=True)]
        if norm is not None:
            values.append(norm.detach().float())
        # Queued without blocking: torch uses its own pinned memory for the result, and the stream copies in its turn.
        values_on_host = self._torch.stack(values).to("cpu", non_blocking=True)
        if self._device.type != "cuda":
            return _Copy(values_on_host, None)
        event: Any = self._torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return _Copy(values_on_host, event)

    def read_copy(self, copy: _Copy, step: int) -> float | None:
        if copy.event is not None:
            copy.event.synchronize()
        loss, *norm = copy.values.tolist()
        if norm:
            self._norm_check(norm[0], step)
        return float(loss)

    def learning_rate(self) -> float | None:
        return float(self._schedule.get_last_lr()[0])

    def validate(self, batches: Sequence[Batch], beat: Callable[[], None]) -> Scores:
        with nullcontext() if self._parallel is None else self._parallel.in_a_pass():
            return validate(self._model, batches, self._score, self.to_device, not self._shifted, beat)

    def _score(self, batch: Batch) -> tuple[Loss, Any]:
        output = self._run_model(batch, self._run)
        loss = output.loss if self._own is None else loss_of(output, self._own)
        return loss, getattr(output, "logits", None)

    def log_likelihoods(self, rows: Sequence[EndingRow], beat: Callable[[], None]) -> list[float]:
        largest = max(int(row.ids.max()) for row in rows)
        if self._vocab_size is not None and largest >= self._vocab_size:
            raise InputError(
                f"evaluation.multiple_choice.path: it holds the id {largest}; model.vocab_size is {self._vocab_size}"
            )
        with nullcontext() if self._parallel is None else self._parallel.in_a_pass(), evaluating(self._model):
            if self._own is not None:
                return [self._own_likelihood(row, beat) for row in rows]
            return log_likelihoods(rows, self._logits, self._device, self._most_ids, beat)

    def generated(
        self, prompt: Sequence[int], choice: TokenChoice, most: int, vocab_size: int, eos_id: int | None
    ) -> Generated:
        # The model within DistributedDataParallel does not communicate.
        inner = getattr(self._model, "module", self._model)
        trained = TrainedModel("the model", inner, None)
        pass_context = nullcontext() if self._parallel is None else self._parallel.in_a_pass()
        with pass_context, evaluating(self._model), self._precision.autocast(), self._attention():
            return generate(trained, prompt, choice, most, vocab_size, eos_id, cache=False)

    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        with self._precision.autocast(), self._attention():
            # The compiled model would compile again for each length of rows.
            logits: torch.Tensor = self._model(input_ids=ids).logits
        return logits

    def _own_likelihood(self, row: EndingRow, beat: Callable[[], None]) -> float:
        """Return the ending's log-likelihood by the mean loss, which is all that a user's model must return."""
        ids = self._torch.from_numpy(row.ids)[None].to(self._device)
        labels = ids.clone()
        labels[0, : len(row.ids) - row.scored] = IGNORED
        assert self._own is not None
        with self._precision.autocast(), self._attention():
            loss = loss_of(self._model(input_ids=ids, labels=labels), self._own)
        beat()
        return -float(loss) * row.scored

    def skipped_steps(self) -> int | None:
        return None if self._scaling is None else self._scaling.skipped_steps

    def end_together(self) -> str | None:
        if self._parallel is None:
            return None
        return self._parallel.same_parameters()

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def parts(self) -> dict[str, Stateful]:
        # A compiled module has other names for its weights than the original one, which AutoModel knows.
        model = getattr(self._model, "_orig_mod", self._model)
        parts: dict[str, Stateful] = {"model": model, "optimizer": self._optimizer}
        if self._parallel is not None:
            parts = self._parallel.parts(self._optimizer)
        parts["scheduler"] = self._schedule
        return parts if self._scaling is None else parts | {"scaler": self._scaling}


def _with_one_label(batch: Batch) -> Batch:
    """Return a copy of ``batch``, which has no label that counts, in which the last label of row 0 counts."""
    labels = batch.labels.clone()
    labels[0, -1] = batch.input_ids[0, -1]
    return replace(batch, labels=labels)


def _takes(model: torch.nn.Module, name: str) -> bool:
    """Return True if the model's forward accepts ``name``, by a parameter or ``**``, or if that is unknown."""
    try:
        parameters = inspect.signature(model.forward).parameters
    except ValueError:  # Compiled code may have no signature.
        return True
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def loss_of(output: Any, name: str) -> Loss:
    """Return a user's module's loss: a scalar, ``.loss``, ``["loss"]`` or a first value. Raises InputError."""
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
    if loss is None:
        loss = output[0] if isinstance(output, tuple | list) and output else output
    if getattr(loss, "dim", None) is None or loss.dim() != 0:
        kind = f"a tensor of shape {tuple(loss.shape)}" if hasattr(loss, "shape") else type(loss).__name__
        raise InputError(
            f"model.factory: the module of {name} returns {kind} instead of a loss; called with input_ids and "
            "labels it must return a scalar loss, something with .loss, or a tuple that begins with it"
        )
    return loss
