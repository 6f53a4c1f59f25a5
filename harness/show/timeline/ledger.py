"""Puts the ledger on the timeline: steps and phases, worker stages, the device, and the waits with their causes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal, get_args

from harness.show.timeline.model import Arrow, Process, Slice
from harness.show.timeline.waits import waits
from harness.show.timeline.windows import ShownSpan, ShownStep, Window
from harness.study.contract import RECEIVE, SAMPLER, STAGES
from trainer.json_types import Json

MAIN, DEVICE = "main", "device"
StepArgument = Literal["turn", "warmup", "tokens", "trained_tokens", "samples"]
STEP_ARGS: tuple[StepArgument, ...] = get_args(StepArgument)


def ledger(window: Window) -> tuple[dict[str, Process], list[Arrow]]:
    """Return the processes of one run by role (main, loader-K, device, ...), and arrows from batches to their use."""
    processes = {MAIN: Process(f"{window.name}: {MAIN}")}
    main = processes[MAIN].thread("main thread")
    main.slices += [_step(row) for row in window.steps]
    for role in sorted({_role(row) for row in window.spans} - {MAIN, "launch"}, key=_order):
        what = str(window.run.record.facts.device or role) if role == DEVICE else role  # says if it is emulated
        processes[role] = Process(f"{window.name}: {what}")
    numbers: dict[tuple[str, int], int] = {}  # every thread of a role gets a number; the main thread's is 0
    for index, row in enumerate(window.spans):
        role = _role(row)
        if role == "launch":
            continue  # launches of device work: the phase around them shows that
        tid = numbers.setdefault((role, row["tid"]), sum(known == role for known, _ in numbers))
        title = "main thread" if role == MAIN else "ledger" if role == DEVICE else role
        thread = processes[role].thread(title if tid == 0 else f"{title} {tid}")
        args = {"batch": row["batch"]} if row["batch"] is not None and row["batch"] >= 0 else None
        one = Slice(_name(row), row["start_ns"], row["end_ns"], _category(row), args, _key(window, index))
        thread.slices.append(one)
    _add_waits(window, processes)
    return processes, list(_arrows(window))


def _arrows(window: Window) -> Iterator[Arrow]:
    """Draw an arrow from the last stage of each batch in its worker to the phase after its fetch, its first use."""
    last_stage: dict[int | None, tuple[int, int]] = {}  # batch: end and index
    phases = []
    for index, row in enumerate(window.spans):
        if row["role"].startswith("loader-"):
            last_stage[row["batch"]] = max((row["end_ns"], index), last_stage.get(row["batch"], (0, 0)))
        elif row["role"] == MAIN and row["name"] not in STAGES:
            phases.append((row["start_ns"], index))
    phases.sort()
    for start_ns, index in phases:
        row = window.spans[index]
        if row["name"] != "fetch" or row["batch"] not in last_stage:
            continue
        following = bisect_left(phases, (max(row["end_ns"], start_ns + 1), -1))
        user = phases[following][1] if following < len(phases) else index
        if window.spans[user]["name"] == "fetch":
            user = index  # no phase used it
        yield Arrow("batch", _key(window, last_stage[row["batch"]][1]), _key(window, user), "end")


def _key(window: Window, index: int) -> tuple[str, int, int]:
    return window.name, window.run.record.block, index


def _add_waits(window: Window, processes: dict[str, Process]) -> None:
    found = waits(window.steps, window.spans)
    if not found:
        return
    if DEVICE in processes:
        processes[DEVICE].thread("device idle").slices += found
    else:
        processes[MAIN].thread("waiting for data").slices += found


def _order(role: str) -> tuple[bool, int, str]:
    return role == DEVICE, len(role), role  # loader-2 before loader-10, the device after the workers


def _role(row: ShownSpan) -> str:
    # A call that blocked the main thread, the unpacking of a batch, and a sampler's work lie in a phase.
    return MAIN if row["role"] in ("sync", RECEIVE, SAMPLER) else str(row["role"])


def _name(row: ShownSpan) -> str:
    return f"blocked at {row['name']}" if row["role"] == "sync" else str(row["name"])


def _category(row: ShownSpan) -> str:
    if row["name"] in STAGES:
        return "stage"
    return {"main": "phase", "sync": "blocked", "device": "device"}.get(row["role"], "stage")


def _step(row: ShownStep) -> Slice:
    args: dict[str, Json] = {name: row[name] for name in STEP_ARGS if row[name] is not None}
    if row["loss"] is not None:
        args["loss"] = row["loss"] if math.isfinite(row["loss"]) else str(row["loss"])  # JSON has no NaN
    return Slice(f"step {row['step']}", row["start_ns"], row["start_ns"] + row["wall_ns"], "step", args)
