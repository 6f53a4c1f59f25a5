"""Causes of slow steps that are known of a program as a whole: found where they are, and only there."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from harness.attach import hooks
from harness.attach.frames import AttachedProcess, read
from harness.attach.program_causes import _memory, program_causes
from harness.attach.steps import write_tables
from harness.attach.totals import DataWork, FirstStep, StepTotals
from harness.explain.causes import (
    GRADIENTS,
    GROWING,
    MAKER,
    MEMORY,
    PADDING,
    SETTING,
    SYNCHRONIZATION,
    WORKERS,
    SlowCause,
)
from harness.explain.policy import FIRST_FETCH_MS_MIN
from harness.explain.wall import START_UP
from harness.judge.study import analyse
from harness.show.policy import SPENT_SHARE_MIN
from harness.show.text.findings import SETTINGS as SETTINGS_TEXTS
from harness.show.text.findings import cause_texts
from harness.study.records import made_of
from tests.harness.attach.running import PROGRAMS, Ran, losses, run_all
from tests.harness.explain.test_wall import ATTACHED, EXACT
from tests.harness.synthetic import Arm, build

pytestmark = pytest.mark.slow

HOOKS = "slowed hooks"
PLAIN = "slowed none"
GROWS, GROWS_NOT, MAPPED = "slowed memory 200", "slowed memory-no 200", "slowed memory-mapped 200"
KEPT_BYTES = 4 * 200_000  # a step, see slowed.py
SETTINGS = {
    "slowed evaluation-graphs": GRADIENTS,
    "slowed anomaly": "anomaly",
    "slowed deterministic": "deterministic",
    "slowed traced": "trace function",
    "slowed profiled": "profiler",
    "slowed parallel-unused": "unused parameters",
    "slowed parallel": "gradient synchronization",
}  # by program
SILENT = [
    PLAIN,
    "slowed evaluation",
    "slowed evaluation-one-graph",
    "slowed profiled-a-while",
    "slowed parallel-accumulating",
]
PADDED = [f"padded {kind}" for kind in ("mask", "labels", "left", "ids", "tuple")]
FULL = ["padded full", "padded prompts"]
MASK = "padded mask"
JOINED = ["padded joined", "padded joined-workers"]
FAULTS = [
    *(f"inspection.{name}!{PLAIN}" for name in ("_hooks", "_settings", "_place")),
    *(f"padding.{name}!{MASK}" for name in ("_count", "_parts")),
    f"own_time._collection_is_near!{GROWS_NOT}",
]
PARTS = sorted({fault.partition(".")[0] for fault in FAULTS})
Seen = tuple[dict[str, Ran], dict[int, AttachedProcess]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_all(tmp_path_factory.mktemp("alone") / "out", [PLAIN, MASK, GROWS_NOT], None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("seen")
    ran = run_all(
        folder / "out",
        [HOOKS, GROWS, GROWS_NOT, MAPPED, *SETTINGS, *SILENT, *PADDED, *FULL, *JOINED, *FAULTS],
        folder / "raw",
        cold=False,
    )
    assert {program: one.code for program, one in ran.items() if one.code} == {}
    return ran, {one.process.pid: one for one in read(folder / "raw")}


def causes(seen: Seen, program: str, folder: Path) -> list[SlowCause]:
    ran, processes = seen
    one = processes[ran[program].pid]
    blocks = write_tables(one, {}, lambda block: folder / str(block))
    return [made_of(SlowCause, row) for row in program_causes(one, blocks)]


@pytest.mark.nightly
def test_hooks_that_pile_up_are_named_with_what_they_cost(tmp_path: Path, seen: Seen) -> None:
    (found,) = [one for one in causes(seen, HOOKS, tmp_path) if one.kind == GROWING]
    assert (found.phase, found.called) == ("forward", "forward")
    line = (PROGRAMS / "slowed.py").read_text().splitlines().index("def slow_hook(*_given):") + 1
    assert found.place == f"slowed.py:{line}"
    assert found.figures["hooks_last"] - found.figures["hooks_first"] >= 30
    assert found.figures["last_ms"] > found.figures["first_ms"]
    assert found.ms is not None
    assert found.low_ms is not None
    # Each of 0 to 55 hooks after the measured steps began sleeps 0.4 ms: 10 ms on average above the first tenth, less
    # where other processes delayed that.
    assert found.ms > 2
    assert found.cost_ms == found.ms >= found.low_ms


def test_each_stage_of_the_data_has_the_function_that_makes_it(tmp_path: Path, seen: Seen) -> None:
    found = {one.phase: one for one in causes(seen, MASK, tmp_path) if one.kind == MAKER}
    line = (PROGRAMS / "padded.py").read_text().splitlines().index("def batch(rows):") + 1
    assert {stage: (one.function, one.place) for stage, one in found.items()} == {
        "read": ("range.__getitem__", ""),
        "pack": ("batch", f"padded.py:{line}"),
        "sampler": ("SequentialSampler.__iter__", ""),
    }
    assert found["read"].figures["row_us"] > 0
    ran, processes = seen
    totals, *_ = write_tables(processes[ran[MASK].pid], {}, lambda block: tmp_path / f"again-{block}")
    assert totals.first.fetch_ns > 0
    assert totals.first.batches == 1
    assert not found["pack"].figures


class Lazy:
    """Data and a collate function whose attributes run code of the program."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self.asked: list[str] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> int:
        return self.rows[number]

    def __call__(self, rows: list[int]) -> torch.Tensor:
        return torch.tensor(rows)

    @property
    def dataset(self) -> object:
        self.asked.append("dataset")
        raise RuntimeError("opened in a worker only")

    sampler = dataset

    def __getattr__(self, name: str) -> object:
        if name != "__getitems__":  # torch asks for that itself
            self.asked.append(name)
        raise AttributeError(name)


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_makes_a_batch_is_found_without_running_code_of_the_program(wrapped: bool) -> None:
    hooks._agent()
    from _harness_agent import loading

    data = Lazy([1, 2, 3, 4])
    dataset: Any = Subset(data, [0, 1]) if wrapped else data  # type: ignore[arg-type,var-annotated]
    iterator = iter(DataLoader(dataset, batch_size=2, sampler=data, collate_fn=data))  # type: ignore[arg-type]
    data.asked.clear()
    found = {stage: (function, by_row) for stage, _, function, by_row in loading._makers(iterator, dataset, False)}
    assert found == {
        "read": ("Lazy.__getitem__", False),  # __getattr__ may have __getitems__
        "pack": ("Lazy.__call__", False),
        "sampler": ("Lazy.__iter__", False),
    }
    assert data.asked == []


