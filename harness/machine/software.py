"""Read and check the installed software: packages, torch, compilers for ``torch.compile``, and Slurm's commands.

Imports run in separate programs (``python -m harness.machine.software`` for torch): a broken driver can hang them.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from harness.machine.capacity import REMEDIES, cause_in
from harness.machine.check import REINSTALL, Check, fail, ok, warn
from harness.machine.files import Mount, mount_of
from harness.machine.limits import Look, facts_of_module, output_of
from harness.machine.packages import OWN_PACKAGE, package_version
from trainer.errors import one_line

IMPORT_LIMIT_S = 90.0  # seconds, as for torch; a cold import from a network file system takes a minute
KILL_S = 5.0  # seconds to end a process that did not answer
# Module by package, dependencies first. transformers checks the versions of its dependencies and imports the rest on
# use. torch and nvidia-ml-py have their own readings.
MODULES = {
    "numpy": "numpy",
    "PyYAML": "yaml",
    "pydantic": "pydantic",
    "markdown-it-py": "markdown_it",
    "rich": "rich.console",
    "sentencepiece": "sentencepiece",
    "tokenizers": "tokenizers",
    "pyarrow": "pyarrow.parquet",
    "matplotlib": "matplotlib",
    "transformers": "transformers",
    "fsspec": "fsspec",
}


def read_imports() -> dict[str, str]:
    """Return {package: import error} of MODULES, in that order. Each import runs in a process of its own."""
    tries = {package: Look(partial(_try, module), IMPORT_LIMIT_S + KILL_S) for package, module in MODULES.items()}
    outcomes = {package: _outcome(tried) for package, tried in tries.items()}
    return {package: problem for package, problem in outcomes.items() if problem is not None}


def _try(module: str) -> str | None:
    status, _, errors = output_of([sys.executable, "-c", f"import {module}"], IMPORT_LIMIT_S)
    if status == 0:
        return None
    lines = errors.strip().splitlines()
    return lines[-1].strip() if lines else f"Python ended with status {status}"


def _outcome(tried: Look[str | None]) -> str | None:
    try:
        return tried.result()
    except OSError as error:  # A timeout is an OSError.
        return str(error)


TORCH_LIMIT_S = 90.0  # seconds; a cold import from a network file system takes a minute


@dataclass(frozen=True)
class Torch:
    """Facts of the installed torch and the CUDA devices that it can use, read by :func:`read_torch`."""

    version: str
    cuda_build: str | None  # CUDA version of the build; None for a build without CUDA.
    threads: int  # Intra-op threads, as torch chooses them in this environment
    cpu_capability: str  # The instruction set of its CPU kernels: AVX2, AVX512, ...
    import_s: float
    cuda_devices: tuple[str, ...]  # Names of the usable devices
    cuda_problem: str | None  # Why torch can use none, as torch reports it
    triton: str | None  # Triton's version; None if it is not installed.


def read_torch() -> Torch:
    """Read the facts in a separate process. Raise ImportError, or TimeoutError after :data:`TORCH_LIMIT_S` seconds."""
    try:
        facts: Any = dict(facts_of_module("harness.machine.software", TORCH_LIMIT_S))
    except RuntimeError as error:
        raise ImportError(str(error)) from error
    return Torch(**{**facts, "cuda_devices": tuple(facts["cuda_devices"])})


def _look() -> Torch:
    start = monotonic()
    import torch

    import_s = monotonic() - start
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        names: list[str] = []
        problem = None
        try:
            names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
            if not torch.cuda.is_available():
                names = []
        except (RuntimeError, AssertionError) as error:
            problem = _line(error)
    if not names and problem is None and warned:
        problem = _line(warned[-1].message)
    capability: Any = torch.backends.cpu.get_cpu_capability()
    return Torch(
        version=torch.__version__,
        cuda_build=torch.version.cuda,
        threads=torch.get_num_threads(),
        cpu_capability=str(capability),
        import_s=import_s,
        cuda_devices=tuple(names),
        cuda_problem=problem,
        triton=_triton(),
    )


def _triton() -> str | None:
    versions = map(package_version, ("triton", "pytorch-triton", "triton-windows"))
    return next((version for version in versions if version is not None), None)


def _line(problem: object) -> str:
    return str(problem).strip().splitlines()[0]


COMPILE_TRY_LIMIT_S = 20
# Inductor's CPU kernels include omp.h (torch/_inductor/cpp_builder.py), Triton's launcher includes Python.h.
_PROGRAM = "#include <Python.h>\n#include <cmath>\n{openmp}int main() {{ return 0; }}\n"


@dataclass(frozen=True)
class Toolchain:
    """Result of trying the compilers that ``torch.compile`` needs, made by :func:`read_toolchain`."""

    cxx: str  # The C++ compiler as Inductor chooses it: $CXX, else g++ (clang++ on macOS).
    cxx_version: str | None  # None if the compiler cannot be started
    headers_problem: str | None  # The compiler's error for a program with Python.h; None without an error.
    openmp_problem: str | None  # The compiler's error for a program with omp.h; None without an error.
    cc: str | None  # The C compiler as Triton chooses it: $CC, else gcc, else clang; None without a compiler.
    cache: Path  # Folder in which Inductor stores the libraries that it builds, and from which it loads them
    cache_forbids_libraries: bool  # True if the folder's file system is mounted noexec


def read_toolchain(environ: Mapping[str, str], mounts: list[Mount]) -> Toolchain:
    """Try the compilers on a small program. They only check its syntax, which takes some tenths of a second."""
    cxx = environ.get("CXX") or ("clang++" if os.uname().sysname == "Darwin" else "g++")
    cc = environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    cache = Path(environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir(), f"torchinductor_{_user()}"))
    mount = mount_of(cache.absolute(), mounts)
    noexec = mount is not None and mount.option("noexec") is not None
    version = _version(cxx)
    if version is None:
        return Toolchain(cxx, None, None, None, cc, cache, noexec)
    headers = _reads(cxx, openmp=False)
    openmp = None if headers else _reads(cxx, openmp=True)
    return Toolchain(cxx, version, headers, openmp, cc, cache, noexec)


def _version(cxx: str) -> str | None:
    """Return the first line that ``cxx --version`` prints; None if the compiler cannot be started."""
    try:
        status, output, _ = output_of([*cxx.split(), "--version"], COMPILE_TRY_LIMIT_S)
    except OSError:
        return None
    return output.splitlines()[0].strip() if status == 0 and output else None


def _reads(cxx: str, *, openmp: bool) -> str | None:
    """Return the compiler's first error for a program with Python.h (and omp.h if ``openmp``); None without one."""
    include = sysconfig.get_path("include")
    command = [*cxx.split(), "-fsyntax-only", *(["-fopenmp"] if openmp else []), f"-I{include}", "-x", "c++", "-"]
    program = _PROGRAM.format(openmp="#include <omp.h>\n" if openmp else "")
    status, _, errors = output_of(command, COMPILE_TRY_LIMIT_S, program)
    if status == 0:
        return None
    lines = [line.strip() for line in errors.splitlines() if "error" in line]
    return (lines or errors.splitlines() or [f"status {status}"])[0]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown_user"


