"""Says what would fit a memory, by the arithmetic of ``trainer.devices.footprint``: advice for a run that did not."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config import TrainerConfig
from trainer.devices.footprint import ByteRange, footprint
from trainer.model import Shape

GIB = 2**30
NOTHING = ByteRange(0, 0)


def what_fits(config: TrainerConfig, shape: Shape, memory_bytes: int, elsewhere: ByteRange = NOTHING) -> str:
    """What would fit ``memory_bytes``, in words: the largest batch_size, and the same with other settings.

    It goes by the high end of the estimate, so that what it names does fit; where even the low end of one sample is
    more, it says that nothing does. Where the configuration itself fits by the high end, the arithmetic lacks what took
    the memory, and nothing is named by it. ``elsewhere``: what the process holds beside training.
    """
    need = footprint(config, shape).peak + elsewhere
    now = config.data.batch_size
    of_each = " of each rank" if config.ranks > 1 else ""
    takes = (
        f"by the arithmetic batch_size {now} takes{of_each} {need.low_bytes / GIB:.1f} to "
        f"{need.high_bytes / GIB:.1f} GiB, and {memory_bytes / GIB:.1f} GiB is there"
    )
    if need.high_bytes <= memory_bytes:
        return f"{takes}: something that it does not count took the rest, so what would fit is not known"
    parts = [takes]
    for how, one in _ways(config):
        most = _largest(one, shape, memory_bytes - elsewhere.low_bytes, low=True)
        surely = _largest(one, shape, memory_bytes - elsewhere.high_bytes, low=False)
        if not most:
            parts.append(f"no batch_size fits {how}")
        elif not surely:
            parts.append(f"data.batch_size 1 may fit {how}")
        else:
            parts.append(f"data.batch_size {surely} fits {how}")
    if now > 1:
        parts.append("optimizer.accumulation keeps the samples of a step where data.batch_size is smaller")
    return "; ".join(parts)


def _ways(config: TrainerConfig) -> Iterator[tuple[str, TrainerConfig]]:
    """The configuration itself, and what may be switched on in it."""
    yield "as it is", config
    checkpointed = config.model_copy(
        update={"model": config.model.model_copy(update={"activation_checkpointing": True})}
    )
    if not config.model.activation_checkpointing:
        yield "with model.activation_checkpointing true", checkpointed
    if config.compute.precision != "pure-bf16":
        halved = {"compute": config.compute.model_copy(update={"precision": "pure-bf16"})}
        that = "" if config.model.activation_checkpointing else "that and "
        yield f"with {that}compute.precision pure-bf16", checkpointed.model_copy(update=halved)


def _largest(config: TrainerConfig, shape: Shape, memory_bytes: int, *, low: bool) -> int:
    """The largest batch_size of which the estimate's low or high end fits; 0 where not even one sample does."""

    def fits(size: int) -> bool:
        data = config.data.model_copy(update={"batch_size": size})
        peak = footprint(config.model_copy(update={"data": data}), shape).peak
        return (peak.low_bytes if low else peak.high_bytes) <= memory_bytes

    if not fits(1):
        return 0
    most = 65_536  # that data.batch_size allows
    sure, beyond = 1, 2
    while beyond <= most and fits(beyond):
        sure, beyond = beyond, 2 * beyond
    while beyond - sure > 1:
        middle = (sure + beyond) // 2
        sure, beyond = (middle, beyond) if fits(middle) else (sure, middle)
    return sure
