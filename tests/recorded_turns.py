"""Replays the turns that a GPU recorded through ``HostLead``: after how many steps would their warm-up end today?

``python -m tests.recorded_turns STUDY ...`` prints a table. A study recorded by another rule took as many steps as its
tables hold; the present rule sees them one by one, as it would have then.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.launch.block import plan_repetitions
from harness.study.contract import PROFILED
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from trainer.compute.host_lead import HostLead
from trainer.config import recorded_config

AHEAD = ("values of the step before", "device one step behind")  # waits that leave the device more to do


@dataclass(frozen=True)
class ReplayedTurn:
    """One turn of a run."""

    arm: str
    turn: int
    then: int
    """Extra warm-up steps that it took."""
    now: int
    """Extra steps after which the present rule ends its warm-up; a device that it holds stood still in the last one."""
    held: bool
    too_fast: float
    """How much further ahead the host was, on average, at the measured steps than where warm-up would have ended.

    As a share of the measured steps: that much too fast they would have been without holding the device.
    """


def replayed(study: StudyFolder) -> Iterator[ReplayedTurn]:
    """Yield every turn of the measured runs of ``study`` that ended."""
    for run in study.runs():
        if run.record.status == "done" and run.record.control != PROFILED:
            yield from _turns(run)


def _turns(run: RunData) -> Iterator[ReplayedTurn]:
    config = recorded_config(run.record.config)
    planned = plan_repetitions(config, run.record.interleave, slice_steps=1).warmup
    steps = _rows(run.steps)
    spans = _rows(run.spans)
    for turn in sorted({step["turn"] for step in steps}):
        own = [step for step in steps if step["turn"] == turn]
        if turn == 0:  # its first warm-up steps ended with a device that was idle again
            own = own[config.warmup_steps :]
        leads, ends, held = _replay(own, spans, planned)
        measured = [index for index, step in enumerate(own) if not step["warmup"]]
        wall_ns = sum(own[index]["wall_ns"] for index in measured)
        gained_ns = np.mean([leads[index] for index in measured]) - leads[ends - 1]
        then = measured[0] - planned
        yield ReplayedTurn(run.record.arm, turn, then, ends - planned, held, float(gained_ns / wall_ns))


def _replay(
    steps: Sequence[dict[str, Any]], spans: Sequence[dict[str, Any]], planned: int
) -> tuple[list[int], int, bool]:
    """The host's lead at the end of each step, after how many steps warm-up ends, and True if the device is held."""
    launches, works, waits = (
        sorted((span for span in spans if span["role"] == role), key=lambda span: int(span["start_ns"]))
        for role in ("launch", "device", "sync")
    )
    lead = HostLead()
    leads: list[int] = []
    ends, held = 0, False
    for number, step in enumerate(steps, 1):
        begin, end = step["start_ns"], step["start_ns"] + step["wall_ns"]
        lead.begin_step(begin)
        own = [index for index, one in enumerate(launches) if begin <= one["start_ns"] < end]
        for index in own:
            lead.launched(dry=index == 0 or works[index - 1]["end_ns"] <= launches[index]["start_ns"])
        for wait in waits:
            if begin <= wait["start_ns"] <= end and wait["name"].endswith(AHEAD):
                lead.waited(wait["end_ns"] - wait["start_ns"])
        leads.append(works[own[-1]]["end_ns"] - end)
        if ends == 0 and number >= planned:
            held = not lead.settled and lead.hold_ns(end) is not None
            ends = number + 1 if held else number if lead.settled else 0
    return leads, ends or len(steps), held


def _rows(table: Any) -> list[dict[str, Any]]:
    return [] if table is None else list(table.to_pylist())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.recorded_turns", description=__doc__)
    parser.add_argument("studies", type=Path, nargs="+")
    print("| study | arm | turns | extra steps then: median | most | now: median | most | too fast if not held |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for path in parser.parse_args().studies:
        turns = list(replayed(StudyFolder(path)))
        for arm in sorted({one.arm for one in turns}):
            own = [one for one in turns if one.arm == arm]
            then, now = [one.then for one in own], [one.now for one in own]
            numbers = [len(own), *(f"{figure(steps):.0f}" for steps in (then, now) for figure in (np.median, np.max))]
            fast = f"{np.mean([one.too_fast for one in own]):.2%}"
            print(f"| {path.name} | {arm} | {' | '.join(map(str, [*numbers, fast]))} |")


if __name__ == "__main__":
    main()
