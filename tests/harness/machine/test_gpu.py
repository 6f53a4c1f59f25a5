"""The real nvidia-ml-py against a small library compiled here, in the process that asks it; and what is said of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.machine.gpu import Device, Nvml, check_cuda, check_driver, check_nvml, driver_loaded, read_nvml
from harness.machine.software import Torch
from tests.harness.machine.tree import plant

SOURCE = Path(__file__).with_name("libnvidia-ml.c")
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (x@y)  Mon\nGCC version: 12"
)
NO_NVML = Nvml(None, None, (), "NVML Shared Library Not Found", True)
H100 = Device("NVIDIA H100 80GB HBM3", 80 * 2**30, 2**30, True, 0, 0, True, None, ())
OLD = Device("Old Card", None, None, None, None, None, False, None, ())


def torch(build: str | None, devices: tuple[str, ...] = (), problem: str | None = None) -> Torch:
    return Torch("2.13.0", build, 4, "AVX2", 2.0, devices, problem, None)


def build_stub(folder: Path) -> str:
    """LD_LIBRARY_PATH with the stand-in first."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=300)
    return ":".join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", build_stub(tmp_path))
    return monkeypatch


def break_package(folder: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the programs that are started: its metadata stays, as with a library that is missing."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("raise ImportError('lib.so.1: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))


@pytest.mark.slow
@pytest.mark.usefixtures("stub")
def test_devices_with_what_each_lacks() -> None:
    nvml = read_nvml()
    assert nvml == Nvml("570.124.06", "12.8", (H100, OLD), None)
    assert [(line.status, line.name, line.finding) for line in check_nvml(None, nvml)] == [
        ("ok", "gpu 0", "NVIDIA H100 80GB HBM3 80 GiB, GPM"),
        ("ok", "gpu 1", "Old Card, GPM not reported, no persistence mode (slow to start)"),
    ]
    assert check_driver(None, nvml).finding == "570.124.06, CUDA up to 12.8"


@pytest.mark.slow
def test_a_device_that_is_busy_or_slowed(stub: pytest.MonkeyPatch) -> None:
    stub.setenv("STUB_DEVICES", "1")
    stub.setenv("STUB_BUSY", "97")
    (busy,) = check_nvml("570.124.06", read_nvml())
    assert (busy.status, busy.finding) == ("warn", "NVIDIA H100 80GB HBM3 80 GiB, GPM; 0 processes, 97 % busy")
    stub.setenv("STUB_REASONS", "36")  # 0x4 the power limit, 0x20 heat
    (slowed,) = check_nvml("570.124.06", read_nvml())
    assert slowed.status == "warn"
    assert slowed.finding.endswith("GPM; clocks throttled by the power limit and heat")


@pytest.mark.slow
def test_a_library_that_does_not_match_the_driver(stub: pytest.MonkeyPatch) -> None:
    stub.setenv("STUB_INIT", "18")
    (line,) = check_nvml("570.124.06", read_nvml())
    assert line.status == "warn"
    assert "mismatch" in line.finding.lower()
    assert line.fix.startswith("reboot, or reload")


@pytest.mark.slow
def test_a_driver_that_takes_its_caller_down(stub: pytest.MonkeyPatch) -> None:
    stub.setenv("STUB_CRASH", "1")
    nvml = read_nvml()
    assert nvml.broken
    (line,) = check_nvml(None, nvml)
    assert (line.status, line.fix.startswith("first make nvidia-smi work")) == ("warn", True)
    assert check_driver(None, nvml).finding == "not reported: see nvml"
    assert check_cuda(torch("12.8"), nvml, {}).status == "ok"  # torch's own word counts


@pytest.mark.slow
@pytest.mark.parametrize(("where", "code", "problem", "fix"), [
    ("STUB_SECOND", "15", "GPU is lost", "--gpu-reset"),
    ("STUB_SECOND_MEMORY", "15", "GPU is lost", "--gpu-reset"),  # there, but its functions say so
    ("STUB_SECOND", "4", "Insufficient Permissions", "access to its /dev/nvidia*"),
])  # fmt: skip
def test_a_lost_card_leaves_the_others(stub: pytest.MonkeyPatch, where: str, code: str, problem: str, fix: str) -> None:
    stub.setenv(where, code)
    nvml = read_nvml()
    assert (nvml.problem, nvml.devices[0], nvml.devices[1].problem) == (None, H100, problem)
    healthy, lost = check_nvml("570.124.06", nvml)
    assert (healthy.status, healthy.name) == ("ok", "gpu 0")
    assert (lost.status, lost.name, lost.finding) == ("warn", "gpu 1", f"no answer: {problem}")
    assert fix in lost.fix
    assert "1 device unused" in check_cuda(torch(None), nvml, {}).finding
    assert check_cuda(torch("12.8"), Nvml("570.1", "12.8", nvml.devices[1:], None), {}).finding.endswith("here works")


@pytest.mark.slow
def test_a_library_that_fails_at_the_end_has_said_all(stub: pytest.MonkeyPatch) -> None:
    stub.setenv("STUB_SHUTDOWN", "15")
    assert read_nvml().devices == (H100, OLD)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "status"), [("9", "ok"), ("15", "warn"), ("999", "warn")])
