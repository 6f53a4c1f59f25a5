"""Calibration really runs, at tiny sizes: what it finds is cached, found again, and marked as measured."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from trainer.devices.calibrate import (
    FASTEST,
    Effort,
    ProfileFacts,
    Timing,
    Work,
    calibrate,
    core_count,
    cpu_identity,
    cpu_profile,
    measure,
    profile_facts,
    profile_path,
    rate_of,
)
from trainer.devices.profiles import load_profile
from trainer.errors import InputError

TINY = Effort(sizes=(16, 32), copy_bytes=2**16, rounds=3, timeout_s=0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_measured_is_found_again(cache: Path) -> None:
    assert cpu_profile(1) is None
    profile = calibrate(1, TINY)
    assert profile.measured
    assert set(profile.peak) == {"fp32", "bf16"}
    assert profile.peak_flops_per_s("fp32") > 1e6  # a product of 32x32 is 65 thousand FLOPs
    assert profile.achievable_matmul_flops_per_s == {
        dtype: profile.peak_flops_per_s(dtype) for dtype in ("fp32", "bf16")
    }
    assert profile.memory_bandwidth_bytes_per_s > 1e6
    assert profile.memory_bytes > 2**27
    for dtype in ("fp32", "bf16"):
        source = profile.peak_source(dtype)
        assert source.startswith("measured by harness doctor --calibrate, 20")
        assert f"torch {version('torch')}, 1 thread: " in source
        assert source.endswith(("of 16x16, median of the 3 fastest of 3", "of 32x32, median of the 3 fastest of 3"))

    assert cpu_profile(1) == profile
    assert load_profile(str(profile_path(1))) == profile
    assert profile_path(1).is_relative_to(cache)
    assert [path.name for path in profile_path(1).parent.iterdir()] == [profile_path(1).name]  # nothing half-written
    assert cpu_identity() in profile.title
    assert f"{core_count()} core" in profile.title


def test_it_holds_for_that_number_of_threads_only() -> None:
    calibrate(1, TINY)
    assert cpu_profile(2) is None
    assert profile_facts("cpu", True, "fp32", threads=2) == ProfileFacts(
        profile_reason="not calibrated: run harness doctor --calibrate --threads 2"
    )


def test_facts_of_a_calibrated_cpu() -> None:
    profile = calibrate(1, TINY)
    for precision, dtype in (("fp32", "fp32"), ("bf16", "bf16"), ("pure-bf16", "bf16")):
        assert profile_facts("cpu", True, precision, threads=1) == ProfileFacts(
            profile="cpu",
            peak_flops_per_s=profile.peak_flops_per_s(dtype),
            dtype=dtype,
            peak_source=profile.peak_source(dtype),
            peak_measured=True,
            price_per_hour_usd=None,
        )


def test_a_damaged_calibration_counts_as_none() -> None:
    calibrate(1, TINY)
    profile_path(1).write_text("name: cpu\n")
    assert cpu_profile(1) is None
    assert profile_facts("cpu", True, "fp32", threads=1).profile is None


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot be written \(.*\); HARNESS_CACHE=DIR chooses another cache$"):
        calibrate(1, TINY)


def test_torch_keeps_its_threads() -> None:
    before = torch.get_num_threads()
    measure(before + 1, TINY)
    assert torch.get_num_threads() == before


def test_a_layout_that_got_slow_is_not_tried_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.devices.calibrate.LONGEST_S", 0.0)
    rates = measure(1, TINY)
    assert rates["fp32"].what.endswith(" of 16x16")
    assert rates["bf16"].what.endswith(" of 16x16")


def test_a_shared_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.devices.calibrate.WAITED", 1e9)
    assert calibrate(1, TINY).notes == ()
    monkeypatch.setattr("trainer.devices.calibrate.WAITED", -1.0)
    (note,) = calibrate(1, TINY).notes
    assert note.startswith("other processes used the cores (waited for a core for ")
    assert note.endswith("calibrate again when the machine is idle")


def test_the_rate_is_the_median_of_the_fastest() -> None:
    """Ten calls of 100 units: five undisturbed ones around 2 s, five slowed down by a neighbour."""
    quick = [Timing(wall, 0.0) for wall in (2.0, 2.1, 1.9, 2.2, 1.0)]
    slow = [Timing(9.0, 7.0)] * 5
    rate = rate_of(Work("work", 100.0, lambda: None), slow + quick, threads=2)
    assert (rate.per_s, rate.calls, rate.waited) == (50.0, 10, 0.0)
    assert FASTEST == 5


def test_waiting_counts_where_no_call_was_left_in_peace() -> None:
    """Two threads over 4 s of wall time have 8 s; 2 of them were spent waiting for a core."""
    rate = rate_of(Work("work", 100.0, lambda: None), [Timing(2.0, 1.0)] * 2, threads=2)
    assert (rate.per_s, rate.waited) == (50.0, 0.25)
