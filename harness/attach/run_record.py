"""Make the run record of an attached process from its notes and the totals of one block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.attach.frames import AttachedProcess
from harness.attach.program_causes import program_causes
from harness.attach.step_causes import step_causes
from harness.attach.totals import StepTotals
from harness.machine.check import count
from harness.study.records import RunFacts, RunRecord, now
from trainer.json_types import JsonObject


class RunOrigin(NamedTuple):
    """Facts that all runs of a command share: its environment, exit code and start."""

    environment: JsonObject
    code: int | None  # exit code of the command; None if killed
    begun_utc: str


def record_of(
    arm: str,
    block: int,
    process: AttachedProcess,
    totals: StepTotals,
    origin: RunOrigin,
    whole: Sequence[JsonObject] | None = None,
) -> RunRecord:
    """Return the run record of ``totals``. ``whole``: causes over all blocks; None: find them in ``totals`` alone."""
    workers, prefetch, _ = process.loader
    config: JsonObject = {
        "data": {"workers": workers, "prefetch": prefetch},
        "optimizer": {"accumulation": totals.data.fetches_per_step},
    }
    facts = process.process
    return RunRecord(
        arm=arm,
        block=block,
        status="done" if totals.measured else "failed",
        error=None if totals.measured else _too_short(totals),
        pid=facts.pid,
        started_utc=origin.begun_utc,
        ended_utc=now(),
        exit_code=origin.code,
        config=config,
        facts=_facts(process, totals, tuple(program_causes(process, [totals])) if whole is None else tuple(whole)),
        environment={**origin.environment, "python": facts.python, "torch": facts.torch},
        realtime_minus_monotonic_ns=facts.realtime_minus_monotonic_ns,
    )


def _facts(process: AttachedProcess, totals: StepTotals, whole: tuple[JsonObject, ...]) -> RunFacts:
    facts, data, thread = process.process, totals.data, totals.thread
    has_loader = bool(process.noted("loader"))
    device = _last(process, "device") or "cpu"

    def share(ns: int) -> float:
        return round(totals.share(ns), 4)

    return RunFacts(
        device=device,
        asynchronous=device != "cpu",
        emulated=False,
        device_count=1,
        threads=facts.threads,
        workers=process.loader[0],
        cores=facts.cores,
        iterable=bool(process.noted("iterable")) if has_loader else None,
        torch=facts.torch,
        program_fingerprint=_last(process, "code"),
        attached=_attached(process),
        ranks=facts.world,
        step_ends=_step_ends(process),
        unseen_share=share(thread.unseen_blocked_ns),
        unseen_place=unseen_place(process, totals),
        waiting_share=share(thread.waiting_ns),
        running_share=thread.running_share,
        tokenizing_share=share(data.tokenizing_ns),
        iterating_share=share(data.iterating_ns),
        restarting_share=share(data.restarting_ns),
        sampling_share=share(data.choosing_ns),
        persistent_workers=process.loader[2] if has_loader else None,
        copies=max(process.noted("copies"), default=None),
        empty_workers=max(process.noted("empty_workers"), default=None),
        epoch_steps=_epoch_steps(process, totals),
        repeated_rows=_last(process, "repeated_rows"),
        epoch_ends=data.epoch_ends if has_loader else None,
        evaluating_steps=totals.excluded.evaluating,
        evaluating_share=round(totals.evaluating_share, 4),
        marked_steps=tuple(totals.excluded.numbers),
        causes=(*step_causes(process, totals), *whole) or None,
    )


def _epoch_steps(process: AttachedProcess, totals: StepTotals) -> float | None:
    """Return the number of steps in an epoch; None if unknown or if training uses several datasets."""
    epochs = process.noted("epoch_batches")
    return epochs[0] / totals.data.fetches_per_step if len(epochs) == 1 else None


def unseen_place(process: AttachedProcess, totals: StepTotals) -> str | None:
    """Return the place outside phases that blocked early steps most, if that explains half of such time; else None."""
    place, watched_ns = next(iter(process.noted("blocked")), (None, 0))
    is_majority = totals.measured and watched_ns * totals.measured >= totals.thread.unseen_blocked_ns / 2
    return str(place) if place is not None and is_majority else None


def _too_short(totals: StepTotals) -> str:
    if not totals.ended:
        return "the program ended before its first step was complete"
    reason = "were warm-up (--warmup), were profiled (--profile) or contained an evaluation"
    return f"no step was measured: all {count(totals.ended, 'step')} {reason}. Run more steps"


def _attached(process: AttachedProcess) -> str:
    """Describe the timed phases of the program, such as "fetch: DataLoader with 2 workers; forward: Net; backward"."""
    loaders = process.noted("loader")
    parts = []
    if (function := _last(process, "fetch")) is not None:
        parts.append(f"fetch: {function}")
    elif loaders:
        workers, *_ = process.loader
        number = f"{workers} worker{'s' * (workers > 1)}"
        parts.append(f"fetch: DataLoader with {number}" if workers else "fetch: DataLoader without workers")
    if (model := _last(process, "forward")) is not None:
        parts.append(f"forward: {model}")
    parts.append("backward")
    if optimizers := process.noted("optimizer"):
        parts.append("optimizer: " + ", ".join(dict.fromkeys(str(name) for _, name in optimizers)))
    return "; ".join(parts)


def _step_ends(process: AttachedProcess) -> str:
    closing = _last(process, "closes")
    if closing is None:
        return "the first fetch after a backward pass (no optimizer was seen)"
    shares_name = sum(name == closing for _, name in process.noted("optimizer")) > 1
    return f"the update of {closing}" + (", the last of several in each step" if shares_name else "")


def _last(process: AttachedProcess, what: str) -> Any:
    notes = process.noted(what)
    return notes[-1] if notes else None
