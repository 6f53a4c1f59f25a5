"""The profiles in a run's folder: found, told apart, and read on their own clock; damage costs one file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from harness.study.traces.kineto import file_name, files, read_profiles
from tests.harness.study.traces.kineto_text import complete, trace


def write(folder: Path, name: str, **metadata: object) -> None:
    (folder / name).write_bytes(gzip.compress(trace([complete("op", 1000, 1)], 5000, **metadata)))


def test_files_are_named_and_ordered(tmp_path: Path) -> None:
    roles = ["loader-10", "main", "loader-2"]
    for name in [*map(file_name, roles), file_name("main", 10), file_name("main", 2), "torch_profile.other.json.gz"]:
        write(tmp_path, name)
    found = [(path.name, role) for path, role in files(tmp_path)]
    assert found == [
        ("torch_profile.json.gz", "main"),
        ("torch_profile.2.json.gz", "main"),
        ("torch_profile.10.json.gz", "main"),
        ("torch_profile.loader-2.json.gz", "loader-2"),
        ("torch_profile.loader-10.json.gz", "loader-10"),
    ]
    assert files(tmp_path / "nowhere") == []


def test_each_file_is_read_on_its_own_clock(tmp_path: Path) -> None:
    write(tmp_path, file_name("main"))
    write(tmp_path, file_name("loader-0"), harness={"realtime_minus_monotonic_ns": [100, 102], "cut": None})
    tables, problems = read_profiles(tmp_path, [10, 30])
    starts = [(table.column("role")[0].as_py(), table.column("start_ns")[0].as_py()) for table in tables]
    assert starts == [("main", 5980), ("loader-0", 5899)]
    assert problems == []


def test_a_damaged_file_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path, file_name("main"))
    whole = (tmp_path / file_name("main")).read_bytes()
    (tmp_path / file_name("loader-0")).write_bytes(whole[:-20])
    tables, problems = read_profiles(tmp_path, [0, 0])
    assert len(tables) == 1
    assert len(problems) == 1
    assert file_name("loader-0") in problems[0]
    tables, problems = read_profiles(tmp_path)
    assert tables == []
    assert "its clock is unknown" in problems[0]


@pytest.mark.parametrize("offsets", ["x", 5, ["a"], [0.5], [], {"a": 1}])
def test_offsets_that_are_no_numbers_are_told(tmp_path: Path, offsets: object) -> None:
    write(tmp_path, file_name("main"), harness={"realtime_minus_monotonic_ns": offsets, "cut": None})
    tables, problems = read_profiles(tmp_path)
    assert tables == []
    assert "its clock is unknown" in problems[0]
