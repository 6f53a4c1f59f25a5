"""Check the needs of ``torch.compile`` besides torch: compilers, Python's headers, a folder for libraries."""

from __future__ import annotations

import getpass
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.machine.files import Mount, mount_of
from harness.machine.limits import output_of

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
    """Return the compiler's first error for a program with Python.h (and omp.h if ``openmp``).

    None if it accepts it.
    """
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
