"""Memory, swap, shared memory, disks and open files."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.machine.capacity import (
    Memory,
    SharedMemory,
    Storage,
    check_memory,
    check_open_files,
    check_shared_memory,
    check_storage,
    check_swap,
    read_memory,
    read_shared_memory,
    read_storage,
)
from harness.machine.cgroup import MemoryLimit
from harness.machine.files import Mount, mount_of, read_mounts
from tests.harness.machine.tree import mount_line, plant

GIB = 2**30
MEMINFO = """MemTotal:       16777216 kB
MemFree:          100000 kB
MemAvailable:    8388608 kB
SwapTotal:       4194304 kB
SwapFree:        {free} kB
HugePages_Total:       0"""


def test_memory_of_the_machine(tmp_path: Path) -> None:
    pages = "sys/kernel/mm/transparent_hugepage/enabled"
    plant(tmp_path, {"proc/meminfo": MEMINFO.format(free=4194304), pages: "always [madvise] never"})
    memory = read_memory(tmp_path)
    assert memory == Memory(16 * GIB, 8 * GIB, 4 * GIB, 0, "madvise")
    assert check_memory(memory, None).finding == "8 GiB free of 16 GiB, no cgroup limit; huge pages madvise"
    assert check_swap(memory).finding == "0 KiB of 4 GiB in use"


def test_swap_in_use(tmp_path: Path) -> None:
    line = check_swap(read_memory(plant(tmp_path, {"proc/meminfo": MEMINFO.format(free=1048576)})))
    assert line.status == "warn"
    assert line.finding.startswith("3 GiB of 4 GiB in use")


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    memory = read_memory(tmp_path)
    assert memory == Memory(None, None, 0, 0, None)
    assert check_memory(memory, None).finding == "not reported by this system"
    assert check_swap(memory).finding == "none"


def test_a_control_group_may_allow_less() -> None:
    memory = Memory(64 * GIB, 60 * GIB, 0, 0, None)
    limit = MemoryLimit(4 * GIB, 3 * GIB, 0, 2, Path("job"), 2)
    line = check_memory(memory, limit)
    assert line.status == "warn"
    assert line.finding == "1 GiB free of 64 GiB, cgroup v2 limit 4 GiB, 2 killed by the kernel (out of memory)"
    assert check_memory(memory, MemoryLimit(32 * GIB, 3 * GIB, 0, 0, Path("job"), 1)).status == "ok"


def test_a_small_dev_shm(tmp_path: Path) -> None:
    """As Docker mounts it by default."""
    (tmp_path / "dev/shm").mkdir(parents=True)
    plant(tmp_path, {"proc/self/mountinfo": mount_line("/dev/shm", "tmpfs", "rw,size=65536k")})
    shared = read_shared_memory(read_mounts(tmp_path), tmp_path)
    assert shared.total_bytes == 64 * 2**20
    line = check_shared_memory(shared)
    assert line.status == "warn"
    assert "free of 64 MiB: loader workers" in line.finding
    assert "--shm-size=8g" in line.fix


def test_no_dev_shm(tmp_path: Path) -> None:
    assert read_shared_memory([], tmp_path) is None
    assert check_shared_memory(None).finding == "none: loader workers cannot start"
    assert "not writable" in check_shared_memory(SharedMemory(GIB, GIB, False)).finding


@pytest.mark.parametrize(("free", "status"), [(GIB, "ok"), (2**20, "warn")])
def test_dev_shm_that_is_full(free: int, status: str) -> None:
    assert check_shared_memory(SharedMemory(8 * GIB, free, True)).status == status


@pytest.mark.parametrize("size", ["50%", "", "rubbish", "k"])
def test_a_size_that_is_no_number_leaves_it_to_the_file_system(tmp_path: Path, size: str) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    plant(tmp_path, {"proc/self/mountinfo": mount_line("/dev/shm", "tmpfs", f"rw,size={size}")})
    shared = read_shared_memory(read_mounts(tmp_path), tmp_path)
    assert shared.total_bytes > 0


def test_the_deepest_mount_holds_a_path_and_of_equals_the_last() -> None:
    mounts = [Mount(point, "/", kind, ()) for point, kind in (("/", "ext4"), ("/work", "xfs"), ("/work", "nfs4"))]
    for path, kind in (("/work/results", "nfs4"), ("/workshop", "ext4"), ("/", "ext4")):
        mount = mount_of(Path(path), mounts)
        assert mount.kind == kind
    assert mount_of(Path("/x"), []) is None


def test_a_folder_yet_to_be_made(tmp_path: Path) -> None:
    storage = read_storage(tmp_path / "a" / "b", [Mount("/", "/", "nfs4", ())])
    assert storage.existing == tmp_path
    assert storage.writable
    assert storage.network
    line = check_storage("results", storage, "--out DIR")
    assert line.finding.startswith(f"{tmp_path}/a/b (does not exist yet): ")
    assert not (tmp_path / "a").exists()


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = check_storage("cache", read_storage(tmp_path / "file" / "cache", []), "export HARNESS_CACHE=DIR")
    assert line.status == "fail"
    assert line.fix == "another folder: export HARNESS_CACHE=DIR"


@pytest.mark.parametrize(("free", "status"), [(10**7, "fail"), (2 * GIB, "warn"), (50 * GIB, "ok")])
def test_room_on_the_disk(free: int, status: str) -> None:
    assert check_storage("results", Storage(Path("/r"), Path("/r"), free, True, "ext4"), "--out DIR").status == status


@pytest.mark.parametrize(("soft", "hard", "status", "fix"), [
    (1024, 4096, "ok", ""),
    (-1, -1, "ok", ""),
    (256, -1, "warn", "ulimit -n 4096"),
    (256, 2048, "warn", "ulimit -n 2048"),
    (256, 512, "warn", "docker run --ulimit nofile=4096, or nofile in /etc/security/limits.conf"),
])  # fmt: skip
def test_open_files(soft: int, hard: int, status: str, fix: str) -> None:
    line = check_open_files(soft, hard)
    assert (line.status, line.fix) == (status, fix)
