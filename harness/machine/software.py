"""Read the installed software: packages, torch, compilers for ``torch.compile``, and Slurm's commands.

Imports run in separate programs (``python -m harness.machine.software`` for torch): a broken driver can hang them.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from harness.machine.files import Mount, mount_of
from harness.machine.limits import Look, facts_of_module, output_of
from harness.machine.packages import package_version

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
    cuda_build: str | None
    """CUDA version of the build; None for a build without CUDA."""
    threads: int
    """Intra-op threads, as torch chooses them in this environment."""
    cpu_capability: str
    """The instruction set of its CPU kernels: AVX2, AVX512, ..."""
    import_s: float
    cuda_devices: tuple[str, ...]
    """Names of the usable devices."""
    cuda_problem: str | None
    """Why torch can use none, as torch reports it."""
    triton: str | None
    """Triton's version; None if it is not installed."""


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

    cxx: str
    """The C++ compiler as Inductor chooses it: $CXX, else g++ (clang++ on macOS)."""
    cxx_version: str | None
    """None if the compiler cannot be started."""
    headers_problem: str | None
    """The compiler's error for a program with Python.h; None without an error."""
    openmp_problem: str | None
    """The compiler's error for a program with omp.h; None without an error."""
    cc: str | None
    """The C compiler as Triton chooses it: $CC, else gcc, else clang; None without a compiler."""
    cache: Path
    """Folder in which Inductor stores the libraries that it builds, and from which it loads them."""
    cache_forbids_libraries: bool
    """True if the folder's file system is mounted noexec."""


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
    problem: str | None = None
    """Why the controller did not answer; None if it did, or if the commands are missing."""


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


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asdict(_look())) + "\n")
