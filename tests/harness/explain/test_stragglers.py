"""Two ranks whose times are known: who makes the other wait, for what, and what it costs."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.explain.ranks import RanksReport, rank_steps, ranks_of
from harness.explain.replay.recording import record as replayable
from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show.first_screen import first_screen
from harness.show.names import ArmNames
from harness.show.ranks import rank_lines
from harness.show.sentences import sentence as comparison_sentence
from harness.study.contract import PHASES, SPAN_COLUMNS, STEP_COLUMNS, rank_file
from harness.study.files import digests_of
from harness.study.records import ArmRecord, ComparisonRecord, RunFacts, RunRecord, StudyRecord
from harness.study.run_data import RunData
from harness.study.store import StudyFolder
from harness.study.tables import write_table
from trainer.errors import InputError

MS = 1_000_000
STEPS = 40
TOKENS = 100


def run(
    folder: Path,
    tokenize_ms: tuple[float, float],
    scatter_ms: float = 0.0,
    parallel: str = "ddp",
    seed: int = 0,
    burst_ms: float = 0.0,
    bursts: Container[int] = range(3, STEPS, 4),
    accumulation: int = 1,
    arm: str = "arm",
    block: int = 0,
    checkpoint_ms: float = 0.0,
) -> RunData:
    """Steps of tokenize, forward 9 ms, backward 10 ms, exchange 1 ms after the last arrival, optimizer 2 ms.
    ``burst_ms``: what rank 1 tokenizes longer in the steps ``bursts``. ``checkpoint_ms``: what rank 0 does after the
    optimizer of each second step, and then it begins the next one so much later."""
    path = StudyFolder(folder).run(arm, block)
    generator = np.random.default_rng(seed)
    steps: list[dict[str, list[Any]]] = [{name: [] for name, _ in STEP_COLUMNS} for _ in range(2)]
    spans: list[dict[str, list[Any]]] = [{name: [] for name, _ in SPAN_COLUMNS} for _ in range(2)]
    now = 10**12
    late = 0.0  # by how much rank 0 begins the step later than rank 1
    for step in range(STEPS):
        begun = [now + late, now]
        fetch = [(cost + generator.exponential(scatter_ms or 1e-9)) * MS for cost in tokenize_ms]
        fetch[1] += burst_ms * MS if step in bursts else 0.0
        wait_for = max(fetch) if parallel == "fsdp" else 0.0  # where the ranks wait: in forward, or in backward
        forward = [max(wait_for - one, 0.0) + 9 * MS for one in fetch]
        ready = [start + one + 9 * MS + 10 * MS for start, one in zip(begun, fetch, strict=True)]
        over = max(ready) + MS
        late = checkpoint_ms * MS * (step % 2)
        for rank in range(2):
            start_ns = begun[rank]
            moments = [start_ns, start_ns + fetch[rank], start_ns + fetch[rank] + forward[rank], over, over + 2 * MS]
            moments.append(moments[-1] + (late if rank == 0 else 0.0))
            row = dict.fromkeys((f"{phase}_ns" for phase in PHASES), 0)
            names = ("fetch", "forward", "backward", "optimizer", "checkpoint")
            for name, start, end in zip(names, moments, moments[1:], strict=False):
                row[f"{name}_ns"] = round(end) - round(start)
                _span(spans[rank], "main", rank, name, step, start, end)
            _span(spans[rank], "main", rank, "tokenize", step, moments[0], moments[1])
            if parallel == "ddp":
                _span(spans[rank], "exchange", rank, "gradients", step, ready[rank], over)
            row |= {"step": step, "turn": 0, "warmup": 0, "start_ns": round(start_ns), "loss": 3}
            row |= {"wall_ns": round(moments[-1]) - round(start_ns), "tokens": TOKENS * (2 - rank)}
            for name in steps[rank]:
                steps[rank][name].append(row.get(name))
            steps[rank]["warmup"][-1] = step < 2
        now = round(over + 2 * MS)
    for rank in range(2):
        write_table(path / rank_file("steps", rank), STEP_COLUMNS, steps[rank])
        write_table(path / rank_file("spans", rank), SPAN_COLUMNS, spans[rank])
    facts = RunFacts(ranks=2, parallel=parallel, asynchronous=False, workers=0)
    config = {"data": {"workers": 0, "prefetch": 2, "batch_size": 1}, "optimizer": {"accumulation": accumulation}}
    record = RunRecord(arm, block, "done", config=config, facts=facts, digests=digests_of(path))
    StudyFolder(folder).write_run(record)
    return next(one for one in StudyFolder(folder).runs() if (one.record.arm, one.record.block) == (arm, block))


def _span(spans: dict[str, list[Any]], role: str, rank: int, name: str, batch: int, start: float, end: float) -> None:
    row = {"pid": 1 + rank, "tid": 1 + rank, "role": role, "rank": rank, "name": name, "batch": batch}
    row |= {"start_ns": round(start), "end_ns": round(end)}
    for column in spans:
        spans[column].append(row.get(column))


def report(one: RunData) -> RanksReport:
    return ranks_of([one])


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_rank_and_the_stage_are_named_with_what_they_cost(tmp_path: Path, parallel: str) -> None:
    found = report(run(tmp_path, (5.0, 25.0), parallel=parallel))
    assert (found.straggler.number, found.straggler.part) == (1, "tokenize")
    assert found.straggler.saved_ms == pytest.approx(20, rel=1e-3)
    assert found.step_ms == pytest.approx(25 + 9 + 10 + 1 + 2, rel=1e-3)
    assert found.without_straggler_ms == pytest.approx(5 + 9 + 10 + 1 + 2, rel=1e-3)
    assert [one.wait_ms for one in found.ranks] == pytest.approx([20, 0], abs=1e-3)
    assert found.exchange_ms == (pytest.approx(1, rel=1e-3) if parallel == "ddp" else None)
    each = TOKENS / found.step_ms * 1e3
    assert [one.tokens_per_s for one in found.ranks] == pytest.approx([each, each])
    assert found.data_costs_ms == pytest.approx(25, rel=1e-3)  # without data a step is what all ranks then need


def test_a_rank_that_saves_checkpoints_makes_the_others_wait(tmp_path: Path) -> None:
    found = report(run(tmp_path, (5.0, 6.0), checkpoint_ms=40.0))
    assert (found.straggler.number, found.straggler.part) == (0, "checkpoint")
    assert found.straggler.saved_ms == pytest.approx(39 / 2, rel=0.1)  # each second step, in which rank 1 then is last
    assert found.ranks[1].wait_ms == pytest.approx(39 / 2, rel=0.1)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_ceiling_of_ranks_is_not_that_of_one_that_waits_for_another(tmp_path: Path, parallel: str) -> None:
    """Rank 0 fetches for 5 ms, and its 20 ms of waiting for rank 1 lie in its backward pass.
    With micro-batches under fsdp it is not known what ranks wait for."""
    micro = {"parallel": parallel, "accumulation": 4 if parallel == "fsdp" else 1}
    for block in range(3):
        for arm, tokenize_ms in {"slow": (5.0, 25.0), "even": (5.0, 5.0)}.items():
            run(tmp_path, tokenize_ms, arm=arm, block=block, **micro)  # type: ignore[arg-type]
    arms = [ArmRecord("slow"), ArmRecord("even")]
    pairs = [ComparisonRecord("slow", "even")]
    study = StudyRecord("ranks", parallel, "done", arms=arms, comparisons=pairs, blocks=3)
    found = analyse(study, list(StudyFolder(tmp_path).runs()))
    (one,) = found.compared
    if parallel == "fsdp":
        assert one.measured.ceiling is None
        assert "No ceiling (its ranks wait for one another for an unknown reason)" in comparison_sentence(one)
        return
    assert one.measured.ratio.median == pytest.approx(47 / 27, rel=1e-3)
    assert one.measured.ceiling.median == pytest.approx(47 / 22, rel=1e-3)
    assert f"Without any data work of any rank slow would be {47 / 22:.2f}x as fast" in comparison_sentence(one)
    assert "Data work takes rank 0 of slow 5.00 of 47.0 ms a step; the step waits for all of it." in headline(found)


def test_what_a_lone_arm_of_ranks_waits_for_is_said_of_the_rank_that_it_is_of(tmp_path: Path) -> None:
    run(tmp_path, (0.1, 25.0))
    found = analyse(
        StudyRecord("ranks", "", "done", arms=[ArmRecord("arm")], blocks=1), [*StudyFolder(tmp_path).runs()]
    )
    said = headline(found)
    assert "Rank 0: It hardly waits for data (0.10 ms)." in said
    assert "rank 1 makes the others wait" in said
    (arm,) = found.arms
    elsewhere = replace(arm, ranks=replace(arm.ranks, straggler=replace(arm.ranks.straggler, part="other")))
    (line,) = rank_lines([elsewhere], ArmNames([]))
    assert "for work outside of all phases (other)." in line.text


def headline(found: StudyReport) -> str:
    return " ".join(line.text for line in first_screen(found).headlines)


def test_scatter_that_both_have_is_charged_to_nobody(tmp_path: Path) -> None:
    """Both wait for one another by turns, 10 ms of scatter each: neither would save that by being like the other."""
    found = report(run(tmp_path, (5.0, 5.0), scatter_ms=10.0))
    assert all(one.wait_ms is not None and one.wait_ms > 2 for one in found.ranks)
    assert found.straggler is None or found.straggler.saved_ms < 2
    scattered = sentence(report(run(tmp_path / "other", (5.0, 5.0), scatter_ms=10.0, seed=1)))
    assert "no rank is surely the one that the others wait for (rank " in scattered  # waits are not denied
    assert "no rank is the one" in sentence(report(run(tmp_path / "even", (5.0, 5.0))))


AT_NIGHT = (pytest.mark.slow, pytest.mark.nightly)


@pytest.mark.parametrize(("count", "studies"), [(1, 6), *(pytest.param(one, 20, marks=AT_NIGHT) for one in (1, 3))])
def test_scatter_alone_names_nobody_in_nineteen_of_twenty_studies(tmp_path: Path, count: int, studies: int) -> None:
    """Ranks that are alike: one of them takes longer by chance in any study."""
    named = 0
    for study in range(studies):
        blocks = [run(tmp_path / f"{study}-{one}", (5.0, 5.0), 10.0, seed=100 * study + one) for one in range(count)]
        named += ranks_of(blocks).straggler is not None
    assert named <= studies // 20


def test_a_rank_that_is_slow_in_few_steps_costs_what_those_cost(tmp_path: Path) -> None:
    """80 ms longer in each fourth step: 20 ms a step on average, all of which would be saved."""
    found = report(run(tmp_path / "bursts", (5.0, 5.0), burst_ms=80.0))
    even = report(run(tmp_path / "even", (5.0, 5.0)))
    assert (found.straggler.number, found.straggler.part) == (1, "tokenize")
    assert found.straggler.saved_ms == pytest.approx(20 * 40 / 38, rel=0.01)  # the first two steps are warm-up
    assert found.without_straggler_ms == pytest.approx(even.step_ms, rel=0.01)


def test_ten_slow_steps_in_a_row_are_one_event_and_name_nobody(tmp_path: Path) -> None:
    """Another process took its core for a while: as slow on average as if they came again and again."""
    again = report(run(tmp_path / "again", (5.0, 5.0), 2.0, burst_ms=60.0))
    once = report(run(tmp_path / "once", (5.0, 5.0), 2.0, burst_ms=60.0, bursts=range(15, 25)))
    assert again.straggler is not None
    assert once.straggler is None


def sentence(found: RanksReport) -> str:
    arm = SimpleNamespace(name="arm", ranks=found, control=None)
    (line,) = rank_lines([arm], ArmNames(["arm"]))  # type: ignore[list-item]
    return line.text


def test_micro_batches_under_fsdp_hide_who_waits(tmp_path: Path) -> None:
    found = report(run(tmp_path, (5.0, 25.0), parallel="fsdp", accumulation=4))
    assert found.straggler is None
    assert [one.wait_ms for one in found.ranks] == [None, None]
    assert "are unknown, because each micro-batch of a step begins with its own wait (fsdp)." in sentence(found)
    assert report(run(tmp_path / "ddp", (5.0, 25.0), accumulation=4)).straggler is not None


def test_blocks_that_name_different_ranks_name_none(tmp_path: Path) -> None:
    slow = [(25.0, 5.0), (5.0, 25.0), (5.0, 26.0), (5.0, 27.0), (5.0, 28.0)]
    blocks = [run(tmp_path / str(place), times) for place, times in enumerate(slow)]
    most = ranks_of(blocks)
    assert most.straggler.number == 1
    assert most.straggler.saved_ms == pytest.approx((20 + 21 + 22 + 23) / 4, rel=1e-3)
    fewer = ranks_of(blocks[:4])
    assert fewer.straggler is None
    assert fewer.without_straggler_ms == fewer.step_ms


def test_what_a_straggler_costs_beside_scatter_is_what_is_saved_without_it(tmp_path: Path) -> None:
    slow = report(run(tmp_path / "slow", (5.0, 25.0), scatter_ms=10.0))
    even = report(run(tmp_path / "even", (5.0, 5.0), scatter_ms=10.0))
    assert (slow.straggler.number, slow.straggler.part) == (1, "tokenize")
    assert slow.without_straggler_ms == pytest.approx(even.step_ms, rel=0.03)


def test_a_damaged_table_of_another_rank_is_not_read(tmp_path: Path) -> None:
    one = run(tmp_path, (5.0, 25.0))
    path = one.folder / rank_file("steps", 1)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert ranks_of([one]) is None


def test_one_of_several_ranks_is_not_replayed(tmp_path: Path) -> None:
    one = run(tmp_path, (5.0, 25.0))
    assert rank_steps(one) is None  # which is for programs that are attached to
    with pytest.raises(InputError, match="arm, block 0: its ranks wait for one another"):
        replayable(one)
