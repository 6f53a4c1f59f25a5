"""Names what slows the steps of an attached program, with its place and what to change; it promises no saving."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.analysis.report_types import ArmReport
from harness.analysis.slow_causes import SlowCause
from harness.report.words import count, part_of

NOTHING = 0.005  # of the step: less is no wait worth a word
EVERY = 0.95  # times a step from which on it is every step

Texts = tuple[str, str, str]  # subject, finding, support


def cause_texts(arm: ArmReport, step_ms: float) -> Iterator[Texts]:
    """Yield the lines about ``arm``, whose steps take ``step_ms``."""
    part = part_of(step_ms)
    for one in arm.causes:
        if one.kind in ("device wait", "copy") and one.ms is not None and one.ms < NOTHING * step_ms:
            continue
        if one.kind in TEXTS and (one.of == 0 or one.steps):
            yield TEXTS[one.kind](one, part)
    if arm.unseen is not None and arm.unseen.device and arm.totals.bound == "launch":
        yield (
            "Launch-bound",
            "the device waits for the host to launch kernels",
            "Launch fewer and larger ones: larger micro-batches, torch.compile, or CUDA graphs "
            '(torch.compile(mode="reduce-overhead")).',
        )


Part = Callable[[float], str]


def _wait(one: SlowCause, part: Part) -> Texts:
    return (
        "Waits for the device",
        f"{_place(one)}{_took(one, part)}",
        "A device that has nothing else queued then is idle until the next launch. Wait every N steps, or read the "
        "value of one step after the next step is launched.",
    )


def _copy(one: SlowCause, part: Part) -> Texts:
    took = _took(one, part)
    if not one.bytes:
        return "Blocking copy", f"{_place(one)}{took}", "Copy with non_blocking=True, from pinned memory."
    return (
        "Blocking copy",
        f"{_size(one)} a step from pageable memory at {_place(one)}{took}",
        "Its wait for what the device has queued is part of that. Use pin_memory=True in the DataLoader, and "
        "non_blocking=True in the copy.",
    )


def _pageable(one: SlowCause, _part: Part) -> Texts:
    return (
        "Pageable memory",
        f"batches bring {_size(one)} a step in memory that is not pinned",
        "Copies of it to a device cannot run beside the host's work. Use pin_memory=True in the DataLoader, and "
        "non_blocking=True in the copy.",
    )


def _retries(one: SlowCause, part: Part) -> Texts:
    return (
        "Device memory",
        f"the allocator ran out of it and freed its cached blocks {count(round(one.times), 'time')}, in "
        f"{one.steps:,} of {count(one.of, 'step')}{_longer(one, part)}",
        "Use smaller batches, begin with the longest one, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    )


def _compiled(one: SlowCause, part: Part) -> Texts:
    return (
        "Recompilation",
        f"{count(round(one.times), 'graph')} recompiled in {one.steps:,} of {count(one.of, 'step')}"
        f"{_longer(one, part)}",
        "A new input shape is the usual reason (TORCH_LOGS=recompiles names it). Pad to one length or to a few, or "
        "compile with dynamic=True.",
    )


TEXTS: dict[str, Callable[[SlowCause, Part], Texts]] = {
    "device wait": _wait,
    "copy": _copy,
    "pageable": _pageable,
    "retries": _retries,
    "compiled": _compiled,
}


def _place(one: SlowCause) -> str:
    """Return ``train.py:88 (`loss.item()`), every step``."""
    code = f" (`{one.code}`)" if one.code else ""
    if one.times < EVERY:
        often = f"in {one.times:.2g} of the steps"
    else:
        often = "every step" if round(one.times) == 1 else f"{one.times:.2g} times a step"
    return f"{one.place}{code}, {often}"


def _took(one: SlowCause, part: Part) -> str:
    return "" if one.ms is None else f": {part(one.ms)} a step"


def _longer(one: SlowCause, part: Part) -> str:
    longer_ms = one.longer_ms
    return (
        "" if longer_ms is None or longer_ms <= 0 else f": such a step takes {part(longer_ms)} longer than the others"
    )


def _size(one: SlowCause) -> str:
    return f"{one.bytes / 1e6:.3g} MB"
