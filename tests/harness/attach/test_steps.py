"""What the agent wrote of a program as the tables have it, from events that are made up."""

from __future__ import annotations

from array import array
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harness.attach.agent.events import DEMAND, EXACT, FORCED, LATE, OTHER_RAN, PADDED, SAMPLED
from harness.attach.command import Ended
from harness.attach.frames import AttachedProcess, ProcessFacts, append
from harness.attach.program_causes import program_causes
from harness.attach.step_causes import LEAST_FORCED, own_time, spent_at_places
from harness.attach.steps import BlockPlan, write_tables
from harness.attach.study import _program_ms
from harness.attach.totals import StepLengths, StepTotals
from harness.explain.causes import BUSY, HOOKS, LOCK
from harness.explain.policy import HELD_LOOKS_SHARE, HELD_SHARE_MIN
from harness.explain.wall import PROFILED_STEPS
from harness.probes.ledger.rows import ENTER, EXIT, PAUSE, RECEIVED, STEP
from tests.harness.attach.running import Tables, tables

STEPS, WARMUP = 30, 4
MS = 1_000_000
FACTS = ProcessFacts(1, 1, None, None, "3", "2", 1, 1, WARMUP, 0, 0)


def made_up(begin_ns: int = 0) -> list[tuple[Any, ...]]:
    """Steps of 1 ms, each with a fetch of 200 us and a forward pass of 500."""
    events: list[tuple[Any, ...]] = []
    for step in range(STEPS):
        at = begin_ns + step * MS
        cpu = at // 2
        reading = (b"%d 0 1\n" % cpu,)
        read = ("read", at + 10_000, at + 190_000, 90_000)
        events += [
            (STEP, at, reading, step, 0, step < WARMUP),
            (ENTER, "fetch", at, cpu),
            (EXIT, "fetch", at + 200_000, cpu + 100_000),
            (RECEIVED, ("main", 1, 1, -1, (read,)), 0, 0, 4),
            (ENTER, "forward", at + 300_000, cpu + 150_000),
            (EXIT, "forward", at + 800_000, cpu + 400_000),
        ]
    end_ns = begin_ns + STEPS * MS
    events.append((PAUSE, end_ns, (b"%d 0 1\n" % (end_ns // 2),)))
    return events


def recorded(path: Path, events: list[tuple[Any, ...]], steps: int = 1) -> AttachedProcess:
    """Write a file whose frames have so many ``steps``."""
    append(path, "process", asdict(FACTS))
    portion: list[Any] = []
    for event in events:
        portion.append(event)
        if event[0] == STEP and event[3] % steps == 0:
            append(path, "events", portion)
            portion = []
    append(path, "events", portion)
    return AttachedProcess(path, FACTS, (), {}, STEPS)


def in_tables(folder: Path, events: list[tuple[Any, ...]], steps: int = 1) -> Tables:
    folder.mkdir(exist_ok=True)
    return tables(recorded(folder / "1.frames", events, steps), folder)


def test_a_span_that_was_on_its_core_for_less_than_was_assumed_has_no_negative_cpu_time(tmp_path: Path) -> None:
    """The agent takes a thread to have run for some microseconds since a reading: the next one may say it did not."""
    events = made_up()
    events = [(*event[:3], event[3] - 401_000) if event[:2] == (EXIT, "forward") else event for event in events]
    found = in_tables(tmp_path, events)
    assert found.sum(lambda block: block.measured) == STEPS - WARMUP
    assert {row["cpu_ns"] for row in found.spans if row["name"] == "forward"} == {0}
    assert {row["cpu_ns"] for row in found.spans if row["name"] == "fetch"} == {100_000}


def test_steps_that_share_a_frame_are_those_of_frames_of_their_own(tmp_path: Path) -> None:
    first, *others = (in_tables(tmp_path / str(steps), made_up(), steps) for steps in (1, 2, 7, 2 * STEPS))
    assert first.sum(lambda block: block.measured) == STEPS - WARMUP
    assert all(other.steps == first.steps for other in others)


@pytest.mark.parametrize(("ahead", "accumulated"), [(1, 1), (1, 4), (4, 4), (3, 1)])
def test_the_first_fetch_ends_with_the_first_forward_pass(tmp_path: Path, ahead: int, accumulated: int) -> None:
    """A first pass may take seconds (compiling): what is fetched after it was not waited for before it."""
    fetch, forward = [made_up()[at : at + size] for at, size in ((1, 3), (4, 2))]
    first = fetch * ahead + (forward + fetch) * (accumulated - 1) + forward
    events = [*made_up()[:1], *first, *made_up()[6:]]
    totals, *_ = in_tables(tmp_path, events).blocks
    assert totals.first.fetch_ns == ahead * 200_000
    assert (totals.first.ahead, totals.first.batches) == (ahead, ahead + accumulated - 1)


def test_the_first_fetch_is_one_part_of_a_profiled_program(tmp_path: Path) -> None:
    one = recorded(tmp_path / "1.frames", made_up(5 * MS))
    blocks = write_tables(one, {}, lambda block: tmp_path / str(block), BlockPlan(profiled=8))
    found = _program_ms(blocks, 0, Ended(0, 0, (5 + STEPS + 3) * MS))
    assert found is not None
    assert found[PROFILED_STEPS] == pytest.approx(8 - 0.2)
    assert sum(found.values()) == pytest.approx(5 + STEPS + 3)


@pytest.mark.parametrize(
    ("positions", "every_batch", "trained"),
    [(32, 1, 32 - 12), (16, 1, None), (32, 0, None)],
    ids=["counted", "of another batch", "of some batches"],
)
def test_tokens_without_padding_are_known_only_where_the_whole_batch_was_counted(
    positions: int, every_batch: int, trained: int | None, tmp_path: Path
) -> None:
    events: list[tuple[Any, ...]] = []
    for event in made_up():
        if event[0] == RECEIVED:
            events += [(PADDED, positions, 12, 0, every_batch), (RECEIVED, event[1], 32, 0, 4)]
        else:
            events.append(event)
    found = in_tables(tmp_path, events).steps
    assert {(row["tokens"], row["trained_tokens"]) for row in found} == {(32, trained)}


def sampled(looks: dict[tuple[str, int, int], int], **parts_ms: float) -> StepTotals:
    """Ten steps of 100 ms with these phases, and nanoseconds that looks stand for by phase, place and kind."""
    totals = StepTotals(measured=10, wall_ns=1_000 * MS)
    totals.lengths = StepLengths(parts={name: array("f", [ms] * 10) for name, ms in parts_ms.items()})
    totals.looks.sampled_ns.update(looks)
    return totals


def spent_ms(totals: StepTotals, phase: str = "") -> dict[int, tuple[float, bool]]:
    return {place: (pytest.approx(ns / MS), late) for place, (ns, late) in spent_at_places(totals, phase).items()}


def test_places_share_the_time_that_their_phase_took() -> None:
    """How long a phase takes is known; few looks were in it, more or less by chance."""
    looks = {("", 1, EXACT): 3, ("", 2, FORCED): 1, ("backward", 3, EXACT): 996}
    assert spent_ms(sampled(looks, backward=60.0)) == {1: (300.0, False), 2: (100.0, False)}
    totals = sampled(looks, backward=60.0)
    totals.looks.collecting_ns[0] = 200 * MS  # no look is in a garbage collection
    assert spent_ms(totals) == {1: (150.0, False), 2: (50.0, False)}


def test_hooks_and_the_backward_pass_around_them_share_its_time() -> None:
    totals = sampled({("backward", 1, EXACT): 30, (HOOKS, 2, EXACT): 10}, backward=80.0)
    assert spent_ms(totals, "backward") == {1: (600.0, False)}
    assert spent_ms(totals, HOOKS) == {2: (200.0, False)}


def test_late_looks_stand_for_python_code_and_not_for_calls_that_let_go_of_the_lock() -> None:
    """A file that was opened for 1 ms had all the time of the JSON that was then written into it for 12."""
    short = {("", 1, EXACT): 10, ("", 2, LATE): 80, ("", 0, LATE): 10}
    assert spent_ms(sampled(short)) == {1: (100.0, False), 2: (900.0, True)}
    forced = round(2 * LEAST_FORCED * 90)
    long = {("", 1, EXACT): 10, ("", 2, LATE): 90 - forced, ("", 3, FORCED): forced}
    assert spent_ms(sampled(long)) == {1: (100.0, False), 3: (900.0, False)}
    assert spent_ms(sampled({("", 1, EXACT): 10, ("", 0, LATE): 30})) == {1: (1000.0, False)}


def blocks_of(folder: Path, cpu_ns: int, waited_ns: int) -> list[StepTotals]:
    """Blocks of steps of 1 ms whose fetch waits 200 us and whose forward pass computes for 300 us, a step."""
    events: list[tuple[Any, ...]] = []
    for step in range(STEPS):
        at, cpu, waited = step * MS, step * cpu_ns, step * waited_ns
        events += [
            (STEP, at, (b"%d %d 1\n" % (cpu, waited),), step, 0, step < WARMUP),
            (ENTER, "fetch", at, cpu),
            (EXIT, "fetch", at + 200_000, cpu),
            (RECEIVED, ("main", 1, 1, -1, ()), 0, 0, 4),
            (ENTER, "forward", at + 200_000, cpu),
            (EXIT, "forward", at + 500_000, cpu + 300_000),
        ]
    events.append((PAUSE, STEPS * MS, (b"%d %d 1\n" % (STEPS * cpu_ns, STEPS * waited_ns),)))
    return in_tables(folder, events).blocks


@pytest.mark.parametrize(
    ("cpu_us", "waited_us", "blocked_us"),
    [
        (300, 100, 500),  # All that ran, ran within the phases: so it waited there, while the fetch was off the core.
        (600, 100, 150),  # Half of it ran outside: half of the wait was there.
        (300, 600, 100),  # More than the phases were off the core cannot have been within them.
        (400, 100, 0),
    ],
)
def test_a_wait_for_a_core_is_taken_to_lie_where_the_thread_ran(
    cpu_us: int, waited_us: int, blocked_us: int, tmp_path: Path
) -> None:
    blocks = blocks_of(tmp_path, cpu_us * 1000, waited_us * 1000)
    shares = {(one.thread.running_share, round(one.share(one.thread.waiting_ns), 4)) for one in blocks}
    assert shares == {(cpu_us / 1000, waited_us / 1000)}
    if blocked_us:
        measured = sum(one.measured for one in blocks)
        assert sum(one.thread.unseen_blocked_ns for one in blocks) / measured == blocked_us * 1000


@pytest.mark.parametrize(
    ("held_share", "expected"),
    [(1.0, 1.0), (HELD_SHARE_MIN, HELD_SHARE_MIN / HELD_LOOKS_SHARE), (0.9 * HELD_SHARE_MIN, 0.0)],
)
def test_a_thread_that_lets_go_of_the_lock_for_most_of_its_time_holds_none(
    held_share: float, expected: float, tmp_path: Path
) -> None:
    """The thread runs for half of each step; its share with the lock is that of the whole program."""
    events = []
    for event in made_up():
        events.append(event)
        if event[:2] == (EXIT, "forward"):
            events += [
                (OTHER_RAN, 1, MS // 2, round(held_share * MS / 2)),
                (DEMAND, 3 * MS, MS),
                (SAMPLED, "forward", 1, EXACT, 1, 1),
            ]
    one = replace(recorded(tmp_path / "1.frames", events), notes=(("place", (1, "a.py:3", "burn", "mm()", "")),))
    blocks = write_tables(one, {}, lambda block: tmp_path / str(block))
    spent = [row["spent_ms"] for totals in blocks for row in own_time(one, totals) if row["kind"] == LOCK]
    assert sum(spent) == pytest.approx(expected * (STEPS - WARMUP) / 2)
    (asked,) = (row for row in program_causes(one, blocks) if row["kind"] == BUSY)
    assert asked["figures"] == {"cores": pytest.approx(3.0)}
