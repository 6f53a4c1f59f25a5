"""Check Python, its packages, torch, tokenizers, compilers, and whether py-spy may sample a run (ptrace)."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator, Mapping

from harness.machine.capacity import REMEDIES, cause_in
from harness.machine.checks.check import REINSTALL, Check, fail, ok, warn
from harness.machine.packages import OWN_PACKAGE, package_version
from harness.machine.software import Toolchain, Torch
from harness.machine.tracing import Permissions, PySpyTool

LEAST_PYTHON = (3, 11)
SLOW_IMPORT_S = 20.0
INSTALL = "python -m pip install -e . (in the harness's folder)"
SLOW = "no answer within"  # start of the timeout message of harness.machine.limits
SPARED = {"sentencepiece"}  # Only scenarios with such a tokenizer need it.


def check_python() -> Check:
    version = platform.python_version()
    finding = f"{version} on {platform.system()} {platform.release()}"
    if sys.version_info < LEAST_PYTHON:
        return fail("python", finding, "Python 3.11 or newer")
    missing = sorted(name for name in _needed() if package_version(name) is None)
    if missing:
        return fail("python", f"{finding}; missing: {', '.join(missing)}", INSTALL)
    if sys.platform != "linux":
        return warn("python", f"{finding}: the probes read Linux's /proc, and runs are forked as Linux does", "Linux")
    shown = ", ".join(f"{name} {package_version(name)}" for name in ("transformers", "tokenizers", "pyarrow", "numpy"))
    return ok("python", f"{finding}; {shown}")


def check_imports(problems: Mapping[str, str], *, torch_works: bool) -> Iterator[Check]:
    """Yield the packages that fail to import (``problems``). transformers fails with torch, and is not named then."""
    slow = sorted(package for package, reason in problems.items() if reason.startswith(SLOW))
    if slow:
        fix = "the virtual environment on a local disk, or wait until this machine is idle"
        yield warn("packages", f"{', '.join(slow)}: {problems[slow[0]]} to import", fix)
    blamed: dict[str, str] = {}  # package by reason, because packages that import a broken one fail for the same reason
    for package, reason in problems.items():
        if package not in slow and (torch_works or package != "transformers"):
            blamed.setdefault(reason, package)
    for reason, package in blamed.items():
        line = warn if package in SPARED else fail
        if version := package_version(package):  # Otherwise it is not installed, and check_python reports that.
            limit = cause_in(reason)  # Installing again does not help if a limit of this machine is the cause.
            fix = f"{REINSTALL} {package}" if limit is None else REMEDIES[limit]
            yield line("packages", f"{package} {version} cannot be imported: {reason}", fix)
    if not problems:
        yield ok("packages", "all packages that a run needs can be imported")


def check_torch(torch: Torch) -> Check:
    finding = f"{torch.version}, {torch.cpu_capability} on the CPU, imported in {torch.import_s:.1f} s"
    if torch.import_s < SLOW_IMPORT_S:
        return ok("torch", finding)
    return warn("torch", finding, "the virtual environment on a local disk; a second import is faster")


def no_torch(reason: str) -> Check:
    if reason.startswith(SLOW):
        return fail(
            "torch", f"{reason} to import", "the virtual environment on a local disk; a second import is faster"
        )
    reinstall = f"{REINSTALL} torch, with the command of pytorch.org/get-started for this machine"
    return fail("torch", f"cannot be imported: {reason}", INSTALL if package_version("torch") is None else reinstall)


def check_tokenizers(environ: Mapping[str, str]) -> Check:
    """Return the line on TOKENIZERS_PARALLELISM. If it is on, forked loader workers can wait forever."""
    value = environ.get("TOKENIZERS_PARALLELISM")
    named = "TOKENIZERS_PARALLELISM " + ("not set" if value is None else f"is {value!r}")
    threads = f", RAYON_NUM_THREADS={environ['RAYON_NUM_THREADS']}" if "RAYON_NUM_THREADS" in environ else ""
    finding = f"{named}{threads}; harness runs set it to false"
    if value is None or value.lower() not in ("true", "on", "yes", "y", "1", "t"):
        return ok("tokenizers", finding)
    return warn(
        "tokenizers",
        f"{finding}, but a trainer of your own with forked loader workers can hang",
        "unset TOKENIZERS_PARALLELISM",
    )


def check_compile(toolchain: Toolchain, torch: Torch) -> Check:
    """Return the line on the compilers for torch.compile: C++ on the CPU; on CUDA also triton and a C compiler."""
    cuda = bool(torch.cuda_devices)
    python_headers = f"sudo apt install python{sys.version_info[0]}.{sys.version_info[1]}-dev (or dnf: python3-devel)"
    if toolchain.cxx_version is None:
        fix = "sudo apt install g++ (dnf: gcc-c++), or CXX=/path/to/a/compiler"
        return warn("compile", f"{toolchain.cxx} cannot be started: torch.compile fails on the CPU", fix)
    finding = toolchain.cxx_version
    if toolchain.headers_problem is not None:
        fix = python_headers if "Python.h" in toolchain.headers_problem else "a C++ compiler with its standard library"
        return warn("compile", f"{finding}: {toolchain.headers_problem}", fix)
    if toolchain.openmp_problem is not None:
        return warn(
            "compile", f"{finding}: {toolchain.openmp_problem}", "sudo apt install libgomp1 (clang: libomp-dev)"
        )
    if toolchain.cache_forbids_libraries:
        fix = "export TORCHINDUCTOR_CACHE_DIR=DIR, on a disk mounted without noexec"
        return warn("compile", f"{toolchain.cache}: mounted noexec, so compiled code cannot be loaded", fix)
    if cuda and torch.triton is None:
        return warn("compile", f"{finding}, but no triton: torch.compile fails on CUDA", "python -m pip install triton")
    if cuda and toolchain.cc is None:
        fix = "sudo apt install gcc, or CC=/path/to/a/compiler"
        return warn("compile", f"{finding}, but no C compiler for triton's launcher", fix)
    triton = f", triton {torch.triton}" if torch.triton is not None else ""
    return ok("compile", f"{finding} compiles with Python.h and omp.h{triton}")


def _needed() -> set[str]:
    """Return the names of the packages that this project requires, without the optional ones."""
    try:
        requirements = importlib.metadata.requires(OWN_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return {"torch", "transformers", "tokenizers", "pyarrow", "numpy", "pydantic", "PyYAML"}
    names = (re.match(r"[\w.-]+", text) for text in requirements if "extra ==" not in text)
    return {name[0] for name in names if name is not None}


INSTALL_PY_SPY = "python -m pip install py-spy"
BROKEN = f"{REINSTALL} py-spy, or do without: probes.py_spy: false in the scenario"
_REFUSED = re.compile(r"permission denied|operation not permitted|EPERM", re.IGNORECASE)  # py-spy 0.4.3
_SCOPES = {0: "0, own processes", 1: "1, processes that allow it", 2: "2, CAP_SYS_PTRACE only", 3: "3, disabled"}
_PERF = {-1: "everything", 0: "the kernel too", 1: "the kernel too", 2: "own processes in user space"}


def check_ptrace(permissions: Permissions, py_spy: PySpyTool, remedy: str) -> Check:
    """Return the line on whether py-spy may sample our processes. ``remedy``: the fix if the kernel refuses it."""
    kernel = describe(permissions)
    if py_spy.broken:
        return warn("ptrace", f"{kernel}; {py_spy.problem}: no stacks in reports", BROKEN)
    finding = f"{kernel}; py-spy {py_spy.version or 'not found'}"
    if py_spy.problem is None:
        return ok("ptrace", f"{finding}, tested: it can sample harness processes")
    if py_spy.version is None:
        return warn("ptrace", f"{finding} ({py_spy.problem}): no stacks in reports", INSTALL_PY_SPY)
    refused = _REFUSED.search(py_spy.problem) is not None
    return warn("ptrace", f"{finding}, tested: {py_spy.problem}", remedy if refused else f"{INSTALL_PY_SPY} --upgrade")


def describe(permissions: Permissions) -> str:
    """Format Yama's scope, the capability CAP_SYS_PTRACE and the seccomp filter as one line."""
    scope = permissions.yama_scope
    parts = ["no Yama" if scope is None else f"Yama scope {_SCOPES.get(scope, scope)}"]
    if permissions.capable is not None:
        parts.append("CAP_SYS_PTRACE" if permissions.capable else "no CAP_SYS_PTRACE")
    if permissions.seccomp_filter:
        parts.append("a seccomp filter")
    return ", ".join(parts)


def check_perf(permissions: Permissions) -> Check:
    level = permissions.perf_event_paranoid
    if level is None:
        return ok("perf", "not in this kernel (not needed)")
    return ok("perf", f"perf_event_paranoid {level}: {_PERF.get(level, 'nothing')} (not needed)")
