"""Names what slows the steps of an attached program, with its place and what to change; it promises no saving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from harness.explain.causes import CODE, GC, SlowCause
from harness.judge.report_types import ArmReport
from harness.show.words import count, part_of, percent

NOTHING = 0.005  # of the step: less is no wait worth a word
LEAST_SPENT = 0.05  # of the step: own code and garbage collections that take less are left out
MAX_PLACES = 3
EVERY = 0.95  # share of the steps from which on it is every step

Texts = tuple[str, str, str]  # subject, finding, support


def cause_texts(arm: ArmReport, step_ms: float) -> Iterator[Texts]:
    """Yield the lines about ``arm``, whose steps take ``step_ms``."""
    part = part_of(step_ms)
    for kind, texts in TEXTS.items():
        found = [one for one in arm.causes if one.kind == kind and _is_worth_a_line(one, step_ms)]
        if kind == GC and sum(one.spent_share for one in found) < LEAST_SPENT:
            continue
        if found:
            yield texts(sorted(found, key=lambda one: -one.spent_ms), part)
    # Steps that compile launch nothing for seconds: no larger kernel helps there.
    longer_ms = sum((one.longer_ms or 0.0) * one.steps / one.of for one in arm.causes if one.of)
    if arm.unseen is not None and arm.unseen.device and arm.totals.bound == "launch" and longer_ms < step_ms / 2:
        yield (
            "Launch-bound",
            "the device waits for the host to launch kernels",
            "Launch fewer and larger ones: larger micro-batches, torch.compile, or CUDA graphs "
            '(torch.compile(mode="reduce-overhead")).',
        )


def _is_worth_a_line(one: SlowCause, step_ms: float) -> bool:
    match one.kind:
        case "code":
            return not one.phase and one.least_share >= LEAST_SPENT
        case "device wait" | "copy":
            return one.ms is None or one.ms >= NOTHING * step_ms
        case "retries" | "compiled":
            return one.steps > 0
        case _:
            return True


Part = Callable[[float], str]


def _wait(found: Sequence[SlowCause], part: Part) -> Texts:
    return (
        "Waits for the device",
        _places(found, part),
        "The device is idle until the next launch if nothing else is queued. Wait every N steps, or read the value of "
        "a step after the next step is launched.",
    )


def _copy(found: Sequence[SlowCause], part: Part) -> Texts:
    size = sum(one.bytes for one in found)
    if not size:
        return "Blocking copy", _places(found, part), "Copy with non_blocking=True, from pinned memory."
    return (
        "Blocking copy",
        f"{_size(size)} a step from pageable memory at {_places(found, part)}",
        "This includes the wait for queued work of the device. Use pin_memory=True in the DataLoader, and "
        "non_blocking=True in the copy.",
    )


def _pageable(found: Sequence[SlowCause], _part: Part) -> Texts:
    return (
        "Pageable memory",
        f"batches bring {_size(found[0].bytes)} a step in memory that is not pinned",
        "Copies of it to a device cannot run beside the host's work. Use pin_memory=True in the DataLoader, and "
        "non_blocking=True in the copy.",
    )


def _retries(found: Sequence[SlowCause], part: Part) -> Texts:
    (one,) = found
    return (
        "Device memory",
        f"the allocator ran out of it and freed its cached blocks {count(round(one.times), 'time')}, in "
        f"{one.steps:,} of {count(one.of, 'step')}{_longer(one, part)}",
        "Use smaller batches, begin with the longest one, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    )


def _compiled(found: Sequence[SlowCause], part: Part) -> Texts:
    (one,) = found
    return (
        "Compilation",
        f"{count(round(one.times), 'graph')} compiled in {one.steps:,} of {count(one.of, 'step')}{_longer(one, part)}",
        "A new input shape, or a compiled function that runs for the first time: TORCH_LOGS=recompiles lists "
        "the former only, with reasons. For shapes, pad to one length or to a few, or compile with dynamic=True.",
    )


def _collected(found: Sequence[SlowCause], part: Part) -> Texts:
    most, *_ = found
    whole = replace(most, spent_ms=sum(one.spent_ms for one in found))
    where = f", most of it at {most.place}{_code(most)}" if most.place and most.spent_ms > whole.spent_ms / 2 else ""
    return (
        "Garbage collection",
        f"{_spent(whole, part)} in {count(round(sum(one.times for one in found)), 'collection')}{where}",
        "Call gc.freeze() once the data is loaded, and collect every few hundred steps at most.",
    )


def _spent(one: SlowCause, part: Part) -> str:
    return f"{part(one.step_ms)} a step ({percent(one.spent_share)})"


def _own_code(found: Sequence[SlowCause], part: Part) -> Texts:
    return (
        "Own code",
        "; ".join(
            f"{_spent(one, part)} {'just before' if one.late else 'at'} {one.place}{_code(one)}"
            + (f", in {one.called}" if one.called else "")
            for one in found[:MAX_PLACES]
        ),
        "The step waits for it: do it less often, in another thread or process, or with less data.",
    )


TEXTS: dict[str, Callable[[Sequence[SlowCause], Part], Texts]] = {
    GC: _collected,
    CODE: _own_code,
    "device wait": _wait,
    "copy": _copy,
    "pageable": _pageable,
    "retries": _retries,
    "compiled": _compiled,
}


def _places(found: Sequence[SlowCause], part: Part) -> str:
    return "; ".join(f"{_place(one)}{'' if one.ms is None else f': {part(one.ms)} a step'}" for one in found)


def _place(one: SlowCause) -> str:
    """Return ``train.py:88 (`loss.item()`), every step``."""
    share = min(one.times, 1.0) if one.share is None else one.share
    if share < EVERY:
        often = f"in {percent(share)} of the steps"
    else:
        often = "every step" if round(one.times) == 1 else f"{one.times:.2g} times a step"
    return f"{one.place}{_code(one)}, {often}"


def _code(one: SlowCause) -> str:
    return f" (`{one.code}`)" if one.code else ""


def _longer(one: SlowCause, part: Part) -> str:
    longer_ms = one.longer_ms
    return (
        "" if longer_ms is None or longer_ms <= 0 else f": such a step takes {part(longer_ms)} longer than the others"
    )


def _size(size: int) -> str:
    return f"{size / 1e6:.3g} MB"