def test_only_no_driver_means_nothing_there(stub: pytest.MonkeyPatch, code: str, status: str) -> None:
    """Without /proc/driver/nvidia, as under WSL2."""
    stub.setenv("STUB_INIT", code)
    nvml = read_nvml()
    (line,) = check_nvml(None, nvml)
    assert (line.status, nvml.absent) == (status, status == "ok")
    assert (check_driver(None, nvml).finding == "not reported: see nvml") == (status == "warn")


@pytest.mark.slow
def test_no_nvidia_ml_py_is_not_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_package(tmp_path, "pynvml", monkeypatch)
    nvml = read_nvml()
    (line,) = check_nvml(None, nvml)
    assert (line.status, line.fix) == ("warn", "python -m pip install --force-reinstall nvidia-ml-py")
    assert line.finding.endswith("cannot be imported: ImportError: lib.so.1: cannot open shared object file")
    assert check_driver(None, nvml).finding == "not reported: see nvml"


@pytest.mark.parametrize("build", [None, "13.0"])
def test_a_driver_that_does_not_tell_its_cuda(build: str | None) -> None:
    told, untold = (check_cuda(torch(build), Nvml("570.1", cuda, (H100,), None), {}).fix for cuda in ("12.8", None))
    assert told.startswith("install a torch built for CUDA 12.8 or older")
    assert untold.startswith("install a torch built for a CUDA version that the driver supports")


def test_equal_devices_share_a_line() -> None:
    (line,) = check_nvml(None, Nvml("570.1", "12.8", (H100,) * 8, None))
    assert (line.name, line.finding) == ("gpu 0-7", "8 x NVIDIA H100 80GB HBM3 80 GiB, GPM")


def test_no_driver_is_in_order_on_a_machine_without_devices() -> None:
    (nvml,) = check_nvml(None, NO_NVML)
    assert (nvml.status, check_driver(None, NO_NVML).status, check_cuda(torch(None), NO_NVML, {}).status) == ("ok",) * 3


def test_a_container_without_the_library(tmp_path: Path) -> None:
    loaded = driver_loaded(plant(tmp_path, {"proc/driver/nvidia/version": VERSION}))
    assert loaded == "570.124.06"
    (line,) = check_nvml(loaded, NO_NVML)
    assert line.status == "warn"
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in line.fix
    assert check_driver(loaded, NO_NVML).finding == "570.124.06 in the kernel"


def test_no_driver_in_the_kernel(tmp_path: Path) -> None:
    assert driver_loaded(tmp_path) is None


@pytest.mark.parametrize(("found", "environ", "status", "words"), [
    (torch("12.8", ("NVIDIA H100 80GB HBM3",) * 2), {}, "ok", "supports up to 12.8; 2 x NVIDIA H100 80GB HBM3"),
    (torch(None), {}, "warn", "built without CUDA, 1 device unused"),
    (torch("13.0", (), "The NVIDIA driver on your system is too old"), {}, "warn", "driver on your system is too old"),
    (torch("12.8"), {"CUDA_VISIBLE_DEVICES": ""}, "warn", "CUDA_VISIBLE_DEVICES=''"),
])  # fmt: skip
def test_what_torch_makes_of_a_device(found: Torch, environ: dict[str, str], status: str, words: str) -> None:
    line = check_cuda(found, Nvml("570.1", "12.8", (H100,), None), environ)
    assert line.status == status
    assert words in line.finding


def test_a_torch_for_cuda_without_a_device() -> None:
    assert check_cuda(torch("12.8"), NO_NVML, {}).finding == "torch is built for 12.8, no device here"
