"""What a scenario needs of a machine's limits, and the limits of control groups on processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch.needs import limit_warnings, needs_of, shared_bytes
from harness.machine.capacity import (
    Needs,
    SharedMemory,
    TaskLimit,
    check_files_need,
    check_shared_need,
    check_task_need,
    read_task_limit,
    tightest,
)
from harness.machine.cgroup import find_group
from tests.harness.machine.tree import plant, v2
from trainer.config import DataConfig, TrainerConfig

MIB = 2**20


def config(workers: int, **data: object) -> TrainerConfig:
    return TrainerConfig.model_validate({"data": {"workers": workers, **data}, "compute": {"threads": 2}})


def test_shared_memory_is_that_of_the_batches_in_flight() -> None:
    one = 32 * 2048 * 8
    padded = DataConfig(path="text-padded", workers=4, prefetch=3, batch_size=32, sequence_length=2048)
    assert shared_bytes(padded) == (4 * 3 + 2) * 3 * one
    assert shared_bytes(padded.model_copy(update={"path": "text-stream"})) == (4 * 3 + 2) * 2 * one
    assert shared_bytes(padded.model_copy(update={"workers": 0})) == 0
    small = padded.model_copy(update={"batch_size": 1, "sequence_length": 2})
    assert shared_bytes(small) == (4 * 3 + 2) * 3 * 4096  # a tensor takes whole pages


def test_arms_that_live_together_add_up_and_others_do_not() -> None:
    one, other = config(2), config(8, prefetch=16)
    together, apart = needs_of([one, other], together=True), needs_of([one, other], together=False)
    assert (together.arms, together.workers, apart.arms, apart.workers) == (2, 10, 1, 8)
    assert together.shared_bytes == shared_bytes(one.data) + shared_bytes(other.data)
    assert apart.shared_bytes == shared_bytes(other.data)
    assert together.open_files == apart.open_files == 14 + 4 * 8 + 4 * 16  # of one process
    assert together.tasks == (6 + 2 + 7 * 2) + (6 + 2 + 7 * 8)
    assert needs_of([config(0)], together=True) == Needs(1, 0, 0, 20, 8)


NEEDS = Needs(2, 4, 20 * MIB, 60, 80)


@pytest.mark.parametrize(("shared", "finding", "fix"), [
    (SharedMemory(64 * MIB, 20 * MIB, True), "20 MiB of 64 MiB is free", ""),
    (SharedMemory(64 * MIB, 19 * MIB, True), "19 MiB of 64 MiB is free: batches will be lost", "--shm-size=8g"),
    (SharedMemory(64 * MIB, 64 * MIB, False), "which cannot be used here", "mount a tmpfs"),
    (None, "which cannot be used here", "mount a tmpfs"),
])  # fmt: skip
def test_shared_memory(shared: SharedMemory | None, finding: str, fix: str) -> None:
    line = check_shared_need(NEEDS, shared)
    assert line.finding.startswith("4 loader workers of 2 arms at a time need about 20 MiB in /dev/shm, ")
    assert line.finding.endswith(finding)
    assert (line.status == "ok", fix in line.fix) == (not fix, True)
    assert check_shared_need(Needs(1, 0, 0, 20, 8), None).status == "ok"


@pytest.mark.parametrize(("soft", "status"), [(60, "ok"), (-1, "ok"), (59, "warn")])
def test_open_files(soft: int, status: str) -> None:
    assert check_files_need(NEEDS, soft).status == status


@pytest.mark.parametrize(("limit", "status"), [
    (None, "ok"),
    (TaskLimit(80, None, "ulimit -u"), "ok"),
    (TaskLimit(79, None, "ulimit -u"), "warn"),
    (TaskLimit(100, 20, "pids.max"), "ok"),
    (TaskLimit(100, 21, "pids.max"), "warn"),
])  # fmt: skip
def test_processes(limit: TaskLimit | None, status: str) -> None:
    assert check_task_need(NEEDS, limit).status == status


def test_the_control_group_that_leaves_least_counts(tmp_path: Path) -> None:
    files = {
        "pids.max": "500",
        "pids.current": "450",
        "slurm/pids.max": "max",
        "slurm/pids.current": "40",
        "slurm/job/pids.max": "100",
        "slurm/job/pids.current": "20",
    }
    limit = read_task_limit(find_group("pids", plant(tmp_path, v2("/slurm/job", files))))
    assert limit == TaskLimit(500, 450, f"pids.max of {tmp_path}/sys/fs/cgroup")
    assert tightest([limit, None, TaskLimit(60, 20, "ulimit -u")]) == TaskLimit(60, 20, "ulimit -u")
    assert read_task_limit(None) is None
    assert tightest([None]) is None


def test_warnings_before_a_run_are_those_that_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.machine.capacity.resource.getrlimit", lambda _: (25, 4096))
    monkeypatch.setattr("harness.machine.capacity.read_task_limit", lambda _: TaskLimit(10**6, 1, "pids.max"))
    monkeypatch.setattr("harness.machine.capacity.user_task_limit", lambda: None)
    monkeypatch.setattr("harness.machine.capacity.read_shared_memory", lambda _: SharedMemory(64 * MIB, MIB, True))
    shared, files = limit_warnings([config(2, batch_size=64, sequence_length=2048)], together=True)
    assert "18 MiB in /dev/shm, 1 MiB of 64 MiB is free: batches will be lost; fix: docker run --shm-size=8g" in shared
    assert files.startswith(
        "a process of it opens about 36 files, at most 25 allowed: batches will be lost; fix: ulimit"
    )
    assert limit_warnings([config(0)], together=True) == []
