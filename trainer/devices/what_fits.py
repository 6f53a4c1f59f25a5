"""Advises on settings that fit a memory, for a run that did not, by ``trainer.devices.footprint``."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config import TrainerConfig
from trainer.devices.footprint import ByteRange, footprint
from trainer.model import Shape

GIB = 2**30
NOTHING = ByteRange(0, 0)


def what_fits(config: TrainerConfig, shape: Shape, memory_bytes: int, elsewhere: ByteRange = NOTHING) -> str:
    """Return a sentence on what would fit ``memory_bytes``: the largest batch_size, also with other settings.

    The advice uses the high end of the estimate, so that it is safe. If even the low end of one sample is too large, it
    says that nothing fits. If the configuration itself fits by the high end, the sentence only says that the cause is
    unknown. ``elsewhere``: memory of the process beside training.
    """
    need = footprint(config, shape).peak + elsewhere
    batch_size = config.data.batch_size
    of_each = " of each rank" if config.ranks > 1 else ""
    takes = (
        f"by the arithmetic batch_size {batch_size} takes{of_each} {need.low_bytes / GIB:.1f} to "
        f"{need.high_bytes / GIB:.1f} GiB, and {memory_bytes / GIB:.1f} GiB is there"
    )
    if need.high_bytes <= memory_bytes:
        return f"{takes}: something that it does not count took the rest, so what would fit is not known"
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
    """Yield (condition in words, configuration): the configuration itself, then variants of it that need less
    memory.
    """
    yield "as it is", config
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
    """Return the largest batch_size whose estimate fits ``memory_bytes``; 0 if not even one sample does.

    ``low``: use the low end.
    """

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
