"""Advises settings that would fit after a run was out of memory, by the trainer's arithmetic."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from harness.launch.needs import GIB, NO_BYTES, PROCESS, SHARED, WORKER, checkpoint_copy, free_host_bytes
from harness.machine.environment import has_nvidia_driver
from trainer.config import PRESET_VOCABULARY, TrainerConfig
from trainer.devices.estimates import ByteRange, footprint
from trainer.errors import InputError
from trainer.json_types import Json
from trainer.model import Shape, shape_of

# torch's CPU allocator raises a RuntimeError: "DefaultCPUAllocator: can't allocate memory: you tried to ...".
_SIGNS = ("can't allocate memory", "cannot allocate memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """True if ``error`` is Python's MemoryError, or torch's error of a CPU or card without free memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def advice_for_this_run(config: TrainerConfig, vocab_size: int | None, error: BaseException) -> str:
    """Return advice on settings that fit, for ``error``; "" unless training memory was exhausted."""
    on_card = type(error).__name__ == "OutOfMemoryError"
    if not is_out_of_memory(error) or not (on_card or _trains_on_host(config)):
        return ""
    return advice(config, vocab_size, memory_of_this_run(on_card, config.ranks_of_a_node), on_card=on_card)


def advice(config: TrainerConfig, vocab_size: int | None, memory_bytes: int | None, *, on_card: bool = False) -> str:
    """Return ``; by estimate batch_size ...``, the end of an error message, with settings that fit ``memory_bytes`` of
    one rank; "" if that or the model's size is unknown, or without a model. ``vocab_size`` None: the largest allowed.
    """
    if memory_bytes is None or config.compute.work != "model" or config.compute.emulated is not None:
        return ""
    vocabulary = largest_vocabulary(config) if vocab_size is None else vocab_size
    with suppress(InputError):
        shape = None if vocabulary is None else shape_of(config.model, vocabulary, config.data.sequence_length)
        if shape is None:
            return ""
        other_memory = NO_BYTES
        if not on_card:  # The copy of a checkpoint that is written during a step adds to it.
            copied = checkpoint_copy(config, footprint(config, shape)).high_bytes // config.ranks_of_a_node
            other_memory = PROCESS + SHARED + WORKER.times(config.data.workers) + ByteRange(0, copied)
        return f"; {what_fits(config, shape, memory_bytes, other_memory)}"
    return ""


def _trains_on_host(config: TrainerConfig) -> bool:
    """True if the run trains in host memory. A run on a card needs little of it."""
    return config.compute.device == "cpu" or (config.compute.device == "auto" and not has_nvidia_driver())


def advice_for_a_killed_run(content: Mapping[str, Json]) -> str:
    """Return :func:`advice` for a run that the kernel killed; "" if on a card, or if memory or size is unknown."""
    with suppress(ValueError):  # The record may be from another state of the code.
        config, free = TrainerConfig.model_validate(content), free_host_bytes()
        if _trains_on_host(config):
            return advice(config, None, None if free is None else free // config.ranks_of_a_node)
    return ""


def memory_of_this_run(on_card: bool, ranks: int = 1) -> int | None:
    """Return the bytes that this process could use of its card, or of the host, shared by ``ranks``; None: unknown."""
    if on_card:
        torch = sys.modules["torch"]
        return int(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())
    free = free_host_bytes()
    own = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()  # resident pages
    return None if free is None else free // ranks + own


def largest_vocabulary(config: TrainerConfig) -> int | None:
    """Return the largest possible vocabulary; None if unknown, 0 if the model does not depend on it."""
    has_preset_size = config.model.preset in PRESET_VOCABULARY or config.model.is_of_files
    fixed = config.model.vocab_size is not None or has_preset_size
    without_model = config.compute.work != "model" or config.compute.emulated is not None
    if fixed or without_model or config.data.source is not None:
        return 0
    train = config.data.tokenizer.train
    return None if train is None else train.vocab_size


def what_fits(config: TrainerConfig, shape: Shape, memory_bytes: int, elsewhere: ByteRange = NO_BYTES) -> str:
    """Return a sentence on what would fit ``memory_bytes``: the largest batch_size, also with other settings. The high
    end of the estimate counts, so that the advice is safe. ``elsewhere``: memory that the process needs besides
    training.
    """
    need = footprint(config, shape).peak + elsewhere
    batch_size = config.data.batch_size
    of_each = " of each rank" if config.ranks > 1 else ""
    takes = (
        f"by estimate batch_size {batch_size} needs{of_each} {need.low_bytes / GIB:.1f} to "
        f"{need.high_bytes / GIB:.1f} GiB, and {memory_bytes / GIB:.1f} GiB is available"
    )
    if need.high_bytes <= memory_bytes:
        return f"{takes}: memory outside of the estimate took the rest, so the batch size that fits is unknown"
    parts = [takes]
    for condition, variant in _ways(config):
        most = _largest(variant, shape, memory_bytes - elsewhere.low_bytes, low=True)
        surely = _largest(variant, shape, memory_bytes - elsewhere.high_bytes, low=False)
        if not most:
            parts.append(f"no batch_size fits {condition}")
        elif not surely:
            parts.append(f"data.batch_size 1 may fit {condition}")
        else:
            parts.append(f"data.batch_size {surely} fits {condition}")
    if batch_size > 1:
        parts.append("optimizer.accumulation keeps the samples of a step where data.batch_size is smaller")
    return "; ".join(parts)


def _ways(config: TrainerConfig) -> Iterator[tuple[str, TrainerConfig]]:
    """Yield (text on changed settings, configuration): ``config`` unchanged, then variants that need less memory."""
    yield "unchanged", config
    checkpointed = config.model_copy(
        update={"model": config.model.model_copy(update={"activation_checkpointing": True})}
    )
    if not config.model.activation_checkpointing:
        yield "with model.activation_checkpointing true", checkpointed
    if config.compute.precision != "pure-bf16":
        halved = {"compute": config.compute.model_copy(update={"precision": "pure-bf16"})}
        prefix = "" if config.model.activation_checkpointing else "that and "
        yield f"with {prefix}compute.precision pure-bf16", checkpointed.model_copy(update=halved)


def _largest(config: TrainerConfig, shape: Shape, memory_bytes: int, *, low: bool) -> int:
    """Return the largest batch_size whose estimate (its ``low`` or high end) fits ``memory_bytes``; 0 if none does."""

    def fits(size: int) -> bool:
        data = config.data.model_copy(update={"batch_size": size})
        peak = footprint(config.model_copy(update={"data": data}), shape).peak
        return (peak.low_bytes if low else peak.high_bytes) <= memory_bytes

    if not fits(1):
        return 0
    most = 65_536  # limit of data.batch_size
    sure, beyond = 1, 2
    while beyond <= most and fits(beyond):
        sure, beyond = beyond, 2 * beyond
    while beyond - sure > 1:
        middle = (sure + beyond) // 2
        sure, beyond = (middle, beyond) if fits(middle) else (sure, middle)
    return sure