COMMANDS = ("sbatch", "squeue", "scancel")  # used by launch.slurm
SLURM_LIMIT_S = 12.0  # sinfo itself gives up after MessageTimeout, 10 s by default.


@dataclass(frozen=True)
class BatchSystem:
    """Parts of Slurm that are available here. ``partitions``: as sinfo prints them, the default with a star."""

    missing: tuple[str, ...]
    partitions: tuple[str, ...] = ()
    problem: str | None = None  # Why the controller did not answer; None if it did, or if the commands are missing.


def missing_commands() -> tuple[str, ...]:
    """Return those of :data:`COMMANDS` that are not found on PATH."""
    return tuple(name for name in COMMANDS if shutil.which(name) is None)


def read_batch_system() -> BatchSystem:
    if missing := missing_commands():
        return BatchSystem(missing)
    try:
        status, output, errors = output_of(["sinfo", "--noheader", "--format=%P"], SLURM_LIMIT_S)
    except OSError as error:  # A timeout is an OSError.
        return BatchSystem((), problem=str(error))
    if status:
        lines = errors.strip().splitlines()
        return BatchSystem((), problem=lines[-1].strip() if lines else f"sinfo ended with status {status}")
    return BatchSystem((), tuple(output.split()))


LEAST_PYTHON = (3, 11)
SLOW_IMPORT_S = 20.0
LOCAL_DISK = "the virtual environment on a local disk; a second import is faster"
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
    return warn("torch", finding, LOCAL_DISK)


def no_torch(reason: str) -> Check:
    if reason.startswith(SLOW):
        return fail("torch", f"{reason} to import", LOCAL_DISK)
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
    problem = "a trainer of your own with forked loader workers can hang"
    return warn("tokenizers", f"{finding}, but {problem}", "unset TOKENIZERS_PARALLELISM")


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
        fix = "sudo apt install libgomp1 (clang: libomp-dev)"
        return warn("compile", f"{finding}: {toolchain.openmp_problem}", fix)
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


def check_batch_system(found: BatchSystem) -> Check:
    """Return the line on whether ``launch.slurm`` can submit jobs from here. Missing commands are ok."""
    if found.missing:
        return ok("slurm jobs", f"no {', '.join(found.missing)} here: launch.slurm cannot submit, all else works")
    if found.problem is not None:
        fix = "where jobs are submitted (a login node); SLURM_CONF, if Slurm's configuration lies elsewhere"
        return warn("slurm jobs", f"sbatch is here, but no controller answers: {one_line(found.problem)}", fix)
    return ok("slurm jobs", f"sbatch is here; partitions: {', '.join(found.partitions) or 'none'}")


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asdict(_look())) + "\n")
