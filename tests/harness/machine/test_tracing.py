"""Who may look into a process: Yama, capabilities, seccomp, and py-spy itself on this very process."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from harness.machine.tracing import (
    Permissions,
    PySpyTool,
    check_ptrace,
    describe,
    read_permissions,
    remedy,
    try_py_spy,
)
from tests.harness.machine.tree import plant

YAMA = "proc/sys/kernel/yama/ptrace_scope"
DOCKER = "00000000a80425fb"  # what Docker leaves
REFUSED = PySpyTool("0.4.3", "Permission Denied: Try running again with elevated rights")


def status(effective: str, seccomp: int = 0) -> str:
    return f"Name:\tpython\nCapEff:\t{effective}\nNoNewPrivs:\t0\nSeccomp:\t{seccomp}"


@pytest.mark.parametrize(("scope", "words", "fix"), [
    (0, "Yama scope 0, own processes", "give py-spy the capability: sudo setcap cap_sys_ptrace+ep"),
    (1, "Yama scope 1, processes that allow it", "sudo sysctl kernel.yama.ptrace_scope=0"),
    (2, "Yama scope 2, CAP_SYS_PTRACE only", "sudo sysctl kernel.yama.ptrace_scope=1"),
    (3, "Yama scope 3, disabled", "kernel.yama.ptrace_scope is 3, until a reboot"),
])  # fmt: skip
def test_scopes(tmp_path: Path, scope: int, words: str, fix: str) -> None:
    found = read_permissions(plant(tmp_path, {YAMA: str(scope), "proc/self/status": status("0" * 16)}))
    assert found.yama_scope == scope
    assert describe(found) == f"{words}, no CAP_SYS_PTRACE"
    refused = check_ptrace(found, REFUSED, remedy(tmp_path, {}))
    assert refused.status == "warn"
    assert refused.finding.endswith("py-spy 0.4.3, tested: Permission Denied: Try running again with elevated rights")
    assert refused.fix.startswith(fix)
    assert (
        check_ptrace(found, PySpyTool("0.4.3", None), "x").status == "ok"
    )  # trying it counts, whatever the kernel says


@pytest.mark.parametrize(("files", "environ", "fix"), [
    ({".dockerenv": ""}, {}, "start the container with: docker run --cap-add SYS_PTRACE"),
    ({"run/.containerenv": ""}, {}, "start the container with: podman run --cap-add SYS_PTRACE"),
    ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "add to the container's spec"),
    ({}, {"APPTAINER_CONTAINER": "x.sif"}, "have the node's administrator set sysctl kernel.yama.ptrace_scope=1"),
    ({YAMA: "2"}, {"SLURM_JOB_ID": "1"}, "ask the cluster's administrators for: sudo sysctl"),
    ({".dockerenv": "", YAMA: "3"}, {}, "kernel.yama.ptrace_scope is 3"),
])  # fmt: skip
def test_where_it_runs_decides_who_can_help(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], fix: str
) -> None:
    assert remedy(plant(tmp_path, files), environ).startswith(fix)


def test_a_container(tmp_path: Path) -> None:
    found = read_permissions(plant(tmp_path, {YAMA: "1", "proc/self/status": status(DOCKER, seccomp=2)}))
    assert describe(found) == "Yama scope 1, processes that allow it, no CAP_SYS_PTRACE, a seccomp filter"


def test_a_system_that_tells_nothing(tmp_path: Path) -> None:
    found = read_permissions(tmp_path)
    assert found == Permissions(None, None, None)
    assert describe(found) == "no Yama"


def test_a_status_that_is_no_number(tmp_path: Path) -> None:
    assert read_permissions(plant(tmp_path, {"proc/self/status": status("rubbish")})).capable is None


def test_no_py_spy() -> None:
    line = check_ptrace(Permissions(1, False, False), PySpyTool(None, "not installed"), "x")
    assert (line.status, line.fix) == ("warn", "python -m pip install py-spy")
    assert line.finding.endswith("py-spy not found (not installed): no stacks in reports")


@pytest.mark.slow
@pytest.mark.parametrize(("script", "limit_s", "words"), [
    ("#!/bin/sh\nexec sleep 600", 0.2, "py-spy --version: no answer within 0.2 s"),
    ('#!/bin/sh\n[ "$1" = --version ] && echo py-spy 0.4.3 && exit 0\nexec sleep 600', 3,
     "py-spy dump: no answer within 3 s"),
    ("#!/no/such/interpreter", 3, "py-spy --version: [Errno 2]"),
])  # fmt: skip
def test_a_py_spy_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, limit_s: float, words: str
) -> None:
    (tmp_path / "py-spy").write_text(script)
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))  # the program beside it is taken
    line = check_ptrace(Permissions(1, False, False), try_py_spy(limit_s), "x")
    assert line.status == "warn"
    assert words in line.finding
    fix = "python -m pip install --force-reinstall py-spy, or do without: probes.py_spy: false in the scenario"
    assert line.fix == fix


def test_a_py_spy_that_does_not_know_this_python() -> None:
    problem = PySpyTool("0.3.0", "Error: Failed to find python version from target process")
    assert check_ptrace(Permissions(None, True, False), problem, "x").fix == "python -m pip install py-spy --upgrade"


@pytest.mark.slow
@pytest.mark.skipif(platform.system() != "Linux", reason="ptrace as Linux has it")
def test_py_spy_is_really_tried() -> None:
    found = try_py_spy()
    assert found.version is not None  # a dependency of ours
    line = check_ptrace(read_permissions(), found, remedy())
    assert (line.status == "ok") == (found.problem is None)
