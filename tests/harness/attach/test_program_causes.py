"""Causes of slow steps that are known of a program as a whole: found where they are, and only there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from harness.attach import hooks
from harness.attach.program_causes import _memory, program_causes
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
from tests.harness.attach.running import Ran, Recorded, chosen, losses, place_of, record_all, run_all
from tests.harness.explain.test_wall import ATTACHED, EXACT
from tests.harness.synthetic import Arm, build

pytestmark = pytest.mark.slow

HOOKS, PLAIN, MASK = "slowed hooks", "slowed none", "padded mask"
GROWS, GROWS_NOT, MAPPED = "slowed memory 100", "slowed memory-no 100", "slowed memory-mapped 100"
KEPT_BYTES = 4 * 200_000  # a step, see slowed.py
at_night = pytest.mark.nightly


def usual(*programs: str, nightly: tuple[str, ...] = ()) -> list[Any]:
    return [*programs, *(pytest.param(one, marks=at_night) for one in nightly)]


SETTINGS = {
    "slowed evaluation-graphs": GRADIENTS,
    "slowed anomaly": "anomaly",
    "slowed parallel": SYNCHRONIZATION,
    "slowed parallel-unused": "unused parameters",
}  # by program
SILENT = (PLAIN, "slowed evaluation")
RARELY_SILENT = ("slowed evaluation-one-graph", "slowed profiled-a-while", "slowed parallel-accumulating")
JOINED = ("padded joined", "padded joined-workers")
FAULTS = (f"inspection._hooks!{PLAIN}", f"padding._count!{MASK}", f"own_time._collection_is_near!{GROWS_NOT}")
RARE_FAULTS = (*(f"inspection.{name}!{PLAIN}" for name in ("_settings", "_place")), f"padding._parts!{MASK}")
PARTS = ("inspection", "own_time", "padding")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_all(tmp_path_factory.mktemp("alone") / "out", [PLAIN, MASK, GROWS_NOT], None)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recorded:
    every = [HOOKS, GROWS, GROWS_NOT, MAPPED, *SETTINGS, *SILENT, *RARELY_SILENT, *JOINED, *FAULTS, *RARE_FAULTS]
    found = record_all(tmp_path_factory.mktemp("seen"), [*chosen(request, every), MASK])
    assert {program: one.code for program, one in found.ran.items() if one.code} == {}
    return found


def causes(seen: Recorded, program: str, folder: Path) -> list[SlowCause]:
    blocks = seen.tables(program, folder).blocks
    return [made_of(SlowCause, row) for row in program_causes(seen.of(program), blocks)]


@pytest.mark.parametrize("program", usual(nightly=(HOOKS,)))
def test_hooks_that_pile_up_are_named_with_what_they_cost(tmp_path: Path, seen: Recorded, program: str) -> None:
    (found,) = [one for one in causes(seen, program, tmp_path) if one.kind == GROWING]
    assert (found.phase, found.called) == ("forward", "forward")
    assert found.place == place_of("slowed", "def slow_hook(*_given):")
    assert found.figures["hooks_last"] - found.figures["hooks_first"] >= 30
    assert found.figures["last_ms"] > found.figures["first_ms"]
    assert found.ms is not None
    assert found.low_ms is not None
    # Each of 0 to 55 hooks after the measured steps began sleeps 0.4 ms: 10 ms on average above the first tenth, less
    # where other processes delayed that.
    assert found.ms > 2
    assert found.cost_ms == found.ms >= found.low_ms


def test_each_stage_of_the_data_has_the_function_that_makes_it(tmp_path: Path, seen: Recorded) -> None:
    found = {one.phase: one for one in causes(seen, MASK, tmp_path) if one.kind == MAKER}
    assert {stage: (one.function, one.place) for stage, one in found.items()} == {
        "read": ("range.__getitem__", ""),
        "pack": ("batch", place_of("padded", "def batch(rows):")),
        "sampler": ("SequentialSampler.__iter__", ""),
    }
    assert found["read"].figures["row_us"] > 0
    assert not found["pack"].figures
    totals, *_ = seen.tables(MASK, tmp_path / "again").blocks
    assert totals.first.fetch_ns > 0
    assert totals.first.batches == 1


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

    iterator = SimpleNamespace(_collate_fn=RemoveColumnsCollator(Lazy([1]), ["labels"]))
    found = {stage: function for stage, _, function, _ in loading._makers(iterator, [], False)}
    assert found["pack"] == "Lazy.__call__"


@pytest.mark.parametrize("program", usual(JOINED[1], nightly=JOINED[:1]))
def test_rows_are_items_of_the_dataset_not_rows_of_the_batch(tmp_path: Path, seen: Recorded, program: str) -> None:
    found = seen.tables(program, tmp_path)
    assert found.sum(lambda block: block.data.rows) == 4 * found.sum(lambda block: block.measured) > 0


@pytest.mark.parametrize(
    ("share", "ahead", "batches", "told"),
    [
        (1.1, 321, 321, "Skipped batches: 320 were made"),
        (1.1, 1, 2, "First batch"),
        (1.1, 1, 321, "First batch"),
        (0.9, 321, 321, ""),
    ],
)
def test_a_long_wait_for_the_first_batch_is_named(
    seen: Recorded, share: float, ahead: int, batches: int, told: str
) -> None:
    """Of 1 or 2 batches a step; a program that skips 320 of them makes them before its first step."""
    first_ns = round(share * FIRST_FETCH_MS_MIN * 1e6)
    totals = StepTotals(first=FirstStep(first_ns, ahead, batches), data=DataWork(Counter({1 + (batches == 2): 9})))
    found = [made_of(SlowCause, row) for row in program_causes(seen.of(MASK), [totals])]
    assert [one.function for one in found if one.kind == START_UP] == ["range.__getitem__"] * bool(told)
    whole_ms = first_ns / 1e6 / SPENT_SHARE_MIN
    for part_ms, lines in ((0.9 * whole_ms, 1), (1.1 * whole_ms, 0)):
        facts = {**ATTACHED, "causes": tuple(asdict(one) for one in found), "program_ms": {START_UP: part_ms}}
        (arm,) = analyse(*build([Arm("script", facts=facts)], noise=EXACT)).arms
        texts = [f"{subject}: {text}" for subject, text, _ in cause_texts(arm, 30.0)]
        assert [told in text for text in texts] == [True] * lines * bool(told)


@pytest.mark.parametrize("program", usual(GROWS, GROWS_NOT, nightly=(MAPPED,)))
def test_memory_that_grows_is_found_with_its_bytes_a_step(tmp_path: Path, seen: Recorded, program: str) -> None:
    blocks = seen.tables(program, tmp_path).blocks
    assert sum(len(totals.memory) for totals in blocks) > 0
    for totals in blocks:  # The free memory is this machine's: it decides nothing here.
        totals.memory = [(step, own, workers, 10**9) for step, own, workers, _ in totals.memory]
    found = [made_of(SlowCause, row) for row in _memory(blocks)]
    expected = [KEPT_BYTES] if program == GROWS else []
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


@pytest.mark.parametrize("program", usual(*[*SETTINGS][:3], nightly=("slowed parallel-unused",)))
def test_a_setting_that_is_left_on_is_named(tmp_path: Path, seen: Recorded, program: str) -> None:
    found = {one.place for one in causes(seen, program, tmp_path) if one.kind == SETTING}
    # The program does not accumulate within no_sync() where it is parallel.
    assert found == {SETTINGS[program], *[SYNCHRONIZATION] * program.startswith("slowed parallel")}


@contextmanager
def switched(switch: Callable[[Any], object], on: object = True, off: object = False) -> Iterator[None]:
    switch(on)
    try:
        yield
    finally:
        switch(off)


def switch_on(name: str, patch: pytest.MonkeyPatch) -> AbstractContextManager[object]:
    from _harness_agent import device, inspection

    match name:
        case "anomaly":
            return torch.autograd.set_detect_anomaly(True)
        case "deterministic":
            return switched(torch.use_deterministic_algorithms)
        case "profiler":
            return torch.autograd.profiler.profile()
        case "profile function":
            return switched(sys.setprofile, lambda *_: None, sys.getprofile())
        case "trace function":
            return switched(sys.settrace, lambda *_: None, sys.gettrace())
        case "logs":
            patch.setenv("TORCH_LOGS", "+dynamo")
        case "launch blocking":
            patch.setattr(device.state, "stream", object())
            patch.setenv("CUDA_LAUNCH_BLOCKING", "1")
        case "distributed debug":
            patch.setattr(inspection, "_is_distributed", lambda: True)
            patch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
        case "unused parameters":
            model = SimpleNamespace(find_unused_parameters=True)
            patch.setattr(inspection._inspection, "roots", [lambda: model])
    return nullcontext()


def test_each_setting_is_seen_where_it_is_on_and_has_words(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks._agent()
    from _harness_agent import inspection

    assert set(SETTINGS_TEXTS) == {*inspection.SETTINGS, SYNCHRONIZATION, GRADIENTS}
    usual = set(inspection._settings(inspection._inspection))
    for name in inspection.SETTINGS:
        with monkeypatch.context() as patch, switch_on(name, patch):
            found = set(inspection._settings(inspection._inspection))
        assert found - usual == {name} - usual
        assert name in found


def test_the_fingerprint_is_that_of_the_program_s_own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks._agent()
    from _harness_agent import inspection

    (tmp_path / "of_mine.py").write_text("")
    (tmp_path / "linked").symlink_to(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "linked")
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    import_module("of_mine")
    found = dict(inspection._own_files())
    assert found["of_mine"] == str(tmp_path / "of_mine.py")
    assert not {"torch", "json", "pytest", "harness.attach.hooks"} & found.keys()
    before = inspection.fingerprint()
    assert inspection.fingerprint() == before
    (tmp_path / "of_mine.py").write_text("edited = True")
    assert inspection.fingerprint() != before


@pytest.mark.parametrize("program", usual(*SILENT, nightly=RARELY_SILENT))
def test_a_program_without_a_cause_has_none(tmp_path: Path, seen: Recorded, program: str) -> None:
    assert [one for one in causes(seen, program, tmp_path) if one.kind == SETTING or one.called] == []


def test_padding_is_counted_with_the_time_that_it_takes(tmp_path: Path, seen: Recorded) -> None:
    (found,) = [one for one in causes(seen, MASK, tmp_path) if one.kind == PADDING]
    # Rows of 32 positions have 12 or 4 tokens.
    assert found.figures == {"share": pytest.approx(0.75), "column_share": pytest.approx(20 / 32)}
    assert found.ms is not None
    assert found.ms > 0
    assert found.called.startswith("batch, padded.py:")


@pytest.mark.parametrize("kind", ["mask", "labels", "left", "ids", "tuple", "full", "prompts"])
def test_padding_is_counted_however_a_batch_shows_it(kind: str) -> None:
    """A prompt, whose tokens have no labels, is no padding."""
    hooks._agent()
    from _harness_agent import padding

    ids = torch.randint(1, 50, (40, 32), generator=torch.Generator().manual_seed(0))
    is_token = torch.arange(32)[None] < torch.tensor([12, 4] * 20)[:, None]
    is_token |= torch.tensor(kind in ("full", "prompts"))
    ids, labels = ids * is_token, (ids * is_token).masked_fill(~is_token, -100)
    if kind == "prompts":
        labels[:, :24] = -100
    rows = {"input_ids": ids, "attention_mask": is_token.long(), "labels": labels}
    hidden = {"left": ["attention_mask"], "labels": ["attention_mask"], "prompts": ["attention_mask"]}
    hidden["ids"] = ["attention_mask", "labels"]
    batch: Any = {name: one.flip(1) if kind == "left" else one for name, one in rows.items()}
    for name in hidden.get(kind, ()):
        del batch[name]
    positions, padded, columns = padding._count(tuple(batch.values()) if kind == "tuple" else batch, 10**6)
    none = kind in ("full", "prompts")
    assert (padded / positions, columns / positions) == (0 if none else 0.75, 0 if none else 20 / 32)


@pytest.mark.parametrize("program", usual(PLAIN, MASK, *FAULTS, nightly=RARE_FAULTS))
def test_the_looks_change_nothing_of_the_program(alone: dict[str, Ran], seen: Recorded, program: str) -> None:
    one = seen.of(program)
    expected = losses(alone[program.rpartition("!")[2]].lines)
    assert losses(seen.ran[program].lines) == expected
    assert one.noted("fault") == []
    assert [bool(one.noted(f"{part}_fault")) for part in PARTS] == [program.startswith(f"{part}.") for part in PARTS]
    assert one.steps >= len(expected)
