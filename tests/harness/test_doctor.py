"""harness doctor on this machine: devices, profiles, calibration."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import torch

from harness.commands.doctor import _figures, doctor
from trainer.calibrate import cpu_identity, cpu_profile
from trainer.cpu_rates import Effort
from trainer.device_profiles import find_profile, load_profile, profile_names
from trainer.errors import InputError


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    monkeypatch.setattr("trainer.calibrate.EFFORT", Effort(sizes=(16, 32), copy_bytes=2**16, rounds=3, patience_s=0))


def run(capsys: pytest.CaptureFixture[str], calibrate: bool = False, threads: int | None = None) -> list[str]:
    assert doctor(argparse.Namespace(calibrate=calibrate, threads=threads), ["harness", "doctor"]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_cpu_that_is_not_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys)
    threads = torch.get_num_threads()
    assert lines[0].startswith(f"cpu: {cpu_identity()}, ")
    assert re.search(rf"; torch {re.escape(torch.__version__)}, {threads} threads?$", lines[0])
    reason = f"not calibrated: run harness doctor --calibrate --threads {threads}"
    assert lines[1] == f"  profile: none; MFU stays null: {reason}"
    assert lines[-1] == f"device profiles: {', '.join(profile_names())}"


def test_cuda_devices_are_named_with_their_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(run(capsys))
    if not torch.cuda.is_available():
        assert "cuda: no device that torch can see" in text
        return
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        profile = find_profile(name)
        expected = f"{profile.name} (" if profile else "none names this device; MFU stays null"
        assert f"cuda:{index}: {name}\n  profile: {expected}" in text


def test_calibrate_measures_and_remembers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = run(capsys, calibrate=True, threads=1)
    assert lines[0].endswith(", 1 thread")
    assert lines[1].startswith(f"  profile: {tmp_path}")
    rate = r"[\d.e+]+ [GT]FLOP/s"
    assert re.fullmatch(rf"  measured: fp32 {rate}, bf16 {rate}", lines[2])
    assert re.fullmatch(r"  memory \d+ GB at [\d.e+-]+ GB/s; link none: the CPU computes in host memory", lines[3])
    assert cpu_profile(1) is not None
    assert run(capsys, threads=1) == lines


def test_figures_of_a_device() -> None:
    assert list(_figures(load_profile("h100-sxm"))) == [
        "  dense peak: bf16 989.4 TFLOP/s, fp16 989.4 TFLOP/s, tf32 494.7 TFLOP/s, fp32 66.9 TFLOP/s, "
        "fp8 1978.9 TFLOP/s",
        "  achievable in a matrix product: bf16 794.5 TFLOP/s, fp8 1402.6 TFLOP/s",
        "  memory 80 GB at 3350 GB/s; link PCIe Gen5 x16, 64 GB/s",
        "  4.29 USD per hour on 2026-09-19 (Lambda, on-demand price list (lambda.ai/pricing): 1x H100 SXM, 4.29 USD "
        "per GPU and hour (8x: 3.99))",
    ]


@pytest.mark.parametrize("threads", [0, -2])
def test_no_threads_are_refused(threads: int) -> None:
    with pytest.raises(InputError, match=rf"^doctor: --threads {threads}: at least 1$"):
        doctor(argparse.Namespace(calibrate=True, threads=threads), [])