def test_the_collator_of_a_trainer_is_found_in_its_wrapper() -> None:
    hooks._agent()
    from _harness_agent import loading
    from transformers.trainer_utils import RemoveColumnsCollator

    collate = RemoveColumnsCollator(Lazy([1]), ["labels"])
    (_, _, function) = next(
        (stage, place, function)
        for stage, place, function, _ in loading._makers(SimpleNamespace(_collate_fn=collate), [], False)
        if stage == "pack"
    )
    assert function == "Lazy.__call__"


@pytest.mark.parametrize("program", JOINED)
def test_rows_are_items_of_the_dataset_not_rows_of_the_batch(tmp_path: Path, seen: Seen, program: str) -> None:
    ran, processes = seen
    made_by = {one.process.pid: one.made for one in processes.values()}
    totals = write_tables(processes[ran[program].pid], made_by, lambda block: tmp_path / str(block))
    assert sum(one.measured for one in totals) > 0
    assert sum(one.data.rows for one in totals) == 4 * sum(one.measured for one in totals)


@pytest.mark.parametrize(
    ("share", "ahead", "batches", "told"),
    [
        (1.1, 321, 321, "Skipped batches: 320 were made"),
        (1.1, 1, 2, "First batch"),
        (1.1, 2, 2, "First batch"),
        (1.1, 1, 321, "First batch"),
        (0.9, 321, 321, ""),
    ],
)
def test_a_long_wait_for_the_first_batch_is_named(
    seen: Seen, share: float, ahead: int, batches: int, told: str
) -> None:
    """Of 1 or 2 batches a step; a program that skips 320 of them makes them before its first step."""
    ran, processes = seen
    first_ns = round(share * FIRST_FETCH_MS_MIN * 1e6)
    totals = StepTotals(first=FirstStep(first_ns, ahead, batches), data=DataWork(Counter({1 + (batches == 2): 9})))
    found = [made_of(SlowCause, row) for row in program_causes(processes[ran[MASK].pid], [totals])]
    assert [one.function for one in found if one.kind == START_UP] == ["range.__getitem__"] * bool(told)
    whole_ms = first_ns / 1e6 / SPENT_SHARE_MIN
    for part_ms, lines in ((0.9 * whole_ms, 1), (1.1 * whole_ms, 0)):
        facts = {**ATTACHED, "causes": tuple(asdict(one) for one in found), "program_ms": {START_UP: part_ms}}
        (arm,) = analyse(*build([Arm("script", facts=facts)], noise=EXACT)).arms
        texts = [f"{subject}: {text}" for subject, text, _ in cause_texts(arm, 30.0)]
        assert [told in text for text in texts] == [True] * lines * bool(told)


@pytest.mark.parametrize(("program", "expected"), [(GROWS, [KEPT_BYTES]), (GROWS_NOT, []), (MAPPED, [])])
def test_memory_that_grows_is_found_with_its_bytes_a_step(
    tmp_path: Path, seen: Seen, program: str, expected: list[int]
) -> None:
    ran, processes = seen
    blocks = write_tables(processes[ran[program].pid], {}, lambda block: tmp_path / str(block))
    assert sum(len(totals.memory) for totals in blocks) > 0
    for totals in blocks:  # The free memory is this machine's: it decides nothing here.
        totals.memory = [(step, own, workers, 10**9) for step, own, workers, _ in totals.memory]
    found = [made_of(SlowCause, row) for row in _memory(blocks)]
    assert [(one.place, one.figures["bytes_per_step"]) for one in found] == [
        ("", pytest.approx(size, rel=0.2)) for size in expected
    ]


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ([(n, 10**9, n * 10**6, 10**10) for n in range(60)], (1e6, 9.96e9 / 1e6)),  # of workers
        ([(n, 10**9 + n * 10**5, 0, 10**10) for n in range(60)], None),  # by less than an allocator keeps
        ([(n, 10**9 + 10**8 * (n > 50), 0, 10**10) for n in range(60)], None),  # in one rise
        ([(n, 10**9 + n * 10**6, 0, 10**12) for n in range(60)], None),  # for more than a day
        ([(n * 10, 10**9 + n * 10**7, 0, 10**10) for n in range(6)], None),  # too few readings
        ([(min(n, 20), 10**9 + n * 10**6, 0, 10**10) for n in range(60)], None),  # in one long step
        ([(min(n, 8), 10**9 + n * 10**6, 0, 10**10) for n in range(60)], None),  # the same, and few other readings
    ],
)
def test_memory_grows_where_that_is_even_and_full_soon(
    memory: list[tuple[int, int, int, int]], expected: tuple[float, float] | None
) -> None:
    totals = StepTotals(measured=60, wall_ns=60 * 10**9, memory=memory)
    found = [made_of(SlowCause, row) for row in _memory([totals])]
    assert [(one.place, (one.figures["bytes_per_step"], one.figures["full_s"])) for one in found] == (
        [] if expected is None else [(WORKERS, pytest.approx(expected, rel=0.01))]
    )


def test_memory_that_grows_at_two_places_has_one_line() -> None:
    """Each process has its own: here, the loader's workers of one of them grow."""
    rows = [(10**5, 0), (0, 10**6)]
    memory = [[(n, 10**9 + own * n, workers * n, 10**9) for n in range(600)] for own, workers in rows]
    totals = [StepTotals(measured=60, wall_ns=60 * 10**9, memory=readings) for readings in memory]
    facts = {**ATTACHED, "causes": tuple(row for one in totals for row in _memory([one]))}
    (arm,) = analyse(*build([Arm("script", facts=facts)], noise=EXACT)).arms
    assert sorted(one.place for one in arm.causes if one.kind == MEMORY) == ["", WORKERS]
    ((_, text, _),) = [texts for texts in cause_texts(arm, 30.0) if texts[0] == "Memory grows"]
    assert WORKERS in text


@pytest.mark.parametrize("program", SETTINGS)
def test_a_setting_that_is_left_on_is_named(tmp_path: Path, seen: Seen, program: str) -> None:
    found = [one.place for one in causes(seen, program, tmp_path) if one.kind == SETTING]
    expected = SETTINGS[program]
    assert expected in found
    if program.startswith("slowed parallel"):  # The program does not accumulate within no_sync() in either.
        expected = "gradient synchronization"
    assert set(found) <= {SETTINGS[program], expected}


def test_each_setting_that_the_agent_knows_has_words() -> None:
    hooks._agent()
    from _harness_agent import inspection

    assert set(SETTINGS_TEXTS) == {*inspection.SETTINGS, SYNCHRONIZATION, GRADIENTS}


@pytest.mark.parametrize("program", SILENT)
def test_a_program_without_a_cause_has_none(tmp_path: Path, seen: Seen, program: str) -> None:
    assert [one for one in causes(seen, program, tmp_path) if one.kind == SETTING or one.called] == []


@pytest.mark.parametrize("program", PADDED)
def test_padding_is_counted_however_a_batch_shows_it(tmp_path: Path, seen: Seen, program: str) -> None:
    (found,) = [one for one in causes(seen, program, tmp_path) if one.kind == PADDING]
    # Rows of 32 positions have 12 or 4 tokens. A row without a mask may end with its padding's own token.
    assert found.figures["share"] == pytest.approx(0.75, abs=0.01)
    assert found.figures["column_share"] == pytest.approx(20 / 32, abs=0.01)
    assert found.ms is not None
    assert found.ms > 0
    assert found.called.startswith(("batch, padded.py:", "tuples, padded.py:"))


@pytest.mark.parametrize("program", FULL)
def test_a_prompt_without_labels_is_no_padding(tmp_path: Path, seen: Seen, program: str) -> None:
    assert [one for one in causes(seen, program, tmp_path) if one.kind == PADDING] == []


@pytest.mark.parametrize("program", [PLAIN, MASK, *FAULTS])
def test_the_looks_change_nothing_of_the_program(alone: dict[str, Ran], seen: Seen, program: str) -> None:
    ran, processes = seen
    one = processes[ran[program].pid]
    expected = losses(alone[program.rpartition("!")[2]].lines)
    assert losses(ran[program].lines) == expected
    assert one.noted("fault") == []
    assert [bool(one.noted(f"{part}_fault")) for part in PARTS] == [program.startswith(f"{part}.") for part in PARTS]
    assert one.steps >= len(expected)
